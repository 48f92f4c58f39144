"""Problems with the table that an asset writes: someone else wrote to it, or publishing failed."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError
from dagster_ips.errors.remedies import accepting_run, full_run, run_taking_over

_SHOWN = 5


@dataclass(eq=False)
class TargetChangedError(IpsError):
    """The target was replaced, or rolled back to before what is still known of it."""

    table: str
    consumer: str
    what: str

    def __str__(self) -> str:
        return (
            f"{self.table}, the table of {self.consumer}, {self.what}. It is unknown which changes of its inputs it "
            f"contains now, so continuing could skip some or write rows twice. Nothing was captured and no state "
            f"changed. To rebuild it from its inputs: {full_run(self.consumer)}."
        )


@dataclass(eq=False)
class UnknownPublicationError(IpsError):
    """The snapshot that said what the table contains has left ``main``'s history, and may be none of its ancestors."""

    table: str
    consumer: str

    def __str__(self) -> str:
        return (
            f"It is unknown which changes {self.table} contains. The snapshot that said so for {self.consumer} isn't "
            f"in the history of main any more, and nothing proves that main continues from it: the tag ips_progress "
            f"was dropped, or others committed to the table, expired snapshots and older metadata files. Continuing "
            f"could skip changes or write rows twice, so nothing was captured and no state changed. If the table's "
            f"storage was down, run again. To rebuild the table from its inputs: {full_run(self.consumer)}. To avoid "
            f"this, leave that tag alone, and keep snapshots longer than the asset may be without a run."
        )


@dataclass(eq=False)
class TargetOfAnotherError(IpsError):
    """The table belongs to another asset."""

    table: str
    asset: str
    owner: str

    def __str__(self) -> str:
        return (
            f"{self.table}, which {self.asset} would write, belongs to {self.owner}, according to its snapshots or "
            f"its property dagster-ips.asset. Two assets with the same table would delete each other's rows or write "
            f"them twice, so nothing was written and no state changed. Give {self.asset} a table of its own, "
            f"table(...). If {self.owner} was renamed to {self.asset}: {run_taking_over(self.asset, self.owner)}. That "
            f"recomputes everything, and {self.owner} is refused from then on."
        )


@dataclass(eq=False)
class ForeignWriteError(IpsError):
    """Someone else changed rows of the table; ``commits`` lists how, oldest first, ``newest`` is the last id."""

    table: str
    asset: str
    commits: tuple[str, ...]
    newest: int

    def __str__(self) -> str:
        more = f" and {len(self.commits) - _SHOWN} more" if len(self.commits) > _SHOWN else ""
        return (
            f"Someone other than {self.asset} changed rows of its table {self.table}: "
            f"{', '.join(self.commits[:_SHOWN])}{more}. Rows they added don't come from its inputs, and rows they "
            f"removed would stay missing, so nothing was written and nothing was consumed. To recompute the whole "
            f"table: {full_run(self.asset)} (all of its partitions, if it has any). To continue with the table as it "
            f"is: {accepting_run(self.asset, self.newest)}."
        )


@dataclass(eq=False)
class TargetColumnsChangedError(IpsError):
    """Column names of the table refer to other columns than when it was written; ``columns`` None: it is unknown."""

    table: str
    asset: str
    columns: tuple[str, ...] | None

    def __str__(self) -> str:
        if self.columns is None:
            what = (
                f"It is unknown whether {self.table} still has the columns that {self.asset} wrote: the schema it used "
                "was removed from the table's metadata, and some column name once referred to another column."
            )
        else:
            what = (
                f"{self.table} has different columns under the same names ({', '.join(self.columns)}) than when "
                f"{self.asset} wrote it. They were renamed, or dropped and added again, so its rows now show other "
                f"values under those names, and no snapshot records that."
            )
        return (
            f"{what} Continuing would leave wrong rows in the table, so nothing was written and nothing was consumed. "
            f"Rename the columns back, or recompute the whole table: {full_run(self.asset)}."
        )


@dataclass(eq=False)
class MixedFilesError(IpsError):
    """Partitions of the table can't be replaced: a file from before its partitioning changed has rows of several.

    ``rewrite`` is the statement that rewrites such files.
    """

    table: str
    rewrite: str

    def __str__(self) -> str:
        return (
            f"{self.table} has files from before its partitioning changed, with rows of several partitions, so Iceberg "
            f"can't replace single partitions. Nothing was written and nothing was consumed. Rewrite them in Spark: "
            f"{self.rewrite}. Or recompute everything: {full_run(self.table)}."
        )


