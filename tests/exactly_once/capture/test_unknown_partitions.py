"""Files whose metadata doesn't show their partitions: none of their rows is lost, and no partition runs on a guess."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IntegerType, NestedField, StringType, TimestampType

from dagster_ips.core.policy import InputPolicies, OnUnmapped
from dagster_ips.errors import SourceColumnsChangedError, SourceFileOverwrittenError, UnmappedRowsError
from dagster_ips.exactly_once.capture import partition_captures
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.partitioned_input import PartitionedInput
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput, files_in
from dagster_ips.iceberg import file_values
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import MappedKeys, SameKeys
from dagster_ips.progress.advance import Standing
from tests.histories import handmade
from tests.support.memory_store import MemoryCursors
from tests.support.publishing import look, publish

TABLE, TARGET = "media.plays", "media.out"
SCHEMA = Schema(
    NestedField(1, "text_day", StringType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "region", StringType()),
    NestedField(4, "at", TimestampType()),
    NestedField(5, "number", IntegerType()),
)
KINDS = (pa.string(), pa.date32(), pa.string(), pa.timestamp("us"), pa.int32())
BY_DAY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
TODAY = dt.datetime.now(dt.UTC).date()
DAYS = dg.DailyPartitionsDefinition(start_date=(TODAY - dt.timedelta(days=3)).isoformat())
DAYS_WITH_TODAY = dg.DailyPartitionsDefinition(start_date=(TODAY - dt.timedelta(days=3)).isoformat(), end_offset=1)
TITLES = dg.DynamicPartitionsDefinition(name="titles")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us"])

Definition = dg.PartitionsDefinition[str]


def days_ago(days: int) -> dt.date:
    return TODAY - dt.timedelta(days=days)


def texts(*values: object) -> list[dict[str, Any]]:
    return [{"text_day": None if value is None else str(value)} for value in values]


class Plays:
    """``media.plays`` and a consumer with the partitions of the test."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.instance, self.lake, self.store = instance, LakeCatalog.embedded("lake", folder), MemoryCursors()
        self.lake.create_namespace("media")

    def create(self, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC, **properties: str) -> None:
        self.lake.client.create_table(TABLE, SCHEMA, partition_spec=spec, properties=properties)
        self.lake.client.create_table(TARGET, SCHEMA)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        arrays = [pa.array([r.get(f.name) for r in rows], k) for f, k in zip(SCHEMA.fields, KINDS, strict=True)]
        self.lake.client.load_table(TABLE).append(pa.table(arrays, names=[f.name for f in SCHEMA.fields]))

    def tracked(
        self, definition: Definition, expression: object, policies: InputPolicies | None = None
    ) -> TrackedInput:
        slicing = SameKeys(partition_keys(definition, expression, self.instance, asset="out"))
        return TrackedInput("plays", TABLE, slicing=slicing, policies=policies or InputPolicies())

    def pending(self, definition: Definition, expression: object) -> set[str]:
        return self.pending_of(self.tracked(definition, expression))

    def pending_of(self, tracked: TrackedInput) -> set[str]:
        return set(self.look_at(tracked).pending)

    def look(self, definition: Definition, expression: object) -> PartitionedInput:
        return self.look_at(self.tracked(definition, expression))

    def look_at(self, tracked: TrackedInput, source: TableMetadata | None = None) -> PartitionedInput:
        """What a tick finds, which may have read the metadata of ``source`` a while ago."""
        return look(self.store, self.lake, tracked, consumer="out", target=TARGET, source=source)

    def run(
        self, definition: Definition, expression: object, *keys: str, ignore: bool = False, anew: bool = False
    ) -> int:
        """Capture and publish the partitions; returns the number of files read."""
        policies = replace(InputPolicies(), on_unmapped=OnUnmapped.IGNORE if ignore else OnUnmapped.ERROR)
        (captured,) = Capturer(self.lake, self.store).capture(
            CaptureRequest(
                "out",
                [self.tracked(definition, expression, policies)],
                target=TARGET,
                partitions=RunPartitions(keys, named_by_person=anew),
            ),
            run_id="run",
        )
        assert publish(self.store, self.lake, TARGET, [captured]) is Standing.MAY_PUBLISH
        return len(captured.files.changes.touched)

    def follow(self, definition: Definition, expression: object) -> set[str]:
        """Run what is pending; returns these partitions."""
        found = self.pending(definition, expression)
        if found:
            self.run(definition, expression, *sorted(found))
        assert self.pending(definition, expression) == set()
        return found

    def files(self) -> list[Path]:
        tasks = self.lake.client.load_table(TABLE).scan().plan_files()
        return [Path(urlsplit(task.file.file_path).path) for task in tasks]


