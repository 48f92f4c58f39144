"""Outside tables, catalog and Spark declared in YAML equal those declared in Python."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.yaml_component import ExampleScaffolder
from tests.support.ticks import tick

DECLARED = """
type: dagster_ips.IcebergTablesComponent
attributes:
  catalog:
    folder: {folder}
  spark:
    cores: 2
    driver_memory: 1g
  default_namespace: media
  tables:
    - key: playback
      table: media.playback
      valid_through: event_time
      lateness_minutes: 90
      group_name: outside
    - key: media/title
      table: media.title
      valid_through: always
"""
READER = """
import dagster as dg
from pyspark.sql import DataFrame
import dagster_ips as ips

@dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append())
def playback_daily(playback: ips.IcdcView) -> DataFrame:
    return playback.added
"""
SENSOR_AND_PROOF = """
import dagster_ips as ips

hourly = ips.pending_sensor("hourly", ["playback_daily"])
proved = ips.proof("playback_daily")
"""
DEFINITIONS = """
from pathlib import Path
import dagster as dg
import dagster_ips as ips

@dg.definitions
def defs():
    return ips.with_incremental(dg.load_from_defs_folder(path_within_project=Path(__file__).parent))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project as ``dg`` scaffolds one."""
    root = tmp_path / "a_project"
    folder = root / "src" / "its_package" / "defs"
    (folder / "outside").mkdir(parents=True)
    (root / "pyproject.toml").write_text(
        '[project]\nname = "its_package"\nversion = "0"\n\n[tool.dg]\ndirectory_type = "project"\n\n'
        '[tool.dg.project]\nroot_module = "its_package"\n'
    )
    for package in (folder.parent, folder):
        (package / "__init__.py").write_text("")
    (folder.parent / "definitions.py").write_text(DEFINITIONS)
    (folder / "outside" / "defs.yaml").write_text(DECLARED.format(folder=tmp_path / "lake"))
    (folder / "reader.py").write_text(READER)
    monkeypatch.syspath_prepend(str(root / "src"))
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == "its_package"]:
        del sys.modules[name]


def loaded(project: Path) -> dg.Definitions:
    definitions = dg.load_from_defs_folder(path_within_project=project / "src" / "its_package")
    return ips.with_incremental(definitions)


def test_declarations_in_yaml_equal_those_in_python(project: Path) -> None:
    definitions = loaded(project)
    specs = {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}
    assert sorted(specs) == ["media/title", "playback", "playback_daily"]

    playback = ips.iceberg_asset(
        "playback", table="media.playback", valid_through="event_time", lateness=dt.timedelta(minutes=90)
    )
    assert {key: specs["playback"].metadata[key] for key in playback.metadata} == dict(playback.metadata)
    assert specs["playback"].group_name == "outside"
    manager = (definitions.resources or {})["io_manager"]
    assert isinstance(manager, ips.IcdcIOManager)
    assert manager.default_namespace == "media"
    names = {sensor.name for sensor in definitions.get_repository_def().sensor_defs}
    assert {"ips_outside_tables", "ips_pending"} <= names


def test_dagster_still_shows_which_components_the_definitions_come_from(project: Path) -> None:
    plain = dg.load_from_defs_folder(path_within_project=project / "src" / "its_package")
    assert plain.component_tree is not None
    assert ips.with_incremental(plain).get_repository_def().get_component_tree() is plain.component_tree


def test_a_scaffolded_component_can_be_loaded(project: Path) -> None:
    folder = project / "src" / "its_package" / "defs"
    request = dg.ScaffoldRequest(
        type_name="dagster_ips.IcebergTablesComponent",
        target_path=folder / "scaffolded",
        scaffold_format="yaml",
        project_root=project,
        params=None,
    )
    (folder / "scaffolded").mkdir()
    ExampleScaffolder().scaffold(request)
    (folder / "outside" / "defs.yaml").unlink()
    specs = {spec.key.to_user_string() for spec in loaded(project).resolve_all_asset_specs()}
    assert specs == {"playback", "playback_daily"}


@pytest.mark.parametrize(
    ("before", "after"),
    [("cores: 2", "cores: 2\n    remote: sc://spark:15002"), ("      valid_through: event_time\n", "")],
)
def test_an_attribute_without_effect_is_refused(project: Path, before: str, after: str) -> None:
    file = project / "src" / "its_package" / "defs" / "outside" / "defs.yaml"
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(Exception, match=r"defs\.yaml.*error") as caught:
        loaded(project)
    assert isinstance(caught.value.__cause__, DeclarationError)


WITH_SECRETS = """
type: dagster_ips.IcebergTablesComponent
attributes:
  catalog:
    name: "{{ env.CATALOG_NAME }}"
    properties: {type: rest, uri: "https://{{ env.CATALOG_HOST }}/api", token: "{{ env.CATALOG_TOKEN }}", retries: "8"}
    spark_properties: {token: "{{ env('CATALOG_TOKEN') }}"}
  spark:
    spark_config: {spark.sql.shuffle.partitions: "8", spark.hadoop.key: "{{ env.CATALOG_TOKEN }}"}
    server_config: {spark.authenticate.secret: "{{env.CATALOG_TOKEN}}"}
  tables:
    - key: playback
      table: media.playback
