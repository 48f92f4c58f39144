"""What is wrong with a table that is read: whoever writes or keeps it mends it."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError


@dataclass(eq=False)
class UnknownTableError(IpsError):
    """The catalog has no such table; ``consumed_snapshot_id`` is up to where it was read when it still had.

    ``there_is`` says what the catalog has instead, as a sentence; empty if nothing is near.
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
            advice = f"Create the table, or correct the name in {where}. {self.there_is}".strip()
            return f"{none}. Nothing was read and no state changed. {advice}"
        return (
            f"{none} any more, which was consumed up to snapshot {self.consumed_snapshot_id}: it was dropped or "
            f"renamed. Nothing was read and no state changed. If it was renamed, write its new name in {where}: it is "
            f"followed from there. If it was dropped, restore it by registering its last metadata.json."
        )


@dataclass(eq=False)
class UnmappedRowsError(IpsError):
    """An upstream has rows that belong to no partition of its consumer, which therefore would never have them."""

    consumer: str
    upstream: str
    columns: tuple[str, ...]
    values: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.consumer}: {self.upstream} has rows whose {', '.join(self.columns)} is {', '.join(self.values)}, "
            f"for which {self.consumer} has no partition, so they would never be in its table. Nothing was consumed. "
            f"Widen its partitions definition, correct the rows, or leave them out on purpose by "
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
            f"Catalog {self.catalog} could not be reached while {self.doing} ({self.cause}). What was consumed "
            f"stays as it was, so the run can be repeated as it is. If the catalog and its storage answer others, "
            f"check their addresses and credentials in IcebergCatalog."
        )


@dataclass(eq=False)
class NoRegisterError(IpsError):
    """The catalog can't make a table of a metadata file that exists, as each capture has to."""

    catalog: str

    def __str__(self) -> str:
        return (
            f"Catalog {self.catalog} can't register a table from its metadata file, which is how every capture makes "
            f"the table of its changes. No row was read and no state changed. Use a catalog that can: a database, "
            f"Glue, Hive, or a REST catalog whose server offers POST …/namespaces/{{namespace}}/register."
        )


@dataclass(eq=False)
class MetadataUnreadableError(IpsError):
    """A table's metadata or manifest file is missing, cut short or not what its name says."""

    table: str
    file: str
    cause: str

    def __str__(self) -> str:
        return (
            f"{self.table}: its metadata file {self.file} can't be read ({self.cause}). What changed can't be known "
            f"without it, so nothing was captured and no state changed. Restore the file, or roll the table back to a "
            f"snapshot whose files are whole."
        )


@dataclass(eq=False)
class UnsupportedTableError(IpsError):
    """The table uses something of Iceberg that can't be captured safely."""

    table: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.problem}. An ICDC table made of it could show wrong rows, so none was made and no "
            f"state changed. {self.remedy}"
        )


@dataclass(eq=False)
class BrokenHistoryError(IpsError):
    """It is unknown what of a source is new since it was consumed; the subclasses say why."""

    table: str
    consumer: str
    consumed_snapshot_id: int
    head_snapshot_id: int | None

    def _message(self, what: str, why: str, more: str = "") -> str:
        return (
            f"{self.table} {what} since {self.consumer} consumed it up to snapshot {self.consumed_snapshot_id} (head "
            f"is now {self.head_snapshot_id}). {why} Nothing was captured and no state changed. To recompute "
            f"{self.consumer} from the table as it is now, materialize it with the run tag dagster_ips/mode=full.{more}"
        )


@dataclass(eq=False)
class SourceRecreatedError(BrokenHistoryError):
    """The source is another table now than the one consumed before."""

    consumed_uuid: str
    current_uuid: str

    def __str__(self) -> str:
        return self._message(
            f"was dropped and created again (uuid {self.consumed_uuid} → {self.current_uuid})",
            "It is unknown which of its files are new.",
        )