class PlaysByDay(Plays):
    """``media.plays`` as an asset partitioned by day, and a consumer with partitions mapped from days."""

    mapping: dg.PartitionMapping
    days = DAYS_WITH_TODAY

    def tracked(
        self, definition: Definition, expression: object, policies: InputPolicies | None = None
    ) -> TrackedInput:
        keys = partition_keys(self.days, expression, self.instance, asset="plays")
        slicing = MappedKeys(keys, self.mapping, self.days, definition, self.instance, "of the test")
        return TrackedInput("plays", TABLE, slicing=slicing, policies=policies or InputPolicies())


@pytest.fixture
def plays_by_day(tmp_path: Path) -> Iterator[PlaysByDay]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield PlaysByDay(tmp_path, instance)


@pytest.fixture
def plays(tmp_path: Path) -> Iterator[Plays]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Plays(tmp_path, instance)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forget what was read from files, as in another process."""

    def forget() -> None:
        monkeypatch.setattr(file_values, "_KEPT", file_values._ValuesCache())

    forget()
    return forget


def test_rows_of_today_in_a_file_with_several_text_days_are_requested_once_the_day_is_over(plays: Plays) -> None:
    plays.create()
    plays.append(texts(days_ago(1), TODAY))
    assert plays.follow(DAYS, "text_day") == {str(days_ago(1))}
    plays.append(texts(days_ago(2), TODAY))
    assert plays.follow(DAYS, "text_day") == {str(days_ago(2))}

    assert plays.follow(DAYS_WITH_TODAY, "text_day") == {str(TODAY)}


@pytest.mark.parametrize("commits", [False, True])
def test_partitions_become_pending_if_a_column_name_changes_meaning_even_if_no_file_changed(
    plays: Plays, *, commits: bool
) -> None:
    plays.create()
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    assert plays.follow(REGIONS, "region") == {"eu", "us"}
    plays.lake.client.load_table(TABLE).update_schema().add_column("more", IntegerType()).commit()
    assert plays.pending(REGIONS, "region") == set()
    for change in ("delete", "add"):
        update = plays.lake.client.load_table(TABLE).update_schema()
        (update.delete_column("number") if change == "delete" else update.add_column("number", IntegerType())).commit()
        assert plays.pending(REGIONS, "region") == (set() if change == "delete" else {"eu", "us"})
    if commits:
        plays.append([{"region": "eu"}])
    assert plays.pending(REGIONS, "region") == {"eu", "us"}
    for key, left in (("eu", {"us"}), ("us", set())):
        with pytest.raises(SourceColumnsChangedError, match="number"):
            plays.run(REGIONS, "region", key)
        plays.run(REGIONS, "region", key, anew=True)
        assert plays.pending(REGIONS, "region") == left


def test_a_file_that_was_overwritten_in_place_is_refused_by_the_partitions_that_had_its_rows(
    plays: Plays, tmp_path: Path
) -> None:
    path, regions = tmp_path / "landed.parquet", dg.StaticPartitionsDefinition(["asia", "eu", "us"])

    def land(region: str, *numbers: int) -> None:
        rows = pa.table({"region": [region for _ in numbers], "number": pa.array(numbers, pa.int32())})
        parquet.write_table(rows, path)
        plays.lake.client.load_table(TABLE).add_files([path.as_uri()])

    plays.create()
    plays.append([{"region": "asia"}])
    land("eu", 1)
    assert plays.follow(regions, "region") == {"asia", "eu"}
    plays.lake.client.load_table(TABLE).delete("region = 'eu'")
    land("us", 2, 3)
    assert plays.pending(regions, "region") == {"asia", "eu", "us"}
    with pytest.raises(SourceFileOverwrittenError, match="landed"):
        plays.run(regions, "region", "eu")
    assert (plays.run(regions, "region", "asia"), plays.run(regions, "region", "us")) == (0, 1)
    assert plays.pending(regions, "region") == {"eu"}
    plays.run(regions, "region", "eu", anew=True)
    assert plays.pending(regions, "region") == set()


def test_a_dynamic_partition_gets_its_rows_whenever_it_is_added(plays: Plays) -> None:
    plays.create()
    plays.instance.add_dynamic_partitions("titles", ["a", "b", "c"])
    plays.append([{"region": "a"}, {"region": "later"}])
    assert plays.follow(TITLES, "region") == {"a"}
    plays.append([{"region": "b"}, {"region": "later"}])
    assert plays.follow(TITLES, "region") == {"b"}

    plays.instance.add_dynamic_partitions("titles", ["later"])

    assert plays.follow(TITLES, "region") == {"later"}


def test_only_the_changed_regions_of_a_table_partitioned_by_day_run(plays: Plays) -> None:
    both, expression = dg.MultiPartitionsDefinition({"day": DAYS, "region": TITLES}), {"day": "day", "region": "region"}
    plays.create(BY_DAY)
    plays.instance.add_dynamic_partitions("titles", ["eu", "us"])
    plays.append([{"day": days_ago(1), "region": r} for r in ("eu", "asia")] + [{"day": TODAY, "region": "eu"}])
    assert plays.follow(both, expression) == {f"{days_ago(1)}|eu"}

    plays.instance.add_dynamic_partitions("titles", ["asia"])
    assert plays.follow(both, expression) == {f"{days_ago(1)}|asia"}
    both = dg.MultiPartitionsDefinition({"day": DAYS_WITH_TODAY, "region": TITLES})
    assert plays.follow(both, expression) == {f"{TODAY}|eu"}


def test_a_run_of_a_day_reads_no_file_of_another_day_although_its_regions_are_unknown(
    plays: Plays, unread: Callable[[], None]
) -> None:
    both, expression = (
        dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS}),
        {"day": "day", "region": "region"},
    )
    plays.create(BY_DAY)
    plays.append([{"day": days_ago(n), "region": r} for n in (1, 2) for r in ("eu", "us")])
    assert len(plays.pending(both, expression)) == 4
    unread()

    assert plays.run(both, expression, f"{days_ago(1)}|eu", f"{days_ago(1)}|us") == 1


def test_partitions_that_changed_in_different_commits_are_read_once_from_one_snapshot(
    plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them have consumed the same."""
    intervals: list[object] = []

    def counting(*given: Any) -> Any:  # noqa: ANN401  # as the function that it counts
        intervals.append(given)
        return files_in(*given)

    plays.create(BY_DAY)
    plays.append([{"day": days_ago(n)} for n in (1, 2, 3)])
    plays.follow(DAYS, "day")
    for days in (1, 2, 3):
        plays.append([{"day": days_ago(days)}])
        assert str(days_ago(days)) in plays.pending(DAYS, "day")
    monkeypatch.setattr(partition_captures, "files_in", counting)
    assert plays.run(DAYS, "day", *[str(days_ago(n)) for n in (1, 2, 3)]) == 3
    assert len(intervals) == 1
    plays.append([{"day": days_ago(2)}])
    assert plays.follow(DAYS, "day") == {str(days_ago(2))}


