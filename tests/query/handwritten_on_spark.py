"""Handwritten queries, as teams write them, as assets on Spark and Iceberg: Dagster's runs must leave what they give.

``python -m tests.query.handwritten_on_spark SEED ROUNDS [QUERY ...]``. The tables are two facts and four dimensions,
with keys that are null, that match nothing and that occur twice. In each round some tables change, and every query that
reads one of these is materialized.
"""

from __future__ import annotations

import sys
from random import Random

import dagster as dg

from tests.query.handwritten_queries import BY_PARTITION, QUALIFIED, QUERIES
from tests.query.maintained_tables import MaintainedTables, temporary_lake
from tests.support.lake import Lake

TABLES = {
    "play": "play_id BIGINT, account_id INT, title_id INT, started TIMESTAMP, day DATE, seconds INT, "
    "price DECIMAL(10,2), device STRING, tags ARRAY<STRING>",
    "payment": "payment_id BIGINT, account_id INT, amount DECIMAL(12,4), day DATE, status STRING, "
    "old_account_id BIGINT",
    "account": "account_id INT, country STRING, plan STRING, since DATE, referrer_id INT",
    "title": "title_id INT, genre STRING, studio_id INT, name STRING",
    "studio": "studio_id INT, region STRING, studio STRING",
    "band": "country STRING, low INT, high INT, band STRING",
}
FACTS = ("play", "payment")
_VALUES = {
    "account_id": ["0", "1", "2", "3", "4", "5", "NULL"],
    "old_account_id": ["0", "1", "2", "6", "NULL"],
    "referrer_id": ["0", "1", "2", "NULL", "NULL"],
    "title_id": ["0", "1", "2", "3", "4", "NULL"],
    "studio_id": ["0", "1", "2", "NULL"],
    "day": [f"DATE'2026-0{month}-{day:02}'" for month in (1, 2) for day in (1, 2, 3, 28)] + ["NULL"],
    "started": [f"TIMESTAMP'2026-0{m}-{d:02} {h:02}:59:59'" for m in (1, 2) for d in (1, 4, 5) for h in (0, 23)]
    + ["NULL"],
    "since": ["DATE'2025-12-31'", "DATE'2026-01-02'", "DATE'2026-02-28'", "NULL"],
    "seconds": ["0", "1", "10", "59", "60", "3600", "-5", "NULL"],
    "price": ["0.00", "0.10", "0.20", "9.99", "-1.05", "12345678.91", "NULL"],
    "amount": ["0.0001", "19.9900", "-19.9900", "100", "99999999.9999", "NULL"],
    "device": ["'tv'", "'TV'", "'phone'", "' tv'", "''", "NULL"],
    "status": ["'paid'", "'open'", "'refund'", "NULL"],
    "tags": ["array('a', 'b')", "array('b', 'b')", "array('c', NULL)", "CAST(array() AS ARRAY<STRING>)", "NULL"],
    "country": ["'de'", "'fr'", "'us'", "''", "NULL"],
    "plan": ["'free'", "'pro'", "'pro'", "NULL"],
    "genre": ["'drama'", "'comedy'", "'trailer'", "NULL"],
    "name": ["'It''s'", "'b\"q'", "'Ünder'", "NULL"],
    "region": ["'eu'", "'na'", "NULL"],
    "studio": ["'acme'", "'zeta'", "NULL"],
    "low": ["-10", "0", "10", "NULL"],
    "high": ["9", "59", "5000", "NULL"],
    "band": ["'short'", "'long'", "NULL"],
}


