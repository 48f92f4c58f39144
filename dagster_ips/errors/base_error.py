"""The base class of every error in this library."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any


@dataclass(eq=False)
class IpsError(Exception):
    """Base class of every error in this library. Its fields hold the values shown in the message.

    Example:
        >>> import pickle
        >>> from dagster_ips.errors import UnknownTableError
        >>> error = UnknownTableError(table="media.playbak", catalog="lake", asset="playback_daily")
        >>> str(pickle.loads(pickle.dumps(error))) == str(error)
        True
    """

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return partial(type(self), **values), ()
