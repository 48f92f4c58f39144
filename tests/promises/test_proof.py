"""A proof finds any error in a table, because it doesn't rely on anything that wrote the table."""

import datetime as dt
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.errors import DeclarationError
from dagster_ips.exactly_once.publish import result_publication, result_writer
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.prove import proofs
from dagster_ips.orchestration.watch.pending_checks import Never
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.writes import merge
from dagster_ips.spark.writes.append import append_rows
from tests.support.lake import Lake, events
from tests.support.partitioned import SENSOR, day, day_agg, key, week
from tests.support.pipeline import agg, daily, pipeline, plays, report
from tests.support.variants import mostly_slow

ALL = 1.0


def proved(
    lake: Lake,
    instance: dg.DagsterInstance,
    *assets: dg.AssetsDefinition,
    sample: float = ALL,
    config: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
    **more: Any,  # noqa: ANN401  # arguments of proof
) -> dict[str, dg.AssetCheckEvaluation]:
    """The result of a proof of each of ``assets``, by asset."""
    keys = [key.to_user_string() for each in assets for key in each.keys]
    definitions = defined(
        lake, *assets, checks=[ips.proof(key, sample=sample, **more) for key in keys], resources=resources
    )
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
    lake: Lake,
    *assets: dg.AssetsDefinition,
    checks: list[dg.AssetChecksDefinition] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> dg.Definitions:
    plain = pipeline(lake.folder, lake.spark_folder)
    sources = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("playback", "other")]
    above = [each for each in (daily, day, day_agg) if each not in assets]
    return ips.with_incremental(
        dg.Definitions(
            assets=[*sources, *above, *assets],
            asset_checks=checks or [],
            resources={**(plain.resources or {}), **(resources or {})},
        )
    )


