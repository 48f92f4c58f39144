"""How far a backfill is, as its runs tell. Looking needs no Spark."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

import dagster_ips as ips
from dagster_ips._compat import RANGE_END_TAG, RANGE_START_TAG, requested_backfill
from dagster_ips.core.backfill_plan import BackfillPlan, PlannedStage
from dagster_ips.core.backfill_progress import PartState
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from dagster_ips.orchestration.backfill.following import BackfillFollower
from dagster_ips.orchestration.run.cascade_tag import PLAN_TAG
from tests.support.without_spark import manager_of

PARTITIONS = dg.StaticPartitionsDefinition(["a", "b"])
PLAN = BackfillPlan(
    "planned1",
    0,
    (
        PlannedStage("first", "media.first", ("playback",), ("a", "b")),
        PlannedStage("second", "media.second", ("first",), ("a", "b")),
    ),
    (),
)


def definitions(folder: Path) -> dg.Definitions:
    def stage(name: str, upstream: str) -> dg.AssetsDefinition:
        metadata = ips.append() | ips.table(f"media.{name}") | {"partition_expr": "account"}

        @dg.asset(name=name, partitions_def=PARTITIONS, ins={"upstream": ips.incremental(upstream)}, metadata=metadata)
        def made(upstream: ips.IcdcView) -> object:
            return upstream.added

        return made

    playback = ips.iceberg_asset("playback", table="media.playback")
    assets = [playback, stage("first", "playback"), stage("second", "first")]
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager_of(folder)}))


def run(instance: dg.DagsterInstance, *names: str, partition: str, fails: str = "") -> None:
    """A run of the backfill, as far as Dagster sees it."""

    def stage(name: str) -> dg.AssetsDefinition:
        @dg.asset(name=name, partitions_def=PARTITIONS, deps=["first"] if name == "second" else [])
        def made() -> None:
            if name == fails:
                raise ValueError

        return made

    job = dg.Definitions([stage("first"), stage("second")]).resolve_implicit_global_asset_job_def()
    job.execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey(name) for name in names],
        partition_key=partition,
        tags={PLAN_TAG: PLAN.id},
        raise_on_error=False,
    )


def test_what_a_failed_run_materialized_before_it_failed_is_done(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    lineage = BackfillDesk.of([definitions(tmp_path)], instance).lineage
    follower = BackfillFollower(lineage, PLAN, is_staged=True)
    run(instance, "first", "second", partition="a")
    run(instance, "first", "second", partition="b", fails="second")
    assert follower.unfinished() == ["second isn't finished: of 2 parts, 1 failed"]
    run(instance, "second", partition="b")
    assert follower.unfinished() == []
    run(instance, "first", partition="a", fails="first")
    assert follower.unfinished() == ["first isn't finished: of 2 parts, 1 failed"]


def test_a_backfill_of_more_than_a_thousand_runs_is_seen_as_a_whole(tmp_path: Path) -> None:
    instance = dg.DagsterInstance.ephemeral()
    follower = BackfillFollower(BackfillDesk.of([definitions(tmp_path)], instance).lineage, PLAN, is_staged=True)
    for partition in ("a", "b"):
        run(instance, "first", "second", partition=partition)
    for _ in range(1000):
        instance.add_run(dg.DagsterRun(job_name="other", tags={PLAN_TAG: PLAN.id}))
    assert follower.unfinished() == []


def test_partitions_that_a_backfill_ended_without_running_are_not_said_to_be_unchanged(tmp_path: Path) -> None:
    instance = dg.DagsterInstance.ephemeral()
    lineage = BackfillDesk.of([definitions(tmp_path)], instance).lineage
    staged, live = (BackfillFollower(lineage, PLAN, is_staged=is_staged) for is_staged in (True, False))
    launched = requested_backfill(
        instance,
        PLAN.id,
        {dg.AssetKey("first"): PARTITIONS.subset_with_partition_keys(["a", "b"])},
        tags={PLAN_TAG: PLAN.id},
        title="",
        description="",
        at=0.0,
    )
    instance.add_backfill(launched)
    run(instance, "first", partition="a")
    assert [dict(each.parts) for each in live.progress()] == [
        {"a": PartState.DONE, "b": PartState.PENDING},
        {"a": PartState.TO_COME, "b": PartState.TO_COME},
    ]
    assert live.cancel() == []
    assert live.status() == "CANCELING"
    for status in ("CANCELING", "CANCELED", "FAILED"):
        instance.update_backfill(launched.with_status(type(launched.status)[status]))
        first, second = live.progress()
        assert dict(first.parts) == {"a": PartState.DONE, "b": PartState.NOT_RUN}
        assert set(second.parts.values()) == {PartState.UNCHANGED}
        assert staged.unfinished() == [
            "first isn't finished: of 2 parts, 1 not run",
            "second isn't finished: of 2 parts, 2 not run",
        ]


def test_a_run_of_partitions_that_were_redefined_since_can_still_be_followed(tmp_path: Path) -> None:
    instance = dg.DagsterInstance.ephemeral()
    follower = BackfillFollower(BackfillDesk.of([definitions(tmp_path)], instance).lineage, PLAN, is_staged=True)
    tags = {PLAN_TAG: PLAN.id, RANGE_START_TAG: "a", RANGE_END_TAG: "c"}
    selected = frozenset([dg.AssetKey("first")])
    instance.add_run(dg.DagsterRun("job", asset_selection=selected, tags=tags, status=dg.DagsterRunStatus.STARTED))
    assert follower.unfinished() == [
        "first isn't finished: of 2 parts, 2 not run",
        "second isn't finished: of 2 parts, 2 not run",
    ]
