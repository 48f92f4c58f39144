"""A proof finds whatever made a table wrong, because it rests on nothing that made it."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.tracking import writing
from tests.lake import Lake, events
from tests.pipeline import agg, daily, pipeline

ALL = 1.0


def proved(
    lake: Lake,
    instance: dg.DagsterInstance,
    *assets: dg.AssetsDefinition,
    sample: float = ALL,
    config: Mapping[str, Any] | None = None,
    **more: Any,  # noqa: ANN401  # proof's
) -> dict[str, dg.AssetCheckEvaluation]:
    """What a proof of each of ``assets`` finds, by asset."""
    keys = [key.to_user_string() for each in assets for key in each.keys]
    definitions = defined(lake, *assets, checks=[ips.proof(key, sample=sample, **more) for key in keys])
    selection = dg.AssetSelection.checks(*[dg.AssetCheckKey(dg.AssetKey(key), "proof") for key in keys])
    job = dg.define_asset_job("prove", selection=selection)
    ops = {f"{key}_proof": {"config": config} for key in keys} if config else {}
    result = (
        dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))
        .resolve_job_def("prove")
        .execute_in_process(instance=instance, run_config={"ops": ops})
    )
    return {each.asset_key.to_user_string(): each for each in result.get_asset_check_evaluations()}


def defined(
    lake: Lake, *assets: dg.AssetsDefinition, checks: list[dg.AssetChecksDefinition] | None = None
) -> dg.Definitions:
    plain = pipeline(lake.folder, lake.spark_folder)
    sources = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("playback", "other")]
    return ips.with_incremental(
        dg.Definitions(assets=[*sources, *assets], asset_checks=checks or [], resources=plain.resources)
    )


def run(lake: Lake, instance: dg.DagsterInstance, *assets: dg.AssetsDefinition, **tags: str) -> None:
    job = defined(lake, *assets).resolve_implicit_global_asset_job_def()
    keys = [key for each in assets for key in each.keys]
    job.execute_in_process(instance=instance, asset_selection=keys, tags=tags)


def counts(found: dg.AssetCheckEvaluation) -> tuple[Any, ...]:
    return tuple(found.metadata[f"rows {kind}"].value for kind in ("missing", "extra", "different"))


@pytest.mark.parametrize("sample", [ALL, 0.5])
def test_what_is_changed_by_hand_is_found(lake: Lake, instance: dg.DagsterInstance, sample: float) -> None:
    lake.create_playback(events(range(30)) + events(range(30, 60), day=1))
    run(lake, instance, daily, agg)
    for found in proved(lake, instance, daily, agg, sample=sample).values():
        assert found.passed, found.description
        assert counts(found) == (0, 0, 0)

    lake.sql("DELETE FROM lake.media.daily WHERE event_id % 2 = 0")
    lake.sql("UPDATE lake.media.agg SET plays = plays + 1")
    lake.sql("INSERT INTO lake.media.agg SELECT event_date, 'nobody', 1, 1 FROM lake.media.agg")
    found = proved(lake, instance, daily, agg, sample=sample)
    assert not found["daily"].passed
    assert found["daily"].severity is dg.AssetCheckSeverity.ERROR
    missing, extra, different = counts(found["daily"])
    assert (missing > 0, extra, different) == (True, 0, 0)
    missing, extra, different = counts(found["agg"])
    assert (missing, extra > 0, different > 0) == (0, True, True)
    if sample == ALL:
        assert (counts(found["daily"]), counts(found["agg"])) == ((30, 0, 0), (0, 6, 6))
    table = found["agg"].metadata["examples"]
    assert isinstance(table, dg.TableMetadataValue)
    assert {record.data["kind"] for record in table.records} == {"extra", "different"}


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that would refuse a result is in the way of a wrong one."""
    monkeypatch.setattr(writing.Result, "check", lambda *_: None)
    monkeypatch.setattr(writing.Result, "_require_same_keys", lambda *_: None)
    monkeypatch.setattr(writing, "_require_no_live_rows", lambda *_: None)


PLAYBACK = {"playback": ips.incremental(ranges=["event_date"])}
BOTH = {**PLAYBACK, "other": ips.incremental()}


