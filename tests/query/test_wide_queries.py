"""The work of planning a query grows with the columns of its tables, not with their square."""

from __future__ import annotations

import cProfile
import pstats
import re

import pytest

from dagster_ips.query.affected_keys import SourceChange, origins
from dagster_ips.query.foreseen_steps import foreseen_steps
from dagster_ips.query.key_restriction import by_equality
from dagster_ips.query.maintenance_plan import MaintenancePlan, QueryColumn
from dagster_ips.query.near_rows import near_rows
from dagster_ips.query.query_text import read
from dagster_ips.query.spark_dialect import in_spark

FEW, MANY = 12, 48
MOST_TIMES = 1.1 * MANY / FEW

# <x, > stands for a list with an x for each column, whose name is in place of the question mark.
WIDE = {
    "all columns": "SELECT * FROM t",
    "distinct": "SELECT DISTINCT * FROM t",
    "computed groups": "SELECT k, <sum(?) / count(?) AS ?, > FROM t GROUP BY k",
    "groups by all": "SELECT <lower(?) AS ?, >, count(*) AS n FROM t GROUP BY <lower(?), >",
    "a join": "SELECT t.*, <u.? AS d_?, > FROM t JOIN u ON t.id = u.id",
    "a left join": "SELECT t.*, <u.? AS d_?, > FROM t LEFT JOIN u ON t.id = u.id",
    "a join by all": "SELECT t.* FROM t LEFT JOIN u ON <t.? = u.? AND >",
    "windows": "SELECT id, <sum(?) OVER (PARTITION BY id, ? ORDER BY k) AS ?, > FROM t",
}


@pytest.mark.parametrize("name", WIDE)
def test_the_work_for_wide_tables_grows_with_their_columns(name: str) -> None:
    calls_of(name, 2)  # What is imported or compiled first isn't counted.
    few, many = (calls_of(name, count) for count in (FEW, MANY))
    assert many / few < MOST_TIMES


def calls_of(name: str, count: int) -> int:
    """How many calls it takes to plan the query and to write what its runs ask Spark."""
    profile = cProfile.Profile()
    names = [f"c{place}" for place in range(count)]
    text = re.sub("<(.*?)(, | AND )>", lambda each: each[2].join(each[1].replace("?", n) for n in names), WIDE[name])
    profile.runcall(planned, text, names)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]  # it isn't in the stubs


def planned(text: str, names: list[str]) -> None:
    query = read(text)
    given = [QueryColumn(name, "int") for name in ("id", "k", *names)]
    plan = MaintenancePlan(query, [given] * len(query.sources))
    assert plan.refused is None
    sources = range(len(query.sources))
    both = dict.fromkeys(sources, SourceChange(adds=True, removes=True))
    steps = [*(each.step for each in foreseen_steps(plan, sources)), plan.step(both, known_before=frozenset(both))]
    for step in steps:
        assert step.rows is not None
        rows, near = step.rows, {}
        if step.affected is not None:
            keys = step.affected.named_selects
            origins(step.affected, keys)
            in_spark(step.affected)
            rows, near = near_rows(by_equality(step.rows, set(keys)), dict.fromkeys(sources, True))
        for each in (rows, *(found.query for found in near.values())):
            in_spark(each)
    in_spark(plan.all_rows)
    plan.means_the_same_over([given[:-1]] * len(query.sources), same_columns=False)
