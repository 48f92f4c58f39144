"""The list of public names is complete, and code that uses them passes a strict type checker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dagster_ips
from dagster_ips import public

NAMES = """
ChangeRange DbtModels IcdcIOManager IcdcView IcebergCatalog IcebergTablesComponent IpsError LocalSparkConnect Mode
Overwrite OwnSql Predicate RangeKind ViewStats affected append audit blocked capture combine dbt_models iceberg_asset
incremental incremental_dep lookup merge on_change overwrite_partitions pending pending_sensor proof replace sql_asset
table target_lag trusted valid_through with_incremental
"""
"""The names that users may rely on. Adding or removing one is a change for users: record it in the changelog."""

A_USERS_FILE = """
import datetime as dt

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import dagster_ips as ips

playback = ips.iceberg_asset("playback", table="media.playback")


@dg.asset(
    ins={"playback": ips.incremental(ranges=["event_date"], max_bytes=1_000_000)},
    metadata=ips.append(remove_on=["event_date", "event_id"])
    | ips.table("media.playback_daily", partition_by=["event_date"])
    | ips.target_lag(dt.timedelta(minutes=10)),
)
def playback_daily(playback: ips.IcdcView) -> DataFrame:
    return playback.added.where("seconds > 0")


@dg.asset(
    ins={"playback_daily": ips.incremental(), "title": ips.lookup()},
    metadata=ips.merge(on=["event_date", "account"]) | ips.table("media.agg"),
    automation_condition=ips.on_change(min_bytes=1, max_wait=dt.timedelta(minutes=1)) & ~ips.blocked(),
)
def agg(playback_daily: ips.IcdcView, title: DataFrame) -> DataFrame:
    affected = playback_daily.affected("event_date", "account")
    reached: ips.ChangeRange = playback_daily.range("event_date")
    condition: ips.Predicate = reached.since("event_date") | reached.between("event_date")
    stats: ips.ViewStats = playback_daily.stats
    assert stats.files >= 0 and playback_daily.mode is ips.Mode.FULL
    return affected.where(str(condition)).groupBy("event_date", "account").agg(F.sum("seconds").alias("seconds"))


@dg.asset(ins={"agg": ips.incremental(ranges=["event_date"])}, metadata=ips.table("media.totals"))
def totals(agg: ips.IcdcView) -> ips.Overwrite:
    where = agg.range("event_date").since("event_date")
    return ips.Overwrite(agg.source.where(where), where=where)


@dg.asset(deps=[ips.incremental_dep("playback")], metadata=ips.table("media.by_account"))
def by_account(context: dg.AssetExecutionContext) -> None:
    with ips.capture(context, columns="account STRING") as icdc:
        icdc.sql("INSERT INTO {target} SELECT account FROM {added}")


@ips.audit(asset="agg")
def is_not_negative(rows: DataFrame) -> bool:
    return rows.where("seconds < 0").isEmpty()


manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder="/lake"), spark=ips.LocalSparkConnect())
defs: dg.Definitions = ips.with_incremental(
    dg.Definitions(
        assets=[playback, playback_daily, agg, totals, by_account],
        asset_checks=[is_not_negative, ips.proof("agg")],
        sensors=[ips.pending_sensor("hourly", ["agg"], interval_seconds=3600)],
        resources={"io_manager": manager},
    )
)
"""


def test_the_public_names_are_exactly_the_listed_ones() -> None:
    assert sorted(public.__all__) == sorted(NAMES.split())


def test_an_import_of_everything_gives_the_public_names() -> None:
    given: dict[str, object] = {}
    exec("from dagster_ips import *", given)  # noqa: S102  # that is the test
    assert sorted(given.keys() - {"__builtins__"}) == sorted(NAMES.split())


def test_the_package_has_a_py_typed_marker() -> None:
    assert Path(dagster_ips.__file__).with_name("py.typed").is_file()


WRONG = {
    "a_number_for_columns": ("ips.append(dedup_on=1)", "arg-type"),
    "no_such_name": ("ips.nothing_of_that_name()", "attr-defined"),
    "no_start": ("ips.incremental(start=None)", "arg-type"),
}


@pytest.mark.slow
def test_a_users_file_passes_strict_type_checks_and_wrong_calls_do_not(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(A_USERS_FILE)
    for name, (line, _) in WRONG.items():
        (tmp_path / f"{name}.py").write_text(f"import dagster_ips as ips\n\n{line}\n")
    # The checkout's own cache, because checking Dagster and PySpark takes a minute.
    cache = Path(dagster_ips.__file__).parent.parent / ".mypy_cache"
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "--no-error-summary"]
    files = sorted(path.name for path in tmp_path.glob("*.py"))
    # mypy must find the package as an installed one: only Python itself finds an editable install.
    environment = os.environ | {"PYTHONPATH": str(cache.parent)}
    checked = subprocess.run(
        [*command, *files], check=False, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    found = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert len(found) == len(WRONG), checked.stdout + checked.stderr
    for name, (_, code) in WRONG.items():
        assert any(line.startswith(f"{name}.py:3: ") and line.endswith(f"[{code}]") for line in found), found
