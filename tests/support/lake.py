"""A small lake for tests: the catalog, Spark on it, and the tables of a two-stage pipeline."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType
from pyspark.sql import DataFrame, SparkSession

from dagster_ips.local_spark.connect_server import ConnectServer
from dagster_ips.progress.table_progress import PIN
from tests.support.lake_catalog import lake_catalog

SCHEMA = Schema(
    NestedField(1, "event_id", LongType()),
    NestedField(2, "event_date", DateType()),
    NestedField(3, "account", StringType()),
    NestedField(4, "seconds", LongType()),
)
BY_DATE = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "event_date"))
FIRST_DAY = dt.date(2026, 1, 1)

Event = tuple[int, dt.date, str, int]


def events(ids: Sequence[int], *, day: int = 0) -> list[Event]:
    """One event per id, all on the same day. Account and seconds follow from the id."""
    date = FIRST_DAY + dt.timedelta(days=day)
    return [(i, date, f"a{i % 3}", i % 7) for i in ids]


class Lake:
    """A catalog and Spark: the embedded catalog in ``folder``, or the catalog that was chosen for the folder."""

    def __init__(self, folder: Path, spark_folder: Path, server: ConnectServer) -> None:
        self.folder = folder
        self.spark_folder = spark_folder
        self.server = server
        self.catalog = lake_catalog(folder)
        self.session: SparkSession = server.session(self.catalog.spark_configuration())

    def another_session(self) -> SparkSession:
        """A Spark session that shares nothing with ``session``."""
        return self.server.session(self.catalog.spark_configuration())

    def create_playback(self, rows: Sequence[Event] = (), table: str = "media.playback") -> None:
        """Create ``media.playback`` or a table like it, partitioned by event_date."""
        self.catalog.create_namespace("media")
        self.catalog.client.create_table(table, SCHEMA, partition_spec=BY_DATE)
        if rows:
            self.append(rows, table)

    def append(self, rows: Sequence[Event], table: str = "media.playback") -> None:
        """One commit from outside, by PyIceberg."""
        columns = list(zip(*rows, strict=True))
        types = (pa.int64(), pa.date32(), pa.string(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        self.catalog.client.load_table(table).append(pa.table(arrays, names=[f.name for f in SCHEMA.fields]))

    def sql(self, text: str) -> DataFrame:
        """Run Spark SQL on this lake; its tables are named like ``lake.media.playback``."""
        return self.session.sql(text)

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        """All rows of ``table`` as a multiset."""
        return Counter(tuple(row) for row in self.sql(f"SELECT * FROM lake.{table}").collect())

    def maintain(self, table: str) -> None:
        """Two compactions and an expiry, after which only the second is left of the table's history."""
        for _ in range(2):
            self.sql(f"CALL lake.system.rewrite_data_files('{table}', options => map('rewrite-all', 'true'))").collect()
        expired = f"table => '{table}', older_than => now(), retain_last => 1"
        self.sql(f"CALL lake.system.expire_snapshots({expired})").collect()

    def branches(self, table: str) -> set[str]:
        """Its refs, but for the tag that keeps its progress."""
        metadata = self.catalog.load(table, asset="test")
        return set(metadata.raw["refs"]) - {PIN}

    def commits(self, table: str) -> int:
        """The number of snapshots on the table's main branch."""
        metadata = self.catalog.find(table)
        return len(metadata.ancestry().snapshots) if metadata else 0
