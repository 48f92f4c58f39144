"""Random queries over small tables with nulls and duplicates, and random changes of these tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

TABLES = {
    "t0": {"a": "int", "b": "int", "c": "int", "s": "string"},
    "t1": {"a": "int", "b": "int", "d": "int", "s": "string"},
    "t2": {"a": "int", "c": "int", "e": "int", "u": "string", "z": "int"},
    "t3": {"b": "int", "f": "int", "s": "string"},
}
GROWS = "t2"
"""The table whose last column may be added later."""
Row = tuple[int | str | None, ...]
Rows = Counter[Row]
Scope = list[tuple[str, str]]
"""The columns that expressions may name: the text and the type of each."""


class Queries:
    """Makes queries in Spark's SQL. Every one is valid; the columns of its result are c0, c1, …"""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._aliases = 0
        self._named: list[tuple[str, Scope]] = []

    def query(self) -> str:
        heads = []
        for _ in range(self._random.choices([0, 1, 2], [7, 2, 1])[0]):
            text, columns = self._any(self._random.choice([0, 0, 1]))
            name = self._alias("q")
            heads.append(f"{name} AS ({text})")
            self._named.append((name, columns))
        text, _ = self._any(self._random.choices([0, 1, 2], [5, 4, 1])[0])
        return f"WITH {', '.join(heads)} {text}" if heads else text

    def _maybe(self, share: float) -> bool:
        return self._random.random() < share

    def _alias(self, letter: str) -> str:
        self._aliases += 1
        return f"{letter}{self._aliases}"

    def _any(self, depth: int) -> tuple[str, Scope]:
        if depth and self._maybe(0.25):
            kinds = [self._random.choice(["int", "int", "string"]) for _ in range(self._random.randint(1, 3))]
            left, columns = self._select(depth - 1, kinds)
            right, _ = self._select(depth - 1, kinds)
            operation = self._random.choice(
                ["UNION ALL"] * 4 + ["UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"]
            )
            return f"{left} {operation} {right}", columns
        return self._select(depth, None)

    def _relation(self, depth: int) -> tuple[str, Scope]:
        alias = self._alias("r")
        if self._named and self._maybe(0.35):
            name, columns = self._random.choice(self._named)
        elif depth and self._maybe(0.35):
            text, columns = self._any(depth - 1)
            name = f"({text})"
        else:
            name = self._random.choice(list(TABLES))
            columns = list(TABLES[name].items())
        return f"{name} AS {alias}", [(f"{alias}.{column}", kind) for column, kind in columns]

    def _pick(self, scope: Scope, kind: str) -> str:
        fitting = [column for column, each in scope if each == kind]
        return self._random.choice(fitting) if fitting else {"int": "1", "string": "'x'"}[kind]

    def _equal(self, left: Scope, right: Scope) -> str:
        kind = self._random.choice(["int", "int", "int", "string"])
        return f"{self._pick(left, kind)} = {self._pick(right, kind)}"

    def _condition(self, scope: Scope) -> str:
        number, other, text = self._pick(scope, "int"), self._pick(scope, "int"), self._pick(scope, "string")
        return self._random.choice(
            [
                f"{number} > {self._random.randint(0, 2)}",
                f"{number} <> {self._random.randint(0, 3)}",
                f"{number} IS NULL",
                f"{number} IS NOT NULL",
                f"{number} <= {other}",
                f"coalesce({number}, 1) = 1",
                f"{text} < 'c'",
                f"({number} = 1 OR {other} = 2)",
                f"NOT {number} = {other}",
                f"{number} IN (1, 2)",
            ]
        )

    def _on(self, left: Scope, right: Scope) -> str:
        parts = [self._equal(left, right)]
        if self._maybe(0.25):
            parts.append(self._equal(left, right))
        if self._maybe(0.25):
            parts.append(self._condition(left + right))
        if self._maybe(0.12):
            first, second = self._pick(left, "int"), self._pick(right, "int")
            parts[0] = self._random.choice(
                [f"{first} <=> {second}", f"{first} < {second}", f"coalesce({first}, 0) = {second}"]
            )
        return " AND ".join(parts)

    def _subquery(self, outer: Scope) -> str:
        source, scope = self._relation(1 if self._maybe(0.25) else 0)
        where = [self._equal(scope, outer)] if self._maybe(0.75) else []
        where += [self._equal(scope, outer)] if self._maybe(0.2) else []
        where += [self._condition(scope + outer)] if self._maybe(0.25) else []
        where += [self._subquery(scope)] if self._maybe(0.1) else []
        if self._maybe(0.2):
            other, more = self._relation(0)
            source += f" {self._random.choice(['JOIN', 'LEFT JOIN'])} {other} ON {self._on(scope, more)}"
            scope = scope + more
        body = f"{source} WHERE {' AND '.join(where)}" if where else source
        mine, its = self._pick(outer, "int"), self._pick(scope, "int")
        aggregate = self._random.choice(["max", "min", "count", "sum"])
        return self._random.choice(
            [
                f"EXISTS (SELECT 1 FROM {body})",
                f"EXISTS (SELECT 1 FROM {body})",
                f"NOT EXISTS (SELECT 1 FROM {body})",
                f"{mine} IN (SELECT {its} FROM {body})",
                f"{mine} IN (SELECT {its} FROM {body})",
                f"{mine} IN (SELECT {its} FROM {body} GROUP BY {its} HAVING count(*) > 1)",
                f"{mine} IN (SELECT {its} FROM {body} ORDER BY {its} LIMIT 1)",
                f"{mine} NOT IN (SELECT {its} FROM {body})",
                f"{mine} {self._random.choice(['<', '=', '>='])} (SELECT {aggregate}({its}) FROM {body})",
            ]
        )

    def _value(self, scope: Scope, kind: str) -> str:
        one, other = self._pick(scope, kind), self._pick(scope, "int")
        if kind == "string":
            return self._random.choice([one, one, one, f"upper({one})", f"coalesce({one}, 'z')", "'k'"])
        return self._random.choice(
            [one] * 5
            + [f"{one} + 1", f"coalesce({one}, {other})", f"CASE WHEN {one} > 1 THEN {other} ELSE {one} END", "7"]
        )

    def _aggregate(self, scope: Scope) -> str:
        one = self._pick(scope, "int")
        forms = ["sum({})", "count({})", "count(*)", "min({})", "max({})", "sum({} + 1)"] * 2
        forms += ["count(DISTINCT {})", "sum({}) + count(*)", "avg({})", "bool_and({} > 1)", "bool_or({} > 1)"]
        forms += ["coalesce(max({}), -1) - count(*)", "CASE WHEN count({0}) > 1 THEN sum({0}) ELSE min({0}) END"]
        forms += ["sum({}) FILTER (WHERE {} > 1)", "sum(DISTINCT {})", "100 * sum({}) / (count({}) + 1)"]
        form = self._random.choice(forms)
        return form.format(*[one] * (form.count("{}") or 1))

    def _window(self, scope: Scope, by: Sequence[str]) -> str:
        if self._maybe(0.25):
            by = by[:-1] if self._maybe(0.5) else [*by, self._pick(scope, "int")]
        part = f"PARTITION BY {', '.join(by)} " if by else ""
        order, one = f"ORDER BY {self._pick(scope, 'int')}", self._pick(scope, "int")
        return self._random.choice(
            [
                f"rank() OVER ({part}{order})",
                f"dense_rank() OVER ({part}{order})",
                f"sum({one}) OVER ({part}{order})",
                f"count(*) OVER ({part})",
                f"max({one}) OVER ({part})",
            ]
        )

    def _from(self, depth: int) -> tuple[str, Scope, list[str]]:
        source, scope = self._relation(depth)
        where = []
        for _ in range(self._random.choices([0, 1, 2], [3, 5, 2])[0]):
            other, more = self._relation(max(depth - 1, 0))
            join = self._random.choices(
                ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "CROSS JOIN"],
                [20, 16, 5, 1, 4, 4, 2],
            )[0]
            its = {column.partition(".")[2]: kind for column, kind in more}
            names = [column.partition(".")[2] for column, _ in scope]
            shared = [name for name, (_, kind) in zip(names, scope, strict=True) if its.get(name) == kind]
            shared = [name for name in shared if names.count(name) == 1]
            if join in ("JOIN", "LEFT JOIN", "RIGHT JOIN") and shared and self._maybe(0.1):
                source += f" {join} {other} USING ({self._random.choice(shared)})"
            elif join == "CROSS JOIN":
                source += f" {join} {other}"
            else:
                source += f" {join} {other} ON {self._on(scope, more)}"
            if join == "LEFT JOIN" and self._maybe(0.35):  # mostly conditions that are true without a match
                forms = ["{} IS NULL"] * 3 + ["coalesce({}, 1) = 1", "({} IS NULL OR {} > 1)", "{} > 0"]
                where.append(self._random.choice(forms).replace("{}", self._pick(more, "int")))
            if "SEMI" not in join and "ANTI" not in join:
                scope = scope + more
        if self._maybe(0.08):
            other, more = self._relation(0)
            source += f" CROSS JOIN {other}"
            where.append(self._equal(scope, more))
            scope = scope + more
        where += [self._condition(scope)] if self._maybe(0.35) else []
        where += [self._subquery(scope)] if self._maybe(0.2) else []
        where += [f"({self._condition(scope)} OR {self._subquery(scope)})"] if self._maybe(0.05) else []
        where += [f"NOT ({self._subquery(scope)})"] if self._maybe(0.03) else []
        return source, scope, where

    def _select(self, depth: int, kinds: list[str] | None) -> tuple[str, Scope]:
        source, scope, where = self._from(depth)
        tail = f" WHERE {' AND '.join(where)}" if where else ""
        wanted = kinds or [self._random.choice(["int", "int", "string"]) for _ in range(self._random.randint(1, 4))]
        if kinds is None and self._maybe(0.03):
            return self._star()
        shape = self._random.choices(["plain", "group", "distinct", "window", "one"], [32, 40, 8, 14, 7])[0]
        head = "SELECT DISTINCT" if shape == "distinct" else "SELECT"
        if shape in ("plain", "distinct"):
            values = [self._value(scope, kind) for kind in wanted]
            if kinds is None and shape == "plain" and self._maybe(0.1):
                inner, its = self._relation(0)
                values[-1] = f"(SELECT max({self._pick(its, 'int')}) FROM {inner} WHERE {self._equal(its, scope)})"
                wanted[-1] = "int"
        elif shape == "one":
            values = [self._aggregate(scope) if kind == "int" else "'x'" for kind in wanted]
            if not any("(" in value for value in values):
                values[0], wanted[0] = "count(*)" if wanted[0] == "int" else "max('x')", wanted[0]
        elif shape == "group":
            values, more = self._groups(scope, wanted, is_free=kinds is None)
            tail += more
        else:
            values = self._windows(scope, wanted, is_free=kinds is None)
        numeric = ["int" if "bool_" not in value else "bool" for value in values]
        columns = [
            (f"c{i}", "bool" if n == "bool" else kind) for i, (n, kind) in enumerate(zip(numeric, wanted, strict=True))
        ]
        if kinds is not None:
            values = [f"CAST({v} AS int)" if kind == "int" else v for v, kind in zip(values, wanted, strict=True)]
            columns = [(f"c{i}", kind) for i, kind in enumerate(wanted)]
        listed = ", ".join(f"{value} AS c{i}" for i, value in enumerate(values))
        return f"{head} {listed} FROM {source}{tail}", columns

    def _star(self) -> tuple[str, Scope]:
        table = self._random.choice(list(TABLES))
        scope = [(f"r.{column}", kind) for column, kind in TABLES[table].items()]
        return f"SELECT * FROM {table} AS r WHERE {self._condition(scope)}", list(TABLES[table].items())

    def _groups(self, scope: Scope, wanted: list[str], *, is_free: bool) -> tuple[list[str], str]:
        values, by = [], []
        for place, kind in enumerate(wanted):
            if kind == "int" and place and self._maybe(0.6):
                values.append(self._aggregate(scope))
            else:
                key = self._value(scope, kind) if self._maybe(0.3) else self._pick(scope, kind)
                values.append(key)
                by += [key] if "." in key else []
        if is_free:
            values.append(self._aggregate(scope))
            wanted.append("int")
        by = list(dict.fromkeys(by)) or [self._pick(scope, "int")]
        if not any("." in each for each in by):
            by = [scope[0][0]]
        if self._maybe(0.12):
            by.append(scope[self._random.randrange(len(scope))][0])
        by = list(dict.fromkeys(by))
        tail = f" GROUP BY ROLLUP ({', '.join(by)})" if self._maybe(0.03) else f" GROUP BY {', '.join(by)}"
        if self._maybe(0.2):
            tail += f" HAVING count(*) > {self._random.randint(0, 2)}"
        return values, tail

    def _windows(self, scope: Scope, wanted: list[str], *, is_free: bool) -> list[str]:
        values = [self._pick(scope, kind) for kind in wanted]
        by = [value for value in values if "." in value][: self._random.randint(1, 2)]
        if is_free:
            values.append(self._window(scope, by))
            wanted.append("int")
        elif "int" in wanted:
            values[len(wanted) - 1 - wanted[::-1].index("int")] = self._window(scope, by)
        return values


