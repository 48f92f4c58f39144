"""Rows that come, go or get other keys while nobody looks: no partition keeps, lacks or loses any because of that."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from dagster_ips.core.capture import Mode
from dagster_ips.core.ownership import ASSET
from dagster_ips.core.policy import InputPolicies, OnRemoved
from dagster_ips.errors import BrokenHistoryError, DeclarationError, SourceRolledBackError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.partitioned_input import look_at
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg import file_values
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import MappedKeys
from dagster_ips.progress.advance import Standing
from dagster_ips.progress.cursor import known_progress
from dagster_ips.progress.table_progress import table_progress
from tests.exactly_once.capture.test_unknown_partitions import (
    BY_DAY,
    DAYS,
    REGIONS,
    SCHEMA,
    TABLE,
    TARGET,
    TITLES,
    Plays,
    days_ago,
)
from tests.support.memory_store import MemoryCursors
from tests.support.publishing import known_of, look, publish

BY_REGION = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "region"))
YESTERDAY = str(days_ago(1))


class PlaysWithTarget(Plays):
    """Its runs write a row each."""

    def capture(self, tracked: TrackedInput, *keys: str) -> CapturedInput:
        partitions = RunPartitions(keys) if keys else None
        (captured,) = Capturer(self.lake, self.store).capture(
            CaptureRequest("out", [tracked], target=TARGET, partitions=partitions), run_id="run"
        )
        return captured

    def publish(self, captured: CapturedInput) -> None:
        row = self.lake.client.load_table(TABLE).scan().to_arrow().slice(0, 1)
        assert publish(self.store, self.lake, TARGET, [captured], row) is Standing.MAY_PUBLISH

    def standing(self, captured: CapturedInput) -> Standing:
        """Whether it could be published now."""
        return captured.advance.standing(known_of(self.store, self.lake, TARGET, "out"))

    def compute(self, tracked: TrackedInput, *keys: str) -> None:
        self.publish(self.capture(tracked, *keys))

    def delete(self, condition: str) -> None:
        self.lake.client.load_table(TABLE).delete(condition)

    def rename(self, before: str, after: str) -> None:
        with self.lake.client.load_table(TABLE).update_schema() as change:
            change.rename_column(before, after)


@pytest.fixture
def plays(tmp_path: Path) -> Iterator[PlaysWithTarget]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield PlaysWithTarget(tmp_path, instance)


def test_rows_that_came_and_went_between_two_looks_are_not_removed_from_a_partition_that_never_had_them(
    plays: PlaysWithTarget,
) -> None:
    """Another partition, which runs with it, has consumed up to a snapshot in which they existed."""
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    plays.follow(REGIONS, "region")
    plays.append([{"region": "us", "number": 3}, {"region": "eu", "number": 99}])
    plays.run(REGIONS, "region", "us")
    plays.delete("number = 99")
    plays.append([{"region": "us", "number": 4}])
    assert "us" in plays.pending(REGIONS, "region")
    plays.append([{"region": "eu", "number": 5}])
    assert plays.pending(REGIONS, "region") == {"eu", "us"}
    changes = plays.capture(plays.tracked(REGIONS, "region"), "eu", "us").files.changes
    assert (changes.row_count, changes.removed, changes.hidden) == (2, (), ())


def test_rows_that_are_to_stay_are_not_dropped_because_partitions_were_consumed_up_to_different_snapshots(
    plays: PlaysWithTarget,
) -> None:
    plays.create()
    tracked = plays.tracked(REGIONS, "region", InputPolicies(on_removed=OnRemoved.IGNORE))
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    for regions in (("eu", "us"), ("us",)):
        assert plays.pending_of(tracked) == {"eu", "us"}
        plays.compute(tracked, *regions)
        plays.append([{"region": "eu", "number": 3}, {"region": "us", "number": 4}])
    assert plays.pending_of(tracked) == {"eu", "us"}
    with pytest.raises(DeclarationError, match=r"can't be told apart\. A recompute would drop"):
        plays.capture(tracked, "eu", "us")
    for region in ("eu", "us"):
        assert plays.capture(tracked, region).capture.mode is Mode.INCREMENTAL


@pytest.mark.parametrize("is_lost", [False, True], ids=["cursor kept", "cursor lost"])
@pytest.mark.parametrize("is_registered", [True, False], ids=["an older state is registered", "rolled back, expired"])
def test_partitions_that_have_read_beyond_the_head_are_pending_if_nothing_shows_what_they_have_read(
    plays: PlaysWithTarget, *, is_registered: bool, is_lost: bool
) -> None:
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}])
    table = plays.lake.client.load_table(TABLE)
    first, older = table.current_snapshot(), table.metadata_location
    plays.append([{"region": "us", "number": 2}])
    assert plays.follow(REGIONS, "region") == {"eu", "us"}
    second = table.refresh().current_snapshot()
    assert first
    assert second
    if is_registered:
        plays.lake.client.drop_table(TABLE)
        plays.lake.client.register_table(TABLE, older)
    else:
        table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
        table.maintenance.expire_snapshots().by_ids([second.snapshot_id]).commit()
    if is_lost:
        plays.store = MemoryCursors()
    for _ in range(2):
        assert plays.pending(REGIONS, "region") == {"eu", "us"}
    for region in ("eu", "us"):
        with pytest.raises(BrokenHistoryError):
            plays.run(REGIONS, "region", region)
        plays.run(REGIONS, "region", region, anew=True)
    assert plays.pending(REGIONS, "region") == set()
    plays.append([{"region": "eu", "number": 2}])
    assert plays.follow(REGIONS, "region") == {"eu"}


@pytest.mark.parametrize("expires", [False, True])
def test_a_partition_that_has_not_read_what_was_looked_at_is_not_refused_if_that_is_rolled_back(
    plays: PlaysWithTarget, *, expires: bool
) -> None:
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    assert plays.follow(REGIONS, "region") == {"eu", "us"}
    table = plays.lake.client.load_table(TABLE)
    first = table.current_snapshot()
    plays.append([{"region": "us", "number": 3}])
    assert plays.pending(REGIONS, "region") == {"us"}
    looked_at = table.refresh().current_snapshot()
    assert first
    assert looked_at
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    if expires:
        table.maintenance.expire_snapshots().by_ids([looked_at.snapshot_id]).commit()
    plays.append([{"region": "eu", "number": 4}])
    changes = {key: plays.capture(plays.tracked(REGIONS, "region"), key).files.changes for key in ("eu", "us")}
    assert {key: (each.row_count, each.removed) for key, each in changes.items()} == {"eu": (1, ()), "us": (0, ())}
    assert plays.follow(REGIONS, "region") == {"eu"}


def test_a_rollback_right_before_an_upgrade_to_version_2_is_noticed_by_the_partition_that_has_read_beyond_it(
    plays: PlaysWithTarget,
) -> None:
    plays.create(BY_REGION, **{"format-version": "1"})
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    assert plays.follow(REGIONS, "region") == {"eu", "us"}
    table = plays.lake.client.load_table(TABLE)
    first = table.current_snapshot()
    assert first
    plays.append([{"region": "us", "number": 3}])
    plays.run(REGIONS, "region", "us")
    table.refresh().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with table.transaction() as change:
        change.upgrade_table_version(2)
    plays.append([{"region": "eu", "number": 4}])
    assert plays.pending(REGIONS, "region") == {"eu", "us"}


@pytest.mark.parametrize("expires", [False, True])
def test_a_deleted_partition_that_is_added_again_loses_the_rows_that_went_meanwhile(
    plays: PlaysWithTarget, *, expires: bool
) -> None:
    plays.create(BY_REGION)
    plays.instance.add_dynamic_partitions("titles", ["a", "b"])
    plays.append([{"region": "a", "number": 1}, {"region": "b", "number": 2}])
    assert plays.pending(TITLES, "region") == {"a", "b"}
    plays.compute(plays.tracked(TITLES, "region"), "a", "b")
    assert plays.pending(TITLES, "region") == set()
    for number, key in ((99, "a"), (3, "b")):
        plays.append([{"region": key, "number": number}])
        plays.compute(plays.tracked(TITLES, "region"), key)
    if expires:
        target = plays.lake.client.load_table(TARGET)
        old = [snapshot.snapshot_id for snapshot in target.snapshots()][:-1]
        target.maintenance.expire_snapshots().by_ids(old).commit()
    plays.instance.delete_dynamic_partition("titles", "a")
    plays.delete("number = 99")
    assert "a" not in plays.pending(TITLES, "region")
    plays.instance.add_dynamic_partitions("titles", ["a"])
    assert "a" in plays.pending(TITLES, "region")
    assert plays.capture(plays.tracked(TITLES, "region"), "a").files.changes.removed


@pytest.mark.parametrize("is_expired", [True, False], ids=["expired", "created again"])
def test_a_deleted_partition_that_is_added_again_is_computed_if_the_upstream_could_not_be_followed_meanwhile(
    plays: PlaysWithTarget, *, is_expired: bool
) -> None:
    """None of its rows is left by then, and no file shows that it ever had any."""
    plays.create(BY_REGION)
    plays.instance.add_dynamic_partitions("titles", ["a", "b"])
    plays.append([{"region": "a", "number": 1}, {"region": "b", "number": 2}])
    tracked = plays.tracked(TITLES, "region")
    assert plays.pending_of(tracked) == {"a", "b"}
    plays.compute(tracked, "a", "b")
    assert plays.pending_of(tracked) == set()
    plays.instance.delete_dynamic_partition("titles", "a")
    if is_expired:
        plays.delete("region = 'a'")
        plays.append([{"region": "b", "number": 3}])
        table = plays.lake.client.load_table(TABLE)
        old = [snapshot.snapshot_id for snapshot in table.snapshots()][:-1]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    else:
        plays.lake.client.drop_table(TABLE)
        plays.lake.client.create_table(TABLE, SCHEMA, partition_spec=BY_REGION)
        plays.append([{"region": "b", "number": 3}])
    assert plays.pending(TITLES, "region") == {"b"}
    plays.instance.add_dynamic_partitions("titles", ["a"])
    assert plays.pending(TITLES, "region") == {"a", "b"}
    with pytest.raises(BrokenHistoryError):
        plays.capture(plays.tracked(TITLES, "region"), "a")


def test_an_older_and_a_newer_capture_of_a_partition_are_not_both_published(plays: PlaysWithTarget) -> None:
    """The row that only the newer one read is gone before the next look."""
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    plays.follow(REGIONS, "region")
    tracked, capturer = plays.tracked(REGIONS, "region"), Capturer(plays.lake, plays.store)
    plays.append([{"region": "eu", "number": 3}])
    older = capturer.look(CaptureRequest("out", [tracked], target=TARGET, partitions=RunPartitions(("eu",))))
    plays.append([{"region": "eu", "number": 99}])
    newer = plays.capture(tracked, "eu")
    (taken,) = capturer.take(older, run_id="another")
    plays.delete("number = 99")
    assert plays.pending(REGIONS, "region") == {"eu"}
    plays.publish(newer)
    assert plays.standing(taken) is Standing.PARTLY_DONE
    assert plays.pending(REGIONS, "region") == {"eu"}
    assert plays.capture(tracked, "eu").files.changes.removed


@pytest.mark.parametrize("expires", [False, True])
def test_the_partitions_of_an_asset_with_another_name_are_computed_even_if_their_rows_are_gone(
    plays: PlaysWithTarget, *, expires: bool
) -> None:
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    tracked = plays.tracked(REGIONS, "region")
    for key in ("eu", "us"):
        plays.compute(tracked, key)
    plays.delete("region = 'eu'")
    target = plays.lake.client.load_table(TARGET)
    with target.transaction() as change:
        change.set_properties({ASSET: "out"})
    if expires:
        old = [snapshot.snapshot_id for snapshot in target.snapshots()][:-1]
        target.maintenance.expire_snapshots().by_ids(old).commit()
    renamed = look(plays.store, plays.lake, tracked, consumer="renamed", target=TARGET)
    assert renamed.pending.keys() == {"eu", "us"}


@pytest.mark.parametrize("before", ["days", "no partitions"])
def test_after_partitions_were_redefined_those_whose_rows_are_gone_are_computed_as_well(
    plays: PlaysWithTarget, before: str
) -> None:
    plays.create(BY_DAY)
    plays.append([{"day": days_ago(1), "region": region} for region in ("eu", "us")])
    if before == "days":
        assert plays.pending(DAYS, "day") == {YESTERDAY}
        plays.compute(plays.tracked(DAYS, "day"), YESTERDAY)
    else:
        plays.compute(TrackedInput("plays", TABLE))
    plays.delete("region = 'eu'")
    assert plays.pending(REGIONS, "region") == {"eu", "us"}
    plays.compute(plays.tracked(REGIONS, "region"), "eu", "us")
    assert plays.pending(REGIONS, "region") == set()


def test_days_of_two_stages_can_become_hours(plays: PlaysWithTarget) -> None:
    """What is known of a day is about no hour, so it isn't asked which upstream partitions that day would take."""

    def of_both(definition: dg.PartitionsDefinition[str]) -> TrackedInput:
        keys = partition_keys(definition, "at", plays.instance, asset="plays")
        mapping = dg.TimeWindowPartitionMapping()
        slicing = MappedKeys(keys, mapping, definition, definition, plays.instance, keys.division)
        return TrackedInput("plays", TABLE, slicing=slicing)

    hours = dg.HourlyPartitionsDefinition(start_date=f"{days_ago(3)}-00:00")
    plays.create()
    plays.append([{"at": dt.datetime.combine(days_ago(1), dt.time(hour=3))}])
    plays.compute(of_both(DAYS), YESTERDAY)
    assert f"{YESTERDAY}-03:00" in plays.pending_of(of_both(hours))
    plays.compute(of_both(hours), *plays.pending_of(of_both(hours)))
    assert plays.pending_of(of_both(hours)) == set()


