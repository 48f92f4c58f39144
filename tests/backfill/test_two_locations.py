"""A backfill with a later stage in another code location, for which the asset before it is an outside table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.cli.main import main
from dagster_ips.core.backfill_plan import BackfillPlan
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from dagster_ips.orchestration.backfill.validating import StageValidator
from tests.backfill.three_stages import ThreeStages
from tests.support.lake import Lake, events
from tests.support.lake_definitions import manager_on
from tests.support.partitioned import SENSOR
from tests.support.without_spark import manager_of


def elsewhere(lake_folder: Path, spark_folder: Path) -> dg.Definitions:
    """The second location: totals of ``day``, which the first location writes."""

    @dg.asset(
        code_version="1", ins={"day": ips.incremental()}, metadata=ips.merge(on=["account"]) | ips.table("media.totals")
    )
    def totals(day: ips.IcdcView) -> DataFrame:
        return day.affected("account").groupBy("account").agg(F.sum("seconds").alias("seconds"))

    manager = manager_on(lake_folder, spark_folder, icdc_keep_last=1)
    day = ips.iceberg_asset("day", table="media.day")
    return ips.with_incremental(dg.Definitions(assets=[day, totals], resources={"io_manager": manager}))


class TwoLocations(ThreeStages):
    """The three stages, a second code location that follows the first stage, and the command line on both."""

    @property
    def workspace(self) -> Path:
        """A workspace file that lists first the location for which the table is an outside table."""
        other, path = self.folder / "elsewhere_definitions.py", self.folder / "both.yaml"
        other.write_text(
            "from pathlib import Path\n\nfrom tests.backfill.test_two_locations import elsewhere\n\n"
            f"defs = elsewhere(Path({str(self.lake.folder)!r}), Path({str(self.lake.spark_folder)!r}))\n"
        )
        path.write_text(f"load_from:\n  - python_file: {other}\n  - python_file: {self.file}\n")
        return path

    def command(self, name: str, *words: str, answer: str = "") -> Result:
        return CliRunner().invoke(main, ["backfill", name, "-w", str(self.workspace), *words], input=answer)

    def totalled(self, **tags: str) -> Counter[tuple[Any, ...]]:
        """The table of the other location after a run."""
        job = elsewhere(self.lake.folder, self.lake.spark_folder).resolve_implicit_global_asset_job_def()
        made = job.execute_in_process(
            instance=self.instance, asset_selection=[dg.AssetKey("totals")], tags={**SENSOR, **tags}
        )
        assert made.success
        return self.lake.rows("media.totals")

    def right_totals(self, *, bug: bool) -> Counter[tuple[Any, ...]]:
        return Counter((a, s) for a, _, s in self.right(bug=bug)["media.by_account"].elements())


@pytest.fixture
def both(lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoLocations:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    return TwoLocations(lake, instance, tmp_path)


def test_a_plan_has_the_stages_of_both_locations(both: TwoLocations) -> None:
    both.lake.create_playback(events(range(3)))
    plan = both.told("plan", "day", "--partition", "2026-01-01")
    assert [stage["asset"] for stage in plan["stages"]] == ["day", "by_account", "totals", "week"]


@pytest.mark.slow
def test_a_plan_its_execution_and_its_revert_cover_the_stages_of_both_locations(both: TwoLocations) -> None:
    both.begin()
    assert both.totalled() == both.right_totals(bug=True)
    both.deploy(bug=False)
    plan = both.told("plan", "day", "--partitions", "2026-01-01..2026-01-10")
    assert [stage["asset"] for stage in plan["stages"]] == ["day", "by_account", "totals", "week"]
    both.says("launch", plan["id"], "--yes")
    both.backfill(plan["id"])
    both.follow()
    status = {stage["asset"]: stage["parts"] for stage in both.told("status", plan["id"])["stages"]}
    assert status["totals"] == {"": "pending"}
    assert both.totalled() == both.right_totals(bug=False)
    status = {stage["asset"]: stage["parts"] for stage in both.told("status", plan["id"])["stages"]}
    assert status["totals"] == {"": "done"}
    totals = both.told("diff", plan["id"])["stages"][2]
    assert (totals["asset"], totals["total"]["columns"]) == ("totals", {"seconds": 1})
    both.says("revert", plan["id"], "--yes")
    both.deploy(bug=True)
    both.follow()
    assert both.totalled() == both.right_totals(bug=True)
    assert "is cancelled" in both.says("cancel", plan["id"], "--yes")


@pytest.mark.slow
def test_a_backfill_over_both_locations_is_staged_and_published(both: TwoLocations) -> None:
    both.begin()
    both.totalled()
    both.deploy(bug=False)
    plan = both.plan("day", "--partitions", "2026-01-01..2026-01-10")
    assert "main doesn't change" in both.says("launch", plan, "--staged", "--yes")
    both.stage(plan, "day", "by_account")
    found = both.instance.get_backfill(plan)
    assert found is not None
    staged = {**found.tags, "dagster/backfill": plan}
    assert both.totalled(**staged) == both.right_totals(bug=True), "main stays as it is"
    both.stage(plan, "week")
    totals = both.told("diff", plan)["stages"][2]
    assert (totals["asset"], totals["total"]["columns"]) == ("totals", {"seconds": 1})
    both.says("publish", plan, "--yes")
    assert both.rows() == both.right(bug=False)
    assert both.lake.rows("media.totals") == both.right_totals(bug=False)


def test_a_function_is_recomputed_with_the_resources_of_its_own_location(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.append() | ips.table("media.day"),
        required_resource_keys={"rates"},
    )
    def day(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    def rates(of: str) -> dg.Definitions:
        return dg.Definitions(resources={"rates": dg.ResourceDefinition.hardcoded_resource(of)})

    assets = [ips.iceberg_asset("playback", table="media.playback"), day]
    here = ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager_of(tmp_path)}))
    desk = BackfillDesk.of(
        [
            dg.Definitions.merge(elsewhere(tmp_path, tmp_path), rates("there")),
            dg.Definitions.merge(here, rates("here")),
        ],
        instance,
    )
    validator = StageValidator(desk.lineage, BackfillPlan("planned1", 0, (), ()), desk.definitions)
    with dg.build_resources(validator._resources(validator._asset(desk.lineage.consumers["day"]))) as resources:
        assert resources.rates == "here"
