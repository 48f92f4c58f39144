"""Problems with what an asset's function asks for or returns: its author fixes them."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError
from dagster_ips.errors.remedies import full_run


@dataclass(eq=False)
class UnboundedRangeError(IpsError):
    """The range has no such bound."""

    column: str
    bound: str

    def __str__(self) -> str:
        return (
            f"The change range of {self.column} has no {self.bound} bound: it is empty, or a changed file has no "
            f"statistics for the column. Use .since() or .between(), which handle both cases, or check .kind first."
        )


@dataclass(eq=False)
class RangeTypesError(IpsError):
    """These change ranges can't be united: their values can't be compared."""

    column: str
    type: str
    other_column: str
    other_type: str

    def __str__(self) -> str:
        return (
            f"The change ranges of {self.column} ({self.type}) and {self.other_column} ({self.other_type}) can't be "
            f"united: their values can't be compared. Unite ranges of columns that mean the same, or combine their "
            f"conditions instead: a.since('...') | b.since('...')."
        )


@dataclass(eq=False)
class DuplicateKeysError(IpsError):
    """Several rows have the same merge key; with ``latest_by``, they tie for the latest."""

    table: str
    example: str
    latest_by: str | None = None

    def __str__(self) -> str:
        equally = f", with equal {self.latest_by}" if self.latest_by else ""
        remedy = (
            f"Make the key unique, or give the rows of each key different values of {self.latest_by}."
            if self.latest_by
            else "Make the key unique, or name the column that decides: merge(on=..., latest_by=...)."
        )
        return (
            f"{self.table}: the merge has several rows for the same key{equally}, for example {self.example}. It is "
            f"unclear which of them wins, so nothing was written and nothing was consumed. {remedy}"
        )


@dataclass(eq=False)
class NullValueError(IpsError):
    """A row has a null in a column that the table, ``name`` in Spark, declares NOT NULL."""

    table: str
    column: str
    name: str

    def __str__(self) -> str:
        return (
            f"{self.table}: a row has NULL in {self.column}, which the table declares NOT NULL. Nothing was written "
            f"and nothing was consumed. Leave such rows out or fill the column, or allow nulls in it: ALTER TABLE "
            f"{self.name} ALTER COLUMN {self.column} DROP NOT NULL."
        )


@dataclass(eq=False)
class LongPartitionError(IpsError):
    """A partition's value is too long for the name of a folder."""

    table: str
    column: str
    length: int

    def __str__(self) -> str:
        return (
            f"{self.table}: a row's {self.column} has {self.length} characters, and a partition's value is part of "
            f"the paths of its files, which the storage doesn't allow to be that long. Nothing was published and "
            f"nothing was consumed. Shorten the value; or partition by bucket(16, {self.column}) instead; or leave "
            f"values out of paths by the table's properties write.object-storage.enabled=true and "
            f"write.object-storage.partitioned-paths=false."
        )


@dataclass(eq=False)
class AggregateError(IpsError):
    """An aggregate of combine() can't be maintained from the rows that the asset returned."""

    table: str
    column: str
    aggregate: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.table}: column {self.column} can't be maintained incrementally as {self.aggregate}: "
            f"{self.problem}. Nothing was written and nothing was consumed. Correct combine(aggregates=...) in the "
            f"asset's metadata. For aggregates that combine() can't maintain, use merge(on=...) with a frame built on "
            f"affected(...)."
        )


@dataclass(eq=False)
class CombineError(IpsError):
    """A change can't be applied to the table's existing groups."""

    table: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.problem}. Its groups would be wrong, so nothing was written and nothing was "
            f"consumed. If the asset's function now returns a different row for the same upstream row, or someone "
            f"else changed the table, recompute it: {full_run(self.table)}. A value that is too large needs a larger "
            f"type: cast it in combine(aggregates=...), or in the query of a SQL asset."
        )


@dataclass(eq=False)
class PlanChangedError(IpsError):
    """The rows of a table that combine() writes aren't known to be made by the plan that computes the change."""

    table: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.problem}. Nothing was written and nothing was consumed. Recompute it: "
            f"{full_run(self.table)}. Where retries are enabled, the run does so by itself."
        )


