"""What can go wrong, each with what happened, why it matters and what to do next.

Every error carries its values as fields and survives pickling, because Dagster hands errors across processes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

_SHOWN = 5


@dataclass(eq=False)
class IpsError(Exception):
    """Base of every error of this library; its fields are its message's values.

    Example:
        >>> import pickle
        >>> error = UnknownTableError(table="media.playbak", catalog="lake", asset="playback_daily")
        >>> str(pickle.loads(pickle.dumps(error))) == str(error)
        True
    """

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return partial(type(self), **values), ()


@dataclass(eq=False)
class DeclarationError(IpsError):
    """An asset says something about its inputs or its table that can't work; found when definitions load."""

    asset: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.asset}: {self.problem} {self.remedy}"


@dataclass(eq=False)
class RetentionError(IpsError):
    """What is to be kept of ICDC tables is said in a way that can't work."""

    setting: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"ICDC tables can't be kept by {self.setting} = {self.found}, so nothing was captured. {self.remedy} "
            f"IcdcIOManager calls the settings icdc_keep_last and icdc_max_age_days."
        )


@dataclass(eq=False)
class UnknownTableError(IpsError):
    """The catalog has no such table; ``consumed_snapshot_id`` is up to where it was read when it still had."""

    table: str
    catalog: str
    asset: str
    consumed_snapshot_id: int | None = None

    def __str__(self) -> str:
        none = f"{self.asset}: catalog {self.catalog} has no table {self.table}"
        where = "iceberg_asset(..., table=...) or in table(...)"
        if self.consumed_snapshot_id is None:
            return f"{none}. Nothing was read and no state changed. Create the table, or correct the name in {where}."
        return (
            f"{none} any more, which was consumed up to snapshot {self.consumed_snapshot_id}: it was dropped or "
            f"renamed. Nothing was read and no state changed. If it was renamed, write its new name in {where}: it is "
            f"gone on with from there. If it was dropped, restore it by registering its last metadata.json."
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
            f"Catalog {self.catalog} could not be reached while {self.doing} ({self.cause}). No state changed, so the "
            f"run can be repeated as it is. Check the catalog's address and credentials in IcebergCatalog."
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
class UnknownConsumerError(IpsError):
    """A command names an asset, or an upstream of it, that isn't read incrementally."""

    asset: str
    problem: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.asset} {self.problem}. Nothing was done. Known are: {', '.join(self.known) or 'none'}."


@dataclass(eq=False)
class InstanceError(IpsError):
    """The command can't be done with this Dagster instance or these definitions, or not now."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} No state changed. {self.remedy}"


@dataclass(eq=False)
class UnknownRefError(IpsError):
    """An input follows a branch that its table doesn't have; ``known`` are those that it has."""

    table: str
    ref: str
    known: tuple[str, ...]
    asset: str

    def __str__(self) -> str:
        return (
            f"{self.table} has no branch {self.ref!r}, which {self.asset} follows by incremental(ref=...); it "
            f"has {', '.join(self.known) or 'none'}. Following another instead would give other rows, so nothing was "
            f"captured and no state changed. Create {self.ref!r}, or correct the name."
        )


@dataclass(eq=False)
class TagFollowedError(IpsError):
    """An input follows a tag, which never moves."""

    table: str
    tag: str
    snapshot_id: int
    branches: tuple[str, ...]
    asset: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.tag!r}, which {self.asset} follows by incremental(ref=...), is a tag. It stays at "
            f"snapshot {self.snapshot_id}, so rows that come later would never be read; nothing was captured and no "
            f"state changed. Follow a branch ({', '.join(self.branches) or 'main'}), or read the tag as it is in an "
            f"input without incremental()."
        )


@dataclass(eq=False)
class UnknownPlaceError(IpsError):
    """A snapshot or a time that was named isn't in a table's history, which reaches as ``history`` says."""

    table: str
    place: str
    why: str
    asked_by: str
    history: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.place}, which {self.asked_by} names, {self.why}. What comes after it can't be told, "
            f"so no state changed. Name a snapshot or a time in its history, which has {self.history}."
        )


