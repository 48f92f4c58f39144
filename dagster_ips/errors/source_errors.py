"""Problems with a table that is read: whoever writes or maintains it fixes them."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError
from dagster_ips.errors.remedies import full_run, run_ignoring_removed


@dataclass(eq=False)
class UnknownTableError(IpsError):
    """The catalog has no such table; ``consumed_snapshot_id`` is the last snapshot consumed while it existed.

    ``there_is`` is a sentence on what the catalog has instead; empty if nothing has a similar name.
    """

    table: str
    catalog: str
    asset: str
    consumed_snapshot_id: int | None = None
    there_is: str = ""

    def __str__(self) -> str:
        none = f"{self.asset}: catalog {self.catalog} has no table {self.table}"
        where = "iceberg_asset(..., table=...) or in table(...)"
        if self.consumed_snapshot_id is None:
            advice = f"Create the table, or correct its name, in {where} or in the command. {self.there_is}".strip()
            return f"{none}. Nothing was read and no state changed. {advice}"
        return (
            f"{none} any more. It was consumed up to snapshot {self.consumed_snapshot_id} and has since been dropped "
            f"or renamed. Nothing was read and no state changed. If it was renamed, put the new name in {where}: the "
            f"next run continues from that snapshot. If it was dropped, restore it by registering its last "
            f"metadata.json."
        )


@dataclass(eq=False)
class UnmappedRowsError(IpsError):
    """An upstream has rows that belong to no partition of its consumer, so they would never reach it."""

    consumer: str
    upstream: str
    columns: tuple[str, ...]
    values: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.consumer}: {self.upstream} has rows whose {', '.join(self.columns)} is {', '.join(self.values)}, "
            f"for which {self.consumer} has no partition, so they would never reach its table. Nothing was consumed. "
            f"Widen its partitions definition, correct the rows, or leave them out on purpose with "
            f'incremental(on_unmapped="ignore").'
        )


@dataclass(eq=False)
class CatalogUnreachableError(IpsError):
    """The catalog, or the storage behind it, did not answer."""

    catalog: str
    doing: str
    cause: str

    def __str__(self) -> str:
        return (
            f"Catalog {self.catalog} could not be reached while {self.doing} ({self.cause}). Nothing more was "
            f"consumed, so it is safe to run again. If the catalog and its storage work for other clients, check the "
            f"folder, or the addresses and credentials, in IcebergCatalog."
        )


@dataclass(eq=False)
class HiveTooNewError(CatalogUnreachableError):
    """The Hive metastore no longer has the calls that PyIceberg makes."""

    def __str__(self) -> str:
        return (
            f"Catalog {self.catalog} can't be used: its Hive metastore doesn't know a call that PyIceberg makes "
            f"({self.cause}), as since Hive 4. Nothing more was consumed. Use a metastore of Hive 3, or another "
            f"catalog for the tables that are read incrementally."
        )


@dataclass(eq=False)
class NoRegisterError(IpsError):
    """The catalog can't register a table from an existing metadata file, which every capture needs."""

    catalog: str

    def __str__(self) -> str:
        return (
            f"Catalog {self.catalog} can't register a table from a metadata file, which is how every capture creates "
            f"its table of changes. No row was read and no state changed. Use a catalog that can: a database, Glue, "
            f"Hive, or a REST catalog whose server supports POST …/namespaces/{{namespace}}/register."
        )


@dataclass(eq=False)
class MetadataUnreadableError(IpsError):
    """A table's metadata or manifest file is missing, truncated or not what its name says."""

    table: str
    file: str
    cause: str
    remedy: str = "Restore the file, or roll the table back to a snapshot whose files are intact."

    def __str__(self) -> str:
        return (
            f"{self.table}: its metadata file {self.file} can't be read ({self.cause}). Without it, the changes can't "
            f"be determined, so nothing was captured and no state changed. {self.remedy}"
        )