@dg.asset(ins=BOTH, metadata=ips.append())
def unfollowed_join(playback: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    names = other.source.select("account", F.col("seconds").alias("limit"))
    return playback.added.join(names, "account")


@dg.asset(ins=PLAYBACK, metadata=ips.merge(on=["account"]))
def partial_sums(playback: ips.IcdcView) -> DataFrame:
    return playback.added.groupBy("account").agg(F.sum("seconds").alias("seconds"))


@dg.asset(ins=PLAYBACK, metadata=ips.merge(on=["account"]))
def lowered_keys(playback: ips.IcdcView) -> DataFrame:
    rows = playback.affected("account")
    return rows.groupBy(F.lower("account").alias("account")).agg(F.count("*").alias("plays"))


@dg.asset(ins=BOTH, metadata=ips.merge(on=["event_id"]))
def union_of_two(playback: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    both = playback.added.unionByName(other.added).select("event_id", "account")
    return both.distinct()


@dg.asset(ins=PLAYBACK, metadata=ips.append(dedup_on=["event_id"]) | ips.table(partition_by=["event_date"]))
def dedup_across_partitions(playback: ips.IcdcView) -> DataFrame:
    return playback.changes


@dg.asset(ins=PLAYBACK, metadata=ips.merge(on=["account"], latest_by="event_date"))
def ties(playback: ips.IcdcView) -> DataFrame:
    return playback.changes.select("account", "event_date", "seconds")


@dg.asset(ins=PLAYBACK, metadata=ips.append())
def shares(playback: ips.IcdcView) -> DataFrame:
    total = F.sum("seconds").over(Window.partitionBy())
    return playback.added.select("event_id", (F.col("seconds") / total).alias("share"))


@dg.asset(ins=PLAYBACK, metadata=ips.append())
def lags(playback: ips.IcdcView) -> DataFrame:
    before = F.lag("seconds").over(Window.partitionBy("account").orderBy("event_id"))
    return playback.added.select("event_id", before.alias("before"))


@dg.asset(ins=PLAYBACK, metadata=ips.append())
def distinct_accounts(playback: ips.IcdcView) -> DataFrame:
    return playback.added.select("account").distinct()


@dg.asset(ins=PLAYBACK, metadata=ips.append())
def first_three(playback: ips.IcdcView) -> DataFrame:
    return playback.added.orderBy("event_id").limit(3)


@dg.asset(ins=PLAYBACK)
def narrow_overwrite(playback: ips.IcdcView) -> ips.Overwrite:
    """The days that changed, though the days after them hold their seconds as well."""
    days = playback.source.groupBy("event_date").agg(F.sum("seconds").alias("seconds"))
    so_far = F.sum("seconds").over(Window.orderBy("event_date"))
    where = playback.range("event_date").between("event_date")
    return ips.Overwrite(days.select("event_date", so_far.alias("total")).where(where), where=where)


WRONG = [
    unfollowed_join,
    partial_sums,
    lowered_keys,
    union_of_two,
    dedup_across_partitions,
    ties,
    shares,
    lags,
    distinct_accounts,
    first_three,
    narrow_overwrite,
]


@pytest.fixture
def two_sources(lake: Lake) -> Lake:
    """Three days of events, and other events of which some are the same."""
    lake.create_playback([*events(range(9)), *events(range(10, 19), day=1), *events(range(20, 29), day=3)])
    lake.create_playback(events(range(3)), "media.other")
    return lake


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", WRONG, ids=lambda asset: asset.key.to_user_string())
def test_a_table_that_a_wrong_asset_made_is_found(
    two_sources: Lake, instance: dg.DagsterInstance, wrong: dg.AssetsDefinition
) -> None:
    lake = two_sources
    run(lake, instance, wrong)
    name = wrong.key.to_user_string()
    assert proved(lake, instance, wrong)[name].passed

    day = dt.date(2026, 1, 2)
    lake.append([(1, day, "A1", 5), (40, day, "a1", 50), (41, day, "a0", 3), (42, dt.date(2026, 1, 4), "a2", 7)])
    lake.sql("DELETE FROM lake.media.other WHERE event_id = 1")
    lake.sql("INSERT INTO lake.media.other VALUES (70, DATE '2026-01-02', 'a2', 9)")
    run(lake, instance, wrong)
    found = proved(lake, instance, wrong)[name]
    assert not found.passed
    assert sum(counts(found)) > 0, found.description
    assert found.severity is dg.AssetCheckSeverity.ERROR

    run(lake, instance, wrong, **{"dagster_ips/mode": "full"}) if name != "ties" else None
    assert proved(lake, instance, wrong)[name].passed is (name != "ties")
