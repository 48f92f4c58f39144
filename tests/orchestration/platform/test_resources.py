"""What Dagster stores and shows of the catalog's and Spark's settings has no secrets, and commands resolve them."""

from __future__ import annotations

import dagster as dg
import pytest
from pydantic import ValidationError

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from dagster_ips.local_spark import jars

TOKEN, HEADER, ADDRESS, SECRET = "planted-token", "planted-header", "https://planted-address", "planted-secret"


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", TOKEN)
    monkeypatch.setenv("CATALOG_URI", ADDRESS)
    monkeypatch.setenv("SPARK_SECRET", SECRET)
    monkeypatch.setattr(jars, "spark_jars", lambda **_: ())


@pytest.mark.parametrize("token", [dg.EnvVar("CATALOG_TOKEN"), TOKEN], ids=["variable", "text"])
def test_the_settings_for_a_session_have_no_secrets_and_those_that_are_set_later_have_all(token: str) -> None:
    properties = {"type": "rest", "uri": dg.EnvVar("CATALOG_URI"), "token": token, "s3.region": "eu-central-1"}
    catalog = ips.IcebergCatalog(properties=properties, spark_properties={"header.X-Key": HEADER})
    shown = str(catalog.spark_config())
    assert "eu-central-1" in shown
    assert not any(planted in shown for planted in (TOKEN, HEADER, ADDRESS))
    complete = catalog.open().spark_configuration().values()
    assert {TOKEN, HEADER, ADDRESS} <= set(complete)


def test_the_printed_form_of_the_local_spark_has_no_settings_of_spark() -> None:
    config = {"spark.authenticate.secret": SECRET}
    spark = ips.LocalSparkConnect(server_config=config, spark_config={"spark.hadoop.key": SECRET})
    manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder="/lake"), spark=spark)
    assert SECRET not in f"{spark!r} {spark} {manager!r}"


def test_commands_start_spark_with_the_values_of_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_FOLDER", "/spark")
    spark = ips.LocalSparkConnect(
        server_folder=dg.EnvVar("SPARK_FOLDER"),
        server_config={"spark.authenticate.secret": dg.EnvVar("SPARK_SECRET"), "spark.master": "spark://far:7077"},
    )
    options = spark.server_options()
    assert str(options["folder"]) == "/spark"
    assert options["conf"] == {"spark.authenticate.secret": SECRET, "spark.master": "spark://far:7077"}
    monkeypatch.delenv("SPARK_SECRET")
    with pytest.raises(DeclarationError, match=r"SPARK_SECRET.* isn't set.* Set it also where the definitions are"):
        spark.server_options()


def test_a_catalog_whose_name_and_type_come_from_variables_is_known_before_dagster_resolves_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = {"type": dg.EnvVar("CATALOG_TYPE"), "uri": dg.EnvVar("CATALOG_URI")}
    catalog = ips.IcebergCatalog(name=dg.EnvVar("CATALOG_NAME"), properties=properties)
    assert catalog.shown_name == "CATALOG_NAME"
    assert catalog.name_of("media.Playback") == catalog.name_of("media.Playback") != catalog.name_of("media.playback")
    monkeypatch.setenv("CATALOG_NAME", "prod")
    monkeypatch.setenv("CATALOG_TYPE", "glue")
    assert catalog.shown_name == "prod"
    assert catalog.name_of("media.Playback") == catalog.name_of("media.playback")


@pytest.mark.parametrize("given", ["properties", "spark_properties"])
def test_a_property_from_a_variable_that_is_not_set_is_an_error_where_dagster_does_not_resolve_it(given: str) -> None:
    settings = {"properties": {"type": "rest", "uri": ADDRESS}}
    settings[given] = {**settings.get(given, {}), "token": dg.EnvVar("NOT_SET")}
    with pytest.raises(DeclarationError, match=r"NOT_SET.* isn't set"):
        ips.IcebergCatalog(**settings).open_for_ticks()


@pytest.mark.parametrize("name", ["", "prod.eu"])
def test_a_name_that_no_catalog_has_in_spark_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeclarationError, match="can't be that of a catalog in Spark"):
        ips.IcebergCatalog(name=name, folder="/lake").require_place()
    monkeypatch.setenv("CATALOG_NAME", name)
    with pytest.raises(DeclarationError, match="can't be that of a catalog in Spark"):
        ips.IcebergCatalog(name=dg.EnvVar("CATALOG_NAME"), folder="/lake").open()


@pytest.mark.parametrize("location", ["icdc", "~/icdc", ""])
def test_a_relative_place_for_icdc_tables_is_refused(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeclarationError, match=r"icdc_location .* is a relative path"):
        ips.IcebergCatalog(folder="/lake", icdc_location=location).require_place()
    monkeypatch.setenv("ICDC", location)
    with pytest.raises(DeclarationError, match=r"icdc_location .* is a relative path"):
        ips.IcebergCatalog(folder="/lake", icdc_location=dg.EnvVar("ICDC")).open()
    for place in ("/icdc", "file:///icdc", "s3://ours/icdc"):
        ips.IcebergCatalog(folder="/lake", icdc_location=place).require_place()


@pytest.mark.parametrize("setting", ["default_namespace", "icdc_namespace"])
def test_a_namespace_that_cannot_be_read_is_refused_when_definitions_load(setting: str) -> None:
    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(folder="/lake"), spark=ips.LocalSparkConnect(), **{setting: "media."}
    )
    with pytest.raises(DeclarationError, match=rf"^IcdcIOManager: its {setting} can't be read: 'media\.' has an empty"):
        ips.with_incremental(dg.Definitions(resources={"io_manager": manager}))


@pytest.mark.parametrize("resource", [ips.IcebergCatalog, ips.LocalSparkConnect, ips.IcdcIOManager])
def test_a_setting_that_does_not_exist_is_refused_without_its_value(resource: type[dg.ConfigurableResource]) -> None:  # type: ignore[type-arg]  # as in the classes
    needed = {"catalog": ips.IcebergCatalog(folder="/lake"), "spark": ips.LocalSparkConnect()}
    with pytest.raises(ValidationError, match=r"tokn\n.*Extra inputs are not permitted") as raised:
        resource(**needed if resource is ips.IcdcIOManager else {}, tokn=SECRET)
    assert SECRET not in str(raised.value)