def test_only_partitions_that_have_rows_are_requested(plays: Plays) -> None:
    plays.create()
    plays.append(texts(days_ago(3), days_ago(1)))
    assert plays.pending(DAYS, "text_day") == {str(days_ago(3)), str(days_ago(1))}

    plays.store = MemoryCursors()
    plays.append([{"text_day": str(days_ago(1)), "day": days_ago(n)} for n in (3, 1)])
    assert plays.pending(DAYS, "text_day") == {str(days_ago(3)), str(days_ago(1))}


@pytest.mark.parametrize(
    ("strange", "shown"),
    [(None, "null"), ("2026-1-5", "2026-1-5"), ("2026-01-05 ", "2026-01-05 "), ("soon", "soon"), ("", "is ,")],
)
def test_a_value_that_is_no_partition_key_is_an_error_even_in_a_file_with_valid_values(
    plays: Plays, strange: str | None, shown: str
) -> None:
    plays.create()
    plays.append(texts(days_ago(1), strange, days_ago(2)))

    with pytest.raises(UnmappedRowsError, match=shown):
        plays.run(DAYS, "text_day", str(days_ago(1)))
    plays.run(DAYS, "text_day", str(days_ago(1)), ignore=True)


def test_nulls_that_the_metadata_does_not_count_are_also_an_error(plays: Plays) -> None:
    plays.create(**{"write.metadata.metrics.column.region": "none"})
    plays.append([{"region": "eu"}, {"region": None}])

    with pytest.raises(UnmappedRowsError, match="null"):
        plays.run(REGIONS, "region", "eu")


