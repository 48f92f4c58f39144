"""Keys, partitions and values that are NaN, -0.0 or null are found again by every write that adds to what is there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.core.aggregates import parse_aggregate
from dagster_ips.core.write_mode import Combine
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.writes.combine import combine_rows
from dagster_ips.spark.writes.group_parts import Aggregates, Change
from dagster_ips.spark.writes.partials import append_partials, folded
from dagster_ips.spark.writes.partition_filter import PartitionsHeld, all_held
from tests.spark.test_combine import equal, examples, holding_few, without
from tests.support.lake import Lake

Row: TypeAlias = tuple[Any, ...]

NUMBERS = [0.0, -0.0, math.nan, 1.5, math.inf]
AGGREGATES = {"n": "count(*)", "total": "sum(v)", "least": "min(f)", "most": "max(f)"}
DECLARED = Combine(("p", "q"), tuple(parse_aggregate(name, text) for name, text in AGGREGATES.items()))


def of_keys(keys: Sequence[float | None]) -> st.SearchStrategy[list[Row]]:
    key = st.sampled_from(keys)
    return st.lists(st.tuples(key, key, st.integers(0, 3), st.sampled_from([None, *NUMBERS])), max_size=7)


class Groups:
    """A table of groups by floats, or of their partials, partitioned by one of them, and branches of it."""

    def __init__(self, lake: Lake, null: str, *, as_partials: bool = False) -> None:
        self.lake, self.branches = lake, 0
        lake.catalog.create_namespace("t")
        self.declared = replace(DECLARED, keeps_partials=as_partials)
        self.aggregates = Aggregates.over(self.frame([], 1, "NOT NULL"), self.declared, table="t.some")
        fields = self.aggregates.groups(self.frame([], 1, "")).schema.fields
        columns = [
            f"`{each.name}` {each.dataType.simpleString()} {null if each.name in 'pq' else ''}" for each in fields
        ]
        lake.sql("DROP TABLE IF EXISTS lake.t.some")
        lake.sql(f"CREATE TABLE lake.t.some ({', '.join(columns)}) USING iceberg PARTITIONED BY (p)")
        self.null = null

    def frame(self, rows: Sequence[Row], weight: int, null: str) -> DataFrame:
        schema = f"p DOUBLE {null}, q FLOAT {null}, v INT, f DOUBLE"
        return self.lake.session.createDataFrame(list(rows), schema).withColumn("_weight", F.lit(weight))

    def check(
        self,
        there: list[Row],
        gone: list[Row],
        come: list[Row],
        held: PartitionsHeld = all_held,
        *,
        is_known: bool = False,
    ) -> None:
        self.branches += 1
        branch = Branch("lake", "t.some", f"branch{self.branches}")
        branch.create(self.lake.session, head=None)
        self.aggregates.groups(self.frame(there, 1, self.null)).writeTo(branch.sql_name).overwrite(F.expr("TRUE"))
        left = [*without(there, gone), *come]
        change = self.frame(come, 1, self.null)
        for rows, weight in ((gone, -1), (left, 0)):
            change = change.unionAll(self.frame(rows, weight, self.null))
        if self.declared.keeps_partials:
            append_partials(
                Change(change, "_weight"),
                self.aggregates,
                branch,
                may_remove_rows=bool(gone),
                partition_columns=["p"],
                within=None,
            )
            assert self._held(branch) == _grouped(left)
            return
        came_to = list({equal(row[:1]): row[:1] for row in come}.values()) if is_known and not gone else None
        combine_rows(
            Change(change, "_weight"),
            self.aggregates,
            branch,
            head=None,
            partition_columns=["p"],
            within=None,
            held=held,
            came_to=came_to,
        )
        assert self._held(branch) == _grouped(left)

    def _held(self, branch: Branch) -> Counter[Row]:
        stored = self.lake.session.table(branch.sql_name)
        rows = folded(stored, self.declared) if self.declared.keeps_partials else stored
        return Counter(equal(tuple(row)) for row in rows.select("p", "q", *AGGREGATES).collect())


def _grouped(rows: Sequence[Row]) -> Counter[Row]:
    """The groups as Python makes them: NaN is the greatest number, and equal to itself."""
    groups: dict[Row, list[Row]] = {}
    for row in rows:
        groups.setdefault(equal(row[:2]), []).append(row)
    found = []
    for key, some in groups.items():
        known = sorted((f for *_, f in some if f is not None), key=lambda f: (math.isnan(f), f))
        ends = (known[0], known[-1]) if known else (None, None)
        found.append((*key, len(some), sum(v for _, _, v, _ in some), *equal(ends)))
    return Counter(found)


@pytest.mark.parametrize(("null", "keys"), [("", [None, *NUMBERS]), ("NOT NULL", NUMBERS)])
@examples(6)
@given(data=st.data())
def test_groups_whose_keys_are_floats_are_found_again(
    lake: Lake, null: str, keys: Sequence[float | None], data: st.DataObject
) -> None:
    groups = Groups(lake, null)
    there, come = data.draw(of_keys(keys)), data.draw(of_keys(keys))
    gone = [row for row in there if data.draw(st.booleans())] if data.draw(st.booleans()) else []
    held = data.draw(st.sampled_from([all_held, holding_few]))
    groups.check(there, gone, come, held, is_known=data.draw(st.booleans()))


@examples(4)
@given(data=st.data())
def test_partials_of_groups_whose_keys_are_floats_add_up(lake: Lake, data: st.DataObject) -> None:
    groups = Groups(lake, "NOT NULL", as_partials=True)
    there, come = data.draw(of_keys(NUMBERS)), data.draw(of_keys(NUMBERS))
    groups.check(there, [row for row in there if data.draw(st.booleans())], come)


@pytest.mark.parametrize("held", [all_held, holding_few])
def test_a_group_in_the_partition_of_nan_is_added_to(lake: Lake, held: PartitionsHeld) -> None:
    groups = Groups(lake, "NOT NULL")
    there = [(math.nan, 1.5, 1, 0.0), (-0.0, math.nan, 2, math.nan)]
    come = [(math.nan, 1.5, 4, math.nan), (0.0, math.nan, 8, 1.5), (math.nan, 2.5, 16, None)]
    groups.check(there, [], come, held)
    groups.check([*there, *come], there, [], held)
