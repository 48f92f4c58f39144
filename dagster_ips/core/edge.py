"""What belongs to one numbered line of captures."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edge:
    """A consumer and the upstream it reads, by their asset keys (``"a/b"``).

    Example:
        >>> Edge("playback_daily", "playback").slug
        'playback_daily__playback'
        >>> len(Edge("playback_daily", "playback").id)
        32
    """

    consumer: str
    upstream: str

    @property
    def id(self) -> str:
        """32 lowercase characters, the same in every process: fits any backend's key and a snapshot property's name."""
        return hashlib.blake2b(json.dumps([self.consumer, self.upstream]).encode(), digest_size=16).hexdigest()

    @property
    def slug(self) -> str:
        """Readable and usable as a table name; different edges may share one, so names add more."""
        return f"{_slug(self.consumer)}__{_slug(self.upstream)}"

    def __str__(self) -> str:
        return f"{self.consumer} ← {self.upstream}"


def _slug(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")[:40]
