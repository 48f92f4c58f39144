"""What is wrong with the table that an asset writes: someone else wrote to it, or it could not be published."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError

_SHOWN = 5


@dataclass(eq=False)
class TargetChangedError(IpsError):
    """The target isn't the table that the cursor vouches for."""

    table: str
    consumer: str
    what: str

    def __str__(self) -> str:
        return (
            f"{self.table}, the table of {self.consumer}, {self.what}. What was consumed is therefore not all in it, "
            f"and continuing would leave rows out. Nothing was captured and no state changed. To rebuild it from its "
            f"inputs, materialize {self.consumer} with the run tag dagster_ips/mode=full."
        )


@dataclass(eq=False)
class UnknownPublicationError(IpsError):
    """A run may have published what the cursor doesn't know of."""

    table: str
    edge: str
    consumer: str
    snapshot_id: int | None

    def __str__(self) -> str:
        return (
            f"{self.table}: a run of {self.edge} was about to publish snapshot {self.snapshot_id} when it was killed, "
            f"or before Dagster's database was restored from a backup. Whether it did is unknown, because "
            f"the table's snapshots from then have been expired and its metadata files from then are gone. Continuing "
            f"could write rows twice, so nothing was captured. To rebuild the table from its inputs, materialize "
            f"{self.consumer} with the run tag dagster_ips/mode=full; to avoid it, keep snapshots and metadata files "
            f"(write.metadata.previous-versions-max) for longer than a failed run may wait to be repeated."
        )


@dataclass(eq=False)
class TargetOfAnotherError(IpsError):
    """Another asset writes the table."""

    table: str
    asset: str
    owner: str

    def __str__(self) -> str:
        return (
            f"{self.table}, which {self.asset} would write, is the table of {self.owner}, as its snapshots or its "
            f"property dagster-ips.asset say. Of two assets with one table each would take away the other's rows or "
            f"write them twice, so nothing was written and no state changed. Give {self.asset} a table of its own, "
            f"table(...). If it is {self.owner} under a new name, materialize {self.asset} with the run tag "
            f"dagster_ips/take_over={self.owner}: that computes all anew, and {self.owner} is refused from then on."
        )


@dataclass(eq=False)
class ForeignWriteError(IpsError):
    """Someone else changed rows of the table; ``commits`` are told oldest first, ``newest`` is the last one's id."""

    table: str
    asset: str
    commits: tuple[str, ...]
    newest: int

    def __str__(self) -> str:
        more = f" and {len(self.commits) - _SHOWN} more" if len(self.commits) > _SHOWN else ""
        return (
            f"Somebody other than {self.asset} changed rows of its table {self.table}: "
            f"{', '.join(self.commits[:_SHOWN])}{more}. What was added there isn't made of its inputs, and what was "
            f"taken away would stay missing, so nothing was written and nothing was consumed. To compute all of it "
            f"anew, materialize {self.asset} with the run tag dagster_ips/mode=full; to keep the table as it is, "
            f"once with dagster_ips/accept={self.newest}."
        )


@dataclass(eq=False)
class TargetColumnsChangedError(IpsError):
    """Names of the table's columns stand for other columns than when it was written; None if that is unknown."""

    table: str
    asset: str
    columns: tuple[str, ...] | None

    def __str__(self) -> str:
        if self.columns is None:
            what = (
                f"Whether the columns of {self.table} are those that {self.asset} wrote isn't known: the schema by "
                "which it did was cleaned out of the table's metadata, and some name stood for another column once."
            )
        else:
            what = (
                f"{self.table} has other columns under the same names ({', '.join(self.columns)}) than when "
                f"{self.asset} wrote it. They were renamed, or dropped and added again, so that its rows hold other "
                f"values under those names, and no snapshot says so."
            )
        return (
            f"{what} Continuing would leave wrong rows in it, so nothing was written and nothing was consumed. Give "
            f"the columns their names back; or, to compute all of it anew, materialize {self.asset} with the run tag "
            f"dagster_ips/mode=full."
        )


@dataclass(eq=False)
class UnknownRowsError(IpsError):
    """The table had rows before the asset ever wrote to it."""

    table: str
    asset: str
    head_snapshot_id: int

    def __str__(self) -> str:
        return (
            f"{self.table} has rows already, and nothing says that {self.asset} wrote them: its first run would take "
            f"them away, so nothing was written and no state changed. To replace them, materialize {self.asset} with "
            f"the run tag dagster_ips/mode=full; to keep them, give {self.asset} another table, table(...). Where its "
            f"inputs have a start, to continue from the rows as they are, materialize it with "
            f"dagster_ips/accept={self.head_snapshot_id}."
        )


@dataclass(eq=False)
class PublishError(IpsError):
    """The branch could not be made the table's main."""

    table: str
    branch: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.problem} (branch {self.branch}). Nothing was published and nothing was consumed, so "
            f"the run can be repeated as it is."
        )


@dataclass(eq=False)
class AuditError(IpsError):
    """Blocking audits did not pass."""

    table: str
    asset: str
    audits: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.table}: what {self.asset} wrote did not pass {', '.join(self.audits)}, so nothing was published "
            f"and nothing was consumed; readers see the table as it was. Correct the upstream or the asset and run it "
            f"again, or declare the audit with blocking=False."
        )


@dataclass(eq=False)
class DirectWriteError(IpsError):
    """A statement between ``capture`` and its end wrote to the table itself, past the branch."""

    table: str
    snapshot_id: int
    undo: str

    def __str__(self) -> str:
        return (
            f"{self.table}: a statement wrote to the table itself instead of {{target}}. Its rows are seen by everyone "
            f"already (snapshot {self.snapshot_id}); nothing else was published and nothing was consumed, so the next "
            f"run would write them again. Take them back by {self.undo} and write {{target}} in the statement."
        )