@dataclass(eq=False)
class SourceReplacedError(BrokenHistoryError):
    """CREATE OR REPLACE gave the table new contents and a new history under its old uuid."""

    def __str__(self) -> str:
        return self._message(
            "was replaced (CREATE OR REPLACE TABLE)",
            "Its history begins anew, so nothing in it says what of the old rows is left.",
        )


@dataclass(eq=False)
class SourceRolledBackError(BrokenHistoryError):
    """The watched ref no longer holds what was consumed.

    ``common_snapshot_id`` is the nearest ancestor of both; None if the consumed snapshot has been expired.
    """

    common_snapshot_id: int | None

    def __str__(self) -> str:
        if self.common_snapshot_id is None:
            why = "The snapshot has been expired as well, so the rows that it took back can't be read any more."
            return self._message("was rolled back", why)
        return self._message(
            f"was rolled back to snapshot {self.common_snapshot_id}",
            "Rows that were consumed are gone from it.",
            " To take such rows back automatically, declare the input with incremental(on_rollback='continue').",
        )


@dataclass(eq=False)
class SourceExpiredError(BrokenHistoryError):
    """Snapshots that were needed to follow the source have been expired. ``needed_for`` says what for."""

    needed_for: str

    def __str__(self) -> str:
        return self._message(
            "had snapshots expired",
            f"They are needed {self.needed_for}.",
            " To do that automatically, declare the input with incremental(on_expired='full'); to avoid it, keep "
            "snapshots for longer than the consumer may lag.",
        )


@dataclass(eq=False)
class SourceColumnsChangedError(BrokenHistoryError):
    """Names of the source's columns stand for other columns than when it was consumed."""

    columns: tuple[str, ...]

    def __str__(self) -> str:
        return self._message(
            f"has other columns under the same names ({', '.join(self.columns)})",
            "They were dropped and added again, or renamed, so that rows which weren't written since hold other values "
            "under those names, and no snapshot says so.",
        )


@dataclass(eq=False)
class RemovedRowsError(IpsError):
    """Rows were removed upstream, and the way in which the target is written can't follow that."""

    table: str
    upstream: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table}: rows were removed from {self.upstream}, and {self.problem}. Continuing would leave wrong "
            f"rows in it, so nothing was written and nothing was consumed. {self.remedy} To recompute the table as a "
            f"whole, materialize it with the run tag dagster_ips/mode=full; to let this one removal pass without "
            f"following it, such as a purge of old rows, with dagster_ips/on_removed=ignore."
        )


@dataclass(eq=False)
class FilesGoneError(IpsError):
    """Data files that a capture refers to can't be read any more."""

    table: str
    file: str
    cause: str
    snapshot_id: int | None

    def __str__(self) -> str:
        at = f", captured at snapshot {self.snapshot_id}" if self.snapshot_id is not None else ""
        return (
            f"{self.table}{at}: its data file {self.file} {self.cause}. Rows that were captured can't be read, so "
            f"nothing was published and nothing was consumed. If snapshots were expired while the run was under way, "
            f"run it again; if the file was lost, restore it or delete it from the table."
        )


@dataclass(eq=False)
class IcdcTableGoneError(IpsError):
    """The table of changes that a run captured was dropped while the run was under way."""

    table: str
    consumer: str
    upstream: str
    run_id: str

    def __str__(self) -> str:
        return (
            f"{self.table}: the table of what run {self.run_id} of {self.consumer} captured of {self.upstream} doesn't "
            f"exist any more. Someone dropped it, or the run stood still so long that newer captures took its place. "
            f"Nothing was published and nothing was consumed. Run {self.consumer} again: it captures anew. If your "
            f"runs may stand still that long, raise icdc_keep_last and icdc_max_age_days of the IO manager."
        )


@dataclass(eq=False)
class ValidThroughError(IpsError):
    """A table doesn't tell up to which event time it is complete, though it is declared to."""

    table: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"Up to when {self.table} is complete is unknown: {self.problem}. Whatever waits for that would wait "
            f"forever, so nothing was captured. {self.remedy}"
        )
