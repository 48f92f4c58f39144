"""TPC-H's 22 queries in DuckDB: how each is maintained when tables change, and whether that is right.

``python -m tests.query.tpch SCALE ROUNDS SEED``. Final LIMITs are left out: a table contains all rows.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random

import duckdb
import sqlglot
from sqlglot import exp

from dagster_ips.query.affected_keys import AFFECTED, SourceChange, added, after, before, removed
from dagster_ips.query.maintenance_plan import MaintenancePlan, QueryColumn, Strategy
from dagster_ips.query.query_text import read
from dagster_ips.query.top_grouping import Grouping
from tests.query.differential import grouped_text

TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")
CHANGES = {
    "insert": SourceChange(adds=True, removes=False),
    "update": SourceChange(adds=True, removes=True),
    "delete": SourceChange(adds=False, removes=True),
}
UPDATES = {
    "region": {"r_name": "r_name || 'x'"},
    "nation": {"n_regionkey": "(n_regionkey + 1) % 5"},
    "supplier": {"s_nationkey": "(s_nationkey + 1) % 25", "s_acctbal": "-s_acctbal"},
    "customer": {"c_nationkey": "(c_nationkey + 1) % 25", "c_acctbal": "-c_acctbal"},
    "part": {"p_type": "'PROMO ' || p_type", "p_size": "p_size + 1"},
    "partsupp": {"ps_supplycost": "ps_supplycost / 2"},
    "orders": {"o_orderdate": "o_orderdate + 40", "o_orderpriority": "'1-URGENT'"},
    "lineitem": {"l_quantity": "l_quantity + 1", "l_shipdate": "l_shipdate - 30", "l_suppkey": "l_suppkey % 10 + 1"},
}


@dataclass(frozen=True)
class Prepared:
    """A query of the benchmark: its text in Spark's SQL, and its tables by source."""

    number: int
    text: str
    tables: tuple[str, ...]
    tree: exp.Query
    plan: MaintenancePlan


def database(scale: float, file: Path | None = None) -> duckdb.DuckDBPyConnection:
    """TPC-H's tables, generated without downloading anything; in memory, or in a new ``file``."""
    db = duckdb.connect(file or ":memory:", config={"allow_unsigned_extensions": True, "memory_limit": "4GB"})
    spec = find_spec("duckdb_extension_tpch")
    assert spec is not None
    assert spec.origin is not None
    (extension,) = Path(spec.origin).parent.glob("extensions/*/*.duckdb_extension")
    db.execute(f"LOAD '{extension}'")
    db.execute("SET threads = 1")
    db.execute(f"CALL dbgen(sf = {scale})")
    return db


def prepared(db: duckdb.DuckDBPyConnection) -> list[Prepared]:
    """All queries, with their plans."""
    found = []
    for number, text in db.execute("SELECT query_nr, query FROM tpch_queries() ORDER BY 1").fetchall():
        tree = sqlglot.parse_one(text, dialect="duckdb")
        tree.set("limit", None)
        query = read(tree.sql("spark", pretty=True))
        tables = tuple(parts[-1].lower() for parts in query.sources)
        columns = [
            [QueryColumn(row[0], _spark(row[1])) for row in db.execute(f"DESCRIBE {table}").fetchall()]
            for table in tables
        ]
        found.append(Prepared(number, query.text, tables, query.tree, MaintenancePlan(query, columns)))
    return found


def _spark(kind: str) -> str:
    return {"BIGINT": "bigint", "INTEGER": "int", "VARCHAR": "string", "DATE": "date"}.get(kind, kind.lower())


def strategy(query: Prepared, table: str, change: SourceChange) -> tuple[Strategy, str]:
    """The strategy for a change of one table, and its reason."""
    changes = {query.tables.index(table): change} if table in query.tables else {}
    step = query.plan.step(changes, known_before=frozenset(range(len(query.tables))))
    return step.strategy, step.reason


def coverage(queries: list[Prepared]) -> list[str]:
    """A Markdown table: by query, the strategy if orders and lineitem change, and the tables whose change is full."""
    lines = [
        "| query | insert | update, delete | tables whose change is full | why |",
        "| --- | --- | --- | --- | --- |",
    ]
    for query in queries:
        cells = []
        for kind in ("insert", "update"):
            both = {query.tables.index(t): CHANGES[kind] for t in ("orders", "lineitem") if t in query.tables}
            cells.append(str(query.plan.step(both, known_before=frozenset(both)).strategy))
        full = {t: why for t in query.tables if (why := strategy(query, t, CHANGES["update"]))[0] is Strategy.FULL}
        why = next((reason.partition("no keys: ")[2].split(";")[0] for _, reason in full.values()), "")
        lines.append(f"| {query.number} | {' | '.join(cells)} | {', '.join(sorted(full))} | {why} |")
    return lines


