"""What Spark shows of its settings, in its UI and its event log, has no secrets."""

from __future__ import annotations

import re

import pytest

from dagster_ips.spark.session import classic_configuration

SECRET = [
    "token",
    "credential",
    "header.Authorization",
    "header.X-Api-Key",
    "jdbc.password",
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "adls.account-key",
    "adls.auth.shared-key.account.key",
    "adls.connection-string",
    "adls.connection-string.account",
    "adls.sas-token.account",
    "adls.client-secret",
    "gcs.oauth2.token",
]
PLAIN = ["uri", "warehouse", "type", "io-impl", "prefix", "scope", "client.region", "s3.endpoint", "jdbc.user"]


@pytest.mark.parametrize("name", SECRET)
def test_spark_does_not_show_the_secret_of_a_catalog(name: str) -> None:
    assert _is_hidden(name)


@pytest.mark.parametrize("name", PLAIN)
def test_spark_shows_settings_that_are_no_secrets(name: str) -> None:
    assert not _is_hidden(name)


def _is_hidden(name: str) -> bool:
    pattern = classic_configuration([])["spark.redaction.regex"]
    return re.search(pattern, f"spark.sql.catalog.lake.{name}") is not None