class Changing:
    """The sources, changed at random."""

    def __init__(self, lake: Lake, random: Random) -> None:
        self._lake, self._random, self._last_id = lake, random, 0

    def create(self) -> None:
        self._lake.catalog.create_namespace("media")
        for name, columns in TABLES.items():
            way = self._random.choice(["copy-on-write", "merge-on-read"])
            modes = ", ".join(f"'write.{each}.mode' = '{way}'" for each in ("delete", "update", "merge"))
            by = " PARTITIONED BY (day)" if name in FACTS and self._random.random() < 0.5 else ""
            self._lake.sql(
                f"CREATE TABLE lake.media.{name} ({columns}) USING iceberg{by} "
                f"TBLPROPERTIES ('format-version' = '{self._random.choice([2, 3])}', {modes})"
            )
            self._insert(name, 40 if name in FACTS else 7)

    def arrive(self) -> list[str]:
        """Add rows to one of the facts and change nothing else; the change as text."""
        name = self._random.choice(list(FACTS))
        self._insert(name, 3)
        return [f"insert {name}"]

    def change(self) -> list[str]:
        """Change one to three tables, some of them twice; the changes as texts."""
        facts, others = list(FACTS), [name for name in TABLES if name not in FACTS]
        picked = self._random.choice([[0, 1], [1, 0], [2, 0], [1, 1], [1, 2], [2, 1]])
        names = self._random.sample(facts, picked[0]) + self._random.sample(others, picked[1])
        return [self._change(name) for name in names for _ in range(self._random.choice([1, 1, 2]))]

    def _change(self, name: str) -> str:
        kind = self._random.choices(["insert", "update", "delete", "twice", "merge", "compact"], [4, 5, 4, 1, 1, 0.5])[
            0
        ]
        table, columns = f"lake.media.{name}", self._columns(name)
        match kind:
            case "insert":
                self._insert(name, self._random.choice([1, 2, 5]))
                done = ""
            case "update":
                column = self._random.choice([each for each in columns if each not in ("play_id", "payment_id")])
                done = f"SET {column} = {self._value(column)} WHERE {self._some(name)}"
                self._lake.sql(f"UPDATE {table} {done}")
            case "delete":
                done = f"WHERE {self._some(name)}"
                self._lake.sql(f"DELETE FROM {table} {done}")
            case "twice":
                listed, done = ", ".join(columns), f"WHERE {self._some(name)}"
                self._lake.sql(f"INSERT INTO {table} SELECT {listed} FROM {table} {done}")
            case "merge":
                key = columns[0]
                self._lake.sql(
                    f"MERGE INTO {table} t USING (SELECT {self._value(key)} AS k) s ON t.{key} = s.k "
                    f"WHEN MATCHED THEN DELETE"
                )
                self._insert(name, 2)
                done = ""
            case _:
                self._lake.sql(
                    f"CALL lake.system.rewrite_data_files('media.{name}', options => map('rewrite-all', 'true'))"
                )
                done = ""
        return f"{kind} {name} {done}".strip()

    def _columns(self, name: str) -> list[str]:
        return self._lake.sql(f"SELECT * FROM lake.media.{name}").columns

    def _some(self, name: str) -> str:
        if self._random.random() < 0.05:
            return "true"
        column = self._random.choice([each for each in self._columns(name) if each != "tags"])
        if column in ("play_id", "payment_id"):
            return f"{column} % 5 = {self._random.randrange(5)}"
        return f"{column} <=> {self._value(column)}"

    def _value(self, column: str) -> str:
        return self._random.choice(_VALUES[column]) if column in _VALUES else str(self._random.randrange(40))

    def _insert(self, name: str, rows: int) -> None:
        listed = []
        for _ in range(rows):
            self._last_id += 1
            values = [
                str(self._last_id) if each in ("play_id", "payment_id") else self._value(each)
                for each in self._columns(name)
            ]
            listed.append(f"({', '.join(values)})")
        self._lake.sql(f"INSERT INTO lake.media.{name} VALUES {', '.join(listed)}")


def run(  # noqa: PLR0913  # none belong together
    lake: Lake, instance: dg.DagsterInstance, seed: int, rounds: int, names: list[str], *, is_told: bool = False
) -> MaintainedTables:
    """Compute the queries ``names``, and follow ``rounds`` rounds of changes, of which the first only adds rows."""
    random = Random(seed)
    changing = Changing(lake, random)
    changing.create()
    texts = {name: QUERIES[name] for name in names or QUERIES}
    options = {name: {"partition_by": columns} for name, columns in BY_PARTITION.items()}
    options |= {name: {"sources": sources} for name, sources in QUALIFIED.items()}
    tables = MaintainedTables(lake, instance, texts, TABLES, options=options)
    tables.follow(list(texts), f"nothing; seed {seed}")
    for number in range(rounds):
        changed = changing.change() if number else changing.arrive()
        reads = [name for name, text in texts.items() if any(each.split()[1] in text.lower() for each in changed)]
        tables.follow(reads, f"{changed}; seed {seed}, round {number}")
        if is_told:
            print(number, changed, dict(tables.figures), len(tables.wrong), flush=True)
    return tables


if __name__ == "__main__":
    with temporary_lake() as (its_lake, its_instance):
        found = run(its_lake, its_instance, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:], is_told=True)
    print(*(f"{n:6} {strategy}" for strategy, n in found.figures.most_common()), sep="\n")
    sys.exit("\n".join(found.wrong) if found.wrong else 0)