@dataclass(eq=False)
class UnknownRowsError(IpsError):
    """The table already had rows before the asset first wrote to it."""

    table: str
    asset: str
    head_snapshot_id: int

    def __str__(self) -> str:
        return (
            f"{self.table} already has rows, and nothing shows that {self.asset} wrote them. Its first run would "
            f"delete them, so nothing was written and no state changed. To replace them: {full_run(self.asset)} "
            f"(all of its partitions, if it has any). To keep them, give {self.asset} another table, table(...). If "
            f"its inputs have a start and it isn't written with combine(), which can't add to rows of other code, you "
            f"can continue from the existing rows: {accepting_run(self.asset, self.head_snapshot_id)}."
        )


@dataclass(eq=False)
class PublishError(IpsError):
    """The branch could not become the table's main."""

    table: str
    branch: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.problem} (branch {self.branch}). Nothing was published and nothing was consumed, so "
            f"it is safe to run again."
        )


@dataclass(eq=False)
class RefMovedError(IpsError):
    """A branch or tag isn't where a commit expects it; None means that it doesn't exist."""

    table: str
    ref: str
    expected: int | None
    found: int | None

    def __str__(self) -> str:
        places = [f"at snapshot {at}" if at is not None else "missing" for at in (self.found, self.expected)]
        return (
            f"{self.table}: {self.ref} is {places[0]}, but must be {places[1]}, because something else changed it in "
            f"the meantime; moving it now would undo that. Nothing was published and nothing was consumed, so it is "
            f"safe to run again."
        )


@dataclass(eq=False)
class SharedFolderError(IpsError):
    """Two catalogs of one database keep a table of one name in one folder."""

    table: str
    others: tuple[str, ...]
    location: str

    def __str__(self) -> str:
        return (
            f"{self.table}: catalog {', '.join(self.others)} in the same database has a table of this name in the same "
            f"folder, {self.location}: maintenance of one deletes files of the other. Nothing was written and nothing "
            f"was consumed. Give one of the catalogs another warehouse folder, and create its table there again."
        )


@dataclass(eq=False)
class BranchNotKeptError(IpsError):
    """The catalog accepts a branch and doesn't keep it."""

    catalog: str
    table: str
    branch: str

    def __str__(self) -> str:
        return (
            f"{self.table}: catalog {self.catalog} doesn't keep branches: {self.branch}, which was just created, isn't "
            f"in the table's metadata. What is written to it could replace main. Nothing was written and nothing was "
            f"consumed. Keep the tables that assets write in a catalog that stores a table's metadata as it is "
            f"committed."
        )


@dataclass(eq=False)
class AuditError(IpsError):
    """Blocking audits failed."""

    table: str
    asset: str
    audits: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.table}: the rows that {self.asset} wrote failed {', '.join(self.audits)}, so nothing was published "
            f"and nothing was consumed; readers see the table unchanged. Fix the upstream or the asset and run it "
            f"again, or declare the audit with blocking=False."
        )


@dataclass(eq=False)
class DirectWriteError(IpsError):
    """A statement inside ``capture`` wrote to the table directly, bypassing the branch."""

    table: str
    snapshot_id: int
    undo: str

    def __str__(self) -> str:
        return (
            f"{self.table}: a statement wrote to the table itself instead of {{target}}. Its rows are already visible "
            f"(snapshot {self.snapshot_id}). Nothing else was published and nothing was consumed, so the next run "
            f"would write them again. Undo them with {self.undo} and use {{target}} in the statement."
        )


@dataclass(eq=False)
class UnstampedCommitError(IpsError):
    """A commit on the run's branch doesn't say that it is the run's; ``setting`` would have made it say so."""

    table: str
    branch: str
    snapshot_id: int
    setting: str

    def __str__(self) -> str:
        return (
            f"{self.table}: snapshot {self.snapshot_id} on the run's branch {self.branch} doesn't say that this run "
            f"wrote it, so its rows may be anyone's. Nothing was published and nothing was consumed. If the run's job "
            f"wrote it, start the job's Spark with icdc.spark_submit_arguments(), or give it all settings of "
            f'icdc.job["spark_conf"]. What was missing is {self.setting}'
        )


@dataclass(eq=False)
class IdleJobError(IpsError):
    """The job that was given a change committed nothing."""

    table: str
    target: str
    upstreams: tuple[str, ...]

    def __str__(self) -> str:
        nothing = f"INSERT INTO {self.target} SELECT * FROM {self.target} WHERE FALSE"  # noqa: S608  # only shown
        return (
            f"{self.table}: files of {', '.join(self.upstreams)} changed, but the job that was given icdc.job "
            f"committed nothing to {self.target}. It may have failed without saying so, or read and written something "
            f'else. Nothing was published and nothing was consumed. Let the job write to icdc.job["target"], and end '
            f"with an error if it can't. A job that finds nothing to write says so by a commit without rows: {nothing}"
        )