@dataclass(eq=False)
class FragmentOverwriteError(IpsError):
    """A frame built from some of the rows would replace more than those rows produced."""

    table: str
    frame: str
    replaced: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table} is written by replacing {self.replaced}, but the asset built its frame on {self.frame}, "
            f"which holds only some of the rows needed for that: results computed from the others would be lost. "
            f"Nothing was written and nothing was consumed. {self.remedy}"
        )


@dataclass(eq=False)
class RowPlaceError(IpsError):
    """A result depends on where rows lie, or on how a table was written, and not only on what its rows are."""

    table: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.table}: its result depends on {self.found}, which says where rows lie or how a table was written. "
            f"A compaction changes that without changing any row, so no run would follow, and the table would differ "
            f"from a full recompute. Nothing was written and nothing was consumed. Leave it out, and tell rows apart "
            f"by their own columns; what is to be known about their origin, the job that writes them can store in a "
            f"column. An asset without incremental() inputs, which computes everything in each run, may use it. If "
            f"each row is meant to keep what was read when it arrived, declare that: ips.trusted(because=...)."
        )


@dataclass(eq=False)
class UnfitFrameError(IpsError):
    """The input frames that the asset used don't fit its write mode."""

    table: str
    upstream: str
    frame: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table}: the asset built its frame on {self.frame} of {self.upstream}: {self.problem}. Continuing "
            f"would leave wrong rows in the table, so nothing was written and nothing was consumed. {self.remedy}"
        )


@dataclass(eq=False)
class OutOfRangeDateError(IpsError):
    """A date or timestamp that decides what a run replaces is outside of Python's range of years."""

    columns: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"A value of {' or '.join(self.columns)} lies before the year 1 or after 9999, and Python can't represent "
            f"such dates. The run needs the value to decide which partitions it writes, so nothing was written and "
            f"nothing was consumed. Such values are usually mistakes, such as milliseconds taken for seconds. Correct "
            f"them upstream, filter out their rows in the asset, or write by a column of another type."
        )


@dataclass(eq=False)
class UntracedResultError(IpsError):
    """The result's plan doesn't show which rows it was computed from."""

    table: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.table}: the plan doesn't show which rows this incremental result was computed from: "
            f"{self.problem}. It may lack rows or have some twice, so nothing was written and nothing was consumed. "
            f"Use Spark's own operations (is_empty and stats tell how much changed without a frame). Or, if each row "
            f"of the result comes from one changed row, or from one group of affected(...) or scope, say so in the "
            f"asset's metadata: trusted(because='...'). To compute everything once: {full_run(self.table)}."
        )


@dataclass(eq=False)
class UnfollowedChangeError(IpsError):
    """An input changed, but the result ignores its change, which would still count as consumed.

    ``in_full_run``: the result reads nothing but its inputs' sources, so it would ignore every change. ``is_unused``:
    it reads nothing of this input at all.
    """

    table: str
    upstream: str
    is_only_input: bool
    in_full_run: bool = False
    is_unused: bool = False

    def __str__(self) -> str:
        view = _parameter(self.upstream)
        what = (
            f"the result only looks up the source of {self.upstream}, so a run after a change could not write it"
            if self.in_full_run
            else f"rows of {self.upstream} changed, but the result "
            + ("doesn't use them" if self.is_unused else "only looks up its source")
            + ", so rows written earlier would be stale"
        )
        if self.is_unused and not self.is_only_input:
            remedy = (
                "If the table is never made from this input, say so: of a step of several tables, name the inputs of "
                'each by internal_asset_deps={"output": {AssetKey("input")}, ...} of @multi_asset; in an asset of its '
                "own, leave the input out. Otherwise follow its changes: with ips.affected(fact, ..., "
                f"by={view}, on=...), or an Overwrite. To compute everything once: {full_run(self.table)}"
            )
        elif self.is_only_input:
            remedy = (
                "To compute everything in each run, declare replace() or return an Overwrite; to write only what "
                f"changed, build the frame on {view}.affected(...) or {view}.scope"
            )
        else:
            remedy = (
                "If its changes don't matter, declare the input with lookup() and take a DataFrame. If they do, build "
                f"the frame on ips.affected(fact, ..., by={view}, on=...), which has the groups that either change "
                f"touches, or return an Overwrite. To compute everything once: {full_run(self.table)}"
            )
        return f"{self.table}: {what}. Nothing was written and nothing was consumed. {remedy}."


