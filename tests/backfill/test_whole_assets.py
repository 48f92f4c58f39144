"""A backfill of an asset without partitions that only appends, so a doubled row would show."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.cli.main import main
from dagster_ips.orchestration.run.cascade_tag import BACKFILL_TAG
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import SENSOR


def two_whole(lake_folder: Path, spark_folder: Path, *, bug: bool, max_files: int | None = 1) -> dg.Definitions:
    """An asset that only appends, at most ``max_files`` per run, and sums that are maintained with ``combine``."""

    @dg.asset(
        code_version="buggy" if bug else "fixed",
        ins={"playback": ips.incremental(max_files=max_files)},
        metadata=ips.append() | ips.table("media.plain"),
    )
    def plain(playback: ips.IcdcView) -> DataFrame:
        return playback.added.withColumn("seconds", F.col("seconds") * (2 if bug else 1))

    @dg.asset(
        code_version="1",
        ins={"plain": ips.incremental()},
        metadata=ips.combine(on=["account"], aggregates={"seconds": "sum(seconds)"}) | ips.table("media.sums"),
    )
    def sums(plain: ips.IcdcView) -> DataFrame:
        return plain.weighted

    assets = [ips.iceberg_asset("playback", table="media.playback"), plain, sums]
    return definitions_on(lake_folder, spark_folder, *assets)


def run(defs: dg.Definitions, instance: dg.DagsterInstance, *assets: str, **tags: str) -> None:
    job = defs.resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey(a) for a in assets], tags=tags)


def fixed_definitions(lake: Lake, folder: Path, *, max_files: int | None) -> Path:
    """A file with the definitions without the bug."""
    file = folder / f"whole_{max_files}_definitions.py"
    file.write_text(
        "from pathlib import Path\n\nfrom tests.backfill.test_whole_assets import two_whole\n\n"
        f"defs = two_whole(Path({str(lake.folder)!r}), Path({str(lake.spark_folder)!r}), bug=False, "
        f"max_files={max_files})\n"
    )
    return file


def command(file: Path, name: str, *words: str) -> str:
    result = CliRunner().invoke(main, ["backfill", name, "-f", str(file), *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_after_a_revert_of_a_whole_asset_later_rows_are_read_again_exactly_once(
    lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    file = fixed_definitions(lake, tmp_path, max_files=1)
    buggy, fixed = (two_whole(lake.folder, lake.spark_folder, bug=bug) for bug in (True, False))
    lake.create_playback(events(range(6)))

    def drain(defs: dg.Definitions) -> None:
        for _ in range(3):  # one file per run
            run(defs, instance, "plain", "sums", **SENSOR)

    drain(buggy)
    before = {table: lake.rows(table) for table in ("media.plain", "media.sums")}
    plan = json.loads(command(file, "plan", "plain", "--json"))
    assert [stage["partitions"] for stage in plan["stages"]] == [None, None]
    assert plan["stages"][0]["reads"][0]["rows"] == 6
    command(file, "launch", plan["id"], "--yes")
    requested = instance.get_backfill(plan["id"])
    assert requested is not None
    assert requested.asset_backfill_data is not None
    assert requested.asset_backfill_data.target_subset.non_partitioned_asset_keys == {dg.AssetKey("plain")}
    assert requested.tags["dagster_ips/mode"] == "full"
    lake.append(events([6, 7]))
    run(fixed, instance, "plain", **requested.tags, **{BACKFILL_TAG: plan["id"]})
    drain(fixed)
    instance.update_backfill(requested.with_status(type(requested.status).COMPLETED_SUCCESS))
    status: dict[str, Any] = json.loads(command(file, "status", plan["id"], "--json"))
    assert [stage["parts"] for stage in status["stages"]] == [{"": "done"}, {"": "done"}]
    lake.append(events([8]))
    drain(fixed)

    def there() -> Counter[int]:
        return Counter(row[0] for row in lake.rows("media.plain").elements())

    assert there() == Counter(range(9))
    assert "Reverted: all of it" in command(file, "revert", plan["id"], "--yes")
    assert lake.rows("media.plain") == before["media.plain"]
    drain(buggy)
    assert there() == Counter(range(9))
    expected = Counter((i, d, a, s * 2) for i, d, a, s in [*events(range(6)), *events([6, 7]), *events([8])])
    assert lake.rows("media.plain") == expected
    by_account: Counter[str] = Counter()
    for _, _, account, seconds in expected.elements():
        by_account[account] += seconds
    found = lake.sql("SELECT account, seconds FROM lake.media.sums").collect()
    assert {row[0]: row[1] for row in found} == by_account
    assert before["media.sums"].total() == 3


def test_an_append_only_asset_is_staged_and_published_once(
    lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    buggy, fixed = (two_whole(lake.folder, lake.spark_folder, bug=bug, max_files=None) for bug in (True, False))
    lake.create_playback(events(range(6)))
    run(buggy, instance, "plain", "sums", **SENSOR)
    before = {table: lake.rows(table) for table in ("media.plain", "media.sums")}

    def planned(file: Path) -> str:
        plan: str = json.loads(command(file, "plan", "plain", "--json"))["id"]
        return plan

    limited = fixed_definitions(lake, tmp_path, max_files=1)
    refused = CliRunner().invoke(
        main, ["backfill", "launch", "-f", str(limited), planned(limited), "--staged", "--yes"]
    )
    assert "plain has a limit on playback" in refused.output

    file = fixed_definitions(lake, tmp_path, max_files=None)
    plan = planned(file)
    command(file, "launch", plan, "--staged", "--yes")
    requested = instance.get_backfill(plan)
    assert requested is not None
    assert "dagster_ips/mode" not in requested.tags
    for asset in ("plain", "sums"):
        run(fixed, instance, asset, **requested.tags, **{BACKFILL_TAG: plan})
    assert {table: lake.rows(table) for table in before} == before
    sums = json.loads(command(file, "diff", plan, "--json"))["stages"][1]["total"]
    assert (sums["changed"], sums["columns"]) == (3, {"seconds": 3})
    assert sums["after"]["nulls"].keys() == {"account", "seconds"}
    lake.append(events([6, 7]))
    instance.update_backfill(requested.with_status(type(requested.status).COMPLETED_SUCCESS))
    assert "media.sums: published." in command(file, "publish", plan, "--yes")
    assert lake.rows("media.plain") == Counter(events(range(6)))
    run(fixed, instance, "plain", "sums", **SENSOR)
    expected = [*events(range(6)), *events([6, 7])]
    assert lake.rows("media.plain") == Counter(expected)
    by_account: Counter[str] = Counter()
    for _, _, account, seconds in expected:
        by_account[account] += seconds
    assert {row[0]: row[1] for row in lake.sql("SELECT account, seconds FROM lake.media.sums").collect()} == by_account


def elsewhere(lake_folder: Path, spark_folder: Path) -> dg.Definitions:
    """Another code location, for which the tables are outside tables."""
    outside = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("plain", "sums")]
    return definitions_on(lake_folder, spark_folder, *outside)


class Launched:
    """Two assets without partitions and a live backfill of the first, which has run."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, folder: Path) -> None:
        self.lake, self.instance = lake, instance
        self.definitions = two_whole(lake.folder, lake.spark_folder, bug=False, max_files=None)
        self.file = fixed_definitions(lake, folder, max_files=None)

    def follow(self) -> None:
        run(self.definitions, self.instance, "plain", **SENSOR)

    def backfill(self) -> str:
        plan: str = json.loads(command(self.file, "plan", "plain", "--json"))["id"]
        command(self.file, "launch", plan, "--yes")
        requested = self.instance.get_backfill(plan)
        assert requested is not None
        run(self.definitions, self.instance, "plain", **requested.tags, **{BACKFILL_TAG: plan})
        self.instance.update_backfill(requested.with_status(type(requested.status).COMPLETED_SUCCESS))
        return plan

    def ids(self) -> Counter[int]:
        return Counter(row[0] for row in self.lake.rows("media.plain").elements())