def run(
    lake: Lake,
    instance: dg.DagsterInstance,
    *assets: dg.AssetsDefinition,
    resources: Mapping[str, Any] | None = None,
    **tags: str,
) -> None:
    job = defined(lake, *assets, resources=resources).resolve_implicit_global_asset_job_def()
    keys = [key for each in assets for key in each.keys]
    job.execute_in_process(instance=instance, asset_selection=keys, tags=tags)


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the least sample size: for tables as small as in tests, a proof would compare more than was asked for."""
    monkeypatch.setattr(proofs, "_LEAST_ROWS", 0)


def counts(found: dg.AssetCheckEvaluation) -> tuple[Any, ...]:
    return tuple(found.metadata[f"rows {kind}"].value for kind in ("missing", "extra", "different"))


@pytest.mark.slow
def test_a_table_is_proved_by_the_names_that_its_columns_have_now(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(9)))
    run(lake, instance, daily, agg)
    assert proved(lake, instance, agg)["agg"].passed
    for before, after in (("plays", "held"), ("seconds", "plays"), ("held", "seconds")):
        lake.sql(f"ALTER TABLE lake.media.agg RENAME COLUMN {before} TO {after}")
    assert not proved(lake, instance, agg)["agg"].passed


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("sample", mostly_slow([ALL, 0.5]))
def test_rows_changed_by_hand_are_found(lake: Lake, instance: dg.DagsterInstance, sample: float) -> None:
    lake.create_playback(events(range(30)) + events(range(30, 60), day=1))
    run(lake, instance, daily, agg)
    seed = {"seed": 7}
    for found in proved(lake, instance, daily, agg, sample=sample, config=seed).values():
        assert found.passed, found.description
        assert counts(found) == (0, 0, 0)

    lake.sql("DELETE FROM lake.media.daily WHERE event_id % 2 = 0")
    lake.sql("UPDATE lake.media.agg SET plays = plays + 1")
    lake.sql("INSERT INTO lake.media.agg SELECT event_date, 'no ' || account, 1, 1 FROM lake.media.agg")
    found = proved(lake, instance, daily, agg, sample=sample, config=seed)
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
    """Turns off everything that would refuse a wrong result."""
    monkeypatch.setattr(result_writer.Result, "checked", lambda self, *_, **__: self)
    monkeypatch.setattr(result_writer.Result, "_require_same_keys", lambda *_: None)
    monkeypatch.setattr(result_writer.Result, "_require_no_live_rows", lambda *_: None)
    monkeypatch.setattr(result_writer.Result, "_renewed", lambda *_: None)
    monkeypatch.setattr(merge, "_refuse_ties", lambda *_, **__: None)
    monkeypatch.setattr(result_writer, "append_rows", partial(_append_all, append_rows))
    monkeypatch.setattr(result_publication, "require_columns_fit", lambda *_, **__: None)
    monkeypatch.setattr(result_publication, "follow_frame", lambda frame, *_: frame)


def _append_all(append: Callable[..., None], frame: DataFrame, branch: Branch, **_: object) -> None:
    append(frame, branch, dedup_on=(), partition_columns=())


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
    return playback.added.unionByName(other.added).select("event_id").distinct()


@dg.asset(ins=PLAYBACK, metadata=ips.append(dedup_on=["event_id"]) | ips.table(partition_by=["event_date"]))
def dedup_across_partitions(playback: ips.IcdcView) -> DataFrame:
    return playback.changes


@dg.asset(ins=PLAYBACK, metadata=ips.merge(on=["account"], latest_by="event_id"))
def ties(playback: ips.IcdcView) -> DataFrame:
    return playback.changes.select("account", "event_id", "seconds")


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
    """Three days of events, and other events, some of which are the same."""
    lake.create_playback([*events(range(9)), *events(range(10, 19), day=1), *events(range(20, 29), day=3)])
    lake.create_playback(events(range(3)), "media.other")
    return lake


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", mostly_slow(WRONG), ids=lambda asset: asset.key.to_user_string())
def test_a_table_that_a_wrong_asset_wrote_is_found(
    two_sources: Lake, instance: dg.DagsterInstance, wrong: dg.AssetsDefinition
) -> None:
    lake = two_sources
    run(lake, instance, wrong)
    name = wrong.key.to_user_string()
    assert proved(lake, instance, wrong)[name].passed

    day = dt.date(2026, 1, 2)
    lake.append([(1, day, "a2", 5), (40, day, "A1", 50), (27, day, "a0", 3), (42, day, "a2", 7)])
    lake.sql(
        "DELETE FROM lake.media.other WHERE event_id = 2"
        if wrong is union_of_two
        else "INSERT INTO lake.media.other VALUES (70, DATE '2026-01-02', 'a2', 9)"
    )
    run(lake, instance, wrong)
    found = proved(lake, instance, wrong)[name]
    assert not found.passed
    assert sum(counts(found)) > 0, found.description
    assert found.severity is dg.AssetCheckSeverity.ERROR


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_column_that_the_asset_no_longer_makes_is_found(two_sources: Lake, instance: dg.DagsterInstance) -> None:
    def columns(*more: F.Column) -> dg.AssetsDefinition:
        @dg.asset(ins=PLAYBACK, metadata=ips.merge(on=["account"]))
        def sums(playback: ips.IcdcView) -> DataFrame:
            return playback.affected("account").groupBy("account").agg(F.count("*").alias("plays"), *more)

        return sums

    before, after = columns(F.sum("seconds").alias("seconds")), columns()
    run(two_sources, instance, before)
    two_sources.append([(40, dt.date(2026, 1, 2), "a1", 50)])
    run(two_sources, instance, after)
    found = proved(two_sources, instance, after)["sums"]
    assert not found.passed
    assert found.metadata["columns that the asset no longer has"].value == "seconds"
    assert proved(two_sources, instance, after, ignore=["SECONDS"])["sums"].passed


@dg.multi_asset(
    ins=PLAYBACK,
    outs={"plays": dg.AssetOut(metadata=ips.merge(on=["account"])), "kept": dg.AssetOut(metadata=ips.append())},
)
def both_tables(playback: ips.IcdcView) -> tuple[DataFrame, DataFrame]:
    return playback.added.groupBy("account").agg(F.count("*").alias("plays")), playback.added


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_each_table_of_a_step_is_proved_by_itself(two_sources: Lake, instance: dg.DagsterInstance) -> None:
    run(two_sources, instance, both_tables)
    two_sources.append([(40, dt.date(2026, 1, 2), "a1", 50)])
    run(two_sources, instance, both_tables)
    found = proved(two_sources, instance, both_tables)
    assert (found["plays"].passed, found["kept"].passed) == (False, True)


@pytest.mark.slow
def test_each_partition_is_proved_at_the_snapshots_it_was_computed_from(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback([row for day in range(3) for row in events(range(9 * day, 9 * day + 9), day=day)])
    every_day = {"dagster/asset_partition_range_start": key(0), "dagster/asset_partition_range_end": key(2)}
    run(lake, instance, day, **every_day)
    run(lake, instance, day_agg, **every_day)
    run(lake, instance, week, **{"dagster/partition": "2025-12-28"})
    assert proved(lake, instance, week)["week"].passed
    lake.append(events(range(100, 104), day=1) + events(range(104, 108), day=2))
    run(lake, instance, day, **{"dagster/partition": key(1), **SENSOR})
    for found in proved(lake, instance, day, day_agg).values():
        assert found.passed, found.description
    rows = proved(lake, instance, day)["day"].metadata["rows compared"].value
    assert rows == 9 + 13 + 9

    lake.sql("UPDATE lake.media.day SET seconds = seconds + 1 WHERE event_date = DATE '2026-01-03'")
    lake.sql("INSERT INTO lake.media.day_agg VALUES (DATE '2027-01-01', 'a1', 1, 1), (NULL, 'a1', 1, 1)")
    found = proved(lake, instance, day, day_agg)
    assert counts(found["day"]) == (9, 9, 0)
    assert counts(found["day_agg"]) == (0, 2, 0)
    assert not found["day_agg"].passed


@pytest.mark.slow
def test_a_partition_is_proved_alone_if_each_run_computes_a_single_one(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        partitions_def=day.partitions_def,
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1),
        ins=PLAYBACK,
        metadata=ips.replace() | ips.table(partition_by=["event_date"]) | {"partition_expr": "event_date"},
    )
    def longest(playback: ips.IcdcView) -> DataFrame:
        return playback.source.orderBy(F.desc("seconds"), "event_id").limit(1)

    lake.create_playback(events(range(9)) + events(range(9, 18), day=1))
    for number in (0, 1):
        run(lake, instance, longest, **{"dagster/partition": key(number)})
    found = proved(lake, instance, longest)["longest"]
    assert found.passed, found.description
    assert found.metadata["rows compared"].value == 2


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("seed", mostly_slow(range(3)))
def test_a_sample_can_hold_a_partition_that_the_table_lost_and_that_no_input_is_partitioned_by(
    lake: Lake, instance: dg.DagsterInstance, seed: int
) -> None:
    @dg.asset(ins=PLAYBACK, metadata=ips.append() | ips.table("media.by_letter", partition_by=["account"]))
    def by_account(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    lake.create_playback(events(range(30)))  # of three accounts, and partitioned by day
    run(lake, instance, by_account)
    lake.append(events([99]))  # Otherwise, the last change is of all partitions.
    run(lake, instance, by_account)
    lake.sql("DELETE FROM lake.media.by_letter WHERE account IN ('a1', 'a2')")
    found = proved(lake, instance, by_account, sample=0.5, config={"seed": seed})["by_account"]
    assert found.metadata["compared"].value.startswith("2 of 3 partitions")
    assert counts(found)[0] > 0
    assert not found.passed


@pytest.mark.slow
def test_rows_of_a_partition_that_was_removed_from_the_definition_are_not_extra(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    def of(*accounts: str) -> dg.AssetsDefinition:
        @dg.asset(
            partitions_def=dg.StaticPartitionsDefinition(accounts),
            ins={"playback": ips.incremental(on_unmapped="ignore")},
            metadata=ips.append() | ips.table("media.divided") | {"partition_expr": "account"},
        )
        def divided(playback: ips.IcdcView) -> DataFrame:
            return playback.added

        return divided

    lake.create_playback(events(range(9)))
    for account in ("a0", "a1", "a2"):
        run(lake, instance, of("a0", "a1", "a2"), **{"dagster/partition": account})
    assert proved(lake, instance, of("a0", "a1", "a2"))["divided"].passed
    found = proved(lake, instance, of("a0", "a1"))["divided"]
    assert found.passed, found.description
    lake.sql("INSERT INTO lake.media.divided VALUES (99, DATE '2026-01-01', 'a7', 1)")
    found = proved(lake, instance, of("a0", "a1"))["divided"]
    assert (found.passed, counts(found)) == (False, (0, 1, 0))


def test_a_table_that_cannot_be_proved_is_a_warning_and_an_unpublished_one_passes(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(6)))
    (found,) = proved(lake, instance, daily).values()
    assert (found.passed, found.description) == (True, "Nothing to prove yet: no run has published to media.daily.")

    run(lake, instance, daily)
    lake.append(events(range(10, 12)))
    assert proved(lake, instance, daily)["daily"].passed
    lake.sql("CALL lake.system.expire_snapshots(table => 'media.playback', older_than => now(), retain_last => 1)")
    found = proved(lake, instance, daily)["daily"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "has expired" in str(found.description)
    assert "may be right or wrong" in str(found.description)


@pytest.mark.slow
@pytest.mark.usefixtures("small_samples")
def test_a_proof_changes_nothing_and_can_be_repeated(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(90)))
    run(lake, instance, daily, agg)
    lake.sql("UPDATE lake.media.daily SET seconds = -1")

    def state() -> tuple[object, ...]:
        store = CursorStore(instance)
        edges = [Edge("daily", "playback"), Edge("agg", "daily")]
        tables = lake.sql("SHOW TABLES IN lake.ips").collect(), lake.commits("media.daily"), lake.commits("media.agg")
        return [store.get(edge) for edge in edges], *tables, lake.branches("media.daily")

    before = state()
    found = proved(lake, instance, daily, sample=0.2)["daily"]
    assert 0 < sum(counts(found)) < 180
    seed = found.metadata["seed"].value
    again = proved(lake, instance, daily, sample=0.9, config={"seed": seed, "sample": 0.2})["daily"]
    assert counts(again) == counts(found)
    assert again.metadata["examples"] == found.metadata["examples"]
    assert state() == before


def test_a_difference_that_a_changed_lookup_may_have_caused_is_a_warning(
    two_sources: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins=PLAYBACK, metadata=ips.append())
    def named(playback: ips.IcdcView, other: DataFrame) -> DataFrame:
        return playback.added.join(other.select("account", F.col("seconds").alias("limit")), "account")

    run(two_sources, instance, named)
    assert proved(two_sources, instance, named)["named"].passed
    two_sources.sql("UPDATE lake.media.other SET seconds = 77")
    found = proved(two_sources, instance, named)["named"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "changed since the last run" in str(found.metadata["lookups"].value)


class Least(dg.Config):
    seconds: int = 0


def test_a_difference_that_the_config_of_a_run_may_have_caused_is_a_warning(
    two_sources: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins=PLAYBACK, metadata=ips.append())
    def long(config: Least, playback: ips.IcdcView) -> DataFrame:
        return playback.added.where(F.col("seconds") >= config.seconds)

    config = {"ops": {"long": {"config": {"seconds": 3}}}}
    job = defined(two_sources, long).resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=instance, asset_selection=[long.key], run_config=config)
    found = proved(two_sources, instance, long)["long"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "This may be due to its config" in (found.description or "")


def test_a_proof_runs_with_each_run_or_on_its_condition_or_when_a_person_asks() -> None:
    def condition(check: dg.AssetChecksDefinition) -> object:
        (spec,) = check.check_specs
        return spec.automation_condition

    daily_one = dg.AutomationCondition.on_cron("@daily")
    assert isinstance(condition(ips.proof("daily")), Never)
    assert condition(ips.proof("daily", with_each_run=True)) is None
    assert condition(ips.proof("daily", automation_condition=daily_one)) == daily_one


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ips.proof("daily", sample=0), "above 0"),
        (lambda: ips.proof("daily", ignore="at"), "each letter would count"),
        (lambda: ips.proof("daily", with_each_run=True, automation_condition=Never()), "Choose one"),
        (lambda: ips.proof("dayly"), "no such asset"),
        (lambda: ips.proof("report"), "reads nothing incrementally"),
        (lambda: ips.proof("plays"), "its own statements"),
    ],
)
def test_a_proof_that_cannot_be_made_is_refused_at_load(
    make: Callable[[], dg.AssetChecksDefinition], said: str
) -> None:
    manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder="unused"), spark=ips.LocalSparkConnect())
    playback = ips.iceberg_asset("playback", table="media.playback")

    def load() -> None:
        assets = [playback, daily, agg, report, plays]
        ips.with_incremental(dg.Definitions(assets=assets, asset_checks=[make()], resources={"io_manager": manager}))

    with pytest.raises(DeclarationError, match=said):
        load()


def test_trusted_on_an_asset_that_cannot_be_proved_is_refused_with_what_to_remove() -> None:
    @dg.asset(metadata=ips.table("media.plain") | ips.trusted(because="it is simple"))
    def plain() -> DataFrame: ...

    manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder="unused"), spark=ips.LocalSparkConnect())
    with pytest.raises(DeclarationError, match=r"reads nothing incrementally.*or trusted\(\.\.\.\) from its metadata"):
        ips.with_incremental(dg.Definitions(assets=[plain], resources={"io_manager": manager}))


class Factor(dg.ConfigurableResource):  # type: ignore[type-arg]  # the value is the resource itself
    factor: int


class Limit(dg.Config):
    least: int = 0


@pytest.mark.slow
def test_a_proof_passes_the_asset_function_every_parameter_it_asks_for(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        partitions_def=day.partitions_def,
        ins=PLAYBACK,
        metadata=ips.append() | ips.table(partition_by=["event_date"]) | {"partition_expr": "event_date"},
    )
    def asks(
        context: dg.AssetExecutionContext, config: Limit, factor: dg.ResourceParam[Factor], playback: ips.IcdcView
    ) -> dg.Output[DataFrame]:
        made_for = F.lit(context.partition_key).alias("made_for")
        rows = playback.added.where(F.col("seconds") >= config.least)
        return dg.Output(rows.select("event_date", made_for, (F.col("seconds") * factor.factor).alias("seconds")))

    @dg.asset(ins=PLAYBACK, metadata=ips.append())
    def from_sql(playback: str) -> DataFrame:
        return lake.session.sql(f"SELECT event_id FROM {playback}")

    @dg.asset(ins=PLAYBACK, metadata=ips.append())
    def from_rows(playback: DataFrame) -> DataFrame:
        return playback.select("event_id")

    lake.create_playback(events(range(9)) + events(range(9, 18), day=1))
    resources = {"factor": Factor(factor=3)}
    for number in (0, 1):
        run(lake, instance, asks, resources=resources, **{"dagster/partition": key(number)})
    run(lake, instance, from_sql, from_rows)
    lake.append(events(range(20, 25)))
    for found in proved(lake, instance, asks, from_sql, from_rows, resources=resources).values():
        assert found.passed, found.description
        assert found.metadata["rows compared"].value == 18


def test_a_proof_with_each_run_sees_what_the_run_published(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(9)))
    definitions = defined(lake, day, checks=[ips.proof("day", with_each_run=True)])
    job = definitions.resolve_implicit_global_asset_job_def()
    for rows in (9, 12):
        result = job.execute_in_process(
            instance=instance, asset_selection=[day.key], tags={"dagster/partition": key(0), **SENSOR}
        )
        (found,) = [each for each in result.get_asset_check_evaluations() if each.check_name == "proof"]
        assert found.passed, found.description
        assert found.metadata["rows compared"].value == rows
        lake.append(events(range(20, 23)))


@pytest.mark.slow
@pytest.mark.usefixtures("small_samples")
def test_a_small_sample_includes_the_rows_that_the_last_change_touched(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins=PLAYBACK, metadata=ips.merge(on=["event_id"]) | ips.table("media.by_event"))
    def by_event(playback: ips.IcdcView) -> DataFrame:
        return playback.affected("event_id").groupBy("event_id").agg(F.sum("seconds").alias("seconds"))

    lake.create_playback(events(range(300)))
    run(lake, instance, by_event)
    lake.append([*events([8]), *events([500])])
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 9")
    run(lake, instance, by_event)
    found = proved(lake, instance, by_event, sample=0.01)["by_event"]
    assert found.passed, found.description
    assert found.metadata["rows compared"].value < 100
    lake.sql("UPDATE lake.media.by_event SET seconds = -1 WHERE event_id IN (8, 500)")
    lake.sql("INSERT INTO lake.media.by_event VALUES (9, 2)")
    found = proved(lake, instance, by_event, sample=0.01)["by_event"]
    assert counts(found) == (0, 1, 2)
