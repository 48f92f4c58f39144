"""A frame that doesn't give what its write mode writes is refused; one that does leaves what a full recompute would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.errors import FragmentOverwriteError, IpsError, UnfitFrameError
from tests.lake import Lake
from tests.pipeline import materialize, pipeline

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
    """Materialize, and once more after each statement; what the table holds then."""
    outside = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("one", "two")]
    definitions = pipeline(lake.folder, lake.spark_folder, asset, *outside)  # type: ignore[arg-type]  # specs are as good
    materialize(definitions, instance, "out")
    for step in steps:
        lake.sql(step).collect()
        materialize(definitions, instance, "out")
    return sorted(lake.rows("media.out").elements())


def refused(  # noqa: PLR0913, PLR0917  # each is a thing of its own
    lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, step: str, error: type[IpsError], match: str
) -> None:
    """The step is refused, and the table stays as it was."""
    before = run(lake, instance, asset)
    with pytest.raises(error, match=match):
        run(lake, instance, asset, step)
    assert sorted(lake.rows("media.out").elements()) == before


def sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.sum("n").cast("int").alias("n"))


UNFIT: Sequence[tuple[dict[str, Any], Compute, type[IpsError], str]] = [
    (ips.replace(), lambda a: a.added, FragmentOverwriteError, "replacing all rows.*on added.*on source"),
    (ips.append(), lambda a: a.affected("k"), UnfitFrameError, r"on affected\(k\).*once more.*on added"),
    (ips.append(), lambda a: a.source, UnfitFrameError, "on source.*once more.*on added"),
    (
        ips.merge(on=["k"]),
        lambda a: sums(a.affected("k", "n")),
        UnfitFrameError,
        r"affected\(k, n\).*part of the merge",
    ),
]


@pytest.mark.parametrize(("write", "compute", "error", "match"), UNFIT)
def test_a_frame_that_does_not_fit_its_write_mode_is_refused_though_rows_were_only_added(  # noqa: PLR0913, PLR0917
    two: Lake,
    instance: dg.DagsterInstance,
    write: dict[str, Any],
    compute: Compute,
    error: type[IpsError],
    match: str,
) -> None:
    refused(two, instance, consumer(write, compute), "INSERT INTO lake.media.one VALUES ('x', 5)", error, match)


def test_added_rows_may_look_up_the_source_of_another_input(two: Lake, instance: dg.DagsterInstance) -> None:
    asset = consumer(
        ips.append(), lambda a, b: a.added.join(b.source.withColumnRenamed("n", "m"), "k", "left"), inputs=2
    )
    found = run(two, instance, asset, "INSERT INTO lake.media.one VALUES ('x', 5)")
    assert found == [("x", 1, 1), ("x", 5, 1), ("y", 2, 2)]
