"""Random conditions by every path on which the library evaluates them, compared with the same rows in memory.

``python -m tests.promises.conditions_by_path --seed 1 --seconds 600`` draws as many as there is time for. The same seed
gives the same conditions in the same order.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import operator
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.local_spark.connect_server import stop_connect_server
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.writes.append import append_rows
from dagster_ips.spark.writes.merge import merge_rows
from dagster_ips.spark.writes.overwrite import KeysToReplace, replace_partitions
from dagster_ips.spark.writes.overwrite_where import replace_where
from dagster_ips.spark.writes.remove import remove_rows
from tests.histories.history import quicken
from tests.spark import conditions as some
from tests.support.backends import dagster_home
from tests.support.filtered_tables import COLUMNS, LAYOUTS, SPARK_FAILS, FilteredTables, selected, united
from tests.support.lake import Lake
from tests.support.lake_definitions import definitions_on
from tests.support.quick_spark import ensure_quick_server
from tests.support.quick_storage import make_storage_quick

_numbers = itertools.count()
_NEW_IDS = 100
READING = ("source", "added", "weighted", "affected", "whole", "by_query", "own_source", "own_added", "audited")
WRITING = ("append", "merge", "remove", "partitions")
"""How rows are written by conditions of the library's own: on the partitions that a change touches."""


def chosen(rows: DataFrame, conditions: Sequence[str], *more: str) -> DataFrame:
    """The ids of the rows that each condition selects, with its number."""
    return united([rows.where(each).selectExpr("id", f"{i} AS i", *more) for i, each in enumerate(conditions)])


def in_sql(table: str, conditions: Sequence[str]) -> str:
    """As ``chosen``, of a table in SQL."""
    return " UNION ALL ".join(f"SELECT id, {i} AS i FROM {table} WHERE {c}" for i, c in enumerate(conditions))


