"""Whatever the values, the names and this machine's time zone, the right rows are found and written."""

from __future__ import annotations

import datetime as dt
import pickle
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence

import dagster as dg
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, UUIDType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.core.write_mode import Append, Merge, OverwritePartitions, WriteMode
from dagster_ips.errors import DeclarationError, OutOfRangeDateError
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.exactly_once.publish.result_writer import Result
from dagster_ips.run_view import RunView
from dagster_ips.spark.targets import TableDescription, create_table
from tests.support.lake import Lake
from tests.support.lake_definitions import definitions_on
from tests.support.memory_store import MemoryCursors, consume
from tests.support.pipeline import materialize
from tests.support.variants import mostly_slow

UP = "lake.media.up"


class Consumer:
    """Writes the result of ``take`` over ``media.up`` to ``media.<target>``, as an asset does, but without Dagster."""

    def __init__(
        self,
        lake: Lake,
        mode: WriteMode,
        take: Callable[[RunView], DataFrame],
        *,
        target: str = "out",
        partition_by: Sequence[str] = (),
    ) -> None:
        self.lake, self.mode, self.take, self.target = lake, mode, take, f"media.{target}"
        self.description = TableDescription(partition_by)
        self.store = MemoryCursors()

    def view(self) -> RunView:
        inputs = [TrackedInput("up", "media.up")]
        capturer = Capturer(self.lake.catalog, self.store)
        captured = capturer.capture(CaptureRequest("out", inputs, target=self.target), run_id=uuid.uuid4().hex)
        return RunView(captured[0], self.lake.session, "lake")

    def skip(self) -> None:
        """Consume the current rows without reading them."""
        captured = self.view().captured
        create_table(self.lake.session, "lake", self.target, self.lake.sql("SELECT 1 AS one"), self.description)
        consume(self.store, self.lake.catalog, self.target, [captured])

    def run(self) -> None:
        view = self.view()
        frame = self.take(view)
        create_table(self.lake.session, "lake", self.target, frame, self.description)
        result = Result(frame, self.mode, view.mode, [view.change])
        advance = view.captured.advance
        publisher = Publisher(self.lake.catalog, self.store, self.lake.session, uuid.uuid4().hex, advance=advance)
        publisher.publish(self.target, [view.captured.capture], result.write, consumer="out")

    def rows(self) -> list[tuple[object, ...]]:
        return sorted(self.lake.rows(self.target).elements(), key=repr)


def counts(column: str) -> Callable[[RunView], DataFrame]:
    return lambda up: up.affected(column).groupBy(column).agg(F.count("*").alias("n"))


def create(lake: Lake, columns: str, rows: str = "", *, by: str = "") -> None:
    lake.catalog.create_namespace("media")
    lake.sql(f"CREATE TABLE {UP} ({columns}) USING iceberg {f'PARTITIONED BY ({by})' if by else ''}")
    if rows:
        lake.sql(f"INSERT INTO {UP} VALUES {rows}")


@pytest.mark.filterwarnings("ignore:The SQL config:UserWarning")
def test_keys_that_spark_sql_settings_could_change_are_found_unchanged(lake: Lake) -> None:
    lake.session.conf.set("spark.sql.parser.escapedStringLiterals", "true")
    create(lake, "k string, n int", by="k")
    keys = ["${env:HOME}", "a\\b", "it's"]
    more = lake.session.createDataFrame([(key, 1) for key in keys], "k string, n int")
    more.writeTo(UP).append()
    consumer = Consumer(lake, Merge(("k",)), counts("k"))
    consumer.run()
    more.writeTo(UP).append()
    consumer.run()
    assert consumer.rows() == sorted([(key, 2) for key in keys], key=repr)


@pytest.mark.everywhere
@pytest.mark.parametrize("partitioned", mostly_slow([False, True]))
def test_zero_and_minus_zero_are_one_key(lake: Lake, *, partitioned: bool) -> None:
    by = "amount" if partitioned else ""
    create(lake, "id int, amount double", "(1, CAST('-0.0' AS double))", by=by)
    consumer = Consumer(lake, OverwritePartitions(), lambda up: up.affected("amount"), partition_by=["amount"])
    consumer.run()
    for i, zero in enumerate(("0.0", "-0.0"), start=2):
        lake.sql(f"INSERT INTO {UP} VALUES ({i}, CAST('{zero}' AS double))")
        assert consumer.view().affected("amount").count() == i
        assert consumer.view().scope.count() == i
        consumer.run()
        assert [row[0] for row in consumer.rows()] == list(range(1, i + 1))