def test_days_can_get_a_second_dimension_whatever_the_runs_process_has_read(
    plays: PlaysWithTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})
    columns = {"day": "day", "region": "region"}
    plays.create()
    plays.append([{"day": days_ago(day), "region": region} for day in (1, 2) for region in ("eu", "us")])
    plays.compute(plays.tracked(DAYS, "day"), YESTERDAY, str(days_ago(2)))
    pending = plays.pending(both, columns)
    assert f"{YESTERDAY}|eu" in pending
    monkeypatch.setattr(file_values, "_KEPT", file_values._ValuesCache())
    plays.compute(plays.tracked(both, columns), *pending)
    assert plays.pending(both, columns) == set()
    assert not plays.look(both, columns).progress.untaken


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_run_from_before_partitions_were_redefined_does_not_publish_its_change_once_another_has_published(
    plays: PlaysWithTarget, *, is_whole: bool
) -> None:
    """Its row is in the table already: the partition that has it now was recomputed."""
    before = TrackedInput("plays", TABLE) if is_whole else plays.tracked(DAYS, "day")
    keys = () if is_whole else (YESTERDAY,)
    plays.create()
    plays.append([{"day": days_ago(1), "region": "eu"}])
    plays.compute(before, *keys)
    plays.append([{"day": days_ago(1), "region": "eu"}])
    late = plays.capture(before, *keys)
    assert late.capture.mode is Mode.INCREMENTAL
    assert plays.standing(late) is Standing.MAY_PUBLISH
    plays.compute(plays.tracked(REGIONS, "region"), "eu")
    assert plays.standing(late) is Standing.PARTLY_DONE

    again = plays.capture(before, *keys)
    assert again.capture.mode is Mode.FULL
    assert plays.standing(again) is Standing.MAY_PUBLISH


