"""A planted fault is found, together with its fix; nothing is found where nothing is wrong."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster._cli.sensor import sensor_stop_command
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._daemon.types import DaemonHeartbeat

from dagster_ips.cli.main import main
from dagster_ips.core.capture import Capture, Mode
from dagster_ips.local_spark import launch
from dagster_ips.local_spark.process import identity_of
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.cursor import Job
from dagster_ips.progress.progress import Progress
from tests.cli.idle_lake import DEFINITIONS, EDGE, IdleLake
from tests.support.lake import SCHEMA, events


@pytest.fixture
def spark_record(idle_lake: IdleLake) -> Iterator[Callable[..., None]]:
    """Writes the record of a Spark server whose process is alive: this process."""

    def write(**values: Any) -> None:  # noqa: ANN401  # fields of a record
        idle_lake.spark.mkdir()
        own = identity_of(os.getpid())
        assert own is not None
        record = {
            "process": asdict(own),
            "port": 1,
            "token": "t",
            "ui_port": None,
            "log": "server.log",
            "configuration": {},
            "ready": True,
            "version": 2,
            **values,
        }
        (idle_lake.spark / "server.json").write_text(json.dumps(record))

    yield write
    (idle_lake.spark / "server.json").unlink(missing_ok=True)


def the_only(found: list[dict[str, str]], check: str) -> dict[str, str]:
    assert [each["check"] for each in found] == [check], found
    assert found[0]["fix"]
    return found[0]


def test_nothing_is_found_where_nothing_is_wrong(idle_lake: IdleLake) -> None:
    before = sorted(idle_lake.folder.rglob("*"))
    assert idle_lake.findings() == []
    result = CliRunner().invoke(main, ["doctor", "-f", str(idle_lake.file)])
    assert result.exit_code == 0
    assert "Nothing found. Checked 1 incremental asset, 2 tables" in result.stdout
    assert sorted(idle_lake.folder.rglob("*")) == before, "the doctor leaves nothing behind"


def test_the_doctor_finds_a_catalog_that_does_not_answer(idle_lake: IdleLake) -> None:
    text = DEFINITIONS.replace(
        "folder={lake!r}", "properties={{'type': 'rest', 'uri': 'http://127.0.0.1:9/'}}, patience_seconds=0.5"
    )
    idle_lake.define(text)
    found = the_only(idle_lake.findings(), "catalog")
    assert "did not answer" in found["what"] or "could not be reached" in found["what"]


def test_the_doctor_finds_a_storage_that_cannot_be_written(idle_lake: IdleLake) -> None:
    media = idle_lake.folder / "warehouse" / "media"
    shutil.rmtree(media / "_ips", ignore_errors=True)
    (media / "_ips").write_text("a file where the folder of ICDC tables would be")
    found = idle_lake.findings()
    assert {each["check"] for each in found} >= {"storage"}
    assert any("media/_ips/doctor" in each["what"] for each in found)


@pytest.mark.parametrize(
    ("says", "what"),
    [
        ("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n", "it is Java 11"),
        ("#!/bin/sh\necho 'openjdk version \"17.0.2\"' >&2\n", "lacks the module jdk.incubator.vector"),
        ("#!/bin/sh\nexit 1\n", "doesn't report a Java version"),
    ],
)
def test_the_doctor_finds_a_java_with_which_spark_does_not_start(
    idle_lake: IdleLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, what: str
) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(says)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert what in the_only(idle_lake.findings(), "java")["what"]


def test_the_doctor_finds_missing_jars(idle_lake: IdleLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_IPS_CACHE", str(tmp_path / "empty"))
    assert launch.cache_folder() == tmp_path / "empty"
    assert "iceberg-spark-runtime" in the_only(idle_lake.findings(), "jars")["what"]


def test_the_doctor_finds_a_spark_server_that_does_not_answer(
    idle_lake: IdleLake, spark_record: Callable[..., None]
) -> None:
    spark_record()
    found = the_only(idle_lake.findings(), "spark server")
    assert "doesn't answer" in found["what"]
    assert f"stop --folder {idle_lake.spark}" in found["fix"]


def test_the_doctor_finds_a_spark_server_with_another_configuration(
    idle_lake: IdleLake, spark_record: Callable[..., None]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        spark_record(port=listening.getsockname()[1], configuration={"spark.driver.memory": "9g"})
        assert "spark.driver.memory is 9g" in the_only(idle_lake.findings(), "spark server")["what"]


def test_the_doctor_finds_an_instance_that_keeps_no_cursors(
    idle_lake: IdleLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster._core.storage.runs.SqlRunStorage.set_cursor_values", lambda *_: None, raising=True)
    monkeypatch.setattr("dagster._core.storage.runs.SqlRunStorage.get_cursor_values", lambda *_: {}, raising=True)
    assert "cursor storage" in {each["check"] for each in idle_lake.findings()}


def test_the_doctor_finds_a_dead_daemon(idle_lake: IdleLake) -> None:
    idle_lake.instance.wipe_daemon_heartbeats()
    assert "has never run" in the_only(idle_lake.findings(), "daemon")["what"]
    idle_lake.instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 3600, "SENSOR", "a daemon", []))
    assert "last sent a heartbeat at" in the_only(idle_lake.findings(), "daemon")["what"]


def test_the_doctor_finds_a_sensor_that_is_switched_off(idle_lake: IdleLake) -> None:
    stopped = CliRunner().invoke(sensor_stop_command, ["-f", str(idle_lake.file), "ips_pending"])
    assert stopped.exit_code == 0, stopped.output
    found = the_only(idle_lake.findings(), "sensors")
    assert found["where"] == "ips_pending"
    assert "turned off" in found["what"]


@pytest.mark.parametrize("stopped_first", [True, False])
def test_the_doctor_finds_a_stopped_sensor_although_another_code_location_has_one_of_the_same_name(
    idle_lake: IdleLake, *, stopped_first: bool
) -> None:
    states = [("here", InstigatorStatus.STOPPED), ("there", InstigatorStatus.DECLARED_IN_CODE)]
    for location, status in states if stopped_first else reversed(states):
        target = LoadableTargetOrigin(module_name=location)
        origin = ManagedGrpcPythonEnvCodeLocationOrigin(loadable_target_origin=target, location_name=location)
        sensor = RemoteInstigatorOrigin(RemoteRepositoryOrigin(origin, "__repository__"), "ips_pending")
        data = SensorInstigatorData(min_interval=5)
        idle_lake.instance.add_instigator_state(InstigatorState(sensor, InstigatorType.SENSOR, status, data))
    found = the_only(idle_lake.findings(), "sensors")
    assert found["where"] == "ips_pending of here"
    assert "turned off" in found["what"]


def test_the_doctor_finds_assets_that_nothing_ever_runs(idle_lake: IdleLake) -> None:
    idle_lake.define(DEFINITIONS.replace("ips.with_incremental(", "("))
    found = the_only(idle_lake.findings(), "with_incremental")
    assert found["what"].startswith("daily reads incrementally, but its definitions didn't go through")
    assert "ips.with_incremental(dg.Definitions(...))" in found["fix"]


def test_the_doctor_finds_two_assets_that_write_one_table(idle_lake: IdleLake) -> None:
    text = DEFINITIONS.replace("ips.with_incremental(", "(").replace("[playback, daily]", "[playback, daily, another]")
    another = """