@pytest.fixture
def whole(lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launched:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    return Launched(lake, instance, tmp_path)


def test_a_location_for_which_the_table_is_outside_does_not_revert_it(whole: Launched, tmp_path: Path) -> None:
    """It doesn't know what the rows consumed, so that the rows which arrived since would never be read again."""
    whole.lake.create_playback(events(range(6)))
    whole.follow()
    whole.lake.append(events([6, 7]))
    backfill = whole.backfill()
    other = tmp_path / "elsewhere_definitions.py"
    other.write_text(
        "from pathlib import Path\n\nfrom tests.backfill.test_whole_assets import elsewhere\n\n"
        f"defs = elsewhere(Path({str(whole.lake.folder)!r}), Path({str(whole.lake.spark_folder)!r}))\n"
    )
    refused = CliRunner().invoke(main, ["backfill", "revert", "-f", str(other), backfill, "--yes"])
    assert "plain, which it computes, is an outside table in these definitions" in refused.output
    assert whole.ids() == Counter(range(8))
    command(whole.file, "revert", backfill, "--yes")
    assert whole.ids() == Counter(range(6))
    whole.follow()
    assert whole.ids() == Counter(range(8))


def test_after_a_revert_to_a_table_that_was_rolled_back_the_lost_rows_are_read_again(whole: Launched) -> None:
    """The cursor says more than the table holds; until the backfill, runs were refused for that reason."""
    whole.lake.create_playback(events(range(3)))
    whole.follow()
    first = whole.lake.catalog.load("media.plain", asset="test").head_snapshot_id()
    whole.lake.append(events(range(3, 6)))
    whole.follow()
    whole.lake.sql(f"CALL lake.system.rollback_to_snapshot('media.plain', {first})").collect()
    backfill = whole.backfill()
    assert whole.ids() == Counter(range(6))
    command(whole.file, "revert", backfill, "--yes")
    assert whole.ids() == Counter(range(3))
    whole.follow()
    assert whole.ids() == Counter(range(6))


def test_a_proof_in_a_staged_run_is_about_what_the_run_has_written(
    lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Main has the rows of the code with the bug, which the fixed code would never produce."""
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    buggy, fixed = (two_whole(lake.folder, lake.spark_folder, bug=bug, max_files=None) for bug in (True, False))
    lake.create_playback(events(range(6)))
    run(buggy, instance, "plain", "sums", **SENSOR)
    file = fixed_definitions(lake, tmp_path, max_files=None)
    plan = json.loads(command(file, "plan", "plain", "--json"))["id"]
    command(file, "launch", plan, "--staged", "--yes")
    requested = instance.get_backfill(plan)
    assert requested is not None
    proofs = [ips.proof(name, sample=1) for name in ("plain", "sums")]
    proved = ips.with_incremental(
        dg.Definitions(assets=list(fixed.assets or ()), asset_checks=proofs, resources=fixed.resources)
    )
    job = proved.resolve_implicit_global_asset_job_def()
    for asset in ("plain", "sums"):
        made = job.execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey(asset)],
            tags={**requested.tags, BACKFILL_TAG: plan},
        )
        (found,) = [each for each in made.get_asset_check_evaluations() if each.check_name == "proof"]
        assert found.passed, found.description


def own_sql(lake_folder: Path, spark_folder: Path) -> dg.Definitions:
    """An asset that writes with its own statements: two of them, so that each run makes several commits."""

    @dg.asset(deps=[ips.incremental_dep("playback")], metadata=ips.table("media.plain"))
    def plain(context) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  # Dagster resolves no annotation here
        with ips.capture(context, columns="event_id BIGINT, seconds BIGINT") as icdc:
            icdc.sql("INSERT INTO {target} SELECT event_id, seconds FROM {added} WHERE event_id % 2 = 0")
            icdc.sql("INSERT INTO {target} SELECT event_id, seconds FROM {added} WHERE event_id % 2 = 1")

    assets = [ips.iceberg_asset("playback", table="media.playback"), plain]
    return definitions_on(lake_folder, spark_folder, *assets)


def test_a_backfill_of_an_asset_with_its_own_sql_is_reverted(whole: Launched, tmp_path: Path) -> None:
    """Of its commits, only the last one of each run says which change they are made of, and what they belong to."""
    whole.definitions = own_sql(whole.lake.folder, whole.lake.spark_folder)
    whole.file = tmp_path / "own_sql_definitions.py"
    whole.file.write_text(
        "from pathlib import Path\n\nfrom tests.backfill.test_whole_assets import own_sql\n\n"
        f"defs = own_sql(Path({str(whole.lake.folder)!r}), Path({str(whole.lake.spark_folder)!r}))\n"
    )

    whole.lake.create_playback(events(range(6)))
    whole.follow()
    whole.lake.append(events([6, 7]))
    backfill = whole.backfill()
    (stage,) = json.loads(command(whole.file, "diff", backfill, "--json"))["stages"]
    assert (stage["total"]["added"], stage["commits_of_other_changes"]) == (2, [])
    whole.lake.append(events([8, 9]))
    whole.follow()
    assert "Reverted: all of it" in command(whole.file, "revert", backfill, "--yes")
    assert whole.ids() == Counter(range(6))
    whole.follow()
    assert whole.ids() == Counter(range(10))
