"""A frame that doesn't fit its write mode is refused; one that does leaves what a full recompute gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.errors import FragmentOverwriteError, IpsError, RemovedRowsError, UnfitFrameError
from dagster_ips.spark.settings import BROADCAST_THRESHOLD, with_settings
from tests.support.lake import Lake
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow

Compute = Callable[..., DataFrame]
KEPT = [("x", 1), ("y", 2)]


@pytest.fixture
def two(lake: Lake) -> Lake:
    """Tables ``one`` and ``two``, of a key and a number."""
    lake.catalog.create_namespace("media")
    for name in ("one", "two"):
        lake.sql(f"CREATE TABLE lake.media.{name} (k string, n int) USING iceberg PARTITIONED BY (k)")
        lake.sql(f"INSERT INTO lake.media.{name} VALUES ('x', 1), ('y', 2)")
    return lake


def consumer(write: dict[str, Any], compute: Compute, *, inputs: int = 1, policy: str = "apply") -> dg.AssetsDefinition:
    """An asset ``out`` over the first one or two tables."""
    metadata = write | ips.table("media.out", partition_by=["k"])
    one, two = ips.incremental("one", on_removed=policy), ips.incremental("two", on_removed=policy)
    if inputs == 1:

        @dg.asset(name="out", ins={"a": one}, metadata=metadata)
        def of_one(a: ips.IcdcView) -> DataFrame:
            return compute(a)

        return of_one

    @dg.asset(name="out", ins={"a": one, "b": two}, metadata=metadata)
    def of_two(a: ips.IcdcView, b: ips.IcdcView) -> DataFrame:
        return compute(a, b)

    return of_two


def run(lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, *steps: str) -> list[tuple[Any, ...]]:
    """Materialize, and once more after each statement; the rows of the table after that."""
    outside = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("one", "two")]
    definitions = pipeline(lake.folder, lake.spark_folder, asset, *outside)  # type: ignore[arg-type]  # specs work as well
    materialize(definitions, instance, "out")
    for step in steps:
        lake.sql(step).collect()
        materialize(definitions, instance, "out")
    return held(lake)


def held(lake: Lake) -> list[tuple[Any, ...]]:
    """The rows of the table in order; not as a multiset, which can't contain maps."""
    return sorted(tuple(row) for row in lake.sql("SELECT * FROM lake.media.out").collect())


def refused(  # noqa: PLR0913, PLR0917  # none belong together
    lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, step: str, error: type[IpsError], match: str
) -> None:
    """The step is refused, and the table stays as it was."""
    before = run(lake, instance, asset)
    with pytest.raises(error, match=match):
        run(lake, instance, asset, step)
    assert held(lake) == before


def always_refused(  # noqa: PLR0913, PLR0917  # as for refused
    lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, step: str, error: type[IpsError], match: str
) -> None:
    """An incremental run is refused even on a table that is right so far, and so is the first run, of everything."""
    with pytest.raises(error, match=match):
        run(lake, instance, asset)
    inputs = len(asset.input_names)
    before = run(lake, instance, consumer(ips.replace(), lambda a, *_: a.source, inputs=inputs))
    with pytest.raises(error, match=match):
        run(lake, instance, asset, step)
    assert held(lake) == before


def sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.sum("n").cast("int").alias("n"))


