"""Random queries and changes, in DuckDB: the target that a step leaves must be what the query gives afterwards.

``python -m tests.query.differential SEED QUERIES CHANGES`` prints what it found and fails at a mismatch.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, TypeAlias

import duckdb
import sqlglot
from sqlglot import exp

from dagster_ips.core.aggregates import EVERY_ROW, Function
from dagster_ips.query.affected_keys import AFFECTED, SourceChange, added, after, before, kept, origins, removed
from dagster_ips.query.key_restriction import by_equality
from dagster_ips.query.maintenance_plan import MaintenancePlan, MaintenanceStep, QueryColumn, Strategy
from dagster_ips.query.near_rows import NearQuery, near_rows
from dagster_ips.query.query_text import Query, read
from dagster_ips.query.query_tree import within
from dagster_ips.query.spark_dialect import DIALECT
from dagster_ips.query.top_grouping import Grouping
from tests.query.random_queries import GROWS, TABLES, Queries, Rows, random_change, random_rows

_KINDS = {"int": "INTEGER", "string": "VARCHAR"}


Form: TypeAlias = tuple[MaintenanceStep, exp.Query, dict[str, NearQuery]]


@dataclass
class Case:
    """A query, and the rows of its tables."""

    query: Query
    rows: Mapping[str, Rows]
    figures: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    no_grouping: str | None = None
    texts: dict[Callable[[int], str], str] = field(default_factory=dict)
    steps: dict[object, MaintenanceStep | None] = field(default_factory=dict)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        return tuple(name.lower() for (name,) in self.query.sources)

    @cached_property
    def plan(self) -> MaintenancePlan:
        columns = [[QueryColumn(*each) for each in TABLES[table].items()] for table in self.tables]
        return MaintenancePlan(self.query, columns, no_grouping=self.no_grouping)


class Machine:
    """Applies changes to cases and compares."""

    def __init__(self) -> None:
        self._db = duckdb.connect()
        self._db.execute("SET threads = 1")
        self._db.execute("PRAGMA disable_optimizer")
        self._made: dict[str, tuple[str, Rows]] = {}
        self._texts: dict[int, tuple[exp.Query, str]] = {}  # with the query, so that no other one gets its id
        self._forms: dict[object, Form] = {}  # with the step, as above
        self._loses_rows: dict[int, bool] = {}
        self._turns = 0

    def mismatch(
        self, case: Case, changes: Mapping[str, tuple[Rows, Rows]], *, unknown: frozenset[str] = frozenset()
    ) -> str | None:
        """What is wrong with the target after ``changes``; None if nothing is.

        The earlier rows of the tables ``unknown`` may not be read.
        """
        plan = case.plan
        moved = {source: changes.get(table, (Counter(), Counter())) for source, table in enumerate(case.tables)}
        changed = {source: SourceChange(bool(came), bool(went)) for source, (came, went) in moved.items()}
        known = frozenset(source for source, table in enumerate(case.tables) if table not in unknown)
        kind = (tuple((each.adds, each.removes) for each in changed.values()), known)
        self._turns += 1
        self._loses_rows = {source: each.removes for source, each in changed.items() if (self._turns + source) % 3}
        step = case.steps.setdefault(kind, None) or plan.step(changed, known_before=known)
        case.steps[kind] = step
        case.figures[step.strategy] += 1
        if step.strategy is Strategy.FULL:
            case.reasons[
                re.sub(r"\b[a-z]\d+(\.\w+)?|ips_subquery_\d+(\.k\d+)?|[A-Z]\w*\(.*", "…", step.why_not[Strategy.KEYS])
            ] += 1
            return None
        for source, (came, went) in moved.items():
            table = case.tables[source]
            rows = case.rows[table]
            self._fill(before(source), table, rows)
            self._fill(after(source), table, rows - went + came)
            self._fill(added(source), table, came)
            self._fill(removed(source), table, went)
            self._fill(kept(source), table, rows - went)
        target, expected = (self._bag(self._of_state(case, state)) for state in (before, after))
        if lost := step.reads & {before(source) for source in changed if source not in known}:
            return f"{step.strategy} reads {lost}, which can't be read any more"
        found = self._after(case, step, target, expected)
        if found == expected:
            return None
        return f"{step.strategy} by {step.keys}: lacks {expected - found}, has {found - expected}"

    def _after(self, case: Case, step: MaintenanceStep, target: Rows, expected: Rows) -> Rows:
        plan = case.plan
        match step.strategy:
            case Strategy.NOTHING:
                return target
            case Strategy.APPEND:
                return target + self._rows(step.rows)
            case Strategy.COMBINE:
                return self._combined(case, step)
            case _:
                affected, rows = self._among_affected(step)
                case.figures["keys of results"] += len({_key(row, step) for row in expected})
                case.figures["keys computed again"] += len({_key(row, step) for row in expected} & affected)
                stays = Counter({row: n for row, n in target.items() if _key(row, step) not in affected})
                if isinstance(plan.grouping, Grouping):
                    return stays + self._bag(grouped_text(plan.grouping, self._text(rows)))
                return stays + self._rows(rows)

    def _among_affected(self, step: MaintenanceStep) -> tuple[set[tuple[object, ...]], exp.Query]:
        """The affected keys, and the query of the step's rows, in the form for the keys of which none is null."""
        assert step.affected is not None
        assert step.rows is not None
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE {AFFECTED} AS {self._text(step.affected)}")
        affected = set(self._db.execute(f"FROM {AFFECTED}").fetchall())
        names = step.affected.named_selects
        for key, held in origins(step.affected, names).items():
            columns = " UNION ".join(f'SELECT "{column}" FROM {table}' for table, column in held)
            others = self._bag(f'SELECT "{key}" FROM {AFFECTED} EXCEPT ({columns})')
            assert not others, f"{key} has {others}, which {held} don't have"
        never_null = frozenset(
            key for place, key in enumerate(names) if all(row[place] is not None for row in affected)
        )
        form = id(step), never_null, frozenset(self._loses_rows.items())
        if form not in self._forms:
            self._forms[form] = (step, *near_rows(by_equality(step.rows, never_null), self._loses_rows))
        _, rows, near = self._forms[form]
        for name, each in near.items():
            self._db.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {self._text(each.query)}")
        return affected, rows

    def _combined(self, case: Case, step: MaintenanceStep) -> Rows:
        """The groups of the earlier rows, plus the added and minus the removed ones."""
        plan = case.plan
        assert isinstance(plan.grouping, Grouping)
        rows = step.rows
        if step.affected is not None:
            case.figures["combine by keys of what is grouped"] += 1
            _, rows = self._among_affected(step)
        weighed = self._rows(rows)
        now = self._rows(plan.all_rows)
        was = self._bag(self._text(plan.all_rows).replace("ips_after_", "ips_before_"))
        sums: Counter[tuple[object, ...]] = Counter(was)
        for (*row, weight), count in weighed.items():
            sums[tuple(row)] += weight * count
        live = Counter({tuple(row): n for (*row, weight), n in weighed.items() if weight == 0})
        if {row: n for row, n in sums.items() if n} != now or (live and live != now):
            return Counter({("the rows differ",): 1})
        if (
            any(within(each, exp.Min, exp.Max) for each in case.query.tree.selects)
            and not live
            and now
            and any(row[-1] == -1 for row in weighed)
        ):
            return Counter({("a group that loses its extreme needs the rows that are left",): 1})
        if wrong := next(wrong_extremes(plan.grouping, was, now, weighed, may_cancel=step.may_cancel), None):
            return Counter({wrong: 1})
        return self._bag(grouped_text(plan.grouping, self._text(plan.all_rows)))

    def _rows(self, query: exp.Query | None) -> Rows:
        return self._bag(self._text(query))

    def _text(self, query: exp.Query | None) -> str:
        assert query is not None
        if id(query) not in self._texts:
            self._texts[id(query)] = (query, in_duckdb(query))
        return self._texts[id(query)][1]

    def _bag(self, text: str) -> Rows:
        return Counter(self._db.execute(text).fetchall())

    def _of_state(self, case: Case, state: Callable[[int], str]) -> str:
        if state not in case.texts:
            case.texts[state] = self._text_of_state(case.query, state)
        return case.texts[state]

    def _text_of_state(self, query: Query, state: Callable[[int], str]) -> str:
        given = query.over({source: f"`{state(source)}`" for source in range(len(query.sources))})
        return in_duckdb(sqlglot.parse_one(given, dialect=DIALECT), identify=False)

    def _fill(self, name: str, table: str, rows: Rows) -> None:
        if self._made.get(name) == (table, rows):
            return
        if self._made.get(name, ("", None))[0] != table:
            listed = ", ".join(f"{column} {_KINDS[kind]}" for column, kind in TABLES[table].items())
            self._db.execute(f"CREATE OR REPLACE TABLE {name} ({listed})")
        else:
            self._db.execute(f"DELETE FROM {name}")
        self._made[name] = (table, rows)
        listed = ", ".join(f"({', '.join('NULL' if v is None else repr(v) for v in row)})" for row in rows.elements())
        if listed:
            self._db.execute(f"INSERT INTO {name} VALUES {listed}")