@dataclass
class ConditionsByPath:
    """Tables of random rows in several layouts, and what every path selects of them by random conditions."""

    lake: Lake
    instance: dg.DagsterInstance
    cases: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def read(self, rows: Sequence[str], layout: str, conditions: Sequence[str]) -> None:
        """Read a table by every path, before and after some of its rows are written anew and others are added."""
        conditions = [each for each in conditions if not SPARK_FAILS.search(each)]
        tables, name = FilteredTables.of(self.lake, rows, [layout]), f"n{next(_numbers)}"
        audits = list[list[int]]()
        definitions = self._definitions(name, f"t.{layout}", conditions, audits)
        self._materialize(definitions, name)
        self._compare(name, layout, conditions, tables.matching(conditions), audits)
        table, listed = f"lake.t.{layout}", ", ".join(COLUMNS)
        self.lake.sql(f"UPDATE {table} SET u2 = 7 WHERE id % 2 = 0").collect()
        more = listed.replace("id", f"id + {_NEW_IDS} AS id", 1)
        tables.plain.selectExpr(*_split(more)).where("id % 3 = 1").writeTo(table).append()
        now = f"SELECT {listed.replace('u2', 'IF(id % 2 = 0, 7, u2) AS u2', 1)} FROM {{old}}"
        both = f"{now} UNION ALL SELECT * FROM (SELECT {more} FROM {{old}}) WHERE id % 3 = 1"
        plain = self.lake.session.sql(both, old=tables.plain)
        self._materialize(definitions, name)
        first, now = tables.matching(conditions), FilteredTables(self.lake, plain).matching(conditions)
        came = FilteredTables(self.lake, plain.exceptAll(tables.plain)).matching(conditions)
        twice = [sorted(each) for each in map(operator.add, first, came)]
        self._compare(name, layout, conditions, now, audits, added=twice)
        for path in READING:
            self.lake.sql(f"DROP TABLE IF EXISTS lake.media.{path}_{name}").collect()

    def _definitions(  # noqa: C901  # a function for each path
        self, name: str, table: str, conditions: Sequence[str], audits: list[list[int]]
    ) -> dg.Definitions:
        def asset(path: str, write: dict[str, Any], **of: Any) -> Any:  # noqa: ANN401  # Dagster's decorator and its arguments
            return dg.asset(name=f"{path}_{name}", metadata=write | ips.table(f"media.{path}_{name}"), **of)

        up = ips.incremental()

        @asset("source", ips.replace(), ins={"up": up})
        def source(up: ips.IcdcView) -> DataFrame:
            return chosen(up.source, conditions)

        @asset("added", ips.append(), ins={"up": ips.incremental(on_removed="ignore")})
        def added(up: ips.IcdcView) -> DataFrame:
            return chosen(up.added, conditions)

        @asset("weighted", ips.combine(on=["id", "i"], aggregates={"n": "count(*)"}), ins={"up": up})
        def weighted(up: ips.IcdcView) -> DataFrame:
            return chosen(up.weighted, conditions, "_weight")

        @asset("affected", ips.merge(on=["id", "i"]), ins={"up": up})
        def affected(up: ips.IcdcView) -> DataFrame:
            return chosen(up.affected("id"), conditions)

        @asset("whole", {})
        def whole(up: DataFrame) -> DataFrame:
            return chosen(up, conditions)

        @asset("audited", {})
        def audited(up: DataFrame) -> DataFrame:
            return up

        @ips.audit(asset=f"audited_{name}")
        def selects_the_same(rows: DataFrame) -> bool:
            audits[:] = selected(rows, conditions)
            return True

        def own(path: str) -> Any:  # noqa: ANN401  # Dagster's
            @asset(f"own_{path}", {}, deps=[ips.incremental_dep("up")])
            def by_statements(context):  # noqa: ANN001, ANN202  # Dagster reads its annotation at run time
                with ips.capture(context, columns="id INT, i INT") as icdc:
                    if path == "source":
                        icdc.sql("DELETE FROM {target}")
                    else:
                        icdc.sql("DELETE FROM {target} WHERE id IN (SELECT id FROM {removed})")
                    icdc.sql(f"INSERT INTO {{target}} {in_sql(f'{{{path}}}', conditions)}")

            return by_statements

        query = ips.sql_asset(f"by_query_{name}", in_sql("up", conditions), table=f"media.by_query_{name}")
        assets = (source, added, weighted, affected, whole, audited, own("source"), own("added"), query)
        return definitions_on(
            self.lake.folder,
            self.lake.spark_folder,
            ips.iceberg_asset("up", table=table),
            *assets,
            asset_checks=[selects_the_same],
        )

    def _materialize(self, definitions: dg.Definitions, name: str) -> None:
        keys = [dg.AssetKey(f"{path}_{name}") for path in READING]
        job = definitions.resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(instance=self.instance, asset_selection=keys, raise_on_error=False)
        for event in done.get_step_failure_events():
            self.wrong.append(f"{event.step_key}: {event.step_failure_data.error}")

    def _compare(
        self,
        name: str,
        layout: str,
        conditions: Sequence[str],
        wanted: Sequence[Sequence[int]],
        audits: Sequence[Sequence[int]],
        **others: Sequence[Sequence[int]],
    ) -> None:
        found: dict[str, Sequence[Sequence[int]]] = {"audited": audits}
        for path in READING:
            if path not in found:
                found[path] = [[] for _ in conditions]
                for row in self.lake.sql(f"SELECT id, i FROM lake.media.{path}_{name}").collect():
                    list.append(found[path][row.i], row.id)  # type: ignore[arg-type]  # they are lists
        for path, ids in found.items():
            self._check(f"{path} of {layout}", conditions, others.get(path, wanted), [sorted(each) for each in ids])

    def _check(self, path: str, conditions: Sequence[str], wanted: Sequence[Any], found: Sequence[Any]) -> None:
        self.cases[path.partition(" ")[0]] += len(conditions)
        for condition, want, got in itertools.zip_longest(conditions, wanted, found):
            if want != got:
                self.wrong.append(f"{path}, {condition}: {got} instead of {want}")

    def overwrite(self, rows: Sequence[str], layout: str, conditions: Sequence[str], *, at_once: int) -> None:
        """Replace what conditions select, ``at_once`` conditions by one statement, each on its own copy of the rows."""
        conditions = [each for each in conditions if not SPARK_FAILS.search(each)]
        tables = FilteredTables.of(self.lake, rows, [])
        wanted = tables.matching(conditions)
        copies = tables.plain.crossJoin(self.lake.session.range(at_once).selectExpr("int(id) AS g"))
        copies = copies.withColumn("mark", F.lit(0))
        table = f"t.overwritten{next(_numbers)}"
        by = ", ".join(["g", *([LAYOUTS[layout]] if LAYOUTS[layout] else [])]) if at_once > 1 else LAYOUTS[layout]
        shown = ", ".join(f"{column} {kind}" for column, kind in {**COLUMNS, "g": "int", "mark": "int"}.items())
        partitioned = f"PARTITIONED BY ({by})" if by else ""
        self.lake.sql(f"CREATE TABLE lake.{table} ({shown}) USING iceberg {partitioned}")
        copies.writeTo(f"lake.{table}").append()
        found = self.lake.catalog.load(table, asset="test")
        for start in range(0, len(conditions), at_once):
            batch = range(start, min(start + at_once, len(conditions)))
            branch = Branch("lake", table, f"b{batch[0]}")
            branch.create(self.lake.session, head=found.ancestry().head)
            each = [f"(g = {g} AND ({conditions[number]}))" for g, number in enumerate(batch)]
            where = " OR ".join(each) if at_once > 1 else conditions[batch[0]]
            ids = [(g, row) for g, number in enumerate(batch) for row in wanted[number]]
            chosen_ids = " OR ".join(f"(g = {g} AND id = {row})" for g, row in ids) or "FALSE"
            try:
                replace_where(
                    copies.where(chosen_ids).withColumn("mark", F.lit(1)),
                    branch,
                    where=where,
                    whole_file_columns=found.whole_file_columns(),
                    hidden=found.hidden_names,
                )
            except Exception as error:  # noqa: BLE001  # whatever it is, it is a wrong answer
                self.wrong.append(f"overwrite of {layout}, {where}: {error}")
                continue
            now = self.lake.session.table(branch.sql_name).select("g", "id", "mark").collect()
            per_copy = [sorted((row.id, row.mark) for row in now if row.g == g) for g in range(len(batch))]
            every = sorted({row.id for row in now})
            expected = [[(row, int(row in wanted[number])) for row in every] for number in batch]
            self._check(f"overwrite of {layout}", [conditions[number] for number in batch], expected, per_copy)
        self.lake.sql(f"DROP TABLE lake.{table}")

    def write(self, rows: Sequence[str], layout: str, chance: random.Random, times: int) -> None:
        """Write random rows by their partitions and ids, in each way that limits itself to the partitions touched."""
        column, kind = layout.removeprefix("by_"), some.PARTITIONS[layout.removeprefix("by_")]
        tables = FilteredTables.of(self.lake, rows, [])
        plain = tables.plain.select("id", column).withColumn("mark", F.lit(0))
        table = f"t.written{next(_numbers)}"
        self.lake.sql(
            f"CREATE TABLE lake.{table} (id int, {column} {kind}, mark int) USING iceberg PARTITIONED BY ({column})"
        )
        plain.writeTo(f"lake.{table}").append()
        found = self.lake.catalog.load(table, asset="test")
        text = f"CAST({column} + 0 AS STRING)" if kind in ("double", "float") else f"CAST({column} AS STRING)"
        key = "hex(x)".replace("x", column) if kind == "binary" else text

        def held(of: DataFrame) -> Counter[tuple[Any, ...]]:
            return Counter(tuple(row) for row in of.selectExpr("id", f"{key} AS k", "mark").collect())

        before = held(plain)
        ids = sorted(row for row, _, _ in before)
        for number in range(times):
            some_ids = [row for row in ids if chance.random() < 0.5]
            moved = chance.choice(ids)
            which = f"id IN ({', '.join(map(str, [-1, *some_ids]))})"
            # Also rows that the table doesn't have, in a partition that it has.
            new = plain.where(f"id = {moved}").withColumn("id", F.lit(_NEW_IDS))
            change = plain.where(which).unionAll(new).withColumn("mark", F.lit(1))
            came = held(change)
            for way in WRITING:
                branch = Branch("lake", table, f"{way}{number}")
                branch.create(self.lake.session, head=found.ancestry().head)
                expected = self._written(way, before, came)
                self._write(way, change, branch, column)
                now = held(self.lake.session.table(branch.sql_name))
                self._check(f"{way} of {layout}", [which], [expected], [now])
        self.lake.sql(f"DROP TABLE lake.{table}")

    @staticmethod
    def _write(way: str, change: DataFrame, branch: Branch, column: str) -> None:
        on, columns = [column, "id"], [column]
        match way:
            case "append":
                append_rows(change, branch, dedup_on=on, partition_columns=columns)
            case "remove":
                remove_rows(change, branch, on=on, upstream="up", partition_columns=columns)
            case "merge":
                merge_rows(change, branch, on=on, latest_by=None, keeps_newer=False, gone=[], partition_columns=columns)
            case "partitions":
                changed = [KeysToReplace(columns, change.select(column).distinct())]
                replace_partitions(change, branch, columns=columns, changed=changed, upstream="up")

    @staticmethod
    def _written(way: str, before: Counter[Any], came: Counter[Any]) -> Counter[Any]:
        keys, places = {row[:2] for row in came}, {row[1] for row in came}
        match way:
            case "append":
                return before + Counter({row: n for row, n in came.items() if (*row[:2], 0) not in before})
            case "remove":
                return Counter({row: n for row, n in before.items() if row[:2] not in keys})
            case "merge":
                return Counter({row: n for row, n in before.items() if row[:2] not in keys}) + came
            case _:
                return Counter({row: n for row, n in before.items() if row[1] not in places}) + came