@dataclass(eq=False)
class LostCursorError(IpsError):
    """The cursor of an edge is gone, and nothing that is left says what was consumed."""

    consumer: str
    upstream: str
    icdc_table: str

    def __str__(self) -> str:
        return (
            f"What {self.consumer} has consumed of {self.upstream} isn't known to this Dagster instance any more, and "
            f"its table doesn't say it either, but something was: {self.icdc_table} was made for it. To begin once "
            f"more where incremental(start=...) says could leave rows out or double them, so nothing was captured and "
            f"no state changed. To compute everything anew, materialize {self.consumer} with the run tag "
            f"dagster_ips/mode=full. To begin once more all the same: "
            f"dagster-ips reset {self.consumer} --upstream {self.upstream} --why '...'"
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
    """What was consumed of a source can't be told from what is new; the subclasses say why."""

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
            "Its old files can't be told from its new ones.",
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
            " To take such rows back by themselves, declare the input with incremental(on_rollback='continue').",
        )


@dataclass(eq=False)
class SourceExpiredError(BrokenHistoryError):
    """Snapshots that were needed to follow the source have been expired. ``needed_for`` says what for."""

    needed_for: str

    def __str__(self) -> str:
        return self._message(
            "had snapshots expired",
            f"They are needed {self.needed_for}.",
            " To have that done by itself, declare the input with incremental(on_expired='full'); to avoid it, keep "
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
            f"{self.table}: rows were removed from {self.upstream}, and {self.problem}. Going on would leave wrong "
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

    def __str__(self) -> str:
        return (
            f"{self.table}: its data file {self.file} {self.cause}. Rows that were captured can't be read, so nothing "
            f"was published and nothing was consumed. If snapshots were expired while the run was under way, run it "
            f"again; if the file was lost, restore it or delete it from the table."
        )


@dataclass(eq=False)
class UnknownColumnError(IpsError):
    """A column was named that the table or frame doesn't have."""

    where: str
    column: str
    known: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        return f"{self.where} has no column {self.column!r}; it has {', '.join(self.known) or 'none'}. {self.remedy}"


@dataclass(eq=False)
class ValidThroughError(IpsError):
    """A table doesn't tell up to which event time it is complete, though it is declared to."""

    table: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"Up to when {self.table} is complete can't be told: {self.problem}. Whatever waits for that would wait "
            f"for ever, so nothing was captured. {self.remedy}"
        )


@dataclass(eq=False)
class UnboundedRangeError(IpsError):
    """A bound was asked of a range that has none."""

    column: str
    bound: str

    def __str__(self) -> str:
        return (
            f"The change range of {self.column} has no {self.bound} bound: it is empty, or some changed file carries "
            f"no statistics for the column. Use .since() or .between(), which cover both cases, or check .kind first."
        )


@dataclass(eq=False)
class RangeTypesError(IpsError):
    """Change ranges were united whose values have no common order."""

    column: str
    type: str
    other_column: str
    other_type: str

    def __str__(self) -> str:
        return (
            f"The change ranges of {self.column} ({self.type}) and {self.other_column} ({self.other_type}) can't be "
            f"united: their values have no common order. Unite ranges of columns that mean the same, or join their "
            f"conditions instead: a.since('...') | b.since('...')."
        )


@dataclass(eq=False)
class UnorderedColumnError(IpsError):
    """A range was asked for of a column whose values have no lowest and highest."""

    table: str
    column: str
    type: str

    def __str__(self) -> str:
        return (
            f"{self.table}: column {self.column!r} ({self.type}) has no lowest and highest value, so no range tells "
            f"what changed in it. Nothing was written and nothing was consumed. Name top-level columns of plain "
            f"values, such as dates, numbers or texts, in incremental(ranges=...) and range(...)."
        )


