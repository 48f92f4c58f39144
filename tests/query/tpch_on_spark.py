"""TPC-H's 22 queries as assets on Spark and Iceberg: Dagster's runs must leave what the queries give.

``python -m tests.query.tpch_on_spark SCALE ROUNDS SEED``. In each round some tables change at random and some of the
queries that read them are materialized; so an asset may see the changes of several rounds at once. Final LIMITs are
left out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import duckdb

from tests.query.maintained_tables import MaintainedTables, temporary_lake
from tests.query.tpch import CHANGES, TABLES, UPDATES, database, prepared
from tests.support.lake import Lake

OTHERS = ("compaction",)
SHARES = (0.3, 2, 20)
"""The percentages of a table's rows that may change at once."""


def fill(lake: Lake, db: duckdb.DuckDBPyConnection, random: Random, file_bytes: int | None = None) -> None:
    """Write TPC-H's tables to Iceberg, each with a random format version and write mode.

    Each is one file, or files of about ``file_bytes``; rows stay in their order, which is that of the primary key.
    """
    lake.catalog.create_namespace("media")
    with TemporaryDirectory() as folder:
        for table in TABLES:
            file = Path(folder, f"{table}.parquet")  # Read in pieces: at scale, a table is larger than Spark's heap.
            db.execute(f"COPY {table} TO '{file}' (FORMAT parquet)")
            way = random.choice(["copy-on-write", "merge-on-read"])
            rows = lake.session.read.parquet(str(file))
            rows = rows if file_bytes else rows.coalesce(1)
            writer = rows.writeTo(f"lake.media.{table}").using("iceberg")
            if file_bytes:
                writer = writer.tableProperty("write.target-file-size-bytes", str(file_bytes))
            for each in ("delete", "update", "merge"):
                writer = writer.tableProperty(f"write.{each}.mode", way)
            writer.tableProperty("format-version", random.choice(["2", "3"])).create()


def change(lake: Lake, table: str, kind: str, share: float, seed: int) -> None:
    """Change some rows of ``table``, in one commit."""
    name = f"lake.media.{table}"
    columns = lake.sql(f"SELECT * FROM {name}").columns
    some = f"pmod(xxhash64({', '.join(columns)}, {seed}), 1000) < {round(share * 10)}"
    match kind:
        case "insert":  # rows that resemble others
            values = [UPDATES[table].get(column, column) for column in columns]
            lake.sql(f"INSERT INTO {name} SELECT {', '.join(values)} FROM {name} WHERE {some}")
        case "update":
            updates = ", ".join(f"{column} = {value}" for column, value in UPDATES[table].items())
            lake.sql(f"UPDATE {name} SET {updates} WHERE {some}")
        case "delete":
            lake.sql(f"DELETE FROM {name} WHERE {some}")
        case _:
            lake.sql(f"CALL lake.system.rewrite_data_files('media.{table}', options => map('rewrite-all', 'true'))")


def change_some(lake: Lake, random: Random) -> list[tuple[str, str, float]]:
    """Change up to four tables, the small ones seldom; the table, kind and percentage of each change."""
    tables = random.sample(TABLES[2:], random.choice([1, 1, 2, 3])) + random.sample(
        TABLES[:2], random.choice([0, 0, 1])
    )
    done = []
    for table in tables:
        kind, share = random.choice([*CHANGES] * 3 + [*OTHERS]), random.choice(SHARES)
        change(lake, table, kind, share, random.randrange(1000))
        done.append((table, kind, share))
    return done


def run(
    tables: MaintainedTables, rounds: int, random: Random, *, in_a_round: int = 8, is_told: bool = False
) -> MaintainedTables:
    """Compute all tables, and follow ``rounds`` rounds of changes; in the last round every table is updated."""
    names = list(tables.texts)
    tables.follow(names, "nothing")
    for number in range(rounds):
        changed = change_some(tables.lake, random)
        reached = [name for name in names if any(table in tables.texts[name] for table, _, _ in changed)]
        tables.follow(names if number == rounds - 1 else random.sample(reached, min(in_a_round, len(reached))), changed)
        if is_told:
            print(number, changed, dict(tables.figures), len(tables.wrong), flush=True)
    return tables


def made(
    lake: Lake, instance: object, scale: float, random: Random, *, file_bytes: int | None = None
) -> MaintainedTables:
    """Fill the sources; the tables of the queries over them, not computed yet."""
    with TemporaryDirectory() as folder, database(scale, Path(folder, "tpch") if file_bytes else None) as db:
        fill(lake, db, random, file_bytes)
        texts = {f"q{query.number}": query.text for query in prepared(db)}
    return MaintainedTables(lake, instance, texts, TABLES)  # type: ignore[arg-type]


if __name__ == "__main__":
    its_scale, its_rounds, its_random = float(sys.argv[1]), int(sys.argv[2]), Random(int(sys.argv[3]))
    with temporary_lake() as (its_lake, its_instance):
        found = run(made(its_lake, its_instance, its_scale, its_random), its_rounds, its_random, is_told=True)
    print(*(f"{n:6} {strategy}" for strategy, n in found.figures.most_common()), sep="\n")
    sys.exit("\n".join(found.wrong) if found.wrong else 0)