def in_duckdb(query: exp.Expr, *, identify: bool = True) -> str:
    """``query`` in DuckDB's SQL. As in Spark, CAST fails where TRY_CAST gives null."""

    def strict(node: exp.Expr) -> exp.Expr:
        is_strict = isinstance(node, exp.TryCast) and not node.args.get("safe")
        return exp.Cast(this=node.this, to=node.args["to"]) if is_strict else node

    return query.transform(strict).sql("duckdb", identify=identify)


def _key(row: tuple[object, ...], step: MaintenanceStep) -> tuple[object, ...]:
    return tuple(row[place] for place in step.keys)


def grouped_text(grouping: Grouping, rows: str) -> str:
    """The SQL of a grouping's result, from ``rows``, the SQL of its rows."""
    found = grouping.rows.named_selects
    keys = {grouping.names[place]: f'"{found[i]}"' for i, place in enumerate(grouping.keys)}
    parts = dict(keys)
    for name, (function, value) in grouping.aggregates.items():
        function_name = "count_if" if function is Function.COUNT_IF else function.value
        parts[name] = f"{function_name}({value if value == EVERY_ROW else f'{chr(34)}{value}{chr(34)}'})"
    listed = ", ".join(f'{text} AS "{name}"' for name, text in parts.items())
    groups = f"SELECT {listed} FROM ({rows})" + (f" GROUP BY {', '.join(keys.values())}" if keys else "")
    made = {name: in_duckdb(each) for name, each in grouping.computed.items()}
    return f"SELECT {', '.join(made.get(name, f'{chr(34)}{name}{chr(34)}') for name in grouping.names)} FROM ({groups})"