@dataclass(eq=False)
class UnsupportedTableError(IpsError):
    """The table uses an Iceberg feature that can't be captured safely."""

    table: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.problem}. An ICDC table of it could show wrong rows, so none was created and no "
            f"state changed. {self.remedy}"
        )


@dataclass(eq=False)
class UnreadableColumnError(IpsError):
    """Spark can't read the rows of a table because of the type of a column, or of its name if ``type`` is None.

    ``other`` is a column whose name differs only in case.
    """

    table: str
    column: str
    type: str | None = None
    other: str | None = None

    def __str__(self) -> str:
        remedy = f"Let whoever writes the table rename {self.column}."
        if self.type:
            why = f"is of type {self.type}, which Spark doesn't have"
            remedy = (
                "Let whoever writes the table give that column another type, such as timestamp or long, or drop it."
            )
        elif self.other:
            why = f"differs from {self.other} only in case, which Spark ignores"
        else:
            why = "has a name that Iceberg reserves for where a row lies"
        return (
            f"{self.table}: Spark can't read the table, whichever columns the asset uses, because its column "
            f"{self.column} {why}. Nothing was captured and no state changed. {remedy}"
        )


@dataclass(eq=False)
class BrokenHistoryError(IpsError):
    """It is unknown what is new in a source since it was last consumed; the subclasses say why."""

    table: str
    consumer: str
    consumed_snapshot_id: int
    head_snapshot_id: int | None

    def _message(self, what: str, why: str, or_else: str = "") -> str:
        return (
            f"{self.table} {what} since {self.consumer} consumed it up to snapshot {self.consumed_snapshot_id} (head "
            f"is now {self.head_snapshot_id}). {why} Nothing was captured and no state changed. To recompute "
            f"{self.consumer} from the table's current rows: {full_run(self.consumer)}{or_else}."
        )


_AUTOMATICALLY = "; or declare the input with incremental(on_expired='full') to have runs do that automatically"


@dataclass(eq=False)
class SourceRecreatedError(BrokenHistoryError):
    """The source is no longer the table that was consumed before."""

    consumed_uuid: str
    current_uuid: str

    def __str__(self) -> str:
        return self._message(
            f"was dropped and created again (uuid {self.consumed_uuid} → {self.current_uuid})",
            "There is no way to tell which of its files are new.",
            _AUTOMATICALLY,
        )


@dataclass(eq=False)
class SourceReplacedError(BrokenHistoryError):
    """CREATE OR REPLACE gave the table new contents and a new history under its old uuid."""

    def __str__(self) -> str:
        return self._message(
            "was replaced (CREATE OR REPLACE TABLE)",
            "Its history starts over, so nothing shows which of the old rows are left.",
            _AUTOMATICALLY,
        )


@dataclass(eq=False)
class SourceRolledBackError(BrokenHistoryError):
    """The watched ref no longer holds what was consumed.

    ``common_snapshot_id`` is the nearest ancestor of both; None if the consumed snapshot has been expired.
    """

    common_snapshot_id: int | None

    def __str__(self) -> str:
        if self.common_snapshot_id is None:
            why = "That snapshot has also expired, so the rows that the rollback removed can no longer be read."
            return self._message("was rolled back", why)
        return self._message(
            f"was rolled back to snapshot {self.common_snapshot_id}",
            "Consumed rows are no longer in it.",
            "; or declare the input with incremental(on_rollback='continue') to have runs undo those rows",
        )


@dataclass(eq=False)
class SourceExpiredError(BrokenHistoryError):
    """Snapshots needed to follow the source have expired. ``needed_for`` says what for."""

    needed_for: str

    def __str__(self) -> str:
        return self._message(
            "had snapshots expired",
            f"They are needed {self.needed_for}. To avoid that, keep snapshots for longer than the consumer may lag.",
            _AUTOMATICALLY,
        )


@dataclass(eq=False)
class SourceColumnsChangedError(BrokenHistoryError):
    """Some column names of the source now refer to different columns than when it was consumed."""

    columns: tuple[str, ...]

    def __str__(self) -> str:
        return self._message(
            f"has different columns under the same names ({', '.join(self.columns)})",
            "They were renamed, or dropped and added again, so rows that haven't been rewritten now show other values "
            "under those names, and no snapshot records that.",
        )