@pytest.mark.slow
def test_a_filter_of_spark_finds_every_uuid_of_a_partition_column(lake: Lake) -> None:
    """Spark reads a uuid as a string, and Java orders it by two signed numbers."""
    lake.catalog.create_namespace("media")
    schema = Schema(NestedField(1, "id", UUIDType()), NestedField(2, "n", LongType()))
    by_id = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    merged = {"commit.manifest.min-count-to-merge": "2"}
    lake.catalog.client.create_table("media.up", schema, partition_spec=by_id, properties=merged)
    values = [uuid.UUID(int=first << 120 | second << 56) for first in (0x10, 0x7F, 0x80, 0xF0) for second in (1, 0x80)]
    consumer = Consumer(lake, Append(), lambda up: up.added)
    lake.sql(f"INSERT INTO {UP} VALUES ('{uuid.UUID(int=0)}', -1)")
    consumer.skip()
    for n, value in enumerate(values):
        lake.sql(f"INSERT INTO {UP} VALUES ('{value}', {n})")
    view = consumer.view()
    assert view.added.count() == len(values)
    for n, value in enumerate(values):
        assert [row.n for row in view.added.where(F.col("id") == str(value)).collect()] == [n]


@pytest.mark.slow
@pytest.mark.everywhere
@pytest.mark.parametrize("kind", mostly_slow(["timestamp", "timestamp_ntz"]))
def test_partitions_by_timestamp_are_the_same_in_a_process_of_any_time_zone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        lake.session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        name, zone = ("TIMESTAMP_LTZ", "Z") if kind == "timestamp" else ("TIMESTAMP_NTZ", "")
        # Both are 01:00 in New York.
        rows = ", ".join(f"({i}, {name} '2025-11-02 0{i}:00:00{zone}')" for i in (5, 6))
        create(lake, f"id int, hour {kind}", rows)
        modes = {"merged": Merge(("hour",)), "replaced": OverwritePartitions()}
        consumers = [
            Consumer(lake, mode, counts("hour"), target=target, partition_by=["hour"]) for target, mode in modes.items()
        ]
        for consumer in consumers:
            consumer.run()
        lake.sql(f"INSERT INTO {UP} VALUES {rows}")
        for consumer in consumers:
            consumer.run()
            assert [row[1] for row in consumer.rows()] == [2, 2]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_table_is_computed_in_the_time_zone_that_its_runs_are_configured_with(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    create(lake, "at timestamp", "(TIMESTAMP_LTZ '2025-10-25 22:30:00Z')")
    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(folder=str(lake.folder)),
        spark=ips.LocalSparkConnect(
            server_folder=str(lake.spark_folder), spark_config={"spark.sql.session.timeZone": "Europe/Berlin"}
        ),
    )
    up = ips.iceberg_asset("up", table="media.up")
    days = ips.sql_asset(
        "days", "SELECT to_date(at) AS day, count(*) AS n FROM up GROUP BY to_date(at)", table="media.days"
    )
    definitions = ips.with_incremental(dg.Definitions(assets=[up, days], resources={"io_manager": manager}))
    for times in (1, 2):
        materialize(definitions, instance, "days")
        assert lake.rows("media.days") == Counter([(dt.date(2025, 10, 26), times)])
        lake.sql(f"INSERT INTO {UP} VALUES (TIMESTAMP_LTZ '2025-10-25 22:30:00Z')")


def test_names_that_need_quotes_are_quoted_everywhere(lake: Lake) -> None:
    row = "(1, named_struct('a b', 1, 'x-y', array(named_struct('p q', 2))))"
    create(lake, "`my key` int, s struct<`a b`: int, `x-y`: array<struct<`p q`: int>>>", row)
    for target, mode in {"my-out": OverwritePartitions(), "other-out": Append()}.items():
        take = (lambda up: up.affected("my key")) if isinstance(mode, OverwritePartitions) else (lambda up: up.added)
        consumer = Consumer(lake, mode, take, target=target, partition_by=["my key"])
        consumer.run()
        assert lake.sql(f"SELECT s.`x-y`[0].`p q` AS q FROM lake.media.`{target}`").collect()[0].q == 2


def test_a_table_whose_name_has_a_dot_is_read_and_written_as_any_other(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.`my.table` (id int) USING iceberg")

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.append() | ips.table("media.`my.copy`"))
    def copy(up: ips.IcdcView) -> DataFrame:
        return up.added

    up = ips.iceberg_asset("up", table="media.`my.table`")
    definitions = definitions_on(lake.folder, lake.spark_folder, up, copy)
    for number in (1, 2):
        lake.sql(f"INSERT INTO lake.media.`my.table` VALUES ({number})")
        materialize(definitions, instance, "copy")
    assert lake.rows("media.`my.copy`") == Counter([(1,), (2,)])


