"""Which table a plan reads, however Spark writes its name."""

from __future__ import annotations

import pytest

from dagster_ips.core.lineage import Leaf, Unit, lineage
from dagster_ips.core.spark_plan import parse_plan


def plan_of(shown: str) -> str:
    return f"Project [id#1 AS __ips_result_0#2]\n+- RelationV2[id#1] {shown} {shown}"


@pytest.mark.parametrize(
    ("shown", "table"),
    [
        ("lake.media.plays", "lake.media.plays"),
        ("lake.media.`play-back`", "lake.media.play-back"),
        ("lake.`2026`.`all plays`", "lake.2026.all plays"),
        ("`my-lake`.media.plays", "my-lake.media.plays"),
        ("my-lake.media.plays", "my-lake.media.plays"),
        ("lake.media.`a``b`", "lake.media.`a``b`"),
        ("lake.media.`my.table`", "lake.media.`my.table`"),
    ],
)
def test_a_table_is_recognized_whatever_its_name(shown: str, table: str) -> None:
    """An asset that reads its upstream beside its view, or its own table, isn't taken for one that looks them up."""
    made = lineage(parse_plan(plan_of(shown)), ["id"], [Leaf(table, "a", Unit.WHOLE)])
    assert made.leaves == {table}
    assert lineage(parse_plan(plan_of(shown)), ["id"], []).tables == {table}


@pytest.mark.parametrize("shown", ["file:/lake/a..b", "", " parquet"])
def test_a_source_that_is_no_table_is_something_else_that_the_plan_reads(shown: str) -> None:
    made = lineage(parse_plan(plan_of(shown)), ["id"], [Leaf("lake.media.plays", "a", Unit.WHOLE)])
    assert not made.leaves
    assert len(made.tables) == 1
