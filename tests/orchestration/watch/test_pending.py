"""Conditions, checks and sensors tell exactly what is pending, without a run."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.backlog import Backlog, backlog
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.code_of_rows import OlderRows
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import attempt_properties
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.watch import outside_changes, outside_sensor, pending_checks, watched_tables
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.table_progress import table_progress
from tests.support.lake import SCHEMA, events
from tests.support.publishing import copy_progress, publish_progress
from tests.support.ticks import told
from tests.support.without_spark import Tables, manager_of

EDGE = Edge("daily", "playback")


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "lake")


def definitions(
    tables: Tables,
    condition: dg.AutomationCondition[dg.AssetKey] | None = None,
    own_sensors: tuple[dg.SensorDefinition, ...] = (),
    outside: tuple[str, ...] = ("playback",),
    lag: dt.timedelta | None = None,
) -> dg.Definitions:
    metadata = ips.append() | ({} if lag is None else ips.target_lag(lag))

    @dg.asset(ins={"playback": ips.incremental()}, metadata=metadata, automation_condition=condition)
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    return _of(tables, daily, own_sensors, outside)


def _of(
    tables: Tables,
    asset: dg.AssetsDefinition,
    own_sensors: tuple[dg.SensorDefinition, ...] = (),
    outside: tuple[str, ...] = ("playback",),
) -> dg.Definitions:
    specs = [ips.iceberg_asset(name, table=f"media.{name}") for name in outside]
    return ips.with_incremental(
        dg.Definitions(assets=[*specs, asset], sensors=own_sensors, resources={"io_manager": manager_of(tables.folder)})
    )


def consume(tables: Tables, instance: dg.DagsterInstance, target: str = "default.daily") -> None:
    """What a run of ``daily`` leaves that has consumed everything, and had no row to write."""
    lake, source = tables.catalog, tables.catalog.load("media.playback", asset="test")
    head = source.ancestry().head
    assert head is not None
    if (found := lake.find(target)) is None:
        lake.create_namespace(target.split(".", maxsplit=1)[0])
        lake.client.create_table(target, SCHEMA)
    known = table_progress(found, asset="daily", storage=lake.storage)
    number = known.progress.number + 1 if known is not None else 1
    progress = Progress(number, {"playback": InputProgress(source.watermark_at(head, "main"))})
    stamp = attempt_properties(f"ips_{number}", "run")
    publish_progress(lake, target, "daily", progress, stamp=stamp)
    copy_progress(CursorStore(instance), lake, target, "daily")


def snapshot(number: int, **summary: str) -> Snapshot:
    operation = summary.pop("operation", "append")
    counts = {key.replace("_", "-"): value for key, value in summary.items()}
    return Snapshot(number, number - 1 or None, number, number * 1000, operation, f"m{number}", counts)


def test_a_backlog_counts_added_rows_and_not_rows_that_only_moved() -> None:
    history = [
        snapshot(1, added_data_files="1", added_records="5", added_files_size="50", total_data_files="1"),
        snapshot(2, added_data_files="2", added_records="7", added_files_size="70", total_data_files="3"),
        snapshot(3, operation="replace", added_data_files="1", added_records="12", total_data_files="1"),
        snapshot(4, total_data_files="1"),
    ]
    ancestry = Ancestry.of({each.snapshot_id: each for each in history}, 4)
    state = EdgeState(EDGE, committed=Watermark("u", "main", 1, 1, 1000), number=1)
    assert backlog(state, table_uuid="u", ancestry=ancestry) == Backlog(2, 2, 7, 70, 2000)
    consumed = EdgeState(EDGE, committed=Watermark("u", "main", 3, 3, 3000), number=2)
    assert backlog(consumed, table_uuid="u", ancestry=ancestry).is_empty
    assert not backlog(state, table_uuid="another", ancestry=ancestry).is_known
    # What was consumed is gone: the table was created again without rows, or its branch was dropped.
    nothing = Ancestry.of({}, None)
    assert not backlog(state, table_uuid="another", ancestry=nothing).is_known
    assert backlog(replace(state, committed=None), table_uuid="u", ancestry=nothing).is_empty


@pytest.mark.parametrize(("hours", "waiting"), [(24, 0), (25, 2)])
def test_after_a_day_of_empty_commits_a_run_follows_them_before_what_was_consumed_expires(
    hours: int, waiting: int
) -> None:
    day_ms = 86_400_000
    empty = [
        replace(snapshot(n, total_data_files="1"), timestamp_ms=at) for n, at in ((2, 1000), (3, hours * 3_600_000))
    ]
    ancestry = Ancestry.of({each.snapshot_id: each for each in empty} | {1: snapshot(1)}, 3)
    state = EdgeState(EDGE, committed=Watermark("u", "main", 1, 1, 0), number=1)
    found = backlog(state, table_uuid="u", ancestry=ancestry)
    assert (found.snapshots, found.files) == (waiting, 0)
    assert found.is_due(now_ms=day_ms + 1000, max_wait_seconds=1) == (waiting > 0)
    assert not found.is_due(now_ms=day_ms, max_wait_seconds=1)


def test_a_small_change_waits_until_enough_is_pending_or_it_is_old(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    def requested(condition: dg.AutomationCondition[dg.AssetKey], later: dt.timedelta = dt.timedelta(0)) -> bool:
        result = dg.evaluate_automation_conditions(
            defs=definitions(tables, condition), instance=instance, evaluation_time=dt.datetime.now(dt.UTC) + later
        )
        return bool(result.get_num_requested(dg.AssetKey("daily")))

    tables.create("playback")
    tables.append(events(range(3)))
    size = tables.catalog.load("media.playback", asset="test").ancestry().snapshots[0].summary["added-files-size"]
    assert requested(ips.on_change())
    assert requested(ips.on_change(min_bytes=int(size)))
    assert not requested(ips.on_change(min_bytes=int(size) + 1))
    waiting = ips.on_change(min_bytes=int(size) + 1, max_wait=dt.timedelta(hours=1))
    assert not requested(waiting)
    assert requested(waiting, later=dt.timedelta(hours=1))
    both = ips.pending(min_bytes=int(size) + 1) | (ips.pending(max_wait=dt.timedelta(hours=1)) & ~ips.blocked())
    assert not requested(both)
    assert requested(both, later=dt.timedelta(hours=1))


def test_the_pending_check_is_right_without_a_run_and_reports_only_changes(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    defined = definitions(tables, lag=dt.timedelta(0))
    assert told(defined, instance, "ips_pending")[0] == []
    tables.create("playback")
    tables.append(events(range(3)))
    (first,), cursor = told(defined, instance, "ips_pending")
    assert (first.passed, first.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert {name: value.value for name, value in first.metadata.items() if name.startswith("rows")} == {
        "rows pending": 3
    }
    assert "1 snapshot of playback not consumed: 1 file, 3 rows" in first.description
    assert told(defined, instance, "ips_pending", cursor)[0] == []
    consume(tables, instance)
    (second,), cursor = told(defined, instance, "ips_pending", cursor)
    assert (second.passed, second.description) == (True, "everything is consumed")
    tables.append(events(range(3, 5)))
    (third,), cursor = told(defined, instance, "ips_pending", cursor)
    assert (third.passed, third.metadata["rows pending"].value) == (False, 2)
    instance.report_runless_asset_event(dg.AssetMaterialization("daily"))
    (again,), cursor = told(defined, instance, "ips_pending", cursor)  # Dagster hides a check older than its asset.
    assert (again.passed, again.description) == (False, third.description)
    assert told(defined, instance, "ips_pending", cursor)[0] == []


def test_an_incremental_asset_carries_the_iceberg_kind(tables: Tables) -> None:
    specs = {spec.key.to_user_string(): spec for spec in definitions(tables).resolve_all_asset_specs()}
    assert specs["daily"].kinds == {"iceberg"}


def test_the_pending_check_names_what_others_wrote_to_the_table_before_a_run_is_refused_for_it(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.daily"))
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    defined = _of(tables, daily)
    for name in ("playback", "daily"):
        tables.create(name)
        tables.append(events(range(3)), table=f"media.{name}")
    consume(tables, instance, target="media.daily")
    (first,), cursor = told(defined, instance, "ips_pending")
    assert (first.passed, first.description) == (True, "everything is consumed")
    tables.append(events([9]), table="media.daily")
    (second,), cursor = told(defined, instance, "ips_pending", cursor)
    assert not second.passed
    assert "The next run is refused: Someone other than daily changed rows of its table media.daily" in str(
        second.description
    )
    assert "dagster-ips run daily --full" in str(second.description)
    assert told(defined, instance, "ips_pending", cursor)[0] == []


def test_the_pending_check_passes_while_pending_rows_are_younger_than_the_target_lag(
    tables: Tables, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create("playback")
    tables.append(events(range(3)))
    for lag in (None, dt.timedelta(minutes=10)):
        defined = definitions(tables, lag=lag)
        (young,), cursor = told(defined, instance, "ips_pending")
        assert young.passed
        assert "3 rows" in young.description
        assert f"within the target lag of {'10 min' if lag else '1 h'}" in young.description
        with monkeypatch.context() as later:
            now = dt.datetime.now(dt.UTC) + (lag or dt.timedelta(hours=1))
            later.setattr(pending_checks, "_now", lambda now=now: now)
            (old,), cursor = told(defined, instance, "ips_pending", cursor)
            assert not old.passed
            assert "for longer than the target lag" in old.description
            assert told(defined, instance, "ips_pending", cursor)[0] == []


def test_the_pending_sensor_continues_with_a_cursor_from_before_target_lags(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    tables.create("playback")
    (shown,), _ = told(definitions(tables), instance, "ips_pending", '{"daily": [{"playback": {"files": 1}}, null]}')
    assert shown.passed


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ([1], "1 partition has changes that are not consumed{}: 2026-01-02"),
        ([1, 4], "2 partitions have changes that are not consumed{}: 2026-01-02, 2026-01-05"),
    ],
)
def test_the_pending_check_of_a_partitioned_asset_names_the_waiting_partitions(
    tables: Tables, instance: dg.DagsterInstance, changed: list[int], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition("2026-01-01"),
        ins={"playback": ips.incremental()},
        metadata=ips.append() | {"partition_expr": "event_date"},
    )
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    tables.create("playback")
    tables.append([row for number in changed for row in events(range(number * 10, number * 10 + 3), day=number)])
    defined = _of(tables, daily)
    (young,), cursor = told(defined, instance, "ips_pending")
    assert (young.passed, young.description) == (True, says.format(", within the target lag of 1 h"))
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    monkeypatch.setattr(pending_checks, "_now", lambda: later)
    (old,), cursor = told(defined, instance, "ips_pending", cursor)
    assert (old.passed, old.description) == (False, says.format(", for longer than the target lag of 1 h"))
    assert told(defined, instance, "ips_pending", cursor)[0] == []


@pytest.mark.parametrize("policy", ["error", "ignore"])
def test_the_pending_check_names_rows_for_which_there_is_no_partition(
    tables: Tables, instance: dg.DagsterInstance, policy: str
) -> None:
    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition("2026-01-02"),
        ins={"playback": ips.incremental(on_unmapped=policy)},
        metadata=ips.append() | {"partition_expr": "event_date"},
    )
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    tables.create("playback")
    tables.append(events(range(3)))
    (check,), cursor = told(_of(tables, daily), instance, "ips_pending")
    none = "playback has rows for which there is no partition, so every run fails: 2026-01-01"
    assert (check.passed, check.description) == {"error": (False, none), "ignore": (True, "everything is consumed")}[
        policy
    ]
    assert told(_of(tables, daily), instance, "ips_pending", cursor)[0] == []


@pytest.mark.parametrize("is_partitioned", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
def test_the_pending_check_takes_back_what_it_showed_once_its_input_is_gone_or_unreadable(
    tables: Tables, instance: dg.DagsterInstance, *, is_partitioned: bool, is_there: bool
) -> None:
    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition("2026-01-01") if is_partitioned else None,
        ins={"playback": ips.incremental()},
        metadata=ips.append() | {"partition_expr": "event_date"},
    )
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    tables.create("playback")
    defined = _of(tables, daily)
    (first,), cursor = told(defined, instance, "ips_pending")
    assert (first.passed, first.description) == (True, "everything is consumed")
    if is_there:
        tables.append(events(range(3)))
        Path(
            tables.catalog.metadata_locations(["media.playback"])["media.playback"].removeprefix("file://")
        ).write_text("")
    else:
        tables.catalog.client.drop_table("media.playback")
    (second,), cursor = told(defined, instance, "ips_pending", cursor)
    assert (second.passed, second.severity) == (False, dg.AssetCheckSeverity.WARN)
    why = "" if is_there else "media.playback, the table of playback, doesn't exist"
    assert second.description.startswith(f"It is unknown what is pending: {why}")
    assert told(defined, instance, "ips_pending", cursor)[0] == []


def test_the_history_of_a_table_is_read_for_older_rows_once_and_not_in_each_tick(
    tables: Tables, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    found = watched_tables.older_rows_of

    def counted(metadata: TableMetadata, *others: Any, **more: Any) -> OlderRows | None:  # noqa: ANN401  # of several types
        read.append(metadata.table)
        return found(metadata, *others, **more)

    monkeypatch.setattr(watched_tables, "older_rows_of", counted)
    tables.create("playback")
    tables.catalog.create_namespace("default")
    tables.catalog.client.create_table("default.daily", SCHEMA)
    defined, cursor = definitions(tables), None
    for number in range(3):
        tables.append(events(range(number, number + 1)))
        _, cursor = told(defined, instance, "ips_pending", cursor)
    assert read == ["default.daily"]
    tables.append(events(range(3)), "default.daily")
    tables.append(events(range(3)))
    told(defined, instance, "ips_pending", cursor)
    assert read == ["default.daily"] * 2


def test_the_pending_check_does_not_call_changes_consumed_while_another_input_has_no_table(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"playback": ips.incremental(), "titles": ips.incremental()}, metadata=ips.append())
    def daily(playback: ips.IcdcView, titles: ips.IcdcView) -> object: ...

    tables.create("playback")
    tables.append(events(range(3)))
    defined = _of(tables, daily, outside=("playback", "titles"))
    check = dg.AssetCheckKey(dg.AssetKey("daily"), "pending")
    job = defined.get_repository_def().get_implicit_global_asset_job_def()
    result = job.get_subset(asset_selection=set(), asset_check_selection={check}).execute_in_process(instance=instance)
    (evaluation,) = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert "media.titles, the table of titles, doesn't exist" in str(evaluation.description)


def test_a_pending_sensor_requests_each_change_once_and_replaces_the_condition(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    defined = definitions(tables, own_sensors=(ips.pending_sensor("by_sensor", ["daily"]),))
    (asset,) = [each for each in defined.assets or () if isinstance(each, dg.AssetsDefinition) and each.is_executable]
    assert asset.automation_conditions_by_key.get(dg.AssetKey("daily")) is None
    assert told(defined, instance, "by_sensor")[0] == []
    tables.create("playback")
    tables.append(events(range(3)))
    (first,), _ = told(defined, instance, "by_sensor")
    (again,), _ = told(defined, instance, "by_sensor")
    assert first.asset_selection == [dg.AssetKey("daily")]
    assert first.run_key == again.run_key  # Dagster launches one run per key
    consume(tables, instance)
    assert told(defined, instance, "by_sensor")[0] == []
    tables.append(events(range(3, 5)))
    (more,), _ = told(defined, instance, "by_sensor")
    assert more.run_key != first.run_key


@pytest.mark.parametrize("how", ["dropped", "created again", "rolled back", "an older version is registered"])
def test_an_asset_whose_table_lost_its_rows_is_pending_though_nothing_changed_upstream(
    tables: Tables, instance: dg.DagsterInstance, how: str
) -> None:
    defined = _of(tables, _daily_in("media.daily"))
    tables.create("playback")
    published = []
    for number in range(2):
        tables.append(events(range(number, number + 3)))
        consume(tables, instance, "media.daily")
        published.append(tables.catalog.load("media.daily", asset="test"))

    def requested() -> int:
        return dg.evaluate_automation_conditions(defs=defined, instance=instance).total_requested

    assert requested() == 0
    if how == "rolled back":
        first = published[0].head_snapshot_id() or 0
        tables.catalog.client.load_table("media.daily").manage_snapshots().rollback_to_snapshot(first).commit()
    else:
        tables.catalog.client.drop_table("media.daily")
    if how == "created again":
        tables.create("daily")
    if how == "an older version is registered":
        tables.catalog.client.register_table("media.daily", published[0].metadata_location)
    assert requested() == 1
    (check,), _ = told(defined, instance, "ips_pending")
    some = "1 snapshot of playback not consumed: 1 file, 3 rows"
    everything = "2 snapshots of playback not consumed: 2 files, 6 rows"
    assert check.description.startswith(everything if how in {"dropped", "created again"} else some)


def _daily_in(table: str) -> dg.AssetsDefinition:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table(table))
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    return daily


def test_a_pending_sensor_of_an_asset_that_reads_nothing_incrementally_is_refused(tables: Tables) -> None:
    with pytest.raises(ips.IpsError, match="reads nothing incrementally"):
        definitions(tables, own_sensors=(ips.pending_sensor("by_sensor", ["playback"]),))


def test_no_snapshot_between_two_ticks_is_lost(
    tables: Tables, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    defined = definitions(tables)
    tables.create("playback")
    tables.append(events(range(3)))
    tables.append(events(range(3, 5)))
    seen, cursor = told(defined, instance, outside_sensor.OUTSIDE_TABLES_SENSOR)
    assert len(seen) == 1  # the snapshots from before the first tick are one change
    for number in range(5):
        tables.append(events(range(10 * number, 10 * number + 2)))
    ids = [s.snapshot_id for s in tables.catalog.load("media.playback", asset="test").ancestry().snapshots]
    monkeypatch.setattr(outside_changes, "MOST_REPORTED", 3)
    versions = []
    for expected in (3, 2, 0):
        seen, cursor = told(defined, instance, outside_sensor.OUTSIDE_TABLES_SENSOR, cursor)
        assert len(seen) == expected
        versions += [event.tags["dagster/data_version"] for event in seen]
    assert versions == [str(snapshot_id) for snapshot_id in reversed(ids[:5])]


def test_a_table_that_is_missing_or_damaged_does_not_stop_the_others(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    defined = definitions(tables, outside=("playback", "missing", "damaged"))
    tables.create("playback")
    tables.append(events(range(3)))
    tables.create("damaged")
    location = tables.catalog.metadata_locations(["media.damaged"])["media.damaged"]
    file = Path(location.removeprefix("file://"))
    whole = file.read_text()
    file.write_text("")
    seen, cursor = told(defined, instance, outside_sensor.OUTSIDE_TABLES_SENSOR)
    assert [event.asset_key.to_user_string() for event in seen] == ["playback"]
    file.write_text(whole)
    tables.append(events(range(3)), "media.damaged")
    seen, cursor = told(defined, instance, outside_sensor.OUTSIDE_TABLES_SENSOR, cursor)
    assert [event.asset_key.to_user_string() for event in seen] == ["damaged"]
