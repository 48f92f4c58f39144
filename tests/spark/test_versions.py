"""A session is configured if its Spark has the installed version, and its catalogs aren't others of the same name."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from dagster_ips.core.installed_spark import installed_version
from dagster_ips.errors import DeclarationError, SparkVersionsDifferError
from dagster_ips.spark.session import configure
from tests.support.lake import Lake


@dataclass(frozen=True)
class Session:
    """Has only a version: every other access fails."""

    version: str


@pytest.mark.parametrize("version", ["4.2.0", "3.5.6", "5.0.0.dev1", "4.10.1"])
def test_a_session_of_another_spark_is_refused(version: str) -> None:
    with pytest.raises(
        SparkVersionsDifferError, match=rf"runs Spark {version}, but PySpark {installed_version()}"
    ) as caught:
        configure(Session(version), {})  # type: ignore[arg-type]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@dataclass
class Configurable:
    """A session that only keeps settings, as ``conf`` of a classic session does."""

    version: str
    settings: dict[str, str]

    @property
    def conf(self) -> Configurable:
        return self

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    __hash__ = object.__hash__


def catalog(name: str, uri: str) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}"
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", f"{prefix}.type": "rest", f"{prefix}.uri": uri}


def test_two_catalogs_of_one_name_are_refused_in_one_session() -> None:
    """Statements for the second would otherwise change the tables of the first."""
    session: Any = Configurable(installed_version(), {})
    configure(session, catalog("lake", "http://eu"))
    configure(session, catalog("other", "http://us"))
    configure(session, {**catalog("lake", "http://eu"), "spark.sql.catalog.lake.token": "t"})
    with pytest.raises(DeclarationError, match=r"two catalogs are called 'lake'.*their uri differs.*name='lake_2'"):
        configure(session, catalog("lake", "http://us"))
    assert session.settings["spark.sql.catalog.lake.uri"] == "http://eu"


def test_a_catalog_that_the_session_knows_by_its_implementation_gets_no_type() -> None:
    """Iceberg refuses a catalog with both."""
    implementation = {"spark.sql.catalog.lake.catalog-impl": "com.example.Catalog"}
    session: Any = Configurable(installed_version(), dict(implementation))
    configure(session, catalog("lake", "http://eu"))
    assert session.settings == implementation | {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.uri": "http://eu",
        "spark.sql.inMemoryColumnarStorage.partitionPruning": "false",
    }


def test_a_session_of_the_installed_spark_is_configured(lake: Lake) -> None:
    configure(lake.session, {"spark.sql.catalog.other": "org.apache.iceberg.spark.SparkCatalog"})
    assert lake.session.conf.get("spark.sql.catalog.other") == "org.apache.iceberg.spark.SparkCatalog"