def check_round(db: duckdb.DuckDBPyConnection, queries: list[Prepared], random: Random) -> list[str]:
    """Change some tables at random; the mismatches after that."""
    changed = random.sample(TABLES[2:], random.choice([1, 1, 2, 3])) + random.sample(
        TABLES[:2], random.choice([0, 0, 1])
    )
    kinds = {}
    for table in TABLES:
        for name in ("came", "went"):
            db.execute(f"CREATE OR REPLACE TABLE {table}_{name} AS FROM {table} LIMIT 0")
        db.execute(f"CREATE OR REPLACE TABLE {table}_was AS FROM {table}")
    for table in changed:
        kinds[table] = random.choice(list(CHANGES))
        share = random.choice([0.3, 2, 20])
        seed = random.randrange(1000)
        some = f"SELECT * FROM {table} USING SAMPLE {share} PERCENT (bernoulli, {seed})"
        if kinds[table] == "insert":  # rows that resemble others
            db.execute(f"INSERT INTO {table}_came {some}")
        else:
            db.execute(f"INSERT INTO {table}_went {some}")
        if kinds[table] == "update":
            db.execute(f"INSERT INTO {table}_came FROM {table}_went")
        updates = ", ".join(f"{column} = {value}" for column, value in UPDATES[table].items())
        db.execute(f"UPDATE {table}_came SET {updates}")
        stays = f"(FROM {table}_was EXCEPT ALL FROM {table}_went)"
        db.execute(f"CREATE OR REPLACE TABLE {table} AS {stays} UNION ALL FROM {table}_came")
    wrong = []
    for query in queries:
        for source, table in enumerate(query.tables):
            states = ((after, table), (before, f"{table}_was"), (added, f"{table}_came"), (removed, f"{table}_went"))
            for name, of in states:
                db.execute(f"CREATE OR REPLACE VIEW {name(source)} AS FROM {of}")
        problem = _problem(db, query, kinds)
        if problem:
            wrong.append(f"Q{query.number} {kinds}: {problem}")
    return wrong


def _problem(db: duckdb.DuckDBPyConnection, query: Prepared, kinds: dict[str, str]) -> str | None:
    changes = {source: CHANGES[kinds[table]] for source, table in enumerate(query.tables) if table in kinds}
    step = query.plan.step(changes, known_before=frozenset(changes))
    if step.strategy in (Strategy.FULL, Strategy.NOTHING):
        return None
    assert step.rows is not None
    rows = step.rows.sql("duckdb", identify=True)
    whole = query.plan.all_rows.sql("duckdb", identify=True)
    was = whole.replace("ips_after_", "ips_before_")
    if step.strategy is Strategy.APPEND:
        return _difference(_bag(db, was) + _bag(db, rows), _bag(db, whole))
    if step.affected is not None:
        db.execute(f"CREATE OR REPLACE TEMP TABLE {AFFECTED} AS {step.affected.sql('duckdb', identify=True)}")
    if step.strategy is Strategy.COMBINE:
        found = _bag(db, was)
        for (*row, weight), count in _bag(db, rows).items():
            found[tuple(row)] += weight * count
        return _difference(Counter({row: n for row, n in found.items() if n}), _bag(db, whole))
    affected = {_rounded(row) for row in db.execute(f"FROM {AFFECTED}").fetchall()}
    grouping = query.plan.grouping
    if isinstance(grouping, Grouping):
        rows, whole, was = (grouped_text(grouping, text) for text in (rows, whole, was))
    stays = {row: n for row, n in _bag(db, was).items() if tuple(row[place] for place in step.keys) not in affected}
    return _difference(Counter(stays) + _bag(db, rows), _bag(db, whole))


def _difference(found: Counter[tuple[object, ...]], expected: Counter[tuple[object, ...]]) -> str | None:
    if found == expected:
        return None
    return f"lacks {(expected - found).most_common(3)}, has {(found - expected).most_common(3)}"


def _bag(db: duckdb.DuckDBPyConnection, text: str) -> Counter[tuple[object, ...]]:
    return Counter(map(_rounded, db.execute(text).fetchall()))


def _rounded(row: tuple[object, ...]) -> tuple[object, ...]:
    """The row with floats rounded to ten digits: DuckDB's averages depend on the order of rows."""
    return tuple(float(f"{value:.10g}") if isinstance(value, float) else value for value in row)


if __name__ == "__main__":
    scale, rounds, seed = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    its_db = database(scale)
    its_queries = prepared(its_db)
    print("\n".join(coverage(its_queries)))
    its_random, problems = Random(seed), list[str]()
    for _ in range(rounds):
        problems += check_round(its_db, its_queries, its_random)
    print(f"{rounds} rounds, {rounds * len(its_queries)} pairs of query and change, {len(problems)} wrong")
    sys.exit("\n".join(problems) if problems else 0)
