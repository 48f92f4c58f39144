"""A fault that is planted is found, with its fix; where nothing is wrong, nothing is found."""

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
from dagster._daemon.types import DaemonHeartbeat

from dagster_ips.cli.main import main
from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc import icdc_names
from dagster_ips.local_spark import launch
from dagster_ips.local_spark.process import identity_of
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.support.lake import BY_DATE, SCHEMA, Lake, events

EDGE = Edge("daily", "playback")
DEFINITIONS = """
import dagster as dg
from pyspark.sql import DataFrame

import dagster_ips as ips


@dg.asset(ins={{"playback": ips.incremental()}}, metadata=ips.append() | ips.table("media.daily"))
def daily(playback: ips.IcdcView) -> DataFrame: ...


catalog = ips.IcebergCatalog(folder={lake!r})
io_manager = ips.IcdcIOManager(catalog=catalog, spark=ips.LocalSparkConnect(server_folder={spark!r}))
playback = ips.iceberg_asset("playback", table="media.playback")
defs = ips.with_incremental(dg.Definitions(assets=[playback, daily], resources={{"io_manager": io_manager}}))
"""


class Patient(Lake):
    """A lake without Spark, whose only consumer has consumed all there is, and an instance whose daemon lives."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder = folder / "lake"
        self.spark = folder / "spark"
        self.instance = instance
        self.catalog = LakeCatalog.embedded("lake", self.folder)
        self.file = folder / "its_definitions.py"
        self.define(DEFINITIONS)
        self.create_playback(events(range(3)))
        self.catalog.client.create_table("media.daily", SCHEMA, partition_spec=BY_DATE)
        self.consume()
        for daemon in instance.get_required_daemon_types():
            instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), daemon, "a daemon", []))

    def define(self, text: str) -> None:
        self.file.write_text(text.format(lake=str(self.folder), spark=str(self.spark)))

    def consume(self, **state: Any) -> None:  # noqa: ANN401  # of an EdgeState
        """As a run leaves it that consumed everything, its ICDC table included."""
        source = self.catalog.load("media.playback", asset="test")
        head = source.ancestry().head
        assert head is not None
        name = f"ips.{icdc_names.new_name(EDGE, 1)}"
        at = source.watermark_at(head, "main")
        capture = Capture(EDGE, 1, Mode.FULL, "test", None, at, name, "a run", None)
        self.catalog.create_namespace("ips")
        location = icdc_names.location(source, name)
        properties = {**icdc_names.properties([capture], 1), "gc.enabled": "false"}
        made = self.catalog.client.create_table(name, SCHEMA, location=location, properties=properties)
        assert made.metadata_location
        values: dict[str, Any] = {"committed": at, "number": 1, **state}
        CursorStore(self.instance).set(EdgeState(EDGE, **values))

    def icdc_names(self) -> list[str]:
        return list(self.catalog.metadata_locations_by_prefix("ips", ""))

    def findings(self) -> list[dict[str, str]]:
        """What the doctor says, and that its exit code says so."""
        result = CliRunner().invoke(main, ["doctor", "-f", str(self.file), "--json"])
        assert result.exit_code in (0, 1), result.output
        found: list[dict[str, str]] = json.loads(result.stdout)
        assert result.exit_code == (1 if found else 0)
        return found


@pytest.fixture
def patient(instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patient:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    return Patient(tmp_path, instance)


@pytest.fixture
def spark_record(patient: Patient) -> Iterator[Callable[..., None]]:
    """Writes what a Spark server says of itself, as a process that is alive: this one."""

    def write(**values: Any) -> None:  # noqa: ANN401  # of a record
        patient.spark.mkdir()
        own = identity_of(os.getpid())
        assert own is not None
        record = {
            "process": asdict(own),
            "port": 1,
            "ui_port": None,
            "log": "server.log",
            "configuration": {},
            "ready": True,
            "version": 1,
            **values,
        }
        (patient.spark / "server.json").write_text(json.dumps(record))

    yield write
    (patient.spark / "server.json").unlink(missing_ok=True)


def the_only(found: list[dict[str, str]], check: str) -> dict[str, str]:
    assert [each["check"] for each in found] == [check], found
    assert found[0]["fix"]
    return found[0]


def test_nothing_is_found_where_nothing_is_wrong(patient: Patient) -> None:
    before = sorted(patient.folder.rglob("*"))
    assert patient.findings() == []
    result = CliRunner().invoke(main, ["doctor", "-f", str(patient.file)])
    assert result.exit_code == 0
    assert "Nothing found. Looked at 1 incremental assets, 2 tables" in result.stdout
    assert sorted(patient.folder.rglob("*")) == before, "the doctor leaves nothing behind"


def test_a_catalog_that_does_not_answer(patient: Patient) -> None:
    text = DEFINITIONS.replace(
        "folder={lake!r}", "properties={{'type': 'rest', 'uri': 'http://127.0.0.1:9/'}}, patience_seconds=0.5"
    )
    patient.define(text)
    found = the_only(patient.findings(), "catalog")
    assert "did not answer" in found["what"] or "could not be reached" in found["what"]


def test_a_storage_that_can_not_be_written(patient: Patient) -> None:
    media = patient.folder / "warehouse" / "media"
    shutil.rmtree(media / "_ips", ignore_errors=True)
    (media / "_ips").write_text("a file where the folder of ICDC tables would be")
    found = patient.findings()
    assert {each["check"] for each in found} >= {"storage"}
    assert any("media/_ips/doctor" in each["what"] for each in found)


@pytest.mark.parametrize(
    ("says", "what"),
    [
        ("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n", "it is Java 11"),
        ("#!/bin/sh\necho 'openjdk version \"17.0.2\"' >&2\n", "no module jdk.incubator.vector"),
        ("#!/bin/sh\nexit 1\n", "doesn't say its version"),
    ],
)
def test_a_java_that_spark_does_not_start_with(
    patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, what: str
) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(says)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert what in the_only(patient.findings(), "java")["what"]


def test_jars_that_are_missing(patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_IPS_CACHE", str(tmp_path / "empty"))
    assert launch.cache_folder() == tmp_path / "empty"
    assert "iceberg-spark-runtime" in the_only(patient.findings(), "jars")["what"]


def test_a_spark_server_that_does_not_answer(patient: Patient, spark_record: Callable[..., None]) -> None:
    spark_record()
    found = the_only(patient.findings(), "spark server")
    assert "doesn't answer" in found["what"]
    assert f"stop --folder {patient.spark}" in found["fix"]


def test_a_spark_server_of_another_configuration(patient: Patient, spark_record: Callable[..., None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        spark_record(port=listening.getsockname()[1], configuration={"spark.driver.memory": "9g"})
        assert "spark.driver.memory is 9g" in the_only(patient.findings(), "spark server")["what"]


def test_an_instance_that_keeps_no_cursors(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster._core.storage.runs.SqlRunStorage.set_cursor_values", lambda *_: None, raising=True)
    monkeypatch.setattr("dagster._core.storage.runs.SqlRunStorage.get_cursor_values", lambda *_: {}, raising=True)
    assert "cursor storage" in {each["check"] for each in patient.findings()}


def test_a_daemon_that_died(patient: Patient) -> None:
    patient.instance.wipe_daemon_heartbeats()
    assert "has never run" in the_only(patient.findings(), "daemon")["what"]
    patient.instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 3600, "SENSOR", "a daemon", []))
    assert "gave its last sign of life at" in the_only(patient.findings(), "daemon")["what"]


def test_a_sensor_that_is_switched_off(patient: Patient) -> None:
    stopped = CliRunner().invoke(sensor_stop_command, ["-f", str(patient.file), "ips_pending"])
    assert stopped.exit_code == 0, stopped.output
    found = the_only(patient.findings(), "sensors")
    assert found["where"] == "ips_pending"
    assert "switched off" in found["what"]


def test_assets_that_nothing_ever_runs(patient: Patient) -> None:
    patient.define(DEFINITIONS.replace("ips.with_incremental(", "("))
    found = the_only(patient.findings(), "with_incremental")
    assert found["what"].startswith("daily reads incrementally, but its definitions didn't go through")
    assert "ips.with_incremental(dg.Definitions(...))" in found["fix"]


def test_two_assets_with_one_table(patient: Patient) -> None:
    text = DEFINITIONS.replace("ips.with_incremental(", "(").replace("[playback, daily]", "[playback, daily, another]")
    another = """