def _split(listed: str) -> list[str]:
    return listed.split(", ")


def conditions_for(layout: str, count: int, seed: int) -> list[str]:
    """Conditions of which half are only on what the layout partitions by: these more often are about the same nulls."""
    named = {layout[3:], f"u{layout[4:]}", "p1"} if layout.startswith("by_") else {"p0", "p2", "p6", "p8", "s.c"}
    columns = {name: kind for name, kind in some.COLUMNS.items() if name in named}
    many = some.drawn(some.conditions(columns) | some.conditions(), 2 * count, seed=seed)
    return list(dict.fromkeys(many))[:count]


def check(  # noqa: PLR0913  # all are independent
    paths: ConditionsByPath, seed: int, layout: str, *, reads: int, overwrites: int, writes: int
) -> None:
    """Draw rows and conditions for a layout, and take every path with them."""
    (rows,) = some.drawn(some.rows(), 1, seed=seed)
    if reads:
        paths.read(rows, layout, conditions_for(layout, reads, seed))
    if overwrites:
        conditions = conditions_for(layout, overwrites, seed + 1)
        paths.overwrite(rows, layout, conditions[: overwrites // 10], at_once=1)
        paths.overwrite(rows, layout, conditions[overwrites // 10 :], at_once=10)
    if writes and layout.startswith("by_"):
        paths.write(rows, layout, random.Random(seed), writes)


def main() -> None:
    """Take every path with random conditions, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--spark", type=Path, help="the folder of a Spark server to use and to keep")
    given_ = parser.parse_args()
    make_storage_quick()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    until, cases, wrong = time.monotonic() + given_.seconds, Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        spark_folder = given_.spark or Path(folder) / "spark"
        server = ensure_quick_server(spark_folder)
        try:
            for number, layout in zip(itertools.count(given_.seed), itertools.cycle(LAYOUTS)):
                if time.monotonic() > until:
                    break
                home = Path(folder) / f"life{number}"
                with dg.DagsterInstance.from_config(dagster_home(home / "dagster", None)) as instance:
                    lake = Lake(home / "lake", spark_folder, server)
                    quicken(lake)
                    lake.catalog.create_namespace("t")
                    lake.catalog.create_namespace("media")
                    paths = ConditionsByPath(lake, instance)
                    check(paths, number, layout, reads=40, overwrites=44, writes=1)
                cases, wrong = cases + paths.cases, wrong + len(paths.wrong)
                print(
                    f"{number} {layout}: {cases.total()} cases, {wrong} wrong, {dict(cases)}",
                    *paths.wrong,
                    sep="\n",
                    flush=True,
                )
        finally:
            if not given_.spark:
                stop_connect_server(spark_folder)


if __name__ == "__main__":
    main()
