"""A command reports a missing requirement in one sentence, without a traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from dagster_ips._compat import new_backfill_id, requested_backfill
from dagster_ips.cli.main import main
from tests.cli.idle_lake import IdleLake

DEFINITIONS = """
import dagster as dg
from pyspark.sql import DataFrame

import dagster_ips as ips


@dg.asset(ins={{"playback": ips.incremental()}}, metadata=ips.append() | ips.table("media.daily"))
def daily(playback: ips.IcdcView) -> DataFrame: ...


@dg.asset(ins={{"daily": ips.incremental()}}, metadata=ips.append() | ips.table("media.later"))
def later(daily: ips.IcdcView) -> DataFrame: ...


catalog = ips.IcebergCatalog(folder={folder!r})
io_manager = ips.IcdcIOManager(catalog=catalog, spark=ips.LocalSparkConnect())
playback = ips.iceberg_asset("playback", table="media.playback")
defs = ips.with_incremental(dg.Definitions(assets=[playback, daily, later], resources={{"io_manager": io_manager}}))
"""


@pytest.fixture
def definitions(tmp_path: Path) -> str:
    file = tmp_path / "its_definitions.py"
    file.write_text(DEFINITIONS.format(folder=str(tmp_path / "lake")))
    return str(file)


def says(*words: str, fails: bool = True) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == (1 if fails else 0), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.mark.parametrize(
    ("where", "what"), [(("-f", "not_there.py"), "not_there.py"), (("-m", "not_there"), "No module named 'not_there'")]
)
def test_missing_definitions_are_reported(where: tuple[str, str], what: str) -> None:
    said = says("status", *where)
    assert said.startswith("Error: The definitions can't be loaded: ")
    assert what in said
    assert "-f FILE" in said


@pytest.mark.parametrize("command", ["status", "doctor", "estimate media.playback", "icdc media.playback"])
def test_outside_of_a_project_a_command_says_how_to_name_the_definitions(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 2
    assert "-f FILE" in result.output
    assert ("--catalog NAME" in result.output) == command.startswith("estimate")


def test_a_folder_that_does_not_exist_is_not_made_into_an_empty_catalog(tmp_path: Path) -> None:
    folder = tmp_path / "laek"
    result = CliRunner().invoke(main, ["estimate", "media.playback", "--folder", str(folder)])
    assert (result.exit_code, folder.exists()) == (2, False)


def test_a_folder_of_tables_that_cannot_be_created_is_reported(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    file = tmp_path / "its_definitions.py"
    file.write_text(DEFINITIONS.format(folder="/proc/nowhere/lake"))
    assert "while creating the folder of its database file (" in says("status", "-f", str(file))


def test_a_table_of_changes_is_not_said_to_be_dropped_if_its_catalog_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "without_tables.py"
    file.write_text("import dagster as dg\n\ndefs = dg.Definitions()\n")
    assert "ips.changes" in says("icdc", "-f", str(file), "--drop", "ips.changes")


CODE_SERVER = "  - grpc_server: {host: nowhere, port: 4266, location_name: elsewhere}\n"


def test_definitions_that_only_a_code_server_has_are_not_taken_for_none(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text(f"load_from:\n{CODE_SERVER}")
    for command in ("status", "doctor"):
        said = says(command, "-w", str(workspace))
        assert said.startswith("Error: Only code servers have the definitions (elsewhere)")
        assert "-f FILE" in said


def test_code_locations_that_are_left_out_are_named(
    definitions: str, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text(f"load_from:\n{CODE_SERVER}  - python_file: {definitions}\n")
    result = CliRunner().invoke(main, ["status", "-w", str(workspace), "--json"])
    assert len(json.loads(result.stdout)) == 2
    assert result.stderr.splitlines()[-1] == "Not looked at, because code servers have them: elsewhere"


def test_a_file_without_definitions_is_not_taken_for_one_without_assets(tmp_path: Path) -> None:
    file = tmp_path / "its_repository.py"
    file.write_text("import dagster as dg\n\n\n@dg.repository\ndef repository():\n    return []\n")
    assert "There are no Definitions here." in says("status", "-f", str(file))


@pytest.mark.parametrize("command", ["status", "pending", "reset"])
def test_a_misspelt_asset_is_said_to_be_missing(
    command: str, definitions: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    assert "dayly isn't in these definitions" in (said := says(command, "-f", definitions, "dayly"))
    assert "Choose one of: daily, later." in said
    assert "Error: playback reads nothing" in says(command, "-f", definitions, "playback")


@pytest.mark.parametrize("home", [None, "not/absolute", "/nowhere/at/all"])
def test_a_missing_instance_is_reported(definitions: str, home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if home is None:
        monkeypatch.delenv("DAGSTER_HOME", raising=False)
    else:
        monkeypatch.setenv("DAGSTER_HOME", home)
    said = says("status", "-f", definitions)
    assert said.startswith("Error: There is no Dagster instance here: ")
    assert "Set DAGSTER_HOME" in said


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("run_storage: [", r"can't be opened \(ParserError\)"),
        ("storage: {sqlite: {base_dir: /proc/nowhere}}", r"can't be opened \((FileNotFound|Permission)Error\)"),
        ("run_queue: {max_concurrent_runs: many}", r"Invalid scalar at path root:run_queue:max_concurrent_runs"),
    ],
)
def test_an_instance_that_cannot_be_opened_is_reported(
    definitions: str, settings: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dagster.yaml").write_text(settings)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert re.search(why, says("status", "-f", definitions))


def test_a_reason_of_several_lines_is_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "its_definitions.py"
    file.write_text(
        "import dagster as dg\n\n\n@dg.asset(deps=['own'])\ndef own() -> None: ...\n\n\n"
        "defs = dg.Definitions(assets=[own])\n"
    )
    assert "if they are: (a) time-partitioned" in says("status", "-f", str(file))


def test_a_stage_whose_upstream_has_no_table_yet_waits_and_does_not_count_as_failed(
    definitions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    said = says("status", "-f", definitions, fails=False)
    assert "the next run will fail" not in said
    assert "later ← daily: waiting for media.daily, the table of daily" in said
    assert "The first run of daily creates it." in said
    assert re.search(r"waiting for media.playback, .*If it should, correct the name in iceberg_asset", said)


def test_status_names_assets_that_nothing_ever_runs(
    definitions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    assert "with_incremental" not in says("status", "-f", definitions, fails=False)
    unwrapped = tmp_path / "others.py"
    unwrapped.write_text(Path(definitions).read_text().replace("ips.with_incremental(", "("))
    said = says("status", "-f", str(unwrapped), fails=False)
    assert "daily reads incrementally, but its definitions didn't go through with_incremental" in said


def test_definitions_without_an_incremental_input_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, home = tmp_path / "without_consumers.py", tmp_path / "dagster_home"
    file.write_text("import dagster as dg\n\ndefs = dg.Definitions()\n")
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    assert "none has an ips.incremental() input" in says("status", "-f", str(file), fails=False)


def test_a_backfill_of_dagsters_dialog_has_no_plan_and_the_error_says_where_its_runs_are(idle_lake: IdleLake) -> None:
    backfill = new_backfill_id()
    asked = requested_backfill(
        idle_lake.instance, backfill, {dg.AssetKey("daily"): None}, tags={}, title="", description="", at=0.0
    )
    idle_lake.instance.add_backfill(asked)
    refused = CliRunner().invoke(main, ["backfill", "status", "-f", str(idle_lake.file), backfill])
    assert refused.exit_code == 1
    assert "was launched without a plan" in refused.stderr
    assert f"dagster-ips cascade {backfill} -f" in refused.stderr
