"""A Spark of another minor version reads some SQL differently: it is refused before anything is run."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from dagster_ips.core.installed_spark import installed_version
from dagster_ips.errors import SparkVersionsDifferError
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


def test_a_session_of_the_installed_spark_is_configured(lake: Lake) -> None:
    configure(lake.session, {"spark.sql.catalog.other": "org.apache.iceberg.spark.SparkCatalog"})
    assert lake.session.conf.get("spark.sql.catalog.other") == "org.apache.iceberg.spark.SparkCatalog"
