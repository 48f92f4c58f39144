"""What a consumer does when an input's history did more than grow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OnRollback(StrEnum):
    """``ERROR`` stops; ``CONTINUE`` treats the rows that are gone as removed; ``FULL`` recomputes everything."""

    ERROR = "error"
    CONTINUE = "continue"
    FULL = "full"


class OnExpired(StrEnum):
    """The history since the last capture is gone: ``ERROR`` stops; ``FULL`` recomputes everything."""

    ERROR = "error"
    FULL = "full"


class OnRemoved(StrEnum):
    """``APPLY`` also deletes removed rows from the target; ``IGNORE`` follows added rows only."""

    APPLY = "apply"
    IGNORE = "ignore"


class OnUnmapped(StrEnum):
    """Rows that belong to no partition of the consumer: ``ERROR`` stops; ``IGNORE`` leaves them out and reports it."""

    ERROR = "error"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class InputPolicies:
    """One input's policies; the defaults never leave a wrong row in a target."""

    on_rollback: OnRollback = OnRollback.ERROR
    on_expired: OnExpired = OnExpired.ERROR
    on_removed: OnRemoved = OnRemoved.APPLY
    on_unmapped: OnUnmapped = OnUnmapped.ERROR
