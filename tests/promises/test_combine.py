"""A table of aggregates that is updated from the change alone equals SQL's GROUP BY over all rows."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips._compat import explained
from dagster_ips.errors import AggregateError, DeclarationError, RemovedRowsError, UnfitFrameError
from tests.support.lake import Lake, events
from tests.support.partitioned import DAYS, SENSOR, partitioned, run
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow

KEYS = ["event_date", "account"]
AGGREGATES = {
    "plays": "count(*)",
    "seconds": "sum(seconds)",
    "mean": "avg(seconds)",
    "longest": "max(seconds)",
    "first": "min(event_id)",
}
FULL = {"dagster_ips/mode": "full"}
Make = Callable[[ips.IcdcView], DataFrame]


def combined(
    make: Make = lambda view: view.weighted,
    aggregates: dict[str, str] = AGGREGATES,
    code: str | None = None,
    **partitioned_by: dg.PartitionsDefinition[str],
) -> dg.AssetsDefinition:
    by_day = {"partition_expr": "event_date"} if partitioned_by else {}

    @dg.asset(
        name="combined",
        code_version=code,
        ins={"playback": ips.incremental()},
        metadata=ips.combine(on=KEYS, aggregates=aggregates)
        | ips.table("media.combined", partition_by=["event_date"])
        | by_day,
        **partitioned_by,
    )
    def asset(playback: ips.IcdcView) -> DataFrame:
        return make(playback)

    return asset


def check(lake: Lake, aggregates: dict[str, str] = AGGREGATES, source: str = "lake.media.playback") -> None:
    listed = ", ".join(f"{text} AS {name}" for name, text in aggregates.items())
    columns = ", ".join([*KEYS, *aggregates])
    hidden = "count(seconds) AS _ips_count_seconds"
    expected = lake.sql(f"SELECT {', '.join(KEYS)}, {listed}, {hidden} FROM {source} GROUP BY {', '.join(KEYS)}")
    found = lake.sql(f"SELECT {columns}, _ips_count_seconds FROM lake.media.combined")
    assert sorted(map(tuple, found.collect()), key=repr) == sorted(map(tuple, expected.collect()), key=repr)


def test_added_and_removed_rows_leave_what_a_recompute_gives(lake: Lake, instance: dg.DagsterInstance) -> None:
    plans = []

    def make(view: ips.IcdcView) -> DataFrame:
        rows = view.weighted.where("event_id >= 0").select("*", (F.col("seconds") * 2).alias("double"))
        plans.append(explained(rows.where("_weight != 0")).partition("== Physical Plan ==")[2])
        return rows

    definitions = pipeline(lake.folder, lake.spark_folder, combined(make))
    lake.create_playback(events(range(10)) + events(range(10, 14), day=1))
    materialize(definitions, instance, "combined")
    check(lake)
    lake.append(events(range(20, 26)) + events(range(26, 30), day=2))
    materialize(definitions, instance, "combined")
    check(lake)
    # A group loses its longest and first rows, a whole group is removed, and rows move to other groups.
    lake.sql(
        "DELETE FROM lake.media.playback WHERE event_id IN (0, 6) OR (account = 'a1' AND event_date > '2026-01-02')"
    )
    lake.sql("UPDATE lake.media.playback SET account = NULL, seconds = NULL WHERE event_id IN (1, 2, 20)")
    materialize(definitions, instance, "combined")
    check(lake)
    before = lake.commits("media.combined")
    lake.sql("UPDATE lake.media.playback SET seconds = seconds WHERE event_id = 21")  # files change, but no row does
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 22")
    lake.append([e for e in events([22]) if e[0] == 22])  # the removed row comes back
    materialize(definitions, instance, "combined")
    check(lake)
    assert lake.commits("media.combined") == before
    # The frame contains the live rows, but they aren't read unless an extreme is lost.
    assert "ips.combined__" in plans[-1]
    assert not any("media.playback" in plan for plan in plans[1:])


@pytest.mark.slow
@pytest.mark.everywhere
def test_each_partition_is_combined_by_itself(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder, combined(partitions_def=DAYS))
    first, second = "2026-01-01", "2026-01-02"
    lake.create_playback(events(range(6)))
    run(definitions, instance, "combined", first, **SENSOR)
    lake.append(events(range(6, 9)) + events(range(10, 14), day=1))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (0, 5)")
    run(definitions, instance, "combined", first, second, **SENSOR)  # the first partition continues, the second is new
    check(lake)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda view: view.weighted.where("_weight > 0"), "rows or values depend on it"),
        (lambda view: view.weighted.drop("_weight"), "isn't in the result unchanged"),
        (lambda view: view.weighted.withColumn("_weight", F.lit(1)), "isn't in the result unchanged"),
        (lambda view: view.affected("account"), "added a second time.*weighted for combine"),
        (lambda view: view.source, "added a second time"),
        (lambda view: view.changelog(), "doesn't tell them apart.*on weighted"),
        (lambda view: view.added.unionByName(view.weighted.drop("_weight")), "doesn't tell them apart.*on weighted"),
        (lambda view: view.weighted.distinct(), "the result's plan has distinct rows"),
    ],
)
def test_rows_that_cannot_be_counted_are_refused_in_the_first_run(
    lake: Lake, instance: dg.DagsterInstance, make: Make, match: str
) -> None:
    lake.create_playback(events(range(2)))
    with pytest.raises(UnfitFrameError, match=match):
        materialize(pipeline(lake.folder, lake.spark_folder, combined(make)), instance, "combined")


@pytest.mark.parametrize(
    ("aggregate", "match"),
    mostly_slow(
        [
            ("sum(seconds * _weight)", "would not subtract what it once added"),
            ("sum(_WEIGHT)", "would not subtract what it once added"),
            ("max(`_weight`)", "would not subtract what it once added"),
            ("sum(hash(*))", "can't be maintained incrementally"),  # Spark may refuse it first.
        ]
    ),
)
def test_an_aggregate_that_uses_the_weight_is_refused_in_the_first_run(
    lake: Lake, instance: dg.DagsterInstance, aggregate: str, match: str
) -> None:
    lake.create_playback(events(range(2)))
    asset = combined(aggregates={"seconds": aggregate})
    with pytest.raises(AggregateError, match=match):
        materialize(pipeline(lake.folder, lake.spark_folder, asset), instance, "combined")


def test_a_result_built_on_added_rows_works_until_a_row_is_removed(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, combined(lambda view: view.added.where("seconds >= 0")))
    lake.create_playback(events(range(6)))
    materialize(definitions, instance, "combined")
    lake.append(events(range(6, 9)))
    materialize(definitions, instance, "combined")
    check(lake)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 0")
    with pytest.raises(RemovedRowsError, match=r"only on added rows.*Build it on weighted"):
        materialize(definitions, instance, "combined")


def test_a_removed_row_is_refused_if_what_it_looked_up_may_have_changed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(6)))
    names = lake.sql("SELECT 'a0' AS account, 'zero' AS name")
    names.writeTo("lake.media.names").create()

    def make(view: ips.IcdcView) -> DataFrame:
        rows = view.weighted
        return rows.join(rows.sparkSession.table("lake.media.names"), "account", "left")

    definitions = pipeline(lake.folder, lake.spark_folder, combined(make))
    materialize(definitions, instance, "combined")
    lake.append(events(range(6, 9)))
    materialize(definitions, instance, "combined")
    check(lake)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 0")
    with pytest.raises(RemovedRowsError, match=r"looked up in lake\.media\.names.*incremental\(\) and join its source"):
        materialize(definitions, instance, "combined")


def test_removed_rows_are_followed_if_the_joined_input_did_not_change(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental(), "other": ips.incremental()},
        metadata=ips.combine(on=KEYS, aggregates=AGGREGATES) | ips.table("media.combined"),
    )
    def joined(playback: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
        names = other.source.select("event_id").distinct()
        return playback.weighted.join(names, "event_id", "left_semi")

    other = ips.iceberg_asset("other", table="media.other")
    base = pipeline(lake.folder, lake.spark_folder)
    definitions = ips.with_incremental(
        dg.Definitions(
            assets=[ips.iceberg_asset("playback", table="media.playback"), other, joined], resources=base.resources
        )
    )
    lake.create_playback(events(range(9)))
    lake.create_playback(events(range(20)), table="media.other")
    materialize(definitions, instance, "joined")
    lake.append(events(range(9, 12)))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id < 4")
    materialize(definitions, instance, "joined")
    check(lake)


@pytest.mark.slow
def test_removed_rows_are_followed_until_the_lookup_changes(lake: Lake, instance: dg.DagsterInstance) -> None:
    """Once the lookup changes, it is unknown what earlier rows were joined with, until everything is recomputed."""

    @dg.asset(
        ins={"playback": ips.incremental(), "other": ips.lookup()},
        metadata=ips.combine(on=KEYS, aggregates=AGGREGATES) | ips.table("media.combined"),
    )
    def joined(playback: ips.IcdcView, other: DataFrame) -> DataFrame:
        return playback.weighted.join(other.select("event_id").distinct(), "event_id", "left_semi")

    other = ips.iceberg_asset("other", table="media.other")
    definitions = pipeline(lake.folder, lake.spark_folder, joined, other)
    compact = "CALL lake.system.rewrite_data_files(table => 'media.other', options => map('rewrite-all', 'true'))"
    lake.create_playback(events(range(9)))
    lake.create_playback(events(range(30)), table="media.other")
    materialize(definitions, instance, "joined")
    for step in ("DELETE FROM lake.media.playback WHERE event_id < 3", compact):
        lake.append(events(range(9, 12)))
        lake.sql(step)
        lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (5, 10)")
        materialize(definitions, instance, "joined")
        check(lake)
    lake.append(events(range(30, 33)), table="media.other")
    lake.append(events(range(12, 15)))
    materialize(definitions, instance, "joined")  # no row was removed, so the lookup may have changed
    check(lake)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 12")
    with pytest.raises(RemovedRowsError, match=r"looked up in lake\.media\.other"):
        materialize(definitions, instance, "joined")
    materialize(definitions, instance, "joined", tags=FULL)
    check(lake)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 13")
    materialize(definitions, instance, "joined")
    check(lake)


def test_removed_rows_are_refused_after_a_lookup_was_rolled_back_to_what_it_was(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    """Without its other rows, a run found nothing to write. It added nothing that could be subtracted now."""

    @dg.asset(
        ins={"playback": ips.incremental(), "names": ips.lookup()},
        metadata=ips.combine(on=["name"], aggregates={"plays": "count(*)"}) | ips.table("media.combined"),
    )
    def per_name(playback: ips.IcdcView, names: DataFrame) -> DataFrame:
        return playback.weighted.join(names, "account").select("name", "_weight")

    lake.create_playback(events(range(6)))
    lake.sql("SELECT * FROM VALUES ('a0', 'x'), ('a1', 'x') AS (account, name)").writeTo("lake.media.names").create()
    names = ips.iceberg_asset("names", table="media.names")
    definitions = pipeline(lake.folder, lake.spark_folder, per_name, names)
    materialize(definitions, instance, "per_name")
    (before,) = lake.sql("SELECT snapshot_id FROM lake.media.names.snapshots").collect()
    lake.sql("DELETE FROM lake.media.names WHERE account = 'a1'")
    lake.append(events([100]))
    materialize(definitions, instance, "per_name")
    commits = lake.commits("media.combined")
    lake.append(events([103]))
    materialize(definitions, instance, "per_name")
    assert lake.commits("media.combined") == commits
    lake.sql(f"CALL lake.system.rollback_to_snapshot('media.names', {before[0]})")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 100")
    with pytest.raises(RemovedRowsError, match=r"looked up in lake\.media\.names"):
        materialize(definitions, instance, "per_name")
    materialize(definitions, instance, "per_name", tags=FULL)
    assert [tuple(row) for row in lake.sql("SELECT name, plays FROM lake.media.combined").collect()] == [("x", 5)]


@pytest.mark.slow
def test_removed_rows_are_refused_once_the_last_partition_of_the_lookup_is_another(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    """The table of the lookup stays as it is: it already had the rows of the partition that comes."""
    versions = dg.DynamicPartitionsDefinition(name="versions")

    @dg.asset(
        ins={"playback": ips.incremental(), "names": dg.AssetIn(partition_mapping=dg.LastPartitionMapping())},
        metadata=ips.combine(on=["name"], aggregates={"plays": "count(*)"}) | ips.table("media.combined"),
    )
    def per_name(playback: ips.IcdcView, names: DataFrame) -> DataFrame:
        return playback.weighted.join(names.select("account", "name"), "account")

    lake.create_playback(events(range(9)))
    lake.sql("SELECT * FROM VALUES ('a0', 'x', '1'), ('a0', 'y', '2') AS (account, name, version)").writeTo(
        "lake.media.names"
    ).create()
    names = ips.iceberg_asset(
        "names", table="media.names", partitions_def=versions, metadata={"partition_expr": "version"}
    )
    definitions = pipeline(lake.folder, lake.spark_folder, per_name, names)
    instance.add_dynamic_partitions("versions", ["1"])
    materialize(definitions, instance, "per_name")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 0")
    materialize(definitions, instance, "per_name")
    instance.add_dynamic_partitions("versions", ["2"])
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    with pytest.raises(RemovedRowsError, match=r"looked up in lake\.media\.names"):
        materialize(definitions, instance, "per_name")
    materialize(definitions, instance, "per_name", tags=FULL)
    assert [tuple(row) for row in lake.sql("SELECT name, plays FROM lake.media.combined").collect()] == [("y", 1)]


@pytest.mark.slow
@pytest.mark.everywhere
def test_removed_rows_are_refused_once_columns_of_the_lookup_swapped_names(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    """No snapshot records the change, and a removed row would be joined with other values than when it was added."""

    @dg.asset(
        ins={"playback": ips.incremental(), "names": ips.lookup()},
        metadata=ips.combine(on=["name"], aggregates={"plays": "count(*)"}) | ips.table("media.combined"),
    )
    def per_name(playback: ips.IcdcView, names: DataFrame) -> DataFrame:
        return playback.weighted.join(names.select("account", "name"), "account")

    lake.create_playback(events(range(9)))
    lake.sql(
        "SELECT account, name, other FROM VALUES ('a0', 'x', 'y'), ('a1', 'y', 'x') AS (account, name, other)"
    ).writeTo("lake.media.names").create()
    names = ips.iceberg_asset("names", table="media.names")
    definitions = pipeline(lake.folder, lake.spark_folder, per_name, names)
    materialize(definitions, instance, "per_name")
    for old, new in (("name", "third"), ("other", "name"), ("third", "other")):
        lake.sql(f"ALTER TABLE lake.media.names RENAME COLUMN {old} TO {new}")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 0")
    with pytest.raises(RemovedRowsError, match=r"looked up in lake\.media\.names"):
        materialize(definitions, instance, "per_name")
    materialize(definitions, instance, "per_name", tags=FULL)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    materialize(definitions, instance, "per_name")
    found = lake.sql("SELECT name, plays FROM lake.media.combined").collect()
    assert sorted(map(tuple, found)) == [("x", 3), ("y", 1)]


@pytest.mark.everywhere
@pytest.mark.parametrize(
    "changed",
    mostly_slow([combined(aggregates=AGGREGATES | {"seconds": "sum(2 * seconds)"}), combined(code="2")]),
    ids=["what an aggregate is", "its code"],
)
def test_rows_of_another_code_version_or_aggregate_are_recomputed_and_not_added_to(
    lake: Lake, instance: dg.DagsterInstance, changed: dg.AssetsDefinition
) -> None:
    lake.create_playback(events(range(6)))
    materialize(pipeline(lake.folder, lake.spark_folder, combined(code="1")), instance, "combined")
    lake.append(events(range(6, 9)))
    definitions = pipeline(lake.folder, lake.spark_folder, changed)
    result = materialize(definitions, instance, "combined")
    (made,) = result.asset_materializations_for_node("combined")
    assert "another code version" in str(made.metadata)
    assert "older rows" not in made.metadata
    lake.append(events(range(9, 10)))
    result = materialize(definitions, instance, "combined")
    (made,) = result.asset_materializations_for_node("combined")
    assert "another code version" not in str(made.metadata)
    is_other = changed.code_versions_by_key[dg.AssetKey("combined")] is None
    aggregates = AGGREGATES | ({"seconds": "sum(2 * seconds)"} if is_other else {})
    check(lake, aggregates)


@pytest.mark.parametrize(
    ("on", "aggregates", "match"),
    [
        ([], {"n": "count(*)"}, "no key column"),
        (["a"], {}, "no aggregate"),
        ("a", {"n": "count(*)"}, "each letter would count"),
        (["a"], {"n": "median(x)"}, "median can't be maintained.*merge"),
        (["a"], {"n": "count(DISTINCT x)"}, "DISTINCT can't be maintained"),
        (["a"], {"A": "count(*)"}, "declared twice"),
        (["a"], {"_ips_n": "count(*)"}, "the library reserves"),
        (["_weight"], {"n": "count(*)"}, "the library reserves"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_when_definitions_load(
    on: list[str], aggregates: dict[str, str], match: str
) -> None:
    with pytest.raises(DeclarationError, match=match):
        ips.combine(on=on, aggregates=aggregates)


@pytest.mark.slow
@pytest.mark.everywhere
def test_a_proof_computes_the_hidden_columns_as_well(lake: Lake, instance: dg.DagsterInstance) -> None:
    asset = combined()
    base = pipeline(lake.folder, lake.spark_folder, asset)
    lake.create_playback(events(range(9)))
    materialize(base, instance, "combined")
    lake.append(events(range(9, 12)))
    materialize(base, instance, "combined")

    def proved() -> dg.AssetCheckEvaluation:
        job = dg.define_asset_job("prove", selection=dg.AssetSelection.checks_for_assets("combined"))
        definitions = ips.with_incremental(
            dg.Definitions(
                assets=[ips.iceberg_asset("playback", table="media.playback"), asset],
                asset_checks=[ips.proof("combined", sample=1.0)],
                resources=base.resources,
                jobs=[job],
            )
        )
        result = definitions.resolve_job_def("prove").execute_in_process(instance=instance)
        return next(each for each in result.get_asset_check_evaluations() if each.check_name == "proof")

    found = proved()
    assert found.passed, found.description
    lake.sql("UPDATE lake.media.combined SET _ips_count_seconds = 7 WHERE account = 'a1'")
    assert not proved().passed
