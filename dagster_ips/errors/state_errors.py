"""What is wrong with what is remembered of consumed changes: whoever runs Dagster mends it."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError


@dataclass(eq=False)
class LostCursorError(IpsError):
    """The cursor of an edge is gone, and nothing that is left says what was consumed."""

    consumer: str
    upstream: str
    icdc_table: str

    def __str__(self) -> str:
        return (
            f"What {self.consumer} has consumed of {self.upstream} is no longer known to this Dagster instance, and "
            f"its table doesn't say it either, but something was: {self.icdc_table} was made for it. To begin "
            f"again where incremental(start=...) says could leave rows out or double them, so nothing was captured and "
            f"no state changed. To compute everything anew, materialize {self.consumer} with the run tag "
            f"dagster_ips/mode=full. To start again in spite of that: "
            f"dagster-ips reset {self.consumer} --upstream {self.upstream} --why '...'"
        )


@dataclass(eq=False)
class CaptureVoidError(IpsError):
    """A person changed what is consumed after the capture was taken."""

    consumer: str
    upstream: str
    number: int
    kind: str
    who: str
    why: str

    def __str__(self) -> str:
        return (
            f"Capture {self.number} of {self.upstream} by {self.consumer} is no longer valid: there was a {self.kind} "
            f"since, by {self.who} ({self.why}). What it was made of isn't what is to be read next, so nothing was "
            f"published and nothing was consumed. The next run continues from the {self.kind}."
        )


@dataclass(eq=False)
class CaptureNotInFlightError(IpsError):
    """A job wants to commit a capture that isn't the one being worked on."""

    capture: str
    consumer: str
    upstream: str
    now: str

    def __str__(self) -> str:
        return (
            f"Capture {self.capture} of {self.upstream} by {self.consumer} can't be committed: {self.now}. To take it "
            f"for consumed could leave rows out or hide what another published, so no state changed. If the job has "
            f"written rows that another capture holds as well, they may be there twice: compare, and if so compute "
            f"everything anew. To work on what is pending now: dagster-ips capture {self.consumer}"
        )


@dataclass(eq=False)
class StateVersionError(IpsError):
    """The cursor was written by a newer version of this library."""

    edge: str
    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"The state of {self.edge} has format version {self.found}, newer than {self.known}, the newest this "
            f"installation reads. Reading it by guess could lose or double rows. Upgrade dagster_ips here."
        )


@dataclass(eq=False)
class StateUnreadableError(IpsError):
    """The stored cursor is not what this library writes."""

    edge: str
    cause: str

    def __str__(self) -> str:
        return (
            f"The stored state of {self.edge} can't be read ({self.cause}). What was consumed is unknown, so nothing "
            f"was captured. Materialize the consumer with the run tag dagster_ips/mode=full to rebuild both."
        )


@dataclass(eq=False)
class CursorStorageError(IpsError):
    """The Dagster instance has no working cursor storage."""

    cause: str

    def __str__(self) -> str:
        return (
            f"This Dagster instance keeps no cursors ({self.cause}). Without them nothing remembers what was consumed. "
            f"Use an instance with a run storage that supports daemon cursors (SQLite, PostgreSQL or MySQL)."
        )