def test_after_partitions_were_redefined_a_run_can_go_on_with_one_and_begin_with_another(
    plays: PlaysWithTarget,
) -> None:
    """A partition that is computed for the first time replaces its rows, whatever wrote them."""
    plays.create(BY_REGION)
    plays.append([{"day": days_ago(1), "region": "eu"}])
    plays.compute(plays.tracked(DAYS, "day"), YESTERDAY)
    plays.compute(plays.tracked(REGIONS, "region"), "eu")
    plays.append([{"day": days_ago(1), "region": region} for region in ("eu", "us")])
    captured = plays.capture(plays.tracked(REGIONS, "region"), "eu", "us")
    assert captured.capture.mode is Mode.INCREMENTAL
    assert [each.edge.partition for each in captured.captures if each.is_of_new_partition] == ["us"]
    assert plays.standing(captured) is Standing.MAY_PUBLISH


@pytest.mark.parametrize("ignores", [False, True])
def test_a_window_that_is_no_longer_excluded_gets_its_rows(plays: PlaysWithTarget, *, ignores: bool) -> None:
    excluded, first = days_ago(2), str(days_ago(5))
    some = dg.DailyPartitionsDefinition(first, exclusions=[dt.datetime.combine(excluded, dt.time())])
    plays.create()
    plays.append([{"day": days_ago(1)}, {"day": excluded}])
    assert plays.pending(some, "day") == {YESTERDAY}
    if ignores:
        plays.run(some, "day", YESTERDAY, ignore=True)
    every = dg.DailyPartitionsDefinition(first)
    assert str(excluded) in plays.pending(every, "day")
    assert plays.look(every, "day").unreached == ()
    plays.follow(every, "day")