"""
REMOTE = """
type: dagster_ips.IcebergTablesComponent
attributes:
  catalog: {folder: /lake}
  spark: {remote: "{{ env.CATALOG_TOKEN }}"}
"""


def test_what_yaml_takes_from_an_environment_variable_is_known_to_dagster_by_its_name_only(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "812944190733"  # noqa: S105  # a made-up one, which Dagster's templates would make a number
    monkeypatch.setenv("CATALOG_NAME", "prod")
    monkeypatch.setenv("CATALOG_HOST", "catalog.example.com")
    monkeypatch.setenv("CATALOG_TOKEN", secret)
    file = project / "src" / "its_package" / "defs" / "outside" / "defs.yaml"
    for text in (WITH_SECRETS, REMOTE):
        file.write_text(text)
        (file.parents[1] / "reader.py").unlink(missing_ok=True)
        definitions = loaded(project)
        manager = (definitions.resources or {})["io_manager"]
        repository = definitions.get_repository_def()
        shown = [serialize_value(RepositorySnap.from_def(repository))]
        shown += [serialize_value(job.get_job_snapshot()) for job in repository.get_all_jobs()]
        for each in [*shown, repr(manager)]:
            assert secret not in each
        if text is WITH_SECRETS:
            settings = manager.catalog.open()
            assert (settings.name, settings.properties["uri"]) == ("prod", "https://catalog.example.com/api")
            assert (settings.properties["token"], settings.properties["retries"]) == (secret, "8")
            assert settings.spark_configuration()["spark.sql.catalog.prod.token"] == secret
            assert manager.spark.server_options()["conf"] == {"spark.authenticate.secret": secret}
            assert manager.spark.spark_config["spark.sql.shuffle.partitions"] == "8"
        else:
            assert isinstance(manager.spark.spark_config["spark.remote"], dg.EnvVar)


def test_an_unknown_key_is_refused_with_its_place(project: Path) -> None:
    file = project / "src" / "its_package" / "defs" / "outside" / "defs.yaml"
    file.write_text(file.read_text().replace("valid_through: always", "valid_thru: always"))
    with pytest.raises(Exception, match=r"defs\.yaml.*error") as caught:
        loaded(project)
    assert "valid_thru" in str(caught.value.__cause__)


@pytest.mark.parametrize("metadata", ["ips.append()", 'ips.append() | ips.trusted("it copies rows")'])
def test_a_sensor_and_a_proof_that_a_component_loads_know_their_asset(
    project: Path, instance: dg.DagsterInstance, metadata: str
) -> None:
    folder = project / "src" / "its_package" / "defs"
    (folder / "reader.py").write_text(READER.replace("ips.append()", metadata))
    (folder / "more").mkdir()
    (folder / "more" / "defs.yaml").write_text("type: dagster.DefsFolderComponent\n")
    (folder / "more" / "sensor_and_proof.py").write_text(SENSOR_AND_PROOF)
    definitions = loaded(project)
    assert tick(definitions, instance, "hourly").skip_message == "Nothing new is pending."
    graph = definitions.resolve_asset_graph()
    assert graph.get(dg.AssetKey("playback_daily")).automation_condition is None
    proof = graph.assets_def_for_key(dg.AssetCheckKey(dg.AssetKey("playback_daily"), "proof"))
    assert proof.required_resource_keys == {"io_manager"}


def test_the_command_line_finds_such_a_project(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    command = [sys.executable, "-m", "dagster_ips.cli", "status", "-m", "its_package.definitions"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=project / "src").stdout
    assert "playback_daily ← playback: waiting for media.playback" in told