class Handmade:
    """``media.plays`` for delete files that are written by hand."""

    name = TABLE

    def __init__(self, lake: LakeCatalog) -> None:
        self.lake = SimpleNamespace(catalog=lake)

    @property
    def raw(self) -> Any:  # noqa: ANN401  # metadata.json
        return self.lake.catalog.load(TABLE, asset="").raw


def null_region(table: Any, beside: handmade.LiveFile) -> None:  # noqa: ANN401  # a Handmade
    handmade.delete_equal(table, SimpleNamespace(name="region", id=3), pa.array([None], pa.string()), beside)  # type: ignore[arg-type]


def number_2(table: Any, beside: handmade.LiveFile) -> None:  # noqa: ANN401  # a Handmade
    handmade.delete_equal(table, SimpleNamespace(name="number", id=5), pa.array([2], pa.int32()), beside)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("delete", "is_hidden"),
    [
        (lambda table, file: handmade.delete_positions(table, {file.path: [1]}, file), True),
        (null_region, True),
        (number_2, True),
        (lambda table, file: handmade.delete_positions(table, {file.path: [0]}, file), False),
    ],
    ids=["its position", "an equal key", "another equal column", "the position of another row"],
)
@pytest.mark.parametrize("is_first_look", [True, False])
def test_a_row_of_no_partition_that_a_delete_file_hides_is_no_error(
    plays: Plays, delete: Callable[[Any, handmade.LiveFile], None], *, is_hidden: bool, is_first_look: bool
) -> None:
    plays.create()
    plays.append([{"region": "eu", "number": 1}, {"region": None, "number": 2}, {"region": "us", "number": 3}])
    if not is_first_look:
        with pytest.raises(UnmappedRowsError, match="null"):
            plays.run(REGIONS, "region", "eu")
        assert plays.pending(REGIONS, "region")
    table: Any = Handmade(plays.lake)
    (file,) = handmade.live_files(table)
    delete(table, file)
    for key in ("eu", "us"):
        if is_hidden:
            plays.run(REGIONS, "region", key)
        else:
            with pytest.raises(UnmappedRowsError, match="null"):
                plays.run(REGIONS, "region", key)


def test_a_first_row_before_the_first_whole_week_is_an_error(plays: Plays) -> None:
    plays.create()
    plays.append([{"day": dt.date(2026, 1, 2)}, {"day": dt.date(2026, 1, 5)}])  # a Friday, and the next Monday

    with pytest.raises(UnmappedRowsError, match="2025-12-28"):
        plays.run(dg.WeeklyPartitionsDefinition(start_date="2026-01-01"), "day", "2026-01-04")