def test_partitions_of_a_name_that_another_column_took_are_computed(plays: PlaysWithTarget) -> None:
    regions = dg.StaticPartitionsDefinition(["eu", "us", "asia"])
    plays.create()
    plays.append([{"region": None, "text_day": "asia"}, {"region": "us", "text_day": "us"}])
    assert plays.pending(regions, "region") == {"us"}
    assert plays.look(regions, "region").changed.unmapped == ("null",)
    plays.rename("region", "old_region")
    plays.rename("text_day", "region")
    assert {"asia", "us"} <= plays.pending(regions, "region")
    assert plays.look(regions, "region").changed.unmapped == ()
    plays.run(regions, "region", "asia", "us", anew=True)
    assert plays.pending(regions, "region").isdisjoint({"asia", "us"})


@pytest.mark.parametrize("is_expired", [False, True])
def test_lost_cursors_leave_no_partition_out_whose_rows_are_gone(plays: PlaysWithTarget, *, is_expired: bool) -> None:
    plays.create()
    for region in ("us", "eu", "us"):
        plays.append([{"region": region}])
        assert plays.pending(REGIONS, "region") == {region}
        plays.compute(plays.tracked(REGIONS, "region"), region)
    plays.delete("region = 'eu'")
    if is_expired:
        target = plays.lake.client.load_table(TARGET)
        old = [snapshot.snapshot_id for snapshot in target.snapshots()][:-1]
        target.maintenance.expire_snapshots().by_ids(old).commit()
    plays.store = MemoryCursors()
    assert plays.pending(REGIONS, "region") == {"eu"}


