"""The time up to which a table is complete follows from the arrived rows, by metadata alone, and is never guessed."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestampType, TimestamptzType

from dagster_ips.core.valid_through import ALWAYS, EventTime
from dagster_ips.errors import UnknownColumnError, ValidThroughError
from dagster_ips.iceberg import event_time, manifests
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.event_time import VALID_THROUGH, valid_through_at
from dagster_ips.iceberg.stamps import ATTEMPT, RUN
from tests.support.lake import Lake, events

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "at", TimestampType()),
    NestedField(4, "at_utc", TimestamptzType()),
    NestedField(5, "name", StringType()),
)
NOON = dt.datetime(2026, 1, 5, 12)  # noqa: DTZ001  # the value of a column without a time zone


@pytest.fixture
def tables(tmp_path: Path) -> LakeCatalog:
    """A catalog without Spark."""
    return LakeCatalog.embedded("lake", tmp_path / "lake")


def create(lake: LakeCatalog, **properties: str) -> None:
    lake.create_namespace("media")
    lake.client.create_table("media.plays", SCHEMA, properties=dict(properties))


def append(lake: LakeCatalog, times: list[dt.datetime | None], stamps: dict[str, str] | None = None) -> None:
    rows = pa.table(
        {
            "id": pa.array(range(len(times)), pa.int64()),
            "day": pa.array([t.date() if t else None for t in times], pa.date32()),
            "at": pa.array(times, pa.timestamp("us")),
            "at_utc": pa.array([t.replace(tzinfo=dt.UTC) if t else None for t in times], pa.timestamp("us", "UTC")),
            "name": pa.array(["x"] * len(times), pa.string()),
        }
    )
    lake.client.load_table("media.plays").append(rows, snapshot_properties=stamps or {})


def newest(lake: LakeCatalog, column: str) -> dt.datetime:
    value = pc.max(lake.client.load_table("media.plays").scan().to_arrow()[column]).as_py()
    time = value if isinstance(value, dt.datetime) else dt.datetime.combine(value, dt.time())
    return time.replace(tzinfo=dt.UTC)


def through(lake: LakeCatalog, declared: EventTime | None, table: str = "media.plays") -> dt.datetime | None:
    metadata = lake.load(table, asset="test")
    head = metadata.head_snapshot_id()
    assert head is not None
    return valid_through_at(lake.storage, metadata, "main", head, declared)


OTHER_SPECS = [pytest.param(spec, marks=pytest.mark.slow) for spec in ("", "hours(at_utc)", "months(at)", "day")]


@pytest.mark.parametrize("spec", ["days(at)", *OTHER_SPECS])
def test_completeness_by_metadata_is_the_newest_event_in_a_scan_of_all_rows(lake: Lake, spec: str) -> None:
    create(lake.catalog)
    if spec:
        lake.sql(f"ALTER TABLE lake.media.plays ADD PARTITION FIELD {spec}")
    random.seed(7)
    for _ in range(4):
        times = [NOON + dt.timedelta(minutes=random.randint(-200_000, 2000)) for _ in range(5)]
        rows = ", ".join(
            f"({i}, DATE '{t.date()}', TIMESTAMP_NTZ '{t}', TIMESTAMP '{t}Z', 'x')" for i, t in enumerate(times)
        )
        lake.sql(f"INSERT INTO lake.media.plays VALUES {rows}")
        for column in ("day", "at", "at_utc"):
            assert through(lake.catalog, EventTime(column)) == newest(lake.catalog, column)
    lake.sql("DELETE FROM lake.media.plays WHERE id % 2 = 0")
    assert through(lake.catalog, EventTime("at")) == newest(lake.catalog, "at")


def test_late_events_do_not_move_completeness_back_but_allowed_lateness_does(tables: LakeCatalog) -> None:
    create(tables)
    append(tables, [NOON])
    append(tables, [NOON - dt.timedelta(days=9)])
    assert through(tables, EventTime("at")) == NOON.replace(tzinfo=dt.UTC)
    assert through(tables, EventTime("at", dt.timedelta(hours=3))) == NOON.replace(hour=9, tzinfo=dt.UTC)
    assert through(tables, EventTime("day")) == dt.datetime(2026, 1, 5, tzinfo=dt.UTC), "the day itself has only begun"


def test_event_times_in_the_future_do_not_make_future_time_complete(tables: LakeCatalog) -> None:
    create(tables)
    append(tables, [NOON.replace(year=2199)])
    found = through(tables, EventTime("at"))
    assert found is not None
    assert found <= dt.datetime.now(dt.UTC)


def test_a_commit_without_event_times_changes_nothing_and_nulls_alone_say_nothing(tables: LakeCatalog) -> None:
    create(tables)
    append(tables, [None, None])
    assert through(tables, EventTime("at")) is None
    append(tables, [NOON, None])
    append(tables, [None])
    assert through(tables, EventTime("at")) == NOON.replace(tzinfo=dt.UTC)


def test_the_stamp_of_the_writing_job_takes_precedence_over_the_rows(tables: LakeCatalog) -> None:
    create(tables)
    append(tables, [NOON], {VALID_THROUGH: "2026-01-03T06:00:00+02:00"})
    stamped = dt.datetime(2026, 1, 3, 4, tzinfo=dt.UTC)
    assert through(tables, EventTime("at")) == stamped
    append(tables, [NOON + dt.timedelta(days=2)])
    assert through(tables, None) == stamped, "a commit that says nothing leaves it as it is"
    append(tables, [NOON], {VALID_THROUGH: "2026-01-04"})
    assert through(tables, None) == dt.datetime(2026, 1, 4, tzinfo=dt.UTC)
    append(tables, [NOON], {VALID_THROUGH: "yesterday"})
    with pytest.raises(ValidThroughError, match="yesterday"):
        through(tables, None)


def test_what_kafka_connect_stamps_counts_unless_late_events_lower_it(tables: LakeCatalog) -> None:
    create(tables)
    append(tables, [NOON], {"kafka.connect.valid-through-ts": "2026-01-03T04:00Z"})
    stamped = dt.datetime(2026, 1, 3, 4, tzinfo=dt.UTC)
    append(tables, [NOON + dt.timedelta(days=5)])
    assert through(tables, None) == stamped, "a compaction, for example, says nothing"
    assert through(tables, EventTime("at")) == stamped
    late = EventTime("at", lateness=dt.timedelta(days=9))
    assert through(tables, late) == (NOON - dt.timedelta(days=4)).replace(tzinfo=dt.UTC)
    assert through(tables, EventTime(None)) == ALWAYS
    append(tables, [NOON], {VALID_THROUGH: "2026-01-04"})
    assert through(tables, EventTime("at")) == dt.datetime(2026, 1, 4, tzinfo=dt.UTC)


def test_a_table_without_event_time_is_always_complete_and_an_undeclared_one_never(tables: LakeCatalog) -> None:
    create(tables)
    append(tables, [NOON])
    assert through(tables, EventTime(None)) == ALWAYS
    assert through(tables, None) is None


def test_an_event_time_column_without_usable_bounds_is_an_error(tables: LakeCatalog) -> None:
    create(tables, **{"write.metadata.metrics.column.at": "none"})
    append(tables, [NOON])
    with pytest.raises(ValidThroughError, match=r"upper bound for at.*write\.metadata\.metrics\.column\.at=full"):
        through(tables, EventTime("at"))
    with pytest.raises(ValidThroughError, match="of type string"):
        through(tables, EventTime("name"))
    with pytest.raises(UnknownColumnError, match="no column 'when'"):
        through(tables, EventTime("when"))


def test_only_the_newest_manifests_of_a_table_partitioned_by_time_are_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create_playback()
    for day in (0, 3, 1, 2):
        lake.append(events(range(3), day=day))
    read: list[str] = []

    def counted(storage: object, row: dict[str, str], *, table: str) -> object:
        read.append(row["manifest_path"])
        return manifests.read_live_entries(storage, row, table=table)  # type: ignore[arg-type]

    monkeypatch.setattr(event_time, "read_live_entries", counted)
    found = through(lake.catalog, EventTime("event_date"), "media.playback")
    assert (found, len(read)) == (dt.datetime(2026, 1, 4, tzinfo=dt.UTC), 1)


def test_several_commits_of_one_run_count_as_complete_only_with_the_last_one(tables: LakeCatalog) -> None:
    create(tables)
    for attempt, stamp in (("one", "2026-01-02"), ("two", "2026-01-03"), ("two", "2026-01-03"), ("three", None)):
        stamps = {ATTEMPT: attempt, RUN: attempt} | ({VALID_THROUGH: stamp} if stamp else {})
        append(tables, [NOON], stamps)
    metadata = tables.load("media.plays", asset="test")
    history = [snapshot.snapshot_id for snapshot in metadata.ancestry().snapshots[::-1]]
    found = [valid_through_at(tables.storage, metadata, "main", each, EventTime("at")) for each in history[:3]]
    assert [each.day if each else None for each in found] == [2, 2, 3]
    unknown = valid_through_at(tables.storage, metadata, "main", history[3], None)
    assert unknown is None, "a run that didn't know has said so"
