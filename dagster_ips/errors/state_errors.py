"""Problems with the record of what was consumed: whoever runs Dagster fixes them."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

from dagster_ips.errors.base_error import IpsError
from dagster_ips.errors.remedies import full_run


@dataclass(eq=False)
class UpstreamRenamedError(IpsError):
    """A consumer with a ``start`` has read the same table under another key of its upstream."""

    consumer: str
    upstream: str
    former: str
    consumed_snapshot_id: int | None

    def __str__(self) -> str:
        consumed = self.consumed_snapshot_id
        at = f", up to snapshot {consumed}" if consumed is not None else ""
        go_on = f"To continue from there, declare incremental(start={consumed}) and run " if at else "To start over: "
        return (
            f"{self.consumer} has consumed changes of the same table as {self.former}{at}. Starting {self.upstream} "
            f"where incremental(start=...) says could skip rows or duplicate them, so nothing was captured and no "
            f"state changed. {go_on}dagster-ips reset {quote(self.consumer)} --upstream {quote(self.upstream)} "
            f"--why '...'. To recompute everything: {full_run(self.consumer)}."
        )


@dataclass(eq=False)
class CaptureVoidError(IpsError):
    """A person asked for a reset or a rewind after the capture was taken."""

    consumer: str
    upstream: str
    number: int
    kind: str
    who: str
    why: str

    def __str__(self) -> str:
        return (
            f"Capture {self.number} of {self.upstream} by {self.consumer} is no longer valid: {self.who} did a "
            f"{self.kind} since ({self.why}). Its changes are no longer the next ones to read, so nothing was "
            f"published and nothing was consumed. The next run does what was asked for."
        )


@dataclass(eq=False)
class CaptureNotInFlightError(IpsError):
    """A job reports a capture that isn't the one in flight."""

    capture: str
    consumer: str
    upstream: str
    now: str

    def __str__(self) -> str:
        return (
            f"Capture {self.capture} of {self.upstream} by {self.consumer} can't be committed: {self.now}. Counting "
            f"it as consumed could skip rows or hide what another capture published, so no state changed. If the job "
            f"has written rows that another capture also holds, they may be duplicated: compare, and if so recompute "
            f"everything. To process what is pending now: dagster-ips capture {quote(self.consumer)}"
        )


@dataclass(eq=False)
class StateVersionError(IpsError):
    """What a table contains, or the asset's cursor, was written by a newer version of this library."""

    edge: str
    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"The state of {self.edge} has format version {self.found}, but this installation reads only up to "
            f"version {self.known}. Guessing at it could lose or duplicate rows. Upgrade dagster_ips here."
        )


@dataclass(eq=False)
class StateUnreadableError(IpsError):
    """What a table contains, or the asset's cursor, isn't in a format that this library writes."""

    edge: str
    consumer: str
    cause: str

    def __str__(self) -> str:
        return (
            f"The stored state of {self.edge} can't be read ({self.cause}). It is unknown what was consumed, so "
            f"nothing was captured. To rebuild the table and the state: {full_run(self.consumer)}."
        )


@dataclass(eq=False)
class CursorStorageError(IpsError):
    """The Dagster instance has no working cursor storage."""

    cause: str

    def __str__(self) -> str:
        return (
            f"This Dagster instance can't store cursors ({self.cause}). Without them, it forgets which resets and "
            f"rewinds persons asked for, and what jobs outside of Dagster have done. Use an instance whose run storage "
            f"supports daemon cursors (SQLite, PostgreSQL or MySQL)."
        )
