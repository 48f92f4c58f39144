"""The same rows in tables of several layouts and in memory, to compare what conditions select of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.exactly_once.snapshot_rows import current_rows
from tests.spark import conditions as some
from tests.support.lake import Lake

COLUMNS = {"id": "int"} | some.PARTITIONS | some.OTHERS | {"s": "struct<f: double, c: string>"}
_OF = {kind: name for name, kind in some.PARTITIONS.items()}
TEXT, NUMBER, DAY, MOMENT, DECIMAL = (_OF[kind] for kind in ("string", "int", "date", "timestamp", "decimal(10, 2)"))
LAYOUTS: Mapping[str, str] = {
    "flat": "",
    "every_column": ", ".join(some.PARTITIONS),
    "buckets": f"bucket(3, {TEXT}), bucket(2, {NUMBER}), truncate(2, {DECIMAL})",
    "starts": f"truncate(1, {TEXT}), truncate(10, {NUMBER}), days({MOMENT})",
    "months": f"months({DAY}), {TEXT}",
    "text_and_field": f"{TEXT}, s.c",
    "two_specs": "",
} | {f"by_{name}": name for name in some.PARTITIONS}
"""By what the tables are partitioned; ``two_specs`` is, by the text, from its second half of rows on."""
SPARK_FAILS = re.compile(r"IN \((CAST\(\S+ AS binary\), )?CAST\(NULL AS binary\)")
"""On a list of binary values with a null, Spark 4.1 fails with an AssertionError in any source that gets conditions."""


@dataclass(frozen=True)
class FilteredTables:
    """Tables ``lake.t.<layout>``, and their rows in memory, where no condition on them goes through Iceberg."""

    lake: Lake
    plain: DataFrame

    @classmethod
    def of(cls, lake: Lake, rows: Sequence[str], layouts: Sequence[str]) -> FilteredTables:
        """Tables with ``rows``, which are as `conditions.rows` draws them."""
        typed = ", ".join(f"CAST(c{i} AS {kind}) AS {column}" for i, (column, kind) in enumerate(COLUMNS.items()))
        names = ", ".join(f"c{i}" for i in range(len(COLUMNS)))
        plain = lake.sql(f"SELECT {typed} FROM VALUES {', '.join(rows)} AS v({names})")
        lake.catalog.create_namespace("t")
        for layout in layouts:
            table = f"lake.t.{layout}"
            lake.sql(f"DROP TABLE IF EXISTS {table}")
            of = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
            by = f"PARTITIONED BY ({LAYOUTS[layout]})" if LAYOUTS[layout] else ""
            lake.sql(f"CREATE TABLE {table} ({of}) USING iceberg {by}")
            if layout == "two_specs":
                plain.where("id % 2 = 0").writeTo(table).append()
                lake.sql(f"ALTER TABLE {table} ADD PARTITION FIELD {TEXT}")
                plain.where("id % 2 = 1").writeTo(table).append()
            else:
                plain.writeTo(table).append()
        return cls(lake, plain)

    def frame(self, layout: str) -> DataFrame:
        """The table of a layout as an asset that looks rows up in it gets it."""
        table = self.lake.catalog.load(f"t.{layout}", asset="test")
        return current_rows(self.lake.session, "lake", table, storage=self.lake.catalog.storage)

    def differing(self, frame: DataFrame, conditions: Sequence[str]) -> list[str]:
        """What ``frame``, which has all rows, selects otherwise by each of the ``conditions``."""
        asked = [each for each in conditions if not SPARK_FAILS.search(each)]
        wanted = self.matching(asked)
        pairs = zip(asked, wanted, selected(frame, asked), strict=True)
        return [f"{condition}: {got} instead of {want}" for condition, want, got in pairs if want != got]

    def matching(self, conditions: Sequence[str]) -> list[list[int]]:
        kept = [F.sort_array(F.collect_list(F.when(F.expr(c), F.col("id")))) for c in conditions]
        return list(self.plain.agg(*[ids.alias(f"c{i}") for i, ids in enumerate(kept)]).collect()[0])


def selected(frame: DataFrame, conditions: Sequence[str]) -> list[list[int]]:
    """The ids of the rows that each condition selects of ``frame``, by a single query: each is a WHERE of its own."""
    parts = [frame.where(each).select(F.lit(i).alias("i"), "id") for i, each in enumerate(conditions)]
    found: list[list[int]] = [[] for _ in conditions]
    for i, number in united(parts).collect():
        found[i].append(number)
    return [sorted(each) for each in found]


def united(frames: Sequence[DataFrame]) -> DataFrame:
    """All rows of ``frames``. The plan is a tree and no chain, which PySpark refuses to send if it is long."""
    if len(frames) == 1:
        return frames[0]
    half = len(frames) // 2
    return united(frames[:half]).unionAll(united(frames[half:]))