def random_rows(random: Random, table: str) -> Rows:
    """A few rows of few different values, with some nulls and some duplicates."""
    rows = [_row(random, table) for _ in range(random.randint(0, 8))]
    twice = [random.choice(rows) for _ in range(random.choice([0, 0, 1, 2]))] if rows else []
    return Counter(rows + twice)


def random_change(random: Random, table: str, rows: Rows, *, only_adds: bool) -> tuple[Rows, Rows]:
    """The added and the removed rows, without rows that would be both; an update is one of each."""
    there = list(rows.elements())
    size = random.choice([1, 1, 2, 3, 8])
    kind = "add" if only_adds else random.choice(["add", "remove", "update", "mix"])
    went = Counter(random.sample(there, min(len(there), size)) if kind != "add" else [])
    came = Counter(_row(random, table) for _ in range(size)) if kind in ("add", "mix") else Counter()
    if kind == "update":
        for old in went.elements():
            place = random.randrange(len(old))
            came[(*old[:place], _row(random, table)[place], *old[place + 1 :])] += 1
    return came - went, went - came


def _row(random: Random, table: str) -> Row:
    kinds = TABLES[table].values()
    return tuple(
        None if random.random() < 0.12 else random.randint(0, 3) if kind == "int" else random.choice("abcd")
        for kind in kinds
    )