def test_a_slow_tick_does_not_take_what_another_tick_has_seen_since_to_be_rolled_back(plays: PlaysWithTarget) -> None:
    plays.create(BY_REGION)
    for region in ("eu", "us"):
        plays.append([{"region": region}])
        assert plays.follow(REGIONS, "region") == {region}
    before = plays.lake.load(TABLE, asset="test")
    plays.append([{"region": "us"}])
    assert plays.follow(REGIONS, "region") == {"us"}
    plays.look_at(plays.tracked(REGIONS, "region"), before)
    assert plays.pending(REGIONS, "region") == set()


@pytest.mark.parametrize("is_first", [True, False], ids=["the first look", "a later look"])
@pytest.mark.parametrize("is_at_work", [True, False])
def test_a_slow_tick_does_not_take_what_a_run_has_captured_since_to_be_rolled_back(
    plays: PlaysWithTarget, *, is_first: bool, is_at_work: bool
) -> None:
    """Otherwise, the partition would be requested again and again, until the next commit."""
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    if not is_first:
        plays.follow(REGIONS, "region")
    plays.append([{"region": "us", "number": 99}])
    plays.delete("number = 99")
    before = plays.lake.load(TABLE, asset="test")
    plays.append([{"region": "eu", "number": 3}])
    run = plays.capture(plays.tracked(REGIONS, "region"), "eu")
    if not is_at_work:
        plays.publish(run)
    plays.look_at(plays.tracked(REGIONS, "region"), before)
    if is_at_work:
        plays.publish(run)
    assert plays.pending(REGIONS, "region") == ({"us"} if is_first else set())


