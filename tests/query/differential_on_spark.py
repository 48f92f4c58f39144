"""Random queries as assets on Spark and Iceberg: Dagster's runs must leave what the queries give.

``python -m tests.query.differential_on_spark SEED QUERIES CHANGES`` prints what it found and fails at a mismatch. To
save time, several queries read the same tables and run in the same Dagster runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import dagster as dg
from pyspark.errors import AnalysisException

from tests.query.maintained_tables import MaintainedTables, temporary_lake
from tests.query.random_queries import GROWS, TABLES, Queries, random_rows
from tests.support.lake import Lake

AT_ONCE = 20
STATEMENTS = {
    "insert": 5,
    "insert again": 1,
    "delete": 4,
    "update": 5,
    "overwrite": 1,
    "truncate": 0.3,
    "compact": 0.5,
    "expire": 0.5,
    "grow": 0.5,
}
"""The kinds of changes of tables, and their weights."""


@dataclass
class ChangingTable:
    """A source that is changed at random."""

    lake: Lake
    name: str
    random: Random
    grown: int = 0

    @property
    def full_name(self) -> str:
        return f"lake.media.{self.name}"

    def create(self) -> None:
        """Create the table with a few rows; the last column of the table ``GROWS`` may be added after them."""
        columns = [f"{column} {kind}" for column, kind in TABLES[self.name].items()]
        later = [columns.pop()] if self.name == GROWS and self._maybe(0.5) else []
        way = self.random.choice(["copy-on-write", "merge-on-read"])
        modes = ", ".join(f"'write.{each}.mode' = '{way}'" for each in ("delete", "update", "merge"))
        by = self.random.choice(["", "", " PARTITIONED BY (b)" if "b" in TABLES[self.name] else ""])
        version = self.random.choice([2, 3])
        self.lake.sql(f"DROP TABLE IF EXISTS {self.full_name} PURGE")
        self.lake.sql(
            f"CREATE TABLE {self.full_name} ({', '.join(columns)}) USING iceberg{by} "
            f"TBLPROPERTIES ('format-version' = '{version}', {modes})"
        )
        self._insert(len(columns))
        for column in later:
            self.lake.sql(f"ALTER TABLE {self.full_name} ADD COLUMN {column}")

    def change(self) -> str:
        """Change the table once; the kind of change."""
        kind = self.random.choices(list(STATEMENTS), list(STATEMENTS.values()))[0]
        match kind:
            case "insert" | "overwrite":
                self._insert(len(TABLES[self.name]), "OVERWRITE" if kind == "overwrite" else "INTO")
            case "insert again":
                listed = ", ".join(TABLES[self.name])
                self.lake.sql(
                    f"INSERT INTO {self.full_name} ({listed}) SELECT {listed} FROM {self.full_name} "
                    f"WHERE {self._condition()}"
                )
            case "delete":
                self.lake.sql(f"DELETE FROM {self.full_name} WHERE {self._condition()}")
            case "update":
                column = self.random.choice(list(TABLES[self.name]))
                self.lake.sql(f"UPDATE {self.full_name} SET {column} = {self._value(column)} WHERE {self._condition()}")
            case "truncate":
                self.lake.sql(f"DELETE FROM {self.full_name}")
            case "grow":
                self.grown += 1
                self.lake.sql(f"ALTER TABLE {self.full_name} ADD COLUMN more_{self.grown} INT")
                self.lake.sql(f"UPDATE {self.full_name} SET more_{self.grown} = 1 WHERE {self._condition()}")
            case "compact":
                self._call("rewrite_data_files", "options => map('rewrite-all', 'true')")
            case _:
                self._call("expire_snapshots", "older_than => TIMESTAMP'2200-01-01', retain_last => 1")
        return kind

    def _maybe(self, share: float) -> bool:
        return self.random.random() < share

    def _call(self, procedure: str, argument: str) -> None:
        self.lake.sql(f"CALL lake.system.{procedure}(table => 'media.{self.name}', {argument})")

    def _insert(self, columns: int, how: str = "INTO") -> None:
        rows = [row[:columns] for row in random_rows(self.random, self.name).elements()]
        listed = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
        names = ", ".join(list(TABLES[self.name])[:columns])
        if listed:
            self.lake.sql(f"INSERT {how} {self.full_name} ({names}) VALUES {listed}")

    def _condition(self) -> str:
        column = self.random.choice(list(TABLES[self.name]))
        return f"{column} {self.random.choice(['<=>', '<=>', '<=>', '<', '>='])} {self._value(column)}"

    def _value(self, column: str) -> str:
        if self._maybe(0.15):
            return "NULL"
        return (
            str(self.random.randint(0, 3)) if TABLES[self.name][column] == "int" else f"'{self.random.choice('abcd')}'"
        )


def _literal(value: object) -> str:
    return "NULL" if value is None else repr(value)


def name_tables(lake: Lake) -> None:
    """Give the tables the names that queries use, with the columns that they have now."""
    for table in TABLES:
        lake.sql(f"SELECT * FROM lake.media.{table}").createOrReplaceTempView(table)


def resolves(lake: Lake, text: str) -> bool:
    """Whether Spark can resolve the query over the tables as they were named last."""
    try:
        lake.sql(text).schema  # noqa: B018  # makes Spark resolve it
    except AnalysisException:
        return False
    return True


@dataclass
class FoundOnSpark:
    """What a run found: figures by strategy, what happened to tables, and what was wrong."""

    figures: Counter[str] = field(default_factory=Counter)
    statements: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        pairs = sum(self.figures.values())
        return f"{pairs} pairs: {dict(self.figures)}; {dict(self.statements)}; {len(self.wrong)} wrong"


def run(  # noqa: PLR0913  # none belong together
    lake: Lake, instance: dg.DagsterInstance, seed: int, queries: int, changes: int, *, is_told: bool = False
) -> FoundOnSpark:
    """Check ``queries`` random queries, each after ``changes`` rounds of changes of their tables."""
    lake.catalog.create_namespace("media")
    found = FoundOnSpark()
    for first in range(0, queries, AT_ONCE):
        random = Random(f"{seed}/{first}")
        sources = [ChangingTable(lake, name, random) for name in TABLES]
        for source in sources:
            source.create()
        name_tables(lake)
        texts = dict[str, str]()
        while len(texts) < min(AT_ONCE, queries - first):
            text = Queries(random).query()
            if resolves(lake, text):
                texts[f"c{first + len(texts)}"] = text
        tables = MaintainedTables(lake, instance, texts, TABLES, figures=found.figures, wrong=found.wrong)
        tables.follow(list(texts), f"nothing; seed {seed}")
        for _ in range(changes):
            changing = random.sample(sources, random.choice([1, 1, 1, 2, 3]))
            changed = [f"{each.change()} {each.name}" for each in changing for _ in range(random.choice([1, 1, 2]))]
            found.statements.update(each.rpartition(" ")[0] for each in changed)
            name_tables(lake)
            reached = [name for name, text in texts.items() if any(each.name in text for each in changing)]
            tables.follow([name for name in reached if resolves(lake, texts[name])], f"{changed}; seed {seed}")
            if is_told:
                print(found, flush=True)
        tables.drop()
    return found


if __name__ == "__main__":
    its_seed, how_many, each = map(int, sys.argv[1:4])
    with temporary_lake() as (its_lake, its_instance):
        result = run(its_lake, its_instance, its_seed, how_many, each, is_told=True)
    print(result)
    sys.exit("\n".join(result.wrong) if result.wrong else 0)