def test_a_row_after_the_last_partition_of_a_definition_with_an_end_is_an_error(plays: Plays) -> None:
    plays.create()
    plays.append([{"day": dt.date(2026, 1, 1)}, {"day": dt.date(2026, 1, 9)}])

    with pytest.raises(UnmappedRowsError, match="2026-01-09"):
        plays.run(dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-03"), "day", "2026-01-01")


def test_an_hour_that_summer_time_skips_is_requested_with_the_hour_before(plays: Plays) -> None:
    hours = dg.HourlyPartitionsDefinition(start_date="2026-03-29-00:00", timezone="Europe/Berlin")
    plays.create()
    plays.append([{"at": dt.datetime(2026, 3, 29, 2, 30)}])  # noqa: DTZ001  # no clock showed this time
    assert plays.follow(hours, "at") == {"2026-03-29-01:00"}
    plays.append([{"at": dt.datetime(2026, 10, 25, 2, 30)}])  # noqa: DTZ001  # clocks showed this time twice
    assert plays.follow(hours, "at") == {"2026-10-25-02:00+0100"}


@pytest.mark.parametrize("commits_more", [False, True])
def test_widening_static_partitions_frees_the_consumer(plays: Plays, *, commits_more: bool) -> None:
    plays.create()
    plays.append([{"region": "eu"}, {"region": "asia"}])
    assert plays.pending(REGIONS, "region") == {"eu"}
    with pytest.raises(UnmappedRowsError, match="asia"):
        plays.run(REGIONS, "region", "eu")
    if commits_more:
        plays.append([{"region": "us"}])
    wider = dg.StaticPartitionsDefinition(["eu", "us", "asia"])

    assert plays.follow(wider, "region") == {"eu", "asia", *(["us"] if commits_more else [])}


@pytest.mark.parametrize("column", ["day", "text_day"])
def test_an_earlier_start_frees_the_consumer(plays: Plays, column: str) -> None:
    earlier = dg.DailyPartitionsDefinition(start_date=str(days_ago(9)))
    plays.create()
    plays.append([{"day": days_ago(n), "text_day": str(days_ago(n))} for n in (1, 8)])
    assert plays.pending(DAYS, column) == {str(days_ago(1))}
    with pytest.raises(UnmappedRowsError, match=str(days_ago(8))):
        plays.run(DAYS, column, str(days_ago(1)))

    assert plays.follow(earlier, column) == {str(days_ago(1)), str(days_ago(8))}


def test_rows_left_out_on_purpose_are_computed_once_they_have_a_partition(plays: Plays) -> None:
    plays.create()
    plays.append([{"region": "eu"}, {"region": "asia"}])
    plays.run(REGIONS, "region", *sorted(plays.pending(REGIONS, "region")), ignore=True)
    assert plays.pending(REGIONS, "region") == set()

    assert plays.follow(dg.StaticPartitionsDefinition(["eu", "asia"]), "region") == {"asia"}


def test_correcting_the_rows_frees_the_consumer(plays: Plays) -> None:
    plays.create()
    plays.append([{"region": "eu"}, {"region": "asia"}])
    plays.append([{"region": "us"}])
    assert plays.pending(REGIONS, "region") == {"eu", "us"}
    plays.lake.client.load_table(TABLE).delete("region = 'asia'")

    assert plays.follow(REGIONS, "region") == {"eu", "us"}


def test_an_unreadable_file_waits_until_it_is_readable_and_requests_no_partition_by_guess(plays: Plays) -> None:
    plays.create()
    plays.append(texts(days_ago(3)))
    assert plays.follow(DAYS, "text_day") == {str(days_ago(3))}
    plays.append(texts(days_ago(1), TODAY))
    file = max(plays.files(), key=lambda each: each.stat().st_mtime_ns)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert plays.pending(DAYS, "text_day") == set()
    (told,) = plays.look(DAYS, "text_day").unreached
    assert f"{file}, it can't be read" in told
    plays.append(texts(days_ago(2)))
    assert plays.follow(DAYS, "text_day") == {str(days_ago(2))}

    file.write_bytes(content)

    assert plays.follow(DAYS, "text_day") == {str(days_ago(1))}
    assert plays.follow(DAYS_WITH_TODAY, "text_day") == {str(TODAY)}
    assert plays.look(DAYS, "text_day").unreached == ()


def test_rows_of_an_unreadable_file_that_is_rewritten_meanwhile_are_not_lost(plays: Plays) -> None:
    plays.create()
    plays.append(texts(days_ago(1), days_ago(2)))
    (file,) = plays.files()
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert plays.pending(DAYS, "text_day") == set()
    file.write_bytes(content)
    table = plays.lake.client.load_table(TABLE)
    table.overwrite(table.scan().to_arrow())

    assert plays.follow(DAYS, "text_day") == {str(days_ago(1)), str(days_ago(2))}


def test_a_column_that_was_renamed_or_added_later_is_read_as_the_table_shows_it(plays: Plays) -> None:
    plays.create()
    plays.append(texts(days_ago(1), days_ago(2)))
    with plays.lake.client.load_table(TABLE).update_schema() as update:
        update.rename_column("text_day", "renamed")
        update.add_column("added", StringType())

    assert plays.pending(DAYS, "renamed") == {str(days_ago(1)), str(days_ago(2))}
    plays.store = MemoryCursors()
    with pytest.raises(UnmappedRowsError, match="null"):
        plays.run(REGIONS, "added", "eu")


def test_no_file_is_read_if_the_metadata_suffices(plays: Plays, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("dagster_ips.iceberg.storage.Storage.open", refuse)
    plays.create(BY_DAY)
    plays.append([{"day": days_ago(n), "region": "eu", "at": dt.datetime(2026, 3, 29, 5, n)} for n in (1, 2)])  # noqa: DTZ001  # a time without zone
    both = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})
    assert len(plays.pending(DAYS, "day")) == 2
    plays.store = MemoryCursors()
    assert len(plays.pending(both, {"day": "day", "region": "region"})) == 2
    plays.store = MemoryCursors()
    assert plays.pending(dg.HourlyPartitionsDefinition(start_date="2026-03-29-00:00"), "at") == {"2026-03-29-05:00"}