@dataclass(eq=False)
class DuplicateKeysError(IpsError):
    """Several rows for one merge key; with ``latest_by`` they are equally late."""

    table: str
    keys: tuple[str, ...]
    example: str
    latest_by: str | None = None

    def __str__(self) -> str:
        equally = f" that are equally late by {self.latest_by}" if self.latest_by else ""
        remedy = (
            f"Make the key unique, or the rows of one key differ in {self.latest_by}."
            if self.latest_by
            else "Make the key unique, or name the column that decides: merge(on=..., latest_by=...)."
        )
        return (
            f"{self.table}: the merge has several rows{equally} for one key ({', '.join(self.keys)}), for example "
            f"{self.example}. Which of them should win is not known, so nothing was written and nothing was consumed. "
            f"{remedy}"
        )


@dataclass(eq=False)
class AggregateError(IpsError):
    """An aggregate of combine() can't be maintained over the rows that an asset returned."""

    table: str
    column: str
    aggregate: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.table}: its column {self.column} can't be maintained as {self.aggregate} from what changes: "
            f"{self.problem}. Nothing was written and nothing was consumed. Correct combine(aggregates=...) in the "
            f"asset's metadata; for what it can't do write by merge(on=...) a frame built on affected(...)."
        )


@dataclass(eq=False)
class CombineError(IpsError):
    """A change can't be added to the groups that a table has."""

    table: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.problem}. Its groups would be wrong, so nothing was written and nothing was "
            f"consumed. If the asset's function gives another row for the same one of its upstream than it once gave, "
            f"or someone else changed the table, compute it anew, once, by a run with the tag dagster_ips/mode=full. "
            f"A value that is too large needs a larger type: cast it in combine(aggregates=...)."
        )


@dataclass(eq=False)
class FragmentOverwriteError(IpsError):
    """A frame made of some rows would replace more than what was made of them."""

    table: str
    frame: str
    replaced: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table} is written by replacing {self.replaced}, but the asset built its frame on {self.frame}, "
            f"which holds only some of the rows for that: what was made of the others would be lost. Nothing was "
            f"written and nothing was consumed. {self.remedy}"
        )


@dataclass(eq=False)
class UnfitFrameError(IpsError):
    """The frames that an asset took from its inputs don't give what its write mode writes."""

    table: str
    upstream: str
    frame: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table}: the asset built its frame on {self.frame} of {self.upstream}: {self.problem}. Going on "
            f"would leave wrong rows in it, so nothing was written and nothing was consumed. {self.remedy}"
        )


@dataclass(eq=False)
class UntracedResultError(IpsError):
    """What a result is made of can't be seen in its plan."""

    table: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.table}: what the result of an incremental run is made of isn't known: {self.problem}. It may lack "
            f"rows or have some twice, so nothing was written and nothing was consumed. Say it in Spark's own "
            f"operations (is_empty and stats tell how much changed without a frame). Or, if each row of the result is "
            f"made of one changed row, or within one group of affected(...) or scope, say so in the asset's metadata: "
            f"trusted(because='...'). A run with the tag dagster_ips/mode=full computes everything."
        )


@dataclass(eq=False)
class UnfollowedChangeError(IpsError):
    """An input changed, and the result has nothing of its change, which would be consumed with it."""

    table: str
    upstream: str

    def __str__(self) -> str:
        return (
            f"{self.table}: rows of {self.upstream} changed, and what changed isn't in the result, which only looks up "
            f"its source: rows that were made before would stay as they are. Nothing was written and nothing was "
            f"consumed. If its changes needn't be followed, declare the input by lookup() and take a "
            f"DataFrame. If they must be, build the frame on ips.affected(fact, ..., by={_parameter(self.upstream)}, "
            f"on=...), which has the groups that either change touches, or return an Overwrite. A run with the tag "
            f"dagster_ips/mode=full computes everything once."
        )


def _parameter(upstream: str) -> str:
    return upstream.rpartition("/")[2]


