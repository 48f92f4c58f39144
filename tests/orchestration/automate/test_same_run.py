"""A cascade is one run where possible: assets are requested together with the requested upstreams that they read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.orchestration.watch.failed_runs import failed_runs
from tests.support.lake import events
from tests.support.ticks import tick
from tests.support.without_spark import Tables, manager_of

DAYS = dg.DailyPartitionsDefinition("2026-01-01")
BY_DAY = {"partition_expr": "event_date"}
SINGLE = dg.BackfillPolicy.single_run()
Condition = dg.AutomationCondition[dg.AssetKey]


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """``playback`` has rows of three days; the tables downstream are still empty."""
    tables = Tables(tmp_path / "lake")
    for name in ("playback", "daily", "agg"):
        tables.create(name)
    tables.append([row for day in (0, 1, 3) for row in events(range(day * 10, day * 10 + 3), day=day)])
    return tables


def consumer(name: str, upstream: str, days: dg.PartitionsDefinition[str] | None = None, **more: Any) -> Any:  # noqa: ANN401
    """An asset that reads ``upstream`` incrementally."""
    mapping, mode = more.pop("mapping", None), more.pop("mode", ips.append())

    @dg.asset(
        name=name,
        partitions_def=days,
        ins={"source": ips.incremental(upstream, partition_mapping=mapping)},
        metadata=mode | ips.table(f"media.{name}") | (BY_DAY if days else {}),
        **more,
    )
    def made(source: ips.IcdcView) -> object:
        return source.added

    return made


def requested(tables: Tables, instance: dg.DagsterInstance, *assets: Any) -> set[tuple[str, str]]:  # noqa: ANN401
    """The runs that a tick of the sensor requests: the assets, and the partitions if they have any."""
    return {(", ".join(names), days) for names, days, _ in runs(tables, instance, *assets)}


def runs(tables: Tables, instance: dg.DagsterInstance, *assets: Any) -> Iterator[tuple[list[str], str, dg.RunRequest]]:  # noqa: ANN401
    for request in tick(definitions(tables, *assets), instance).run_requests or ():
        first = request.partition_key or request.tags.get("dagster/asset_partition_range_start", "")
        last = request.tags.get("dagster/asset_partition_range_end", first)
        days = first if first == last else f"{first}...{last}"
        yield sorted(key.to_user_string() for key in request.asset_selection or ()), days, request


def definitions(tables: Tables, *assets: Any) -> dg.Definitions:  # noqa: ANN401
    playback = ips.iceberg_asset("playback", table="media.playback")
    manager = manager_of(tables.folder)
    return ips.with_incremental(dg.Definitions(assets=[playback, *assets], resources={"io_manager": manager}))


def test_all_stages_that_can_be_are_in_the_run_of_the_first(tables: Tables, instance: dg.DagsterInstance) -> None:
    tables.create("last")
    stages = [consumer("daily", "playback"), consumer("agg", "daily"), consumer("last", "agg")]
    assert requested(tables, instance, *stages) == {("agg, daily, last", "")}


def test_all_stages_compute_exactly_the_partitions_that_changed(tables: Tables, instance: dg.DagsterInstance) -> None:
    stages = [consumer("daily", "playback", DAYS), consumer("agg", "daily", DAYS)]
    expected = {("agg, daily", "2026-01-01...2026-01-02"), ("agg, daily", "2026-01-04")}
    assert requested(tables, instance, *stages) == expected


DAY_BEFORE = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
WEEKS = dg.WeeklyPartitionsDefinition("2025-12-28")
FROM_DAYS = dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (DAYS, lambda: consumer("agg", "daily", DAYS, mapping=DAY_BEFORE)),
        (DAYS, lambda: consumer("agg", "daily", WEEKS, mapping=FROM_DAYS)),
        (DAYS, lambda: consumer("agg", "daily")),
        (DAYS, lambda: consumer("agg", "daily", DAYS, backfill_policy=dg.BackfillPolicy.multi_run(2))),
        (None, lambda: consumer("agg", "daily", automation_condition=ips.on_change(min_bytes=1))),
        (None, lambda: consumer("agg", "daily", automation_condition=ips.on_change(max_wait=dt.timedelta(hours=1)))),
        (None, lambda: consumer("agg", "daily", automation_condition=ips.pending())),
    ],
    ids=["another day", "weeks", "no partitions", "its own policy", "waits for more", "waits", "its own condition"],
)
def test_a_stage_that_cannot_or_should_not_join_the_run_waits_until_something_is_pending(
    tables: Tables,
    instance: dg.DagsterInstance,
    first: dg.PartitionsDefinition[str] | None,
    second: Callable[[], dg.AssetsDefinition],
) -> None:
    found = requested(tables, instance, consumer("daily", "playback", first), second())
    assert {assets for assets, _ in found} == {"daily"}


def test_an_asset_that_also_reads_an_asset_of_another_run_waits_for_that_run(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        ins={"daily": ips.incremental(), "other": ips.incremental()}, metadata=ips.append() | ips.table("media.agg")
    )
    def agg(daily: ips.IcdcView, other: ips.IcdcView) -> object:
        return daily.added.join(other.added)

    tables.create("other")
    daily = consumer("daily", "playback")
    found = requested(tables, instance, daily, agg, consumer("other", "playback", DAYS))
    assert {assets for assets, _ in found} == {"daily", "other"}
    assert requested(tables, instance, daily, agg, consumer("other", "playback")) == {("agg, daily, other", "")}


def test_an_asset_with_a_missing_input_is_left_out_unless_the_same_run_creates_it(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        ins={"first": ips.incremental(), "other": ips.incremental()}, metadata=ips.append() | ips.table("media.agg")
    )
    def agg(first: ips.IcdcView, other: ips.IcdcView) -> object:
        return first.added.join(other.added)

    first, last = consumer("first", "playback"), consumer("last", "agg")
    later = ips.iceberg_asset("other", table="media.made_by_another_job_later")
    assert requested(tables, instance, first, agg, last, later) == {("first", "")}
    other = consumer("other", "daily")
    assert requested(tables, instance, first, agg, last, other, consumer("daily", "playback")) == {
        ("agg, daily, first, last, other", "")
    }


def test_a_requested_lookup_does_not_request_the_assets_that_read_it(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"daily": ips.incremental()}, metadata=ips.append() | ips.table("media.agg"))
    def agg(daily: ips.IcdcView, names: object) -> object:
        return daily.added, names

    names = consumer("names", "playback")
    plain = dg.asset(name="daily", metadata=ips.table("media.daily"))(lambda: None)
    assert requested(tables, instance, plain, agg, names) == {("names", "")}


def test_blocked_partitions_are_left_out_and_the_others_are_not(tables: Tables, instance: dg.DagsterInstance) -> None:
    stages = [consumer("daily", "playback", DAYS), consumer("agg", "daily", DAYS)]
    (_, _, request), *_ = [each for each in runs(tables, instance, *stages) if each[1] == "2026-01-04"]
    fail(instance, dg.AssetKey("agg"), request)
    expected = {("agg, daily", "2026-01-01...2026-01-02"), ("daily", "2026-01-04")}
    assert requested(tables, instance, *stages) == expected


def test_a_partition_that_reads_the_day_before_waits_for_it_unless_that_is_not_to_run(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    """If both ran at once, the later one would have to run again, and so would each that reads it."""

    @dg.asset(
        partitions_def=DAYS,
        ins={"playback": ips.incremental(), "daily": ips.incremental(partition_mapping=DAY_BEFORE)},
        metadata=ips.replace() | ips.table("media.daily") | BY_DAY,
    )
    def daily(playback: ips.IcdcView, daily: ips.IcdcView) -> object:
        return playback.source.join(daily.source)

    first, _ = requests = sorted(runs(tables, instance, daily), key=lambda each: each[1])
    assert [days for _, days, _ in requests] == ["2026-01-01", "2026-01-04"]
    fail(instance, daily.key, first[2])
    assert requested(tables, instance, daily) == {("daily", "2026-01-02"), ("daily", "2026-01-04")}


@dg.asset(name="daily", output_required=False)
def skipping() -> Iterator[dg.Output[None]]:
    yield from ()


@pytest.mark.parametrize("ends", [dg.asset(name="daily")(lambda: 1 / 0), skipping], ids=["fails", "yields nothing"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            ips.sql_asset("daily", "SELECT event_id FROM playback WHERE seconds > 1", table="media.daily"),
            ips.sql_asset("daily", "SELECT event_id FROM playback WHERE seconds > 2", table="media.daily"),
        ),
        (consumer("daily", "playback"), consumer("daily", "playback", mode=ips.append(dedup_on=["event_id"]))),
    ],
    ids=["query", "write mode"],
)
def test_what_was_tried_for_good_is_tried_again_once_its_query_or_declaration_is_corrected(
    tables: Tables,
    instance: dg.DagsterInstance,
    before: dg.AssetsDefinition,
    after: dg.AssetsDefinition,
    ends: dg.AssetsDefinition,
) -> None:
    cursor, now = None, dt.datetime.now(dt.UTC)

    def requests(asset: dg.AssetsDefinition, *, later: dt.timedelta) -> int:
        nonlocal cursor
        result = dg.evaluate_automation_conditions(
            defs=definitions(tables, asset), instance=instance, cursor=cursor, evaluation_time=now + later
        )
        cursor = result.cursor
        return result.get_num_requested(dg.AssetKey("daily"))

    for _ in range(5):
        dg.materialize([ends], instance=instance, raise_on_error=False)
        assert not requests(before, later=dt.timedelta(0))
    assert not requests(before, later=dt.timedelta(days=1))
    assert requests(after, later=dt.timedelta(days=2))


@pytest.mark.parametrize("days", [None, DAYS], ids=["whole", "by partition"])
def test_a_tick_while_a_retry_is_at_work_does_not_forget_the_failures_before_it(
    tables: Tables, instance: dg.DagsterInstance, days: dg.PartitionsDefinition[str] | None
) -> None:
    """In the partitioned asset, another partition is pending in each tick."""
    condition = ips.pending() & ~ips.blocked() & ~dg.AutomationCondition.in_progress()
    daily = consumer("daily", "playback", days, automation_condition=condition)
    defined, cursor, now = definitions(tables, daily), None, dt.datetime.now(dt.UTC)
    bad = "2026-01-01" if days else None

    def is_requested(*, later: dt.timedelta) -> bool:
        nonlocal cursor
        result = dg.evaluate_automation_conditions(
            defs=defined, instance=instance, cursor=cursor, evaluation_time=now + later
        )
        cursor = result.cursor
        return bad in result.get_requested_partitions(daily.key)

    assert is_requested(later=dt.timedelta(0))
    for _ in range(5):
        run = instance.create_run_for_job(
            defined.resolve_implicit_global_asset_job_def(),
            asset_selection=frozenset([daily.key]),
            tags={"dagster/partition": bad} if bad else {},
            status=dg.DagsterRunStatus.STARTED,
        )
        assert not is_requested(later=dt.timedelta(0))
        instance.report_run_failed(run)
        assert not is_requested(later=dt.timedelta(0))
    assert not is_requested(later=dt.timedelta(days=1))


def fail(instance: dg.DagsterInstance, asset: dg.AssetKey, request: dg.RunRequest) -> None:
    """Run the requested partition of the asset so that it fails."""

    @dg.asset(key=asset, partitions_def=DAYS)
    def failing() -> None:
        raise dg.Failure

    job = dg.Definitions([failing]).resolve_implicit_global_asset_job_def()
    assert not job.execute_in_process(
        instance=instance, partition_key=request.partition_key, raise_on_error=False
    ).success


@pytest.mark.parametrize("days", [None, DAYS], ids=["whole", "by partition"])
def test_a_stage_skipped_because_an_earlier_one_failed_does_not_count_as_failed(
    instance: dg.DagsterInstance, days: dg.PartitionsDefinition[str] | None
) -> None:
    def step(name: str, *deps: str, fails: bool = False) -> dg.AssetsDefinition:
        @dg.asset(name=name, deps=deps, partitions_def=days, backfill_policy=SINGLE if days else None)
        def made() -> None:
            if fails:
                raise dg.Failure

        return made

    assets = [step("first", fails=True), step("second", "first"), step("third", fails=True)]
    ends = {"dagster/asset_partition_range_start": "2026-01-01", "dagster/asset_partition_range_end": "2026-01-02"}
    job = dg.Definitions(assets).resolve_implicit_global_asset_job_def()
    assert not job.execute_in_process(instance=instance, tags=ends if days else {}, raise_on_error=False).success

    def failed(name: str) -> set[str]:
        return set(failed_runs(instance, dg.AssetKey(name), is_partitioned=days is not None))

    assert failed("first") == failed("third") == ({"2026-01-01", "2026-01-02"} if days else {""})
    assert failed("second") == set()


@pytest.mark.parametrize("days", [None, DAYS], ids=["whole", "by partition"])
def test_an_asset_that_yielded_nothing_counts_as_tried_and_what_was_skipped_after_it_does_not(
    instance: dg.DagsterInstance, days: dg.PartitionsDefinition[str] | None
) -> None:
    policy = SINGLE if days else None

    @dg.asset(partitions_def=days, backfill_policy=policy, output_required=False)
    def first() -> Iterator[dg.Output[None]]:
        yield from ()

    @dg.asset(partitions_def=days, backfill_policy=policy, deps=[first])
    def second() -> None: ...

    @dg.asset(partitions_def=days, backfill_policy=policy)
    def third() -> None: ...

    ends = {"dagster/asset_partition_range_start": "2026-01-01", "dagster/asset_partition_range_end": "2026-01-02"}
    job = dg.Definitions([first, second, third]).resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, tags=ends if days else {}).success

    def tried(name: str) -> set[str]:
        return set(failed_runs(instance, dg.AssetKey(name), is_partitioned=days is not None))

    assert tried("first") == ({"2026-01-01", "2026-01-02"} if days else {""})
    assert tried("second") == tried("third") == set()


def test_a_graph_whose_inner_op_fails_counts_as_failed(instance: dg.DagsterInstance) -> None:
    @dg.op
    def inner() -> None:
        raise dg.Failure

    @dg.op(ins={"found": dg.In(dg.Nothing)})
    def outer() -> None: ...

    @dg.graph_asset
    def of_ops() -> None:
        return outer(inner())

    @dg.asset
    def beside() -> None: ...

    job = dg.Definitions([of_ops, beside]).resolve_implicit_global_asset_job_def()
    assert not job.execute_in_process(instance=instance, raise_on_error=False).success
    assert set(failed_runs(instance, dg.AssetKey("of_ops"), is_partitioned=False)) == {""}