def test_columns_named_like_the_librarys_own_lose_nothing(lake: Lake) -> None:
    create(lake, "__ips_weight int, __ips_0 int, _Weight int, _CHANGE_TYPE string", "(1, 1, 70, 'mine')")
    consumer = Consumer(lake, Append(), lambda up: up.added)
    consumer.skip()
    lake.sql(f"UPDATE {UP} SET __ips_0 = 2")
    view = consumer.view()
    assert [tuple(row) for row in view.added.collect()] == [(1, 2, 70, "mine")]
    assert [tuple(row) for row in view.affected("__ips_weight", "__ips_0").collect()] == [(1, 2, 70, "mine")]
    shown = view.changelog(["__ips_weight"], change_type="kind").collect()
    assert {row.kind: row["__ips_0"] for row in shown} == {"update_before": 1, "update_after": 2}
    for take in (lambda: view.weighted, view.changelog):
        with pytest.raises(DeclarationError, match="already has a column"):
            take()


@pytest.mark.parametrize("version", mostly_slow([3, 2]))
def test_a_column_that_marks_rows_as_deleted_is_not_taken_for_icebergs_own(lake: Lake, version: int) -> None:
    create(lake, "id int, _DELETED boolean", "(1, false), (2, true), (3, false), (4, true), (5, null)")
    lake.sql(f"ALTER TABLE {UP} SET TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read')")
    consumers = [
        Consumer(lake, Append(remove_on=("id",)), lambda up: up.added, target="copied"),
        Consumer(lake, Merge(("_DELETED",)), counts("_DELETED"), target="counted"),
    ]
    for consumer in consumers:
        consumer.run()
    lake.sql(f"DELETE FROM {UP} WHERE id IN (1, 4)")
    for consumer in consumers:
        consumer.run()
    copied, counted = (consumer.rows() for consumer in consumers)
    assert copied == [(2, True), (3, False), (5, None)]
    assert counted == [(False, 1), (None, 1), (True, 1)]


def test_the_scope_of_a_table_partitioned_by_binary_is_the_whole_table(lake: Lake) -> None:
    create(lake, "id int, b binary", "(1, X'01'), (2, X'02')", by="b")
    consumer = Consumer(lake, Append(), lambda up: up.added)
    consumer.skip()
    lake.sql(f"INSERT INTO {UP} VALUES (3, X'01')")
    view = consumer.view()
    assert view.partitions is None
    assert view.scope.count() == 3


def test_a_table_property_is_stored_as_it_is_written(lake: Lake) -> None:
    lake.catalog.create_namespace("media")
    note = "${env:HOME} isn't a\\b"
    described = TableDescription(properties={"note": note})
    create_table(lake.session, "lake", "media.out", lake.sql("SELECT 1 AS one"), described)
    assert lake.catalog.load("media.out", asset="test").properties["note"] == note


FAR = ("DATE'-0044-03-15'", "TIMESTAMP_NTZ'+55555-01-01 00:00:00'", "TIMESTAMP_LTZ'+55555-01-01 00:00:00Z'")


@pytest.mark.everywhere
@pytest.mark.parametrize("day", mostly_slow(FAR))
def test_a_row_of_a_year_that_python_cannot_represent_is_copied(lake: Lake, day: str) -> None:
    lake.catalog.create_namespace("media")
    lake.sql(f"CREATE TABLE {UP} USING iceberg PARTITIONED BY (days(day)) AS SELECT 1 AS id, {day} AS day")
    consumer = Consumer(lake, Append(), lambda view: view.added)
    consumer.run()
    lake.sql(f"INSERT INTO {UP} VALUES (2, {day}), (3, NULL)")
    consumer.run()

    assert lake.sql(f"SELECT * FROM {UP} EXCEPT ALL SELECT * FROM lake.media.out").count() == 0
    assert lake.sql("SELECT * FROM lake.media.out").count() == 3


@pytest.mark.everywhere
@pytest.mark.parametrize("day", mostly_slow(FAR))
@pytest.mark.parametrize(
    "mode", mostly_slow([Merge(on=("day",)), Append(remove_on=("id", "day"))]), ids=["merge", "remove"]
)
def test_a_year_out_of_range_that_decides_what_is_replaced_is_an_error_naming_its_column(
    lake: Lake, mode: WriteMode, day: str
) -> None:
    lake.catalog.create_namespace("media")
    lake.sql(f"CREATE TABLE {UP} USING iceberg AS SELECT 1 AS id, {day} AS day")
    consumer = Consumer(lake, mode, lambda view: view.added, partition_by=["day"])
    consumer.run()
    lake.sql(f"DELETE FROM {UP}")
    lake.sql(f"INSERT INTO {UP} VALUES (2, {day})")

    with pytest.raises(OutOfRangeDateError, match="A value of day lies before the year 1 or after 9999") as caught:
        consumer.run()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