def _parameter(upstream: str) -> str:
    return upstream.rpartition("/")[2]


@dataclass(eq=False)
class ConditionError(IpsError):
    """The condition of an Overwrite can't be applied."""

    table: str
    condition: str
    cause: str

    def __str__(self) -> str:
        return (
            f"{self.table}: the Overwrite's condition ({self.condition}) can't be applied ({self.cause}). It is "
            f"unclear which rows it replaces, so nothing was written and nothing was consumed. Give a condition on "
            f'the table\'s columns, such as range("event_date").since("event_date").'
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
            f"for example {self.example or 'any'}. They would be added to the table again in every run, so nothing "
            f"was written and nothing was consumed. Filter the frame by the same condition, frame.where(where), or "
            f"widen the condition; a null matches only IS NULL."
        )


@dataclass(eq=False)
class OutsidePartitionsError(IpsError):
    """A run wrote, or removed, rows of partitions that it doesn't compute."""

    table: str
    partitions: str
    rows: int
    example: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.rows} of the rows that this run writes or removes are outside the partitions that it "
            f"computes ({self.partitions}), for example {self.example or 'any'}. The runs of their own partitions "
            f"write those, so nothing was written and nothing was consumed. Keep the partition column as it is in the "
            f"upstream, and name it in each condition of own statements; or choose another partition_mapping."
        )


@dataclass(eq=False)
class FrameColumnsError(IpsError):
    """The returned frame's columns don't match the table, and the table can't adopt them."""

    table: str
    problems: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table}: the frame returned for it doesn't fit: {'; '.join(self.problems)}. Values that are no "
            f"longer computed, or that were cast, would look correct in the table, so nothing was written and nothing "
            f"was consumed. {self.remedy}"
        )


@dataclass(eq=False)
class OutputTypeError(IpsError):
    """The asset returned something that can't be written to an Iceberg table."""

    asset: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.asset} returned {self.found}; its IO manager writes Spark DataFrames. Nothing was written and "
            f"nothing was consumed. Return a Spark DataFrame (convert a pandas one with createDataFrame(...) of any "
            f"input frame's sparkSession), or give the asset another io_manager_key."
        )


@dataclass(eq=False)
class LostCheckpointError(IpsError):
    """What the asset returned reads a checkpoint that Spark Connect has dropped."""

    asset: str

    def __str__(self) -> str:
        return (
            f"{self.asset} returned a frame with a checkpoint that Spark has dropped already: over Spark Connect, "
            f"localCheckpoint() and checkpoint() last no longer than the object that they return. Nothing was written "
            f"and nothing was consumed. Use persist() instead, or leave it out: Spark computes the frame once or twice."
        )


@dataclass(eq=False)
class LayoutError(IpsError):
    """A new table can't be laid out as ``table(...)`` declares; ``columns`` are the columns it would have."""

    table: str
    problem: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        having = f"Its columns are {', '.join(self.columns)}. " if self.columns else ""
        return (
            f"{self.table} can't be laid out as declared: {self.problem}. {having}No row was written and nothing was "
            f"consumed. Correct partition_by, sort_by or properties in table(...)."
        )


@dataclass(eq=False)
class QueryNotDerivedError(IpsError):
    """A query's table must be refreshed incrementally, but no way to do that is known."""

    asset: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.asset}: its table can't be refreshed incrementally ({self.problem}), and "
            f'refresh="strict" allows nothing else. Nothing was written and nothing was consumed. Allow full refreshes '
            f'with refresh="auto", or change the query. To refresh everything once: {full_run(self.asset)}.'
        )


@dataclass(eq=False)
class UnresolvedQueryError(IpsError):
    """The query of a table names something that its sources don't have, or no longer have."""

    asset: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.asset}: Spark can't resolve its query: {self.problem}. Nothing was written and nothing was "
            f"consumed. If a source's column was renamed or dropped, adapt the query. The changed query recomputes the "
            f"whole table."
        )