@dg.asset(metadata=ips.table("media.daily"))
def another() -> DataFrame: ...

"""
    idle_lake.define(text.replace("catalog = ", f"{another}catalog = "))
    found = [each for each in idle_lake.findings() if each["check"] == "two writers"]
    assert [each["where"] for each in found] == ["media.daily"]
    assert "another and daily both write it" in found[0]["what"]


def test_assets_that_stand_for_one_outside_table_are_not_its_writers(idle_lake: IdleLake) -> None:
    text = DEFINITIONS.replace("[playback, daily]", "[playback, daily, audited]")
    audited = 'audited = ips.iceberg_asset("audited", table="media.playback")\n'
    idle_lake.define(text.replace("playback = ", f"{audited}playback = "))
    assert "two writers" not in [each["check"] for each in idle_lake.findings()]


def test_the_doctor_finds_a_table_that_another_asset_wrote(idle_lake: IdleLake) -> None:
    idle_lake.catalog.client.drop_table("media.daily")
    idle_lake.catalog.client.create_table("media.daily", SCHEMA, properties={"dagster-ips.asset": "somebody_else"})
    assert "somebody_else" in the_only(idle_lake.findings(), "next run")["what"]


def test_the_doctor_finds_a_history_that_cannot_be_followed(idle_lake: IdleLake) -> None:
    idle_lake.catalog.client.drop_table("media.playback")
    idle_lake.create_playback(events(range(5)))
    found = the_only(idle_lake.findings(), "next run")
    assert "dropped and created again" in found["what"]
    assert "dagster_ips/mode=full" in found["fix"]


def test_each_way_out_of_an_error_is_in_the_fix(idle_lake: IdleLake) -> None:
    idle_lake.catalog.client.drop_table("media.playback")
    found = the_only(idle_lake.findings(), "next run")
    assert found["what"].endswith("Nothing was read and no state changed.")
    assert found["fix"].startswith("If it was renamed, ")
    assert "If it was dropped, " in found["fix"]


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_the_doctor_finds_an_outside_table_that_never_existed(idle_lake: IdleLake, *, is_partitioned: bool) -> None:
    days = 'partitions_def=dg.DailyPartitionsDefinition("2026-01-01"), metadata={{"partition_expr": "event_date"}} |'
    text = DEFINITIONS.replace("metadata=", days) if is_partitioned else DEFINITIONS
    idle_lake.catalog.client.drop_table("media.daily")
    idle_lake.define(text.replace('table="media.playback"', 'table="media.playbak"'))
    found = the_only(idle_lake.findings(), "next run")
    assert found["severity"] == "warning"
    assert "waits for media.playbak, which doesn't exist. The catalog has media.playback" in found["what"]


def test_the_doctor_finds_rows_that_no_partition_takes(idle_lake: IdleLake) -> None:
    days = 'partitions_def=dg.DailyPartitionsDefinition("2026-01-01"), metadata={{"partition_expr": "event_date"}} |'
    idle_lake.define(DEFINITIONS.replace("metadata=", days))
    assert idle_lake.findings() == []
    idle_lake.append(events([9], day=-1))
    found = the_only(idle_lake.findings(), "next run")
    assert "rows for which there is no partition, so every run fails: 2025-12-31" in found["what"]


@pytest.mark.parametrize("table", ["playback", "daily"])
def test_the_doctor_finds_an_upstream_that_is_gone_and_strange_rows_also_for_partitions(
    idle_lake: IdleLake, table: str
) -> None:
    days = 'partitions_def=dg.DailyPartitionsDefinition("2026-01-01"), metadata={{"partition_expr": "event_date"}} |'
    idle_lake.define(DEFINITIONS.replace("metadata=", days))
    assert idle_lake.findings() == []
    if table == "playback":
        idle_lake.catalog.client.drop_table("media.playback")
    else:
        idle_lake.append(events(range(3)), table="media.daily")
    assert f"media.{table}" in the_only(idle_lake.findings(), "next run")["what"]


def test_the_doctor_finds_snapshots_that_expire_before_they_are_consumed(idle_lake: IdleLake) -> None:
    table = idle_lake.catalog.client.load_table("media.playback")
    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "60000"})
    found = the_only(idle_lake.findings(), "retention")
    assert (
        "changes may wait for 1 h, its target lag, but snapshots of media.playback expire after 1 min"
        in (found["what"])
    )
    assert "history.expire.max-snapshot-age-ms' = '7200000'" in found["fix"]


def test_the_doctor_finds_a_branch_that_a_run_left_behind(idle_lake: IdleLake) -> None:
    idle_lake.append(events([1]), table="media.daily")
    table = idle_lake.catalog.client.load_table("media.daily")
    assert table.metadata.current_snapshot_id
    for name in ("ips_0123abcd_89efcafe", "mine"):
        table.manage_snapshots().create_branch(table.metadata.current_snapshot_id, name).commit()
    found = [each for each in idle_lake.findings() if each["check"] == "leftover branches"]
    assert len(found) == 1
    assert "DROP BRANCH IF EXISTS `ips_0123abcd_89efcafe`" in found[0]["fix"]


def test_the_doctor_finds_a_branch_that_is_left_of_a_cancelled_backfill(idle_lake: IdleLake) -> None:
    idle_lake.append(events([1]), table="media.daily")
    table = idle_lake.catalog.client.load_table("media.daily")
    head = table.metadata.current_snapshot_id
    assert head
    for backfill in ("cancelled", "launched"):
        table.manage_snapshots().create_branch(head, f"ips-staged-{backfill}").commit()
    table.manage_snapshots().create_tag(head, "ips-backfill-launched").commit()
    found = [each for each in idle_lake.findings() if each["check"] == "leftover branches"]
    assert [each["fix"] for each in found] == ["To drop it: dagster-ips backfill cancel cancelled"]


def test_the_doctor_finds_an_icdc_table_that_someone_dropped(idle_lake: IdleLake) -> None:
    (name,) = idle_lake.icdc_names()
    idle_lake.catalog.drop(name)
    assert "newest ICDC table, which is always kept, is gone" in the_only(idle_lake.findings(), "ICDC tables")["what"]


def test_the_doctor_finds_the_capture_of_a_job_whose_icdc_table_is_gone(idle_lake: IdleLake) -> None:
    at = idle_lake.head()
    capture = Capture(EDGE, 2, Mode.INCREMENTAL, "test", at, at, "ips.gone", "daily:job")
    CursorStore(idle_lake.instance).set_job("daily", Job((capture,), Progress(2)))
    found = the_only(idle_lake.findings(), "ICDC tables")
    assert found["where"] == "ips.gone"
    assert "capture 2 of daily ← playback" in found["what"]


def test_the_doctor_finds_a_failed_run(idle_lake: IdleLake) -> None:
    @dg.asset
    def daily() -> None:
        message = "on purpose"
        raise ValueError(message)

    job = dg.Definitions(assets=[daily]).resolve_implicit_global_asset_job_def()
    failed = job.execute_in_process(instance=idle_lake.instance, raise_on_error=False)
    found = the_only(idle_lake.findings(), "failed runs")
    assert f"dagster-ips explain {failed.run_id}" in found["fix"]


def test_a_run_that_yielded_nothing_is_named_by_status_and_is_no_finding_unless_it_is_held_back(
    idle_lake: IdleLake,
) -> None:
    @dg.asset(output_required=False)
    def daily() -> Iterator[dg.Output[None]]:
        yield from ()

    run = dg.materialize([daily], instance=idle_lake.instance)
    assert not [each for each in idle_lake.findings() if each["check"] == "failed runs"]
    (told,) = json.loads(idle_lake.says("status", "--json"))
    assert (told["failed"], told["without_output"]) == ({}, {"": run.run_id})
    assert f"Its last run succeeded, but yielded nothing (run {run.run_id})" in idle_lake.says("status")
    idle_lake.append(events([7]))
    look(idle_lake)
    assert "succeeded, but yielded nothing" in the_only(idle_lake.findings(), "failed runs")["what"]


def look(idle_lake: IdleLake) -> None:
    """Evaluate the automation as its sensor does; it requests nothing."""
    looked = dg.evaluate_automation_conditions(definitions_of(idle_lake), idle_lake.instance)
    assert looked.total_requested == 0
    evaluations = [each.serializable_evaluation.with_run_ids(set()) for each in looked.results]
    assert idle_lake.instance.schedule_storage
    idle_lake.instance.schedule_storage.add_auto_materialize_asset_evaluations(1, evaluations)


def definitions_of(idle_lake: IdleLake) -> dg.Definitions:
    scope: dict[str, Any] = {"__name__": "its_definitions"}
    exec(compile(idle_lake.file.read_text(), str(idle_lake.file), "exec"), scope)  # noqa: S102  # as Dagster loads it
    made: dg.Definitions = scope["defs"]
    return made


def test_assets_that_automation_held_back_at_its_last_look_are_named(idle_lake: IdleLake) -> None:
    idle_lake.append(events([7]))
    job = definitions_of(idle_lake).resolve_implicit_global_asset_job_def()
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr("dagster_ips.orchestration.run.io_manager.IcdcIOManager.load_input", lambda *_: 1 / 0)
        failed = job.execute_in_process(
            instance=idle_lake.instance, asset_selection=[dg.AssetKey("daily")], raise_on_error=False
        )
    assert not failed.success
    assert "automation is holding it back" not in the_only(idle_lake.findings(), "failed runs")["what"]
    look(idle_lake)
    assert "automation is holding it back" in the_only(idle_lake.findings(), "failed runs")["what"]
    status = ["status", "-f", str(idle_lake.file)]
    (told,) = json.loads(CliRunner().invoke(main, [*status, "--json"]).stdout)
    assert (told["failed"], told["held_back"]) == ({"": failed.run_id}, [""])
    assert "Held back now." in CliRunner().invoke(main, status).stdout


def test_jars_that_a_catalog_needs_but_its_spark_does_not_have_are_named(idle_lake: IdleLake) -> None:
    postgres = 'catalog = ips.IcebergCatalog(properties={{"type": "sql", "uri": "postgresql://127.0.0.1:9/lake"}})'
    idle_lake.define(DEFINITIONS.replace("catalog = ips.IcebergCatalog(folder={lake!r})", postgres))
    found = [each for each in idle_lake.findings() if each["check"] == "jars"]
    assert the_only(found, "jars")["fix"] == 'LocalSparkConnect(extra_jars=["postgresql"])'


def test_a_check_of_the_doctor_that_fails_does_not_hold_up_the_others(
    idle_lake: IdleLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle_lake.instance.wipe_daemon_heartbeats()
    monkeypatch.setattr("dagster_ips.cli.doctor.local_machine.missing_jars", lambda **_: 1 / 0)
    found = idle_lake.findings()
    assert [each["check"] for each in found] == ["jars", "daemon"]
    assert "ZeroDivisionError" in found[0]["what"]