def test_after_a_target_was_away_during_a_look_partitions_that_did_not_change_are_not_computed_from_expired_snapshots(
    plays: PlaysWithTarget,
) -> None:
    plays.create(BY_REGION)
    for region in ("eu", "us", "us"):
        plays.append([{"region": region}])
        assert plays.pending(REGIONS, "region") == {region}
        plays.compute(plays.tracked(REGIONS, "region"), region)
    assert plays.pending(REGIONS, "region") == set()
    source, target = plays.lake.client.load_table(TABLE), plays.lake.client.load_table(TARGET)
    source.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in source.snapshots()][:-1]).commit()
    plays.lake.client.drop_table(TARGET)
    assert plays.pending(REGIONS, "region") == {"eu", "us"}
    plays.lake.client.register_table(TARGET, target.metadata_location)
    assert plays.pending(REGIONS, "region") == set()
    plays.append([{"region": "eu"}])
    assert plays.pending(REGIONS, "region") == {"eu"}
    assert plays.capture(plays.tracked(REGIONS, "region"), "eu").files.changes.row_count == 1


def removes(plays: PlaysWithTarget, region: str) -> bool:
    """Whether the next run of the partition finds that rows were removed."""
    changes = plays.capture(plays.tracked(REGIONS, "region"), region).files.changes
    return bool(changes.removed or changes.hidden)


@pytest.mark.parametrize("is_first", [True, False], ids=["the first look", "a later look"])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed before it copies", "undisturbed"])
def test_a_row_that_a_run_captures_is_removed_though_a_look_has_found_it_gone_meanwhile(
    plays: PlaysWithTarget, *, is_first: bool, is_killed: bool
) -> None:
    plays.create(BY_REGION)
    plays.append([{"region": "us", "number": 1}])
    if not is_first:
        plays.follow(REGIONS, "region")
    plays.append([{"region": "eu", "number": 99}])
    tracked, capturer = plays.tracked(REGIONS, "region"), Capturer(plays.lake, plays.store)
    ready = capturer.look(CaptureRequest("out", [tracked], target=TARGET, partitions=RunPartitions(("eu",))))
    plays.delete("number = 99")
    plays.pending(REGIONS, "region")
    (run,) = capturer.take(ready, run_id="run")
    plays.pending(REGIONS, "region")
    publish(plays.store, plays.lake, TARGET, [run], copies=not is_killed)
    assert "eu" in plays.pending(REGIONS, "region")
    assert removes(plays, "eu")


