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


@pytest.mark.parametrize(("condition", "varies"), [("current_date(Some(UTC))", True), ("d#5", False)])
def test_what_the_clock_chooses_beside_the_rows_of_a_leaf_is_no_fault_but_told(condition: str, varies: bool) -> None:  # noqa: FBT001  # a parameter
    plan = f"""Project [id#1 AS __ips_result_0#2]
+- Join Inner, (id#1 = id#3)
   :- RelationV2[id#1] lake.media.plays lake.media.plays
   +- Filter (since#4 <= {condition})
      +- RelationV2[id#3, since#4, d#5] lake.media.rates lake.media.rates"""
    made = lineage(parse_plan(plan), ["id"], [Leaf("lake.media.plays", "a", Unit.ROW)])
    assert made.faults == ()
    assert made.varies_beside == varies


@pytest.mark.parametrize(("value", "is_fault"), [("current_date(Some(UTC))", True), ("1", False)])
def test_a_choice_by_a_subquery_that_depends_on_the_clock_is_a_fault(value: str, is_fault: bool) -> None:  # noqa: FBT001  # a parameter
    plan = f"""Project [id#1 AS __ips_result_0#2]
+- Filter (d#3 < scalar-subquery#4 [])
   :  +- Project [{value} AS today#5]
   :     +- OneRowRelation
   +- RelationV2[id#1, d#3] lake.media.plays lake.media.plays"""
    made = lineage(parse_plan(plan), ["id"], [Leaf("lake.media.plays", "a", Unit.ROW)])
    assert [fault.varies for fault in made.faults] == [True] * is_fault
