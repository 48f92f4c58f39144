"""Targets whose snapshots expire before their publication is recorded: no row is duplicated or lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import pytest

from dagster_ips.errors import UnknownPublicationError
from dagster_ips.exactly_once.effects import Effect
from dagster_ips.progress.table_progress import PIN
from tests.support.kind_runs import Runs
from tests.support.kinds import KINDS, Kind, appended, kinds, run_killed
from tests.support.lake import Lake, events
from tests.support.partitioned import SENSOR, expected_day, key, partitioned, run
from tests.support.pipeline import materialize

ONE = [kind for kind in KINDS if kind.asset is appended]
AROUND_PUBLISHING = [
    f"after:{Effect.WRITE_BRANCH}",
    f"before:{Effect.PUBLISH}",
    f"after:{Effect.PUBLISH}",
    f"after:{Effect.COPY_PROGRESS}",
]


@pytest.fixture
def runs(lake: Lake, instance: dg.DagsterInstance) -> Runs:
    return Runs(lake, instance)


def backup_of(instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    with sqlite3.connect(Path(instance.root_directory) / "history" / "runs.db") as database:
        return database.execute("SELECT key, value FROM kvs").fetchall()


def restore(instance: dg.DagsterInstance, backup: list[tuple[str, str]]) -> None:
    with sqlite3.connect(Path(instance.root_directory) / "history" / "runs.db") as database:
        database.execute("DELETE FROM kvs")
        database.executemany("INSERT INTO kvs (key, value) VALUES (?, ?)", backup)


def tables_of(of: Sequence[Kind]) -> list[str]:
    return [table for kind in of for table in kind.expected]


def kill_maintain_and_run_again(runs: Runs, of: Sequence[Kind], point: str) -> None:
    runs.run_all(of)
    runs.arrive()
    for kind in of:
        run_killed(runs.instance.root_directory, runs.lake, *kind.names, at=point)
    for table in tables_of(of):
        runs.lake.maintain(table)
    runs.arrive()
    runs.run_all(of)
    runs.check(of)


def restore_maintain_and_run_again(runs: Runs, of: Sequence[Kind]) -> None:
    runs.run_all(of)
    backup = backup_of(runs.instance)
    for _ in range(2):
        runs.arrive()
        runs.run_all(of)
    for table in tables_of(of):
        runs.lake.maintain(table)
    restore(runs.instance, backup)
    runs.arrive()
    runs.run_all(of)
    runs.check(of)


@pytest.mark.slow
def test_a_run_killed_after_its_publish_duplicates_nothing_though_its_snapshots_expire(runs: Runs) -> None:
    kill_maintain_and_run_again(runs, ONE, f"after:{Effect.PUBLISH}")


@pytest.mark.slow
@pytest.mark.parametrize("point", AROUND_PUBLISHING)
def test_runs_of_any_kind_killed_around_their_publish_duplicate_nothing_after_an_expiry(runs: Runs, point: str) -> None:
    kill_maintain_and_run_again(runs, KINDS, point)


def test_a_restored_database_duplicates_nothing_though_later_publications_expired(runs: Runs) -> None:
    restore_maintain_and_run_again(runs, ONE)


@pytest.mark.slow
def test_a_restored_database_and_an_expiry_duplicate_nothing_in_assets_of_any_kind(runs: Runs) -> None:
    restore_maintain_and_run_again(runs, KINDS)


def test_a_publication_of_which_no_record_is_left_is_refused_and_the_advice_repairs_the_table(runs: Runs) -> None:
    runs.run_all(ONE)
    runs.arrive()
    runs.run_all(ONE)
    lake, table = runs.lake, "media.appended"
    lake.sql(f"ALTER TABLE lake.{table} DROP TAG {PIN}")
    for _ in range(2):
        lake.maintain(table)
    for entry in lake.catalog.load(table, asset="test").raw["metadata-log"]:
        Path(urlsplit(entry["metadata-file"]).path).unlink(missing_ok=True)
    runs.arrive()
    definitions = kinds(lake.folder, lake.spark_folder)
    with pytest.raises(UnknownPublicationError, match=r"run appended --full|dagster_ips/mode=full"):
        materialize(definitions, runs.instance, "appended")
    materialize(definitions, runs.instance, "appended", tags={"dagster_ips/mode": "full"})
    runs.check(ONE)
    runs.arrive()
    runs.run_all(ONE)
    runs.check(ONE)


@pytest.mark.slow
def test_a_restored_database_and_an_expiry_duplicate_nothing_in_any_partition(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder)
    rows = events(range(4)) + events(range(4, 8), day=1)
    lake.create_playback(rows)
    run(definitions, instance, "day", key(0), key(1))
    backup = backup_of(instance)
    for day in (0, 1):
        lake.append(more := events(range(10 * day + 10, 10 * day + 13), day=day))
        run(definitions, instance, "day", key(day), **SENSOR)
        rows += more
    lake.maintain("media.day")
    restore(instance, backup)
    lake.append(more := events(range(30, 33)))
    run(definitions, instance, "day", key(0), key(1), **SENSOR)
    assert lake.rows("media.day") == expected_day(rows + more)