@dataclass(eq=False)
class ConditionError(IpsError):
    """The condition of an Overwrite is none."""

    table: str
    condition: str
    cause: str

    def __str__(self) -> str:
        return (
            f"{self.table}: the Overwrite's condition ({self.condition}) can't be applied ({self.cause}). Which rows "
            f"it replaces isn't known, so nothing was written and nothing was consumed. Give a condition on the "
            f'table\'s columns, as range("event_date").since("event_date") does.'
        )


@dataclass(eq=False)
class OutsideConditionError(IpsError):
    """Rows of an Overwrite's frame don't match its condition."""

    table: str
    condition: str
    rows: int
    example: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.rows} of the rows returned don't match the Overwrite's condition ({self.condition}), "
            f"for example {self.example or 'any'}. They would join the rows that are there already, and again in every "
            f"later run, so nothing was written and nothing was consumed. Filter the frame by the same condition, "
            f"frame.where(where), or widen the condition; a null matches only IS NULL."
        )


@dataclass(eq=False)
class OutsidePartitionsError(IpsError):
    """A run returned rows of partitions that it doesn't compute."""

    table: str
    partitions: str
    rows: int
    example: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.rows} of the rows returned are outside of the partitions that the run computes "
            f"({self.partitions}), for example {self.example or 'any'}. A run of their own partition would write them "
            f"again, so nothing was written and nothing was consumed. Leave the partition column as it is in the "
            f"upstream, or choose another partition_mapping."
        )


@dataclass(eq=False)
class TargetChangedError(IpsError):
    """The target isn't the table that the cursor vouches for."""

    table: str
    consumer: str
    what: str

    def __str__(self) -> str:
        return (
            f"{self.table}, the table of {self.consumer}, {self.what}. What was consumed is therefore not all in it, "
            f"and going on would leave rows out. Nothing was captured and no state changed. To rebuild it from its "
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
            f"or when Dagster's database was what a backup has restored since. Whether it did can't be told, because "
            f"the table's snapshots from then have been expired and its metadata files from then are gone. To go on "
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
            f"Someone else than {self.asset} changed rows of its table {self.table}: "
            f"{', '.join(self.commits[:_SHOWN])}{more}. What was added there isn't made of its inputs, and what was "
            f"taken away would stay missing, so nothing was written and nothing was consumed. To compute all of it "
            f"anew, materialize {self.asset} with the run tag dagster_ips/mode=full; to go on with the table as it is, "
            f"once with dagster_ips/accept={self.newest}."
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
            f"inputs have a start, to go on from them as they are, materialize it with "
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
class UnprovableError(IpsError):
    """What a table should hold can't be computed again, so whether it does isn't known."""

    consumer: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.consumer} can't be proved: {self.problem}. Whether its rows are right isn't known. {self.remedy}"


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
            f"Capture {self.number} of {self.upstream} by {self.consumer} counts no more: there was a {self.kind} "
            f"since, by {self.who} ({self.why}). What it was made of isn't what is to be read next, so nothing was "
            f"published and nothing was consumed. The next run goes on from the {self.kind}."
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
class RewindError(IpsError):
    """What was consumed can't be made pending again from where it was asked."""

    consumer: str
    upstream: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.consumer} can't be rewound on {self.upstream}: {self.problem}. No state changed. To compute "
            f"everything anew instead, materialize {self.consumer} with the run tag dagster_ips/mode=full."
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


@dataclass(eq=False)
class FrameColumnsError(IpsError):
    """The columns of the frame that an asset returned aren't its table's, and the table can't follow them."""

    table: str
    problems: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table}: the frame returned for it doesn't fit: {'; '.join(self.problems)}. What isn't computed any "
            f"more, or was cast, would stand in the table as if it were right, so nothing was written and nothing was "
            f"consumed. {self.remedy}"
        )


@dataclass(eq=False)
class OutputTypeError(IpsError):
    """The asset returned something that can't be written to an Iceberg table."""

    asset: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.asset} returned {self.found}; its IO manager writes Spark DataFrames. Nothing was written and "
            f"nothing was consumed. Return a Spark DataFrame, which createDataFrame(...) of any input frame's "
            f"sparkSession makes of a pandas one, or give the asset another io_manager_key."
        )