def test_a_row_that_a_run_publishes_during_a_tick_is_removed_if_it_is_gone_already(plays: PlaysWithTarget) -> None:
    """The tick has read the target's metadata before the run published, and the cursor after it copied."""
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    assert plays.pending(REGIONS, "region") == {"eu", "us"}
    plays.compute(plays.tracked(REGIONS, "region"), "eu", "us")
    assert plays.pending(REGIONS, "region") == set()
    plays.append([{"region": "eu", "number": 99}])
    run = plays.capture(plays.tracked(REGIONS, "region"), "eu")
    plays.delete("number = 99")
    known = table_progress(plays.lake.find(TARGET), asset="out", storage=plays.lake.storage)
    plays.publish(run)
    cursor = plays.store.get("out")
    known = known_progress(known, cursor, plays.lake.find(TARGET))
    looked = look_at(
        plays.lake.storage, plays.lake.load(TABLE, asset="test"), plays.tracked(REGIONS, "region"), known, "out"
    )
    assert looked.pending.keys() <= {"eu"}
    assert plays.pending(REGIONS, "region") == {"eu"}
    assert removes(plays, "eu")


def test_a_partition_that_was_pending_when_another_branch_was_declared_is_computed_once(plays: PlaysWithTarget) -> None:
    """The branch is where main is, so there is nothing new to look at."""
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    plays.follow(REGIONS, "region")
    plays.append([{"region": "eu", "number": 3}])
    assert plays.pending(REGIONS, "region") == {"eu"}
    head = plays.lake.load(TABLE, asset="test").head_snapshot_id()
    assert head
    plays.lake.client.load_table(TABLE).manage_snapshots().create_branch(head, "audit").commit()
    on_audit = replace(plays.tracked(REGIONS, "region"), ref="audit")
    assert plays.pending_of(on_audit) == {"eu"}
    plays.compute(on_audit, "eu")
    assert plays.pending_of(on_audit) == set()


def test_rows_that_a_run_captured_between_two_rollbacks_are_refused_like_others_that_were_rolled_back(
    plays: PlaysWithTarget,
) -> None:
    """The last look was before the first rollback, after which the partition's rows were the same as before."""
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    plays.follow(REGIONS, "region")
    table = plays.lake.client.load_table(TABLE)
    first = table.current_snapshot()
    plays.append([{"region": "eu", "number": 99}])
    second = table.refresh().current_snapshot()
    assert first
    assert second
    plays.delete("number = 99")
    assert plays.pending(REGIONS, "region") == set()
    table.refresh().manage_snapshots().rollback_to_snapshot(second.snapshot_id).commit()
    plays.compute(plays.tracked(REGIONS, "region"), "eu")
    table.refresh().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    plays.append([{"region": "us", "number": 3}])
    assert plays.pending(REGIONS, "region") == {"eu", "us"}
    with pytest.raises(SourceRolledBackError):
        plays.capture(plays.tracked(REGIONS, "region"), "eu")
    assert plays.capture(plays.tracked(REGIONS, "region"), "us").files.changes.row_count == 1


def test_a_rollback_of_snapshots_that_changed_no_row_makes_no_partition_pending(plays: PlaysWithTarget) -> None:
    plays.create(BY_REGION)
    plays.append([{"region": "eu", "number": 1}, {"region": "us", "number": 2}])
    plays.follow(REGIONS, "region")
    plays.append([{"region": "us", "number": 3}, {"region": "eu", "number": 4}])
    table = plays.lake.client.load_table(TABLE)
    before = table.current_snapshot()
    assert before
    table.append(table.scan().to_arrow().slice(0, 0))
    plays.run(REGIONS, "region", "us", "eu")
    assert plays.pending(REGIONS, "region") == set()
    plays.lake.client.load_table(TABLE).manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    assert plays.pending(REGIONS, "region") == set()
    plays.append([{"region": "us", "number": 5}])
    assert plays.pending(REGIONS, "region") == {"us"}
    changes = plays.capture(plays.tracked(REGIONS, "region"), "us").files.changes
    assert (changes.row_count, changes.removed, changes.hidden) == (1, (), ())