def wrong_extremes(
    grouping: Grouping, was: Rows, now: Rows, weighed: Rows, *, may_cancel: bool
) -> Iterator[tuple[object, ...]]:
    """The least and greatest values that a table would keep for groups of ``weighed`` rows, but that aren't theirs."""
    keys = len(grouping.keys)
    changed = [row for row in weighed if row[-1]]
    sums = Counter[tuple[object, ...]]()
    for row in changed:
        sums[row[:keys]] += row[-1] * weighed[row]
    left = {row[:keys] for row in now}
    for name, (function, value) in grouping.aggregates.items():
        if function not in (Function.MIN, Function.MAX):
            continue
        best = min if function is Function.MIN else max
        place = grouping.rows.named_selects.index(value)
        sides = [was, now, [row for row in changed if row[-1] > 0], [row for row in changed if row[-1] < 0]]
        before, after, came, gone = (_best_by_group(rows, keys, place, best) for rows in sides)
        for key in sums.keys() & left:
            old, wanted, new, lost = (found.get(key) for found in (before, after, came, gone))
            kept = old
            if sums[key] or new != lost or (may_cancel and lost is not None):
                kept = _extreme(old, new, lost, best, may_cancel=may_cancel, live=wanted)
            if kept != wanted:
                yield f"{name} is wrong", key, kept, wanted


def _extreme(  # noqa: PLR0913  # all are independent
    old: Any,  # noqa: ANN401
    came: Any,  # noqa: ANN401
    gone: Any,  # noqa: ANN401
    best: Callable[..., Any],
    *,
    may_cancel: bool,
    live: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """The extreme that is kept for a group, which is that of its ``live`` rows only where they have to be read."""
    is_reached = gone is not None and (old is None or best(gone, old) == gone)
    is_covered = None not in (came, old) and best(came, old) == came
    if may_cancel and is_covered and gone is not None:
        is_covered = best(came, gone) != gone
    if is_reached and not is_covered:
        return live
    return best((each for each in (old, came) if each is not None), default=None)


def _best_by_group(rows: Iterable[Any], keys: int, place: int, best: Callable[..., Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for row in rows:
        if row[place] is not None:
            found[row[:keys]] = best(found.get(row[:keys], row[place]), row[place])
    return found


@dataclass
class Found:
    """What a run found: figures, reasons for full runs, and what was wrong."""

    figures: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def run(seed: int, queries: int, changes: int, *, stop_at: int = 1) -> Found:
    """Check ``queries`` random queries, each with ``changes`` changes of its tables; stop at ``stop_at`` mismatches."""
    machine, found = Machine(), Found()
    for number in range(queries):
        random = Random(f"{seed}/{number}")
        text = Queries(random).query()
        rows = {table: random_rows(random, table) for table in TABLES}
        has_grown = random.random() < 0.15  # by a column that is null in older rows
        if has_grown:
            rows[GROWS] = Counter((*row[:-1], None) for row in rows[GROWS].elements())
        case = Case(
            read(text), rows, found.figures, found.reasons, "left out by the test" if random.random() < 0.3 else None
        )
        found.figures["queries"] += 1
        for _ in range(changes):
            moved = random.sample(case.tables, min(len(case.tables), random.choice([1, 1, 1, 2, 3])))
            only_adds = random.random() < 0.4
            change = {table: random_change(random, table, rows[table], only_adds=only_adds) for table in moved}
            unknown = frozenset(t for t in moved if random.random() < 0.15 or (has_grown and t == GROWS))
            found.figures["pairs"] += 1
            try:
                wrong = machine.mismatch(case, change, unknown=unknown)
            except duckdb.Error as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                parts = [f"seed {seed}, query {number}", text, rows, change, unknown, case.no_grouping, wrong]
                found.wrong.append("\n  ".join(map(str, parts)))
                if len(found.wrong) >= stop_at:
                    return found
    return found


if __name__ == "__main__":
    its_seed, how_many, each = map(int, sys.argv[1:4])
    result = run(its_seed, how_many, each)
    for counted in (result.figures, result.reasons):
        print(*(f"{n:8} {what}" for what, n in counted.most_common(25)), sep="\n")
    if result.wrong:
        sys.exit("\n".join(result.wrong))
