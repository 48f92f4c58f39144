"""Changes of tables that outside jobs write are reported to Dagster: every change, once, with its partitions."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

import dagster_ips as ips
from dagster_ips.orchestration.watch import outside_changes
from dagster_ips.orchestration.watch.outside_sensor import OUTSIDE_TABLES_SENSOR
from tests.support.lake import FIRST_DAY, events
from tests.support.partitioned import DAYS, key
from tests.support.ticks import tick, told
from tests.support.without_spark import Tables, manager_of

BY_DATE = {"partition_expr": "event_date"}


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "lake")


def definitions(
    tables: Tables,
    partitions_def: dg.PartitionsDefinition[str] | None,
    *more: dg.AssetsDefinition,
    metadata: Mapping[str, Any] = BY_DATE,
) -> dg.Definitions:
    playback = ips.iceberg_asset("playback", table="media.playback", partitions_def=partitions_def, metadata=metadata)
    manager = manager_of(tables.folder)
    return ips.with_incremental(dg.Definitions(assets=[playback, *more], resources={"io_manager": manager}))


def reported(
    defined: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None = None
) -> tuple[dict[str, str], str | None]:
    """Run a tick and record its events as the daemon does: the data versions by partition, and the cursor."""
    found, cursor = told(defined, instance, OUTSIDE_TABLES_SENSOR, cursor)
    for event in found:
        instance.report_runless_asset_event(event)
    versions = [
        {event.partition: event.tags["dagster/data_version"] for event in found if isinstance(event, kind)}
        for kind in (dg.AssetObservation, dg.AssetMaterialization)
    ]
    assert versions[0] == versions[1]
    assert len(versions[0]) + len(versions[1]) == len(found)
    return versions[1], cursor


def days(*numbers: int) -> list[tuple[int, dt.date, str, int]]:
    """A few rows of each day."""
    return [row for number in numbers for row in events(range(10 * number, 10 * number + 3), day=number)]


def table(tables: Tables) -> Table:
    return tables.catalog.client.load_table("media.playback")


def head(tables: Tables) -> str:
    return str(tables.catalog.load("media.playback", asset="test").head_snapshot_id())


def test_exactly_the_changed_partitions_of_a_table_are_reported(tables: Tables, instance: dg.DagsterInstance) -> None:
    defined = definitions(tables, DAYS)
    assert reported(defined, instance)[0] == {}
    tables.create("playback")
    assert reported(defined, instance)[0] == {}
    tables.append(days(0, 1, 4))
    seen, cursor = reported(defined, instance)
    assert seen == dict.fromkeys([key(0), key(1), key(4)], head(tables))
    assert reported(defined, instance, cursor)[0] == {}
    tables.append(days(1))
    tables.append(days(2, 1))
    seen, cursor = reported(defined, instance, cursor)
    assert seen == dict.fromkeys([key(1), key(2)], head(tables))
    table(tables).delete(EqualTo("event_date", FIRST_DAY))
    seen, cursor = reported(defined, instance, cursor)
    assert seen == {key(0): head(tables)}
    assert reported(defined, instance, cursor)[0] == {}
    assert instance.get_materialized_partitions(dg.AssetKey("playback")) == {key(n) for n in (0, 1, 2, 4)}


def test_more_partitions_than_one_tick_reports_come_with_the_next_and_a_killed_tick_loses_none(
    tables: Tables, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside_changes, "MOST_REPORTED", 3)
    defined = definitions(tables, DAYS)
    tables.create("playback")
    tables.append(days(*range(5)))
    first, cursor = reported(defined, instance)
    assert sorted(first) == [key(0), key(1), key(2)]
    tables.append(days(0, 6))  # while other partitions wait
    killed, _ = told(defined, instance, OUTSIDE_TABLES_SENSOR, cursor)
    again, cursor = reported(defined, instance, cursor)
    assert again == {event.partition: event.tags["dagster/data_version"] for event in killed}
    rest, cursor = reported(defined, instance, cursor)
    assert reported(defined, instance, cursor)[0] == {}
    assert {*again, *rest} == {key(0), key(3), key(4), key(6)}
    assert (again | rest)[key(0)] == head(tables)


def test_changes_that_a_materialization_reported_are_not_reported_again(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    """As after a killed tick, or if runs of another code location write the table."""
    whole, by_day = definitions(tables, None), definitions(tables, DAYS)
    tables.create("playback")
    tables.append(days(0, 1))
    (first,), whole_cursor = told(whole, instance, OUTSIDE_TABLES_SENSOR)
    _, day_cursor = reported(by_day, instance)
    tables.append(days(0, 1))
    tables.append(days(1))
    version = {"dagster/data_version": head(tables)}
    instance.report_runless_asset_event(dg.AssetMaterialization("playback", partition=key(1), tags=version))
    seen, _ = reported(by_day, instance, day_cursor)
    assert set(seen) == {key(0)}
    instance.report_runless_asset_event(dg.AssetMaterialization("playback", tags=version))
    assert told(whole, instance, OUTSIDE_TABLES_SENSOR, whole_cursor)[0] == []
    tables.append(days(2))
    (later,), _ = told(whole, instance, OUTSIDE_TABLES_SENSOR, whole_cursor)
    assert later.tags == {"dagster/data_version": head(tables)} != first.tags


def test_a_change_of_a_partition_that_dagster_does_not_have_yet_is_reported_once_it_does(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    defined = definitions(tables, dg.DynamicPartitionsDefinition(name="days"))
    tables.create("playback")
    tables.append(days(0, 1))
    instance.add_dynamic_partitions("days", [key(1)])
    seen, cursor = reported(defined, instance)
    assert set(seen) == {key(1)}
    changed_by = head(tables)
    instance.add_dynamic_partitions("days", [key(0)])
    tables.append(days(1))
    seen, cursor = reported(defined, instance, cursor)
    assert seen == {key(0): changed_by, key(1): head(tables)}
    tables.append(days(5))
    assert reported(defined, instance, cursor)[0] == {}
    _, cursor = reported(defined, instance, cursor)
    instance.add_dynamic_partitions("days", [key(5)])  # while the table stays as it was
    assert set(reported(defined, instance, cursor)[0]) == {key(5)}


def test_after_a_break_in_the_history_all_partitions_with_rows_now_or_before_are_reported(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    defined = definitions(tables, DAYS)
    tables.create("playback")
    tables.append(days(0, 1))
    _, cursor = reported(defined, instance)
    tables.append(days(2))
    tables.catalog.client.drop_table("media.playback")
    tables.create("playback")
    tables.append(days(1, 3))
    assert set(reported(defined, instance, cursor)[0]) == {key(0), key(1), key(3)}


def test_partitions_that_only_a_changed_definition_has_are_reported_though_the_table_is_unchanged(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    tables.create("playback")
    tables.append(days(0, 1, 4))
    seen, cursor = reported(definitions(tables, dg.DailyPartitionsDefinition(key(1))), instance)
    assert set(seen) == {key(1), key(4)}
    seen, cursor = reported(definitions(tables, DAYS), instance, cursor)
    assert seen == {key(0): head(tables)}
    assert reported(definitions(tables, DAYS), instance, cursor)[0] == {}
    weekly = definitions(tables, dg.WeeklyPartitionsDefinition("2025-12-28"))
    seen, cursor = reported(weekly, instance, cursor)
    assert set(seen) == {"2025-12-28", "2026-01-04"}
    assert reported(weekly, instance, cursor)[0] == {}


def test_a_cursor_of_an_earlier_release_reports_only_what_was_never_reported(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    tables.create("playback")
    tables.append(days(0, 1))
    _, cursor = reported(definitions(tables, dg.DailyPartitionsDefinition(key(1))), instance)
    stored = json.loads(cursor or "")
    for name in ("division", "definition"):
        del stored["tables"]["playback"][name]
    assert set(reported(definitions(tables, DAYS), instance, json.dumps(stored))[0]) == {key(0)}


def test_a_partition_that_was_emptied_before_the_cursor_was_lost_is_reported(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    defined = definitions(tables, DAYS)
    tables.create("playback")
    tables.append(days(0, 1))
    reported(defined, instance)
    table(tables).delete(EqualTo("event_date", FIRST_DAY))
    assert reported(defined, instance)[0] == dict.fromkeys([key(0), key(1)], head(tables))


def test_partitions_of_two_dimensions_are_reported_as_dagster_knows_them(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    both = dg.MultiPartitionsDefinition({"day": DAYS, "account": dg.StaticPartitionsDefinition(["a0", "a1", "a2"])})
    defined = definitions(tables, both, metadata={"partition_expr": {"day": "event_date", "account": "account"}})
    tables.create("playback")
    tables.append(events([3, 6]))  # both of account a0
    assert set(reported(defined, instance)[0]) == {f"a0|{key(0)}"}
    (found,) = instance.get_materialized_partitions(dg.AssetKey("playback"))
    assert found == dg.MultiPartitionKey({"day": key(0), "account": "a0"})


def test_normal_assets_with_eager_run_when_partitions_of_an_outside_table_change(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    three_days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")

    @dg.asset(deps=["playback"], automation_condition=dg.AutomationCondition.eager())
    def report() -> None: ...

    @dg.asset(deps=["playback"], partitions_def=three_days, automation_condition=on_every_partition())
    def daily_report() -> None: ...

    def requested(cursor: object) -> tuple[dict[str, set[str | None]], object]:
        result = dg.evaluate_automation_conditions(defs=defined, instance=instance, cursor=cursor)  # type: ignore[arg-type]
        assets = dg.AssetKey("report"), dg.AssetKey("daily_report")
        return {each.to_user_string(): result.get_requested_partitions(each) for each in assets}, result.cursor

    defined = definitions(tables, three_days, report, daily_report)
    tables.create("playback")
    seen, evaluated = requested(None)
    assert not any(seen.values())
    cursor: str | None = None
    # Eager waits until no upstream partition is missing, and a partition without rows is missing.
    for changed, runs in (([0, 1], set()), ([2, 1], {None}), ([0], {None})):
        tables.append(days(*changed))
        _, cursor = reported(defined, instance, cursor)
        seen, evaluated = requested(evaluated)
        assert seen == {"report": runs, "daily_report": {key(number) for number in changed}}
        materialize(defined, instance, seen)
        seen, evaluated = requested(evaluated)
        assert not any(seen.values())


def on_every_partition() -> dg.AutomationCondition[dg.AssetKey]:
    """Eager, for partitions other than the latest as well."""
    return dg.AutomationCondition.eager().without(dg.AutomationCondition.in_latest_time_window())


def materialize(defined: dg.Definitions, instance: dg.DagsterInstance, requested: dict[str, set[str | None]]) -> None:
    job = defined.resolve_implicit_global_asset_job_def()
    for asset, partitions in requested.items():
        for partition in partitions:
            job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey(asset)], partition_key=partition)


@pytest.mark.parametrize("metadata", [{}, {"owner": "media"}])
def test_a_partitioned_table_without_partition_expr_is_refused(tables: Tables, metadata: dict[str, str]) -> None:
    with pytest.raises(ips.IpsError, match="partition_expr"):
        definitions(tables, DAYS, metadata=metadata)


def test_a_column_that_the_table_lacks_is_named_and_the_other_tables_are_reported(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    tables.create("playback")
    tables.create("other")
    for name in ("media.playback", "media.other"):
        tables.append(days(0), name)
    wrong = ips.iceberg_asset(
        "playback", table="media.playback", partitions_def=DAYS, metadata={"partition_expr": "day"}
    )
    right = ips.iceberg_asset("other", table="media.other", partitions_def=DAYS, metadata=BY_DATE)
    manager = manager_of(tables.folder)
    defined = ips.with_incremental(dg.Definitions(assets=[wrong, right], resources={"io_manager": manager}))
    found, skipped = events_and_text(defined, instance)
    assert [event.asset_key.to_user_string() for event in found] == ["other"]
    assert "playback" in skipped
    assert "has no column 'day'" in skipped


def events_and_text(
    defined: dg.Definitions, instance: dg.DagsterInstance
) -> tuple[Sequence[dg.AssetMaterialization], str]:
    """The materializations that a tick reports, and its message in the UI."""
    result = tick(defined, instance, OUTSIDE_TABLES_SENSOR)
    found = [event for event in result.asset_events if isinstance(event, dg.AssetMaterialization)]
    return found, result.skip_message or ""
