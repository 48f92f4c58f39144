"""How far a backfill is, as its runs tell. Looking needs no Spark."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

import dagster_ips as ips
from dagster_ips.core.backfill_plan import BackfillPlan, PlannedStage
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from dagster_ips.orchestration.backfill.following import BackfillFollower
from dagster_ips.orchestration.run.cascade_tag import PLAN_TAG

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

        @dg.asset(
            name=name,
            partitions_def=PARTITIONS,
            ins={"upstream": ips.incremental(upstream)},
            metadata=metadata,
        )
        def made(upstream: ips.IcdcView) -> object:
            return upstream.added

        return made

    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(folder=str(folder)), spark=ips.LocalSparkConnect(server_folder="unused")
    )
    playback = ips.iceberg_asset("playback", table="media.playback")
    assets = [playback, stage("first", "playback"), stage("second", "first")]
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


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