def collected(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([tuple(row) for row in rows.collect()], "k string, n int")


def by_name(view: ips.IcdcView) -> DataFrame:
    return view.session.table(view.parameters["icdc_table"])


def counted_before(view: ips.IcdcView) -> DataFrame:
    assert view.added.count() == view.stats.rows
    return view.added


UNFIT: Sequence[tuple[dict[str, Any], Compute, type[IpsError], str]] = [
    (ips.replace(), lambda a: a.added, FragmentOverwriteError, "replacing all rows.*on added.*on source"),
    (ips.append(), lambda a: a.affected("k"), UnfitFrameError, r"on affected\(k\).*a second time.*on added"),
    (ips.overwrite_partitions(), lambda a: sums(a.source), UnfitFrameError, "on source.*become empty.*on scope"),
    (ips.merge(on=["k"]), lambda a: a.affected("k", "n"), UnfitFrameError, r"affected\(k, n\).*part of the merge"),
    (ips.replace(), lambda a: collected(a.added), FragmentOverwriteError, "replacing all rows.*on added.*on source"),
    (ips.replace(), lambda a: sums(by_name(a)), FragmentOverwriteError, "replacing all rows.*on changes.*on source"),
    (ips.append(), lambda a: a.source, UnfitFrameError, "on source.*a second time.*on added"),
]


@pytest.mark.parametrize(("write", "compute", "error", "match"), mostly_slow(UNFIT, quick=4))
def test_a_frame_that_does_not_fit_its_write_mode_is_refused_though_rows_were_only_added(  # noqa: PLR0913, PLR0917
    two: Lake, instance: dg.DagsterInstance, write: dict[str, Any], compute: Compute, error: type[IpsError], match: str
) -> None:
    always_refused(two, instance, consumer(write, compute), "INSERT INTO lake.media.one VALUES ('x', 5)", error, match)


def test_changed_rows_that_pyiceberg_read_do_not_replace_a_table(two: Lake, instance: dg.DagsterInstance) -> None:
    def read(a: ips.IcdcView) -> DataFrame:
        rows = two.catalog.client.load_table(a.icdc_table).scan().to_arrow().to_pylist()
        return a.session.createDataFrame([(row["k"], row["n"]) for row in rows], "k string, n int")

    step, problem = "INSERT INTO lake.media.one VALUES ('x', 5)", "replacing all rows.*on changes.*on source"
    always_refused(two, instance, consumer(ips.replace(), read), step, FragmentOverwriteError, problem)


FIT: Sequence[tuple[dict[str, Any], Callable[[ips.IcdcView], Any]]] = [
    (ips.replace(), lambda a: collected(a.source)),
    (ips.append(), by_name),
    (ips.append(), counted_before),
    ({}, lambda a: of_keys([row.k for row in a.added.select("k").distinct().collect()], a.source)),
]


def of_keys(keys: Sequence[str], rows: DataFrame) -> ips.Overwrite:
    where = " OR ".join(f"k = '{key}'" for key in keys)
    return ips.Overwrite(rows.where(where), where=where)


@pytest.mark.parametrize(("write", "compute"), mostly_slow(FIT, quick=2))
def test_collected_rows_and_keys_that_leave_nothing_out_are_accepted(
    two: Lake, instance: dg.DagsterInstance, write: dict[str, Any], compute: Callable[[ips.IcdcView], Any]
) -> None:
    metadata = write | ips.table("media.out", partition_by=["k"])

    @dg.asset(name="out", ins={"a": ips.incremental("one")}, metadata=metadata)
    def a_frame(a: ips.IcdcView) -> DataFrame:
        return compute(a)

    @dg.asset(name="out", ins={"a": ips.incremental("one")}, metadata=metadata)
    def an_overwrite(a: ips.IcdcView) -> ips.Overwrite:
        return compute(a)

    out = a_frame if write else an_overwrite

    assert run(two, instance, out, "INSERT INTO lake.media.one VALUES ('x', 5)") == [("x", 1), ("x", 5), ("y", 2)]


def test_added_rows_may_look_up_the_source_of_another_input(two: Lake, instance: dg.DagsterInstance) -> None:
    asset = consumer(
        ips.append(), lambda a, b: a.added.join(b.source.withColumnRenamed("n", "m"), "k", "left"), inputs=2
    )
    found = run(two, instance, asset, "INSERT INTO lake.media.one VALUES ('x', 5)")
    assert found == [("x", 1, 1), ("x", 5, 1), ("y", 2, 2)]


JOINED = {
    "groups and a lookup": lambda a, b: sums(a.affected("k")).join(b.source.select("k"), "k"),
    "groups of both": lambda a, b: sums(a.affected("k").unionAll(b.affected("k"))),
}


@pytest.mark.parametrize("how", mostly_slow(JOINED))
def test_groups_of_one_of_two_inputs_are_refused_whichever_changed(
    two: Lake, instance: dg.DagsterInstance, how: str
) -> None:
    asset = consumer(ips.merge(on=["k"]), JOINED[how], inputs=2)
    step = "UPDATE lake.media.two SET n = 5 WHERE k = 'x'"
    always_refused(two, instance, asset, step, UnfitFrameError, "changed only in .*plain DataFrame")


@pytest.mark.parametrize(
    "write", mostly_slow([ips.append(remove_on=["k"]), ips.merge(on=["k"])]), ids=["append", "merge"]
)
def test_a_removed_row_is_refused_if_a_live_row_has_its_key_and_not_if_it_was_never_written(
    two: Lake, instance: dg.DagsterInstance, write: dict[str, Any]
) -> None:
    asset = consumer(write, lambda a: a.added.where("n > 0"))
    more = "INSERT INTO lake.media.one VALUES ('x', 0), ('z', 0)"
    assert run(two, instance, asset, more, "DELETE FROM lake.media.one WHERE k = 'z'") == KEPT
    step = "DELETE FROM lake.media.one WHERE n = 0"
    refused(two, instance, asset, step, RemovedRowsError, r"still has other rows with the key \('x',\)")


CHANGED_KEYS: dict[str, tuple[dict[str, Any], Compute]] = {
    "append": (ips.append(remove_on=["k"]), lambda a: a.added),
    "merge of changed rows": (ips.merge(on=["k"]), lambda a: a.added),
    "merge of groups": (ips.merge(on=["k"]), lambda a: a.affected("k")),
}


@pytest.mark.parametrize("how", mostly_slow(CHANGED_KEYS))
def test_removing_a_row_by_a_key_that_the_asset_changed_is_refused(
    two: Lake, instance: dg.DagsterInstance, how: str
) -> None:
    write, take = CHANGED_KEYS[how]
    asset = consumer(write, lambda a: take(a).withColumn("k", F.upper("k")))
    step, problem = "DELETE FROM lake.media.one WHERE k = 'x'", "column 'k' of the result isn't one's own column"
    is_known_before = how != "merge of changed rows"
    (always_refused if is_known_before else refused)(two, instance, asset, step, UnfitFrameError, problem)


@pytest.mark.parametrize("frame", mostly_slow(["affected", "scope"]))
def test_rows_that_the_asset_moves_to_other_partitions_are_refused(
    two: Lake, instance: dg.DagsterInstance, frame: str
) -> None:
    def moved(a: ips.IcdcView) -> DataFrame:
        taken = a.affected("k") if frame == "affected" else a.scope
        return taken.withColumn("k", F.when(F.col("k") == "x", "y").otherwise("z"))

    step = "INSERT INTO lake.media.one VALUES ('x', 5)"
    asset = consumer(ips.overwrite_partitions(), moved)
    always_refused(two, instance, asset, step, UnfitFrameError, "column 'k' of the result isn't one's own column")


def test_the_scope_of_partitions_by_transform_is_refused_by_overwrite_partitions_from_the_first_run_on(
    two: Lake, instance: dg.DagsterInstance
) -> None:
    """In a full run it holds all rows, but an incremental run doesn't know which of the target's partitions changed."""
    two.sql("DROP TABLE lake.media.one")
    two.sql("CREATE TABLE lake.media.one (k string, n int) USING iceberg PARTITIONED BY (truncate(1, k))")
    two.sql("INSERT INTO lake.media.one VALUES ('x', 1), ('y', 2)")
    asset = consumer(ips.overwrite_partitions(), lambda a: sums(a.scope))
    step, problem = "INSERT INTO lake.media.one VALUES ('x', 5)", r"whole partitions \(k\).*on scope.*affected\(k\)"
    always_refused(two, instance, asset, step, FragmentOverwriteError, problem)


def test_groups_joined_with_themselves_lose_a_removed_key(two: Lake, instance: dg.DagsterInstance) -> None:
    asset = consumer(ips.merge(on=["k"]), lambda a: sums(a.affected("k")).join(a.affected("k").select("k"), "k"))
    assert run(two, instance, asset, "DELETE FROM lake.media.one WHERE k = 'x'") == [("y", 2)]


def test_whole_partitions_are_refused_where_removed_rows_must_stay(two: Lake, instance: dg.DagsterInstance) -> None:
    asset = consumer(ips.overwrite_partitions(), lambda a: sums(a.scope), policy="ignore")
    always_refused(two, instance, asset, "INSERT INTO lake.media.one VALUES ('x', 5)", UnfitFrameError, "on_removed")


LATER = {
    None: "UPDATE lake.media.one SET n = 4 WHERE k = 'y'",
    "n": "INSERT INTO lake.media.one VALUES ('y', 4), ('y', 4)",
}


@pytest.mark.parametrize("latest_by", mostly_slow(LATER))
def test_a_column_of_maps_is_merged(two: Lake, instance: dg.DagsterInstance, latest_by: str | None) -> None:
    def with_a_map(a: ips.IcdcView) -> DataFrame:
        return a.added.withColumn("m", F.create_map(F.lit("n"), F.col("n")))

    asset = consumer(ips.merge(on=["k"], latest_by=latest_by), with_a_map)
    assert run(two, instance, asset, LATER[latest_by]) == [("x", 1, {"n": 1}), ("y", 4, {"n": 4})]


FEW = ("n", 2, None)


@pytest.mark.parametrize("case", [FEW, ("n", 1, None), ("k", 2, None), ("n", 2, "-1")])
def test_keys_that_are_few_by_metadata_are_broadcast_so_that_the_source_is_not_shuffled(
    two: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, case: tuple[str, int, str | None]
) -> None:
    key, most, threshold_of_user = case
    monkeypatch.setattr("dagster_ips.view._MOST_BROADCAST", most)  # of int columns
    monkeypatch.setattr("dagster_ips.view.OF_ANY_WIDTH", 0)
    plans = []

    @dg.asset(name="out", ins={"a": ips.incremental("one")}, metadata=ips.merge(on=[key]) | ips.table("media.out"))
    def out(a: ips.IcdcView) -> DataFrame:
        if threshold_of_user:
            a.session.conf.set(BROADCAST_THRESHOLD, threshold_of_user)
        found = a.affected(key)
        with with_settings(a.session, {BROADCAST_THRESHOLD: "-1"}):
            plans.append(found._explain_string())  # explain() only prints it
        return found.groupBy(key).count()

    rows = run(two, instance, out, "INSERT INTO lake.media.one VALUES ('x', 3), ('z', 4)")
    assert rows == ([(1, 1), (2, 1), (3, 1), (4, 1)] if key == "n" else [("x", 2), ("y", 1), ("z", 1)])
    assert ("BroadcastHashJoin" in plans[-1]) == (case == FEW)