def test_a_new_partition_is_requested_although_others_have_consumed_its_upstream_partitions(
    plays_by_day: PlaysByDay,
) -> None:
    plays_by_day.mapping = dg.TimeWindowPartitionMapping(
        start_offset=-1, allow_nonexistent_upstream_partitions=True
    )  # a day and the day before
    plays_by_day.create()
    plays_by_day.append([{"day": days_ago(2)}, {"day": days_ago(1)}])
    assert plays_by_day.follow(DAYS, "day") == {str(days_ago(2)), str(days_ago(1))}

    assert plays_by_day.follow(DAYS_WITH_TODAY, "day") == {str(TODAY)}


@pytest.mark.parametrize("is_lost", [False, True], ids=["cursor kept", "cursor lost"])
def test_rows_that_arrived_before_their_partition_are_read_by_partitions_made_of_many(
    plays_by_day: PlaysByDay, *, is_lost: bool
) -> None:
    plays_by_day.mapping, plays_by_day.days = dg.AllPartitionMapping(), DAYS
    plays_by_day.create()
    plays_by_day.append([{"day": days_ago(1)}])
    assert plays_by_day.follow(REGIONS, "day") == {"eu", "us"}
    plays_by_day.append([{"day": days_ago(1)}, {"day": TODAY}])
    plays_by_day.append([{"day": TODAY}])
    assert plays_by_day.follow(REGIONS, "day") == {"eu", "us"}
    if is_lost:
        plays_by_day.store = MemoryCursors()

    plays_by_day.days = DAYS_WITH_TODAY
    assert plays_by_day.pending(REGIONS, "day") == {"eu", "us"}
    assert plays_by_day.run(REGIONS, "day", "eu") == 3  # all rows, because the file of both days is read in part
    assert plays_by_day.follow(REGIONS, "day") == {"us"}


def test_a_day_reads_the_following_day_once_that_has_a_partition(plays_by_day: PlaysByDay) -> None:
    plays_by_day.mapping = dg.TimeWindowPartitionMapping(end_offset=1, allow_nonexistent_upstream_partitions=True)
    plays_by_day.days = DAYS
    plays_by_day.create()
    plays_by_day.append([{"day": days_ago(1)}, {"day": TODAY}])
    assert plays_by_day.follow(DAYS, "day") == {str(days_ago(2)), str(days_ago(1))}

    plays_by_day.days = DAYS_WITH_TODAY
    assert plays_by_day.follow(DAYS, "day") == {str(days_ago(1))}