@dg.asset(metadata=ips.table("media.daily"))
def another() -> DataFrame: ...

"""
    patient.define(text.replace("catalog = ", f"{another}catalog = "))
    found = [each for each in patient.findings() if each["check"] == "two writers"]
    assert [each["where"] for each in found] == ["media.daily"]
    assert "another and daily both have it" in found[0]["what"]


def test_a_table_that_another_asset_wrote(patient: Patient) -> None:
    table = patient.catalog.client.load_table("media.daily")
    with table.transaction() as transaction:
        transaction.set_properties({"dagster-ips.asset": "somebody_else"})
    assert "somebody_else" in the_only(patient.findings(), "next run")["what"]


def test_a_history_that_can_not_be_followed(patient: Patient) -> None:
    patient.catalog.client.drop_table("media.playback")
    patient.create_playback(events(range(5)))
    found = the_only(patient.findings(), "next run")
    assert "dropped and created again" in found["what"]
    assert "dagster_ips/mode=full" in found["fix"]


def test_snapshots_that_expire_before_they_are_consumed(patient: Patient) -> None:
    table = patient.catalog.client.load_table("media.playback")
    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "60000"})
    found = the_only(patient.findings(), "retention")
    assert (
        "changes may wait for 1 h, its target lag, but media.playback lets its snapshots expire after 1 min"
        in (found["what"])
    )
    assert "history.expire.max-snapshot-age-ms' = '7200000'" in found["fix"]


def test_a_branch_that_a_run_left_behind(patient: Patient) -> None:
    patient.append(events([1]), table="media.daily")
    table = patient.catalog.client.load_table("media.daily")
    assert table.metadata.current_snapshot_id
    for name in ("ips_0123abcd_89efcafe", "mine"):
        table.manage_snapshots().create_branch(table.metadata.current_snapshot_id, name).commit()
    found = [each for each in patient.findings() if each["check"] == "leftover branches"]
    assert len(found) == 1
    assert "DROP BRANCH IF EXISTS `ips_0123abcd_89efcafe`" in found[0]["fix"]


def test_an_icdc_table_that_someone_dropped(patient: Patient) -> None:
    (name,) = patient.icdc_names()
    patient.catalog.drop(name)
    assert "newest ICDC table is gone" in the_only(patient.findings(), "ICDC tables")["what"]


def test_a_capture_in_flight_whose_table_is_gone(patient: Patient) -> None:
    state = CursorStore(patient.instance).get(EDGE)
    capture = Capture(EDGE, 2, Mode.INCREMENTAL, "test", state.committed, state.committed, "ips.gone", "run", None)
    CursorStore(patient.instance).set(state.with_in_flight(capture))
    found = the_only(patient.findings(), "ICDC tables")
    assert found["where"] == "ips.gone"
    assert "capture 2 of daily ← playback" in found["what"]


def test_a_run_that_failed(patient: Patient) -> None:
    @dg.asset
    def daily() -> None:
        message = "on purpose"
        raise ValueError(message)

    job = dg.Definitions(assets=[daily]).resolve_implicit_global_asset_job_def()
    failed = job.execute_in_process(instance=patient.instance, raise_on_error=False)
    found = the_only(patient.findings(), "failed runs")
    assert f"dagster-ips explain {failed.run_id}" in found["fix"]


def test_what_automation_holds_back_is_told_as_it_last_looked(patient: Patient) -> None:
    scope: dict[str, Any] = {"__name__": "its_definitions"}
    exec(compile(patient.file.read_text(), str(patient.file), "exec"), scope)  # noqa: S102  # as Dagster loads it
    patient.append(events([7]))
    job = scope["defs"].resolve_implicit_global_asset_job_def()
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr("dagster_ips.orchestration.run.io_manager.IcdcIOManager.load_input", lambda *_: 1 / 0)
        failed = job.execute_in_process(
            instance=patient.instance, asset_selection=[dg.AssetKey("daily")], raise_on_error=False
        )
    assert not failed.success
    assert "automation holds it back" not in the_only(patient.findings(), "failed runs")["what"]
    looked = dg.evaluate_automation_conditions(scope["defs"], patient.instance)
    assert looked.total_requested == 0
    evaluations = [each.serializable_evaluation.with_run_ids(set()) for each in looked.results]
    assert patient.instance.schedule_storage
    patient.instance.schedule_storage.add_auto_materialize_asset_evaluations(1, evaluations)
    assert "automation holds it back" in the_only(patient.findings(), "failed runs")["what"]
    status = ["status", "-f", str(patient.file)]
    (told,) = json.loads(CliRunner().invoke(main, [*status, "--json"]).stdout)
    assert (told["failed"], told["held_back"]) == ({"": failed.run_id}, [""])
    assert "Held back now." in CliRunner().invoke(main, status).stdout


def test_a_check_that_fails_itself_holds_up_no_other(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    patient.instance.wipe_daemon_heartbeats()
    monkeypatch.setattr("dagster_ips.cli.doctor.local_machine.missing_jars", lambda: 1 / 0)
    found = patient.findings()
    assert [each["check"] for each in found] == ["jars", "daemon"]
    assert "ZeroDivisionError" in found[0]["what"]
