"""The databases that Dagster itself can run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres import Postgres

SQLITE, POSTGRES = "sqlite", "postgres"

on_every_backend = pytest.mark.parametrize("instance", [SQLITE, POSTGRES], indirect=True)
"""Marks a test that uses ``instance``: it runs once with Dagster on SQLite and once on PostgreSQL."""


def dagster_home(folder: Path, postgres: Postgres | None) -> str:
    """A new home for Dagster in ``folder``, on a new database in ``postgres`` or else on SQLite in the folder."""
    folder.mkdir(parents=True)
    lines = ["telemetry:", "  enabled: false"]
    if postgres:
        lines += ["storage:", "  postgres:", f"    postgres_url: {postgres.new_database()}"]
    (folder / "dagster.yaml").write_text("\n".join(lines) + "\n")
    return str(folder)
