"""What is wrong with what an asset's function asks for or returns: its author mends it."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError


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
class DuplicateKeysError(IpsError):
    """Several rows for one merge key; with ``latest_by`` they are equally late."""

    table: str
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
            f"{self.table}: the merge has several rows{equally} for one key, for example {self.example}. Which of them "
            f"should win is not known, so nothing was written and nothing was consumed. {remedy}"
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
            f"consumed. If the asset's function now gives another row for the same upstream row than before, "
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
            f"{self.table}: the asset built its frame on {self.frame} of {self.upstream}: {self.problem}. Continuing "
            f"would leave wrong rows in it, so nothing was written and nothing was consumed. {self.remedy}"
        )


@dataclass(eq=False)
class OutOfRangeDateError(IpsError):
    """A date or timestamp that decides what a run replaces lies in a year that Python doesn't have."""

    columns: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"A value of {' or '.join(self.columns)} lies before the year 1 or after 9999, which Python has no dates "
            f"for. The run must know it to tell which partitions it writes, so nothing was written and nothing was "
            f"consumed. Such values are usually mistakes (milliseconds taken for seconds): correct them upstream or "
            f"filter these rows in the asset, or write them by a column of another type."
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
            f"consumed. If its changes don't have to be followed, declare the input by lookup() and take a "
            f"DataFrame. If they must be, build the frame on ips.affected(fact, ..., by={_parameter(self.upstream)}, "
            f"on=...), which has the groups that either change touches, or return an Overwrite. A run with the tag "
            f"dagster_ips/mode=full computes everything once."
        )


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


@dataclass(eq=False)
class LayoutError(IpsError):
    """A new table can't be laid out as ``table(...)`` declares; ``columns`` are those that it would have."""

    table: str
    problem: str
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        having = f"Its columns are {', '.join(self.columns)}. " if self.columns else ""
        return (
            f"{self.table} can't be laid out as declared: {self.problem}. {having}No row was written and nothing was "
            f"consumed. Correct partition_by, sort_by or properties in table(...)."
        )


@dataclass(eq=False)
class QueryNotDerivedError(IpsError):
    """A table that is declared by its query is to be refreshed by what changed alone, and how isn't known."""

    asset: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.asset}: its table can't be brought up to date by what changed alone ({self.problem}), and "
            f'refresh="strict" allows nothing else. Nothing was written and nothing was consumed. Allow a full refresh '
            f'by refresh="auto", run it once with the tag dagster_ips/mode=full, or change the query.'
        )


@dataclass(eq=False)
class UnresolvedQueryError(IpsError):
    """The query that declares a table names what its sources don't have, perhaps any more."""

    asset: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.asset}: Spark can't resolve its query: {self.problem}. Nothing was written and nothing was "
            f"consumed. If a source's column was renamed or dropped, say so in the query; its new text computes the "
            f"table anew."
        )
