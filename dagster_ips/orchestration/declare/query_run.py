"""One run of a ``sql_asset``: from views of what changed to the rows to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from dagster_ips.core.aggregates import WEIGHT, shown
from dagster_ips.core.capture import Mode
from dagster_ips.core.ranges import Predicate, all_met, quoted
from dagster_ips.core.spark_plan import PlanUnreadableError
from dagster_ips.core.write_mode import Append, Replace, ReplaceKeys
from dagster_ips.errors import AggregateError, QueryNotDerivedError, UnresolvedQueryError
from dagster_ips.orchestration.declare.key_ranges import AffectedKeys, ChangedColumn
from dagster_ips.orchestration.declare.maintained_rows import MaintainedRows
from dagster_ips.query.affected_keys import (
    AFFECTED,
    SourceChange,
    added,
    after,
    before,
    kept,
    origins,
    removed,
    source_of,
    tables_of,
)
from dagster_ips.query.foreseen_steps import ForeseenStep, foreseen_steps
from dagster_ips.query.key_restriction import by_equality
from dagster_ips.query.maintenance_plan import MaintenancePlan, MaintenanceStep, QueryColumn, Strategy
from dagster_ips.query.near_rows import NearQuery, NearRows, near_rows
from dagster_ips.query.query_text import Query
from dagster_ips.query.refresh_choice import PastRefresh, Refresh, SourceSize, share_of_rows, why_full_is_cheaper
from dagster_ips.query.spark_dialect import UnsupportedError, in_spark, written_again
from dagster_ips.query.top_grouping import Grouping
from dagster_ips.run_view import RunView
from dagster_ips.spark.plans import are_alike
from dagster_ips.spark.queries import query_over, types_of
from dagster_ips.spark.writes.group_parts import Aggregates

if TYPE_CHECKING:
    from sqlglot import exp

    from dagster_ips.spark.session import DataFrame


@dataclass(frozen=True)
class QueryRun:
    """A run of ``asset``. ``views`` are its sources, in the query's order; ``past`` looks up earlier runs."""

    asset: str
    query: Query
    refresh: Refresh
    views: Sequence[RunView]
    past: Callable[[], Sequence[PastRefresh]]
    _names_of: dict[str, str] = field(default_factory=dict, repr=False)

    def result(self) -> tuple[MaintainedRows, MaintenanceStep]:
        """The rows to write, and the maintenance step that they result from.

        If Spark accepts the query but not what it is rewritten to for the changed rows, everything is computed.

        Raises:
            QueryNotDerivedError: the policy is ``strict``, and the query can't be maintained from what changed.
            UnresolvedQueryError: the query names something that its sources don't have.
        """
        try:
            step = self._step()
            made = self._maintained(step)
        except UnresolvedQueryError as error:
            _ = self._as_given  # If Spark refuses the query itself, this says so.
            step = self._plan.whole(f"Spark doesn't accept it rewritten for what changed: {error.problem}")
            if self.refresh is Refresh.STRICT:
                raise QueryNotDerivedError(asset=self.asset, problem=step.reason) from error
            made = self._maintained(step)
        for source, view in enumerate(self.views) if step.rows is not None else ():
            if step.reads.isdisjoint((after(source), before(source), kept(source))):
                view.took_only_the_change()
        return made, step

    def _maintained(self, step: MaintenanceStep) -> MaintainedRows:
        match step.strategy:
            case Strategy.FULL | Strategy.NOTHING:
                return MaintainedRows(self._everything(), Replace(), is_due=self._is_due)
            case Strategy.APPEND:
                return MaintainedRows(self._rows(step).toDF(*self._names), Append())
            case Strategy.COMBINE:
                combine = self._known_grouping.combine
                return MaintainedRows(self._weighted(step), combine, may_cancel=step.may_cancel)
            case Strategy.KEYS:
                names = [self._names[place] for place in step.keys]
                rows = self._rows(step)
                made = self._groups(rows) if self._grouping else rows.toDF(*self._names)
                affected = self._affected.within_ranges.toDF(*names)
                return MaintainedRows(made, ReplaceKeys(tuple(names)), affected)

    def foreseen(self) -> Iterator[ForeseenStep]:
        """What a run would do if only one source changed, regardless of the cost."""
        if self.refresh is not Refresh.FULL:
            yield from foreseen_steps(self._plan, range(len(self.views)))

    @cached_property
    def sizes(self) -> list[SourceSize]:
        """How many rows each source has, and how many of them changed."""
        found = [view.stats for view in self.views]
        return [SourceSize(each.rows, each.source_rows) for each in found]

    @property
    def share(self) -> float:
        """The shares of rows that changed, summed over the changed sources."""
        return share_of_rows(size for size, view in zip(self.sizes, self.views, strict=True) if not view.is_empty)

    @property
    def rows(self) -> int | None:
        """How many rows all sources have together; None if the count of any is unknown."""
        known = [size.rows for size in self.sizes if size.rows is not None]
        return sum(known) if len(known) == len(self.sizes) else None

    def _step(self) -> MaintenanceStep:
        if self.views[0].mode is Mode.FULL:
            return self._plan.whole("the run computes everything")
        if self.refresh is Refresh.FULL:
            return self._plan.whole("a full refresh was requested")
        step = self._maintenance
        if step.strategy is Strategy.FULL and self.refresh is Refresh.STRICT:
            raise QueryNotDerivedError(asset=self.asset, problem=step.reason)
        if self.refresh is Refresh.AUTO:
            costly = self._why_costly(step)
            if costly is not None:
                return MaintenanceStep(Strategy.FULL, why_not={**step.why_not, step.strategy: costly})
        return step

    def _why_costly(self, step: MaintenanceStep) -> str | None:
        known = step.strategy, self.share, self.rows, self.past()
        if step.affected is None:
            return why_full_is_cheaper(*known)
        # Counting the affected keys takes a job.
        return why_full_is_cheaper(*known, share_of_keys=0.0) or why_full_is_cheaper(
            *known, share_of_keys=self.share_of_keys
        )

    @property
    def affected_keys(self) -> int:
        """How many keys are affected, if the maintenance step has any."""
        return self._affected.number

    @cached_property
    def share_of_keys(self) -> float:
        """Which share of all keys is affected, at least, if the maintenance step has any; 0 if that is unknown.

        There are no more keys than rows in a source that each row is made from, if it has all of the keys' columns.
        """
        affected = self._affected
        _, near = self._near
        sources = {each.rows.source for each in near.values() if each.rows.holds_all(affected.columns)}
        rows = [size.rows for source, size in enumerate(self.sizes) if source in sources and size.rows]
        return min(1.0, float(f"{affected.number / min(rows):.4g}")) if rows else 0.0

    @cached_property
    def _maintenance(self) -> MaintenanceStep:
        """What to do after the changes, regardless of the cost."""
        if self._plan.refused is None and not self._has_same_names:
            return self._plan.whole("its sources have other columns than before, and a name in it may mean another one")
        if self._plan.refused is None and self._has_other_types:
            return self._plan.whole("columns of its sources have other types, on which its values may depend")
        known = frozenset(source for source in self._changes if self.views[source].before is not None)
        return self._plan.step(self._changes, known_before=known)

    @cached_property
    def _changes(self) -> dict[int, SourceChange]:
        return {source: self._change(source) for source, view in enumerate(self.views) if not view.is_empty}

    def _change(self, source: int) -> SourceChange:
        if self._plan.refused is not None:
            return SourceChange(adds=True, removes=True)  # Nothing depends on it.
        view, read = self.views[source], self._read(source)
        return SourceChange(adds=True, removes=view.loses_rows(read or view.columns, self._compared(source)))

    def _read(self, source: int) -> list[str]:
        """The columns of a source that the query reads."""
        found = self._plan.columns_read(source)
        return [name for name in self.views[source].columns if name.lower() in found]

    @property
    def _is_due(self) -> bool:
        """Whether the query may give other rows than before although no row changed, as its sources' columns did.

        Once such a run has consumed the sources, nothing shows that their columns were others.
        """
        are_known = all(view.columns_before is not None for view in self.views)
        is_other = not self._has_same_names or self._has_other_types
        return self.views[0].mode is Mode.INCREMENTAL and are_known and is_other

    @cached_property
    def _has_other_types(self) -> bool:
        """Whether its values depend on wider types, or other fields of structs, than the sources had when consumed."""
        return any(
            self._plan.depends_on_types(source, each.columns_widened)
            or self._plan.depends_on_fields(source, each.structs_changed)
            for source, each in enumerate(self.views)
        )

    @cached_property
    def _has_same_names(self) -> bool:
        """Whether the query's names meant the same when the sources were last consumed.

        A new column can take the place of one of another table, or of an alias. A column that was moved can take
        another place where ``*`` lists the columns of a side of a UNION. If a nested column has a new field with a
        default, its name means another value.
        """
        before = [view.columns_before for view in self.views]
        known = [shown(names) for names in before if names is not None]
        if len(known) < len(before):
            return False
        has_defaults = False
        for source, (names, view) in enumerate(zip(known, self.views, strict=True)):
            new = view.columns_with_new_defaults
            has_defaults = has_defaults or bool(new)
            if not new.isdisjoint(names) and (self._plan.refused is not None or not new.isdisjoint(self._read(source))):
                return False
        if all(names == shown(view.columns) for names, view in zip(known, self.views, strict=True)):
            return True
        columns = []
        for names, view in zip(known, self.views, strict=True):
            types = dict(types_of(view.source))
            columns.append([QueryColumn(name, types.get(name, "string")) for name in names])
        return self._plan.means_the_same_over(columns, same_columns=has_defaults)

    @cached_property
    def _plan(self) -> MaintenancePlan:
        columns = [[QueryColumn(*each) for each in types_of(_shown(view, view.source))] for view in self.views]
        plan = MaintenancePlan(self.query, columns, self._result)
        if plan.refused is None:
            try:
                understood = self._over(plan.text, plan.tables)
                read = [kind for _, kind in types_of(understood)]
            except UnresolvedQueryError as error:
                return plan.refusing(f"Spark doesn't accept it in the form it is parsed here: {error.problem}")
            if read != [each.type for each in self._result]:
                given = ", ".join(each.type for each in self._result)
                why = f"Spark gives it the types {given}, but {', '.join(read)} in the form it is parsed here"
                return plan.refusing(why)
            for name, each in zip(plan.column_names, self._result, strict=True):
                if name not in (None, each.name.lower()):
                    return plan.refusing(f"Spark calls {each.name} what is {name} in the form it is parsed here")
            if misread := self._why_read_otherwise(plan, understood):
                return plan.refusing(misread)
            kept = self._why_not_kept(plan, plan.grouping) if isinstance(plan.grouping, Grouping) else None
            if kept is not None:
                return plan.without_grouping(kept)
        return plan

    def _why_read_otherwise(self, plan: MaintenancePlan, understood: DataFrame) -> str | None:
        """How Spark reads the query otherwise than it is read here, by its plans of the query's forms; None if alike.

        As it was given, it is compared with the query ``understood``, whose names were resolved. They also differ in
        what doesn't matter, such as a final ORDER BY. So there are two forms between them: as it was parsed and not
        changed yet, and as its names were before they were resolved.
        """
        given = self._as_given
        try:
            if given.sameSemantics(understood):
                return None
            again, parsed = (
                self._over(each, plan.tables) for each in (written_again(self._given_text), plan.text_as_parsed)
            )
            # Comparing optimized plans takes longer.
            if given.sameSemantics(again) and parsed.sameSemantics(understood):
                return None
            if not are_alike(given, again):
                return "Spark plans it differently in the form it is parsed here"
            if not are_alike(parsed, understood):
                return "Spark takes a name in it for something else than is assumed here"
        except (UnsupportedError, UnresolvedQueryError, PlanUnreadableError):
            return "Spark doesn't plan it in the form it is parsed here"
        return None

    def _why_not_kept(self, plan: MaintenancePlan, grouping: Grouping) -> str | None:
        """Why the groups can't be stored in a form to which changes can be added; None if they can."""
        rows = self._of(plan.all_rows).toDF(*self._row_names(grouping))
        try:
            kept = Aggregates.over(rows, grouping.combine, table=self.asset)
        except AggregateError as error:
            return f"{error.aggregate} can't be maintained incrementally: {error.problem}"
        kinds = dict(types_of(kept.groups(kept.like)))
        aggregates = [f"{each} AS {quoted(each.name)}" for each in grouping.combine.aggregates]
        wanted = [*types_of(kept.like.selectExpr(*aggregates)), *((each.name, each.type) for each in self._result)]
        other = [name for name, kind in wanted if kinds[name] != kind]
        return f"{other[0]} would be stored as {kinds[other[0]]}" if other else None

    @property
    def _grouping(self) -> Grouping | None:
        grouping = None if self._plan.refused else self._plan.grouping
        return grouping if isinstance(grouping, Grouping) else None

    @cached_property
    def _as_given(self) -> DataFrame:
        """The result of the whole query, with its text as it was given."""
        return self._over(self._given_text, frozenset(map(after, range(len(self.views)))))

    @property
    def _given_text(self) -> str:
        return self.query.over({source: f"`{after(source)}`" for source in range(len(self.views))})

    @property
    def _names(self) -> list[str]:
        return self._as_given.columns

    def _everything(self) -> DataFrame:
        if self._grouping is None:
            return self._as_given
        return self._groups(self._of(self._plan.all_rows))

    @cached_property
    def _affected(self) -> AffectedKeys:
        affected = self._maintenance.affected
        assert affected is not None  # noqa: S101  # a step of such a strategy has this query
        keys = affected.named_selects
        held = origins(affected, keys)
        columns = {key: self._changed_columns(held.get(key, ())) for key in keys}
        frame = self.views[0].keep(self._of(affected))
        return AffectedKeys(frame, frame.count(), columns)

    def _changed_columns(self, held: Collection[tuple[str, str]]) -> list[ChangedColumn]:
        """The columns ``held``, each with its table, if all are columns of changed rows and of one type; else none."""
        found = []
        for table, column in held:
            source = source_of(table)
            name = self._spelled[source].get(column.lower())
            if table not in (added(source), removed(source)) or name is None:
                return []
            found.append(ChangedColumn(self.views[source], name, has_come=table == added(source)))
        kinds = {each.kind for each in found}
        return found if len(kinds) == 1 and None not in kinds else []

    @cached_property
    def _spelled(self) -> list[dict[str, str]]:
        """For each source, its columns by their names in lower case; none of those that differ only in case."""
        lower = [Counter(map(str.lower, view.columns)) for view in self.views]
        return [
            {name.lower(): name for name in view.columns if times[name.lower()] == 1}
            for times, view in zip(lower, self.views, strict=True)
        ]

    def _rows(self, step: MaintenanceStep) -> DataFrame:
        assert step.rows is not None  # noqa: S101  # a step of such a strategy has this query
        if step.affected is None:
            return self._of(step.rows)
        affected = self._affected
        rows, near = self._near
        names = {AFFECTED: self._named(affected.frame)}
        for name, each in near.items():
            found = self._of(each.query, names).where(self._range_of(each.rows, affected))
            names[name] = self._named(self.views[0].keep(found) if each.places > 1 else found)
        return self._of(rows, names)

    @cached_property
    def _near(self) -> tuple[exp.Query, dict[str, NearQuery]]:
        rows = self._maintenance.rows
        assert rows is not None  # noqa: S101  # a step of such a strategy has this query
        kept = [source for source in self._changes if self.views[source].kept is not None]
        loses_rows = {source: self._changes[source].removes for source in kept}
        return near_rows(by_equality(rows, self._affected.never_null), loses_rows)

    def _range_of(self, near: NearRows, affected: AffectedKeys) -> Predicate:
        """A condition that all rows near affected keys meet, by which Iceberg can skip files."""
        view = self.views[near.source]
        types = view.change.types
        kinds = {name.lower(): (name, types.get(name)) for name in view.columns}
        return all_met(affected.range_of(key, *kinds[column.lower()]) for column, key in near.keys.items())

    @cached_property
    def _result(self) -> list[QueryColumn]:
        return [QueryColumn(*each) for each in types_of(self._as_given)]

    @property
    def _known_grouping(self) -> Grouping:
        """The grouping of a query whose rows are grouped here."""
        assert self._grouping is not None  # noqa: S101  # callers have checked it, or there is no combine step
        return self._grouping

    def _groups(self, rows: DataFrame) -> DataFrame:
        """The groups of ``rows``, which hold keys and values, with the hidden columns that are stored with them."""
        grouping = self._known_grouping
        named = rows.toDF(*self._row_names(grouping))
        aggregates = Aggregates.over(named, grouping.combine, table=self.asset)
        hidden = [name for name in aggregates.columns if name not in self._names]
        return aggregates.groups(named).select(*map(quoted, [*self._names, *hidden]))

    def _weighted(self, step: MaintenanceStep) -> DataFrame:
        return self._rows(step).toDF(*self._row_names(self._known_grouping), WEIGHT)

    def _row_names(self, grouping: Grouping) -> list[str]:
        """The column names of the rows to be grouped; keys are named as in the result."""
        own = grouping.rows.named_selects[len(grouping.keys) :]
        return [*(self._result[place].name for place in grouping.keys), *own]

    def _of(self, query: exp.Query, names: Mapping[str, str] | None = None) -> DataFrame:
        return self._over(in_spark(query), tables_of(query), names)

    def _over(self, text: str, reads: frozenset[str], more: Mapping[str, str] | None = None) -> DataFrame:
        """The query ``text``, which ``reads`` tables; ``more`` are those that aren't of a source, and their views."""
        names = dict(more or {})
        names |= {table: self._name_of(table) for table in reads - names.keys()}
        return query_over(self.views[0].session, text, names, asset=self.asset)

    def _name_of(self, table: str) -> str:
        """The temporary view of what queries read of a source; it is made when the first one reads it."""
        if table not in self._names_of:
            self._names_of[table] = self._named(self._of_source(table))
        return self._names_of[table]

    def _named(self, frame: DataFrame) -> str:
        return self.views[0].named(frame)

    def _of_source(self, table: str) -> DataFrame:
        source = source_of(table)
        view = self.views[source]
        if table == added(source):
            return _shown(view, self._within(source, view.came, view.came_within))
        if table == removed(source):
            return _shown(view, self._within(source, view.went, view.went_within))
        if table == after(source):
            return _shown(view, view.source)
        found = view.before if table == before(source) else view.kept
        assert found is not None  # noqa: S101  # only known previous states are read
        return _shown(view, found)

    def _within(self, source: int, rows: DataFrame, within: Callable[[str, str], Predicate]) -> DataFrame:
        """``rows``, with a condition that all of them meet: Spark also applies it to what they are joined with."""
        return rows.where(all_met(within(name, name) for name in self._compared(source)))

    def _compared(self, source: int) -> list[str]:
        return [name for name in self._read(source) if name.lower() in self.query.compared_columns]


def _shown(view: RunView, rows: DataFrame) -> DataFrame:
    """``rows`` of a view without the hidden columns that the table of another query has."""
    hidden = set(view.columns) - set(shown(view.columns))
    return rows.drop(*hidden) if hidden else rows