def test_a_new_partition_without_rows_is_not_requested(plays_by_day: PlaysByDay) -> None:
    plays_by_day.mapping = dg.TimeWindowPartitionMapping(start_offset=-1, allow_nonexistent_upstream_partitions=True)
    plays_by_day.create()
    plays_by_day.append([{"day": days_ago(3)}])
    assert plays_by_day.follow(DAYS, "day") == {str(days_ago(3)), str(days_ago(2))}

    assert plays_by_day.follow(DAYS_WITH_TODAY, "day") == set()


def test_a_new_key_of_a_growing_dimension_is_made_of_days_that_other_keys_have_consumed(
    plays_by_day: PlaysByDay,
) -> None:
    plays_by_day.mapping = dg.MultiToSingleDimensionPartitionMapping("day")
    both = dg.MultiPartitionsDefinition({"day": DAYS, "title": TITLES})
    plays_by_day.instance.add_dynamic_partitions("titles", ["a"])
    plays_by_day.create()
    plays_by_day.append([{"day": days_ago(1), "region": "a"}, {"day": days_ago(1), "region": "b"}])
    assert plays_by_day.follow(both, "day") == {f"{days_ago(1)}|a"}

    plays_by_day.instance.add_dynamic_partitions("titles", ["b"])
    assert plays_by_day.follow(both, "day") == {f"{days_ago(1)}|b"}


@pytest.mark.parametrize("change", ["append", "delete"])
def test_a_partition_that_returns_reads_what_changed_while_it_was_gone(plays_by_day: PlaysByDay, change: str) -> None:
    plays_by_day.mapping = dg.MultiToSingleDimensionPartitionMapping("day")
    both = dg.MultiPartitionsDefinition({"day": DAYS, "title": TITLES})
    plays_by_day.instance.add_dynamic_partitions("titles", ["a", "b"])
    plays_by_day.create(BY_DAY)
    plays_by_day.append([{"day": days_ago(days), "region": "b"} for days in (1, 2)])
    keys = {f"{days_ago(days)}|{title}" for days in (1, 2) for title in "ab"}
    assert plays_by_day.follow(both, "day") == keys

    plays_by_day.instance.delete_dynamic_partition("titles", "b")
    if change == "append":
        plays_by_day.append([{"day": days_ago(1), "region": "b"}])
    else:
        plays_by_day.lake.client.load_table(TABLE).delete(f"day = '{days_ago(1)}'")
    assert plays_by_day.follow(both, "day") == {f"{days_ago(1)}|a"}
    plays_by_day.instance.add_dynamic_partitions("titles", ["b"])

    assert f"{days_ago(1)}|b" in plays_by_day.follow(both, "day")


@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, BY_DAY])
@pytest.mark.parametrize("regions", [REGIONS, TITLES])
def test_a_value_that_no_key_of_several_dimensions_can_contain_belongs_to_no_partition(
    plays: Plays, regions: Definition, spec: PartitionSpec
) -> None:
    both, expression = (
        dg.MultiPartitionsDefinition({"day": DAYS, "region": regions}),
        {"day": "day", "region": "region"},
    )
    plays.instance.add_dynamic_partitions("titles", ["eu", "us"])
    plays.create(spec)
    plays.append([{"day": days_ago(1), "region": region} for region in ("eu", "eu|west")])
    plays.append([{"day": days_ago(1), "region": "a|b"}])
    plays.append([{"day": days_ago(1), "region": "us"}])

    assert plays.pending(both, expression) == {f"{days_ago(1)}|eu", f"{days_ago(1)}|us"}
    with pytest.raises(UnmappedRowsError, match=r"a\|b"):
        plays.run(both, expression, f"{days_ago(1)}|eu")
    plays.run(both, expression, f"{days_ago(1)}|eu", f"{days_ago(1)}|us", ignore=True)
    assert plays.pending(both, expression) == set()
