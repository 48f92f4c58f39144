"""A table of partials, read through this library, equals SQL's GROUP BY over all rows."""

from __future__ import annotations

import json
from collections.abc import Sequence

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import DeclarationError, IpsError, UnsupportedTableError
from tests.support.lake import Lake, events
from tests.support.partitioned import DAYS, SENSOR, partitioned, run
from tests.support.pipeline import materialize, pipeline

KEYS = ["event_date", "account"]
AGGREGATES = {"plays": "count(*)", "seconds": "sum(seconds)", "mean": "avg(seconds)"}
WITH_EXTREMES = AGGREGATES | {"longest": "max(seconds)"}
SEEN: dict[str, list[tuple[object, ...]]] = {}


def partials(
    aggregates: dict[str, str] = AGGREGATES, storage: str = "partials", **partitioned_by: dg.PartitionsDefinition[str]
) -> dg.AssetsDefinition:
    by_day = {"partition_expr": "event_date"} if partitioned_by else {}

    @dg.asset(
        name="per_account",
        ins={"playback": ips.incremental()},
        metadata=ips.combine(on=KEYS, aggregates=aggregates, storage=storage)  # type: ignore[arg-type]  # some tests pass wrong values
        | ips.table("media.per_account", partition_by=["event_date"])
        | by_day,
        **partitioned_by,
    )
    def asset(playback: ips.IcdcView) -> DataFrame:
        return playback.weighted

    return asset


@dg.asset(metadata=ips.table("media.copy"))
def copy(per_account: DataFrame) -> DataFrame:
    return per_account


@ips.audit(asset="per_account")
def has_whole_groups(rows: DataFrame) -> bool:
    SEEN["audit"] = sorted(map(tuple, rows.collect()), key=repr)
    return True


def with_checks(lake: Lake, *assets: dg.AssetsDefinition, checks: Sequence[dg.AssetChecksDefinition]) -> dg.Definitions:
    resources = pipeline(lake.folder, lake.spark_folder).resources
    playback = ips.iceberg_asset("playback", table="media.playback")
    return ips.with_incremental(dg.Definitions(assets=[playback, *assets], asset_checks=checks, resources=resources))


def expected(lake: Lake, aggregates: dict[str, str]) -> list[tuple[object, ...]]:
    listed = ", ".join(f"{text} AS {name}" for name, text in aggregates.items())
    found = lake.sql(f"SELECT {', '.join(KEYS)}, {listed} FROM lake.media.playback GROUP BY {', '.join(KEYS)}")
    return sorted(map(tuple, found.collect()), key=repr)


@pytest.mark.slow
@pytest.mark.parametrize("aggregates", [AGGREGATES, WITH_EXTREMES], ids=["added_up", "extremes"])
def test_readers_audits_and_proofs_see_whole_groups_whatever_rows_are_added_or_removed(
    lake: Lake, instance: dg.DagsterInstance, aggregates: dict[str, str]
) -> None:
    checks = has_whole_groups, ips.proof("per_account", sample=1.0, with_each_run=True)
    definitions = with_checks(lake, partials(aggregates), copy, checks=checks)

    def check(mode: str | None = None) -> None:
        made = materialize(definitions, instance, "per_account", tags={"dagster_ips/mode": mode} if mode else None)
        (proved,) = [each for each in made.get_asset_check_evaluations() if each.check_name == "proof"]
        assert proved.passed, proved.description
        materialize(definitions, instance, "copy")
        names = ", ".join([*KEYS, *aggregates])
        read = sorted(map(tuple, lake.sql(f"SELECT {names} FROM lake.media.copy").collect()), key=repr)
        assert read == SEEN["audit"] == expected(lake, aggregates)

    lake.create_playback(events(range(10)) + events(range(10, 14), day=1))
    check()
    lake.append(events(range(20, 26)) + events(range(26, 30), day=2))
    check()
    assert len(lake.sql("SELECT * FROM lake.media.per_account").collect()) > len(expected(lake, aggregates))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (0, 6) OR event_date > '2026-01-02'")
    lake.sql("UPDATE lake.media.playback SET account = NULL, seconds = NULL WHERE event_id IN (1, 2, 20)")
    check()
    check("full")


def test_partitions_append_their_own_parts(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder, partials(partitions_def=DAYS))
    first, second = "2026-01-01", "2026-01-02"
    lake.create_playback(events(range(6)))
    run(definitions, instance, "per_account", first, **SENSOR)
    lake.append(events(range(6, 9)) + events(range(10, 14), day=1))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (0, 5)")
    run(definitions, instance, "per_account", first, second, **SENSOR)
    found = lake.sql(
        "SELECT event_date, account, sum(_ips_rows) AS plays FROM lake.media.per_account "
        "GROUP BY event_date, account HAVING plays > 0"
    ).collect()
    assert sorted(map(tuple, found), key=repr) == [row[:3] for row in expected(lake, AGGREGATES)]


def test_no_asset_consumes_partials_incrementally(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(ins={"per_account": ips.incremental()}, metadata=ips.append() | ips.table("media.copied"))
    def copied(per_account: ips.IcdcView) -> DataFrame:
        return per_account.added

    definitions = pipeline(lake.folder, lake.spark_folder, partials(), copied)
    lake.create_playback(events(range(4)))
    materialize(definitions, instance, "per_account")
    with pytest.raises(UnsupportedTableError, match=r"stores partials(.|\n)*storage='merged'"):
        materialize(definitions, instance, "copied")


@pytest.mark.parametrize(
    ("aggregates", "storage", "said"),
    [(AGGREGATES, "merged", "declares whole rows"), (WITH_EXTREMES, "partials", "partials of other aggregates")],
)
def test_a_table_of_partials_keeps_its_storage_and_its_aggregates(
    lake: Lake, instance: dg.DagsterInstance, aggregates: dict[str, str], storage: str, said: str
) -> None:
    lake.create_playback(events(range(4)))
    materialize(pipeline(lake.folder, lake.spark_folder, partials()), instance, "per_account")
    before = lake.commits("media.per_account")
    with pytest.raises(IpsError, match=said):
        materialize(pipeline(lake.folder, lake.spark_folder, partials(aggregates, storage)), instance, "per_account")
    assert lake.commits("media.per_account") == before
    kept = json.loads(lake.catalog.load("media.per_account", asset="test").properties["dagster-ips.partials"])
    assert kept["aggregates"] == AGGREGATES


def test_an_unknown_storage_is_refused() -> None:
    with pytest.raises(DeclarationError, match="'merged' or 'partials'"):
        partials(storage="folded")