@dataclass(eq=False)
class SourceFileOverwrittenError(BrokenHistoryError):
    """A data file of the source was overwritten in place, and the table was told that it is a new file."""

    file: str

    def __str__(self) -> str:
        return self._message(
            f"had a data file removed and another one added under the same path ({self.file})",
            "The rows of the first one are overwritten, so nothing shows which of them were removed. Whoever writes it "
            "has to give each file a path of its own.",
            _AUTOMATICALLY,
        )


@dataclass(eq=False)
class RemovedRowsError(IpsError):
    """Rows were removed upstream, and the target's write mode can't apply that."""

    table: str
    upstream: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table}: rows were removed from {self.upstream}, and {self.problem}. Continuing would leave wrong "
            f"rows in the table, so nothing was written and nothing was consumed. {self.remedy} To recompute the whole "
            f"table: {full_run(self.table)}. To ignore this one removal, such as a purge of old rows: "
            f"{run_ignoring_removed(self.table)}."
        )


@dataclass(eq=False)
class FilesGoneError(IpsError):
    """Data files that a capture refers to can no longer be read."""

    table: str
    file: str
    cause: str
    snapshot_id: int | None

    def __str__(self) -> str:
        at = f", captured at snapshot {self.snapshot_id}" if self.snapshot_id is not None else ""
        return (
            f"{self.table}{at}: its data file {self.file} {self.cause}. Captured rows can't be read, so nothing was "
            f"published and nothing was consumed. If snapshots were expired during the run, run it again. If the file "
            f"was lost, restore it or delete it from the table."
        )


@dataclass(eq=False)
class SnapshotGoneError(IpsError):
    """A snapshot that a run reads expired before the run was done."""

    table: str
    snapshot_id: int

    def __str__(self) -> str:
        return (
            f"{self.table}: its snapshot {self.snapshot_id}, which the run reads, expired while the run was working, "
            f"so its rows can't be read any more. Nothing was published and nothing was consumed. Run it again: that "
            f"captures the table's change up to its current snapshot. To avoid this, keep snapshots for longer than a "
            f"run takes."
        )


@dataclass(eq=False)
class CutBoundError(IpsError):
    """A manifest has a bound of a text that is cut inside a character, so Iceberg can't compare it."""

    tables: tuple[str, ...]
    catalog: str

    def __str__(self) -> str:
        procedure, options = f"CALL {self.catalog}.system.rewrite_data_files", "options => map('rewrite-all', 'true')"
        rewrite = "; ".join(f"{procedure}(table => '{table}', {options})" for table in self.tables)
        return (
            f"{', '.join(self.tables)}: the metadata of a data file has a bound of a text column that is cut inside a "
            f"character, which Iceberg can't read, so a condition on that column fails for every reader. Nothing was "
            f"published and nothing was consumed. Let whoever writes the table cut bounds between characters, and have "
            f"the bounds written again: {rewrite}."
        )


@dataclass(eq=False)
class IcdcTableGoneError(IpsError):
    """The table of changes that a run captured was dropped during the run."""

    table: str
    consumer: str
    upstream: str
    run_id: str

    def __str__(self) -> str:
        return (
            f"{self.table}, which holds what run {self.run_id} of {self.consumer} captured from {self.upstream}, no "
            f"longer exists. Someone dropped it, or the run stalled for so long that newer captures replaced it. "
            f"Nothing was published and nothing was consumed. Run {self.consumer} again: it takes a new capture. If "
            f"your runs may stall that long, raise icdc_keep_last and icdc_max_age_days of the IO manager."
        )


@dataclass(eq=False)
class ValidThroughError(IpsError):
    """A table doesn't say up to which event time it is complete, although it is declared to."""

    table: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"It is unknown up to when {self.table} is complete: {self.problem}. Anything that waits for that would "
            f"wait forever, so nothing was captured. {self.remedy}"
        )
