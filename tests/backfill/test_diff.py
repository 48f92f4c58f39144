"""A diff shows exactly what differs from the previous state: by partition, by column, with rows."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from itertools import product
from typing import Any

import dagster as dg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import dagster_ips as ips
from dagster_ips.core.backfill_plan import BackfillPlan, PlannedRead, PlannedStage
from dagster_ips.core.row_changes import RowChanges, SideOfRows
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from dagster_ips.orchestration.backfill.differing import RowKeys, StageDifference
from dagster_ips.orchestration.backfill.reports import ShownTable, difference_report, plan_head
from dagster_ips.spark.row_differences import differences
from dagster_ips.spark.settings import with_settings
from tests.backfill.three_stages import ThreeStages
from tests.support.lake import Lake, events
from tests.support.without_spark import manager_of


@pytest.mark.slow
def test_a_diff_shows_exactly_the_planted_difference(stages: ThreeStages) -> None:
    stages.begin()
    wrong = stages.right(bug=True)
    stages.deploy(bug=False)
    plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-10")
    stages.says("launch", plan, "--yes")
    assert [each["total"]["changed"] for each in stages.told("diff", plan)["stages"]] == [0, 0, 0]
    stages.backfill(plan)
    stages.follow()
    right = stages.right(bug=False)
    assert stages.rows() == right
    day, by_account, week = stages.told("diff", plan)["stages"]

    bad = [row for row in stages.events if row[2] == "a1" and row[3]]
    assert (day["total"]["added"], day["total"]["removed"], day["total"]["changed"]) == (0, 0, len(bad))
    assert day["total"]["columns"] == {"seconds": len(bad)}
    by_day = Counter(str(row[1]) for row in bad)
    assert {part: each["changed"] for part, each in day["partitions"].items() if each["changed"]} == by_day
    sums = [sum(row[3] for row in rows["media.day"]) for rows in (wrong, right)]
    assert [int(day["total"][side]["sums"]["seconds"]) for side in ("before", "after")] == sums
    assert by_account["total"]["columns"] == {"seconds": 1}
    assert [(each["kind"], each["key"], each["column"]) for each in by_account["examples"]] == [
        ("changed", "account=a1", "seconds")
    ]
    # Without a key, a changed row counts as one removed and one added row.
    assert (week["keys"], week["total"]["added"], week["total"]["removed"]) == ([], 2, 2)
    assert week["commits_of_other_changes"] == []
    text = stages.says("diff", plan)
    assert f"day (by event_date, event_id): 0 rows added, 0 removed, {len(bad)} changed." in text


@pytest.mark.slow
def test_a_diff_names_later_commits_of_others(stages: ThreeStages) -> None:
    stages.begin()
    plan = stages.plan("day", "--partition", "2026-01-01")
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    stages.arrive(*events([100], day=0))
    day, *_ = stages.told("diff", plan)["stages"]
    assert (day["total"]["added"], len(day["commits_of_other_changes"])) == (1, 1)


@pytest.mark.slow
def test_a_column_that_was_renamed_since_is_no_difference(stages: ThreeStages) -> None:
    stages.begin()
    plan = stages.plan("day", "--partition", "2026-01-01")
    stages.says("launch", plan, "--yes")
    stages.lake.sql("ALTER TABLE lake.media.by_account RENAME COLUMN plays TO visits")
    stages.lake.sql("INSERT INTO lake.media.by_account VALUES ('new', 1, 1)")
    total = stages.told("diff", plan)["stages"][1]["total"]
    assert (total["added"], total["removed"], total["changed"]) == (1, 0, 0)


VALUES = st.sampled_from([None, 1, 2])
Rows = list[tuple[str, int | None, int | None]]
ROWS = st.lists(st.tuples(st.sampled_from(["a", "b"]), VALUES, VALUES), max_size=6)
Keyed = dict[str, int | None]
KEYED = st.dictionaries(st.sampled_from("abcd"), VALUES)


def many(some: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, Any]]]:
    """Rows before and after, twelve times. They are compared at once, divided by their number."""
    return st.lists(st.tuples(some, some), min_size=12, max_size=12)


# The first example of a strategy is its simplest one.
at_once = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def session(lake: Lake) -> SparkSession:
    return lake.session


@at_once
@given(cases=many(ROWS))
def test_rows_without_a_key_are_compared_as_multisets(session: SparkSession, cases: list[tuple[Rows, Rows]]) -> None:
    old, new = (
        session.createDataFrame(
            [(n, *row) for n, case in enumerate(cases) for row in case[side]], "n int, p string, x int, y int"
        )
        for side in (0, 1)
    )
    found = differences(old, new, keys=(), divided_by=["n", "p"]).by_values
    for (n, (before, after)), part in product(enumerate(cases), ("a", "b")):
        one, other = (Counter(row for row in rows if row[0] == part) for rows in (before, after))
        changes = found.get((n, part), RowChanges())
        assert (changes.added, changes.removed) == ((other - one).total(), (one - other).total())
        assert (changes.before.rows, changes.after.rows) == (one.total(), other.total())
        for side, rows in ((changes.before, one), (changes.after, other)):
            known = [row[1] for row in rows.elements() if row[1] is not None]
            assert side.sums.get("x") == (sum(known) if known else None)
            assert side.nulls.get("x", 0) == rows.total() - len(known)


@at_once
@given(cases=many(KEYED))
def test_rows_with_a_key_are_counted_as_added_removed_or_changed(
    session: SparkSession, cases: list[tuple[Keyed, Keyed]]
) -> None:
    old, new = (
        session.createDataFrame(
            [(n, *row) for n, case in enumerate(cases) for row in case[side].items()], "n int, k string, x int"
        )
        for side in (0, 1)
    )
    found = differences(old, new, keys=["n", "k"], divided_by=["n"]).by_values
    for n, (before, after) in enumerate(cases):
        changes = found.get((n,), RowChanges())
        assert changes.added == len(after.keys() - before.keys())
        assert changes.removed == len(before.keys() - after.keys())
        assert changes.changed == sum(before[key] != after[key] for key in before.keys() & after.keys())
        assert changes.columns == ({"x": changes.changed} if changes.changed else {})


def test_any_row_of_a_key_is_as_good_as_another_also_of_a_null(session: SparkSession) -> None:
    """As ``append(dedup_on=…)`` writes them: which of the rows with one key it keeps is up to Spark."""
    every = [("a", 1, 2), ("a", 1, 3), ("b", 2, 1), (None, 4, 5), (None, 6, 7)]
    made, good = (session.createDataFrame(rows, "k string, x int, y int") for rows in (every, every[1:4]))
    (changes,) = differences(made, good, keys=["k"], any_row_of_key=True).by_values.values()
    assert (changes.is_none, changes.before) == (True, changes.after)
    bad = session.createDataFrame([("a", 1, 4), *every[2:]], "k string, x int, y int")
    (changes,) = differences(made, bad, keys=["k"], any_row_of_key=True).by_values.values()
    assert (changes.added, changes.removed, changes.columns) == (1, 0, {"y": 1})
    assert (changes.before.rows, changes.after.rows) == (3, 4)


def test_rows_whose_keys_repeat_are_compared_as_a_whole(session: SparkSession) -> None:
    before = [("a", 1), ("b", 2)]
    old, new, twice = (
        session.createDataFrame(rows, "k string, x int")
        for rows in (before, [("a", 1), ("b", 3)], [("a", 1), ("b", 2), ("b", 3)])
    )
    found = differences(old, new, keys=["k"], keys_may_repeat=True)
    assert (found.repeats_keys, found.by_values[()].changed) == (False, 1)
    for one, other in ((new, twice), (twice, new)):
        found = differences(one, other, keys=["k"], keys_may_repeat=True)
        changes = found.by_values[()]
        assert (found.repeats_keys, changes.added + changes.removed, changes.changed) == (True, 1, 0)


@pytest.mark.parametrize(
    ("value", "divided"),
    [
        ("'2026-01-05-03:00'", "2026-01-05-03:00"),
        ("DATE '2026-01-05'", dt.date(2026, 1, 5)),
        ("TIMESTAMP_NTZ '2026-03-29 02:30:07'", dt.datetime.fromisoformat("2026-03-29T02:30")),
        ("TIMESTAMP '2026-01-05 03:00:07Z'", dt.datetime.fromisoformat("2026-01-05T03:00Z")),
    ],
    ids=["text", "date", "time without zone", "time"],
)
def test_rows_are_divided_by_minutes_only_if_they_have_any_and_never_by_the_time_zone_of_the_session(
    session: SparkSession, value: str, divided: object
) -> None:
    """The local time without a zone doesn't occur in the session's time zone."""
    with with_settings(session, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        before, after = (session.sql(f"SELECT {n} AS n, {value} AS at") for n in (1, 2))
        found = differences(before, after, keys=["at"], divided_by=["at"], by_minute=["at"])
    assert {key: each.changed for key, each in found.by_values.items()} == {(divided,): 1}


def test_rows_are_identified_by_the_columns_that_the_write_mode_names(instance: dg.DagsterInstance) -> None:
    def asset(name: str, **declared: object) -> dg.AssetsDefinition:
        @dg.asset(name=name, ins={"playback": ips.incremental()}, metadata=declared)
        def made(playback: ips.IcdcView) -> object:
            return playback.added

        return made

    assets = [
        ips.iceberg_asset("playback", table="media.playback"),
        asset("merged", **ips.merge(on=["event_id"])),
        asset("deduplicated", **ips.append(dedup_on=["event_id"])),
        asset("removed", **ips.append(remove_on=["event_date", "event_id"])),
        asset("replaced", **ips.replace()),
        ips.sql_asset("grouped", "SELECT account, sum(seconds) AS seconds FROM playback GROUP BY account"),
    ]
    definitions = ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager_of("unused")}))
    lineage = BackfillDesk.of([definitions], instance).lineage
    assert {name: RowKeys.of(lineage, name) for name in lineage.written} == {
        "merged": RowKeys(("event_id",)),
        "deduplicated": RowKeys(("event_id",)),
        "removed": RowKeys(("event_date", "event_id"), may_repeat=True),
        "replaced": RowKeys(),
        "grouped": RowKeys(("account",), may_repeat=True),
    }


@pytest.mark.parametrize(
    ("keys", "repeated", "by"),
    [
        (("k",), (), "by k"),
        ((), (), "by whole rows, because no key is known"),
        ((), ("k",), "by whole rows, because several have the same k"),
        (("k",), ("k",), "by k; by whole rows in partitions where several rows have the same k"),
    ],
)
def test_a_diff_says_by_what_rows_are_matched(keys: tuple[str, ...], repeated: tuple[str, ...], by: str) -> None:
    parts = {"": RowChanges(added=1)}
    found = StageDifference("day", "media.day", 1, 2, keys, parts, repeated_keys=repeated)
    assert difference_report(found)[0] == f"day ({by}): 1 row added, 0 removed, 0 changed."


def test_reports_show_all_numbers_in_the_same_form() -> None:
    sides = [SideOfRows(rows, {"x": Decimal(5 * rows), "y": 1234.5}, {"y": 1_100 + rows}) for rows in (9_894, 9_715)]
    changes = RowChanges(9_715, 9_894, 1_000, {"x": 1_000}, *sides)
    head, parts, columns = difference_report(StageDifference("day", "media.day", 1, 2, ("k",), {"": changes}))
    assert head == "day (by k): 9,715 rows added, 9,894 removed, 1,000 changed."
    assert isinstance(parts, ShownTable)
    assert parts.rows == (("all of it", "9,894 → 9,715", "9,715", "9,894", "1,000", "x (1,000)"),)
    assert isinstance(columns, ShownTable)
    assert columns.rows == (("y", "1,234.5", "1,234.5", "10,994", "10,815"),)
    stage = PlannedStage(
        "day", "media.day", ("t",), None, (PlannedRead("t", "media.t", 1_200, 10_095, 5_923_842),), seconds=2_000.4
    )
    _, planned = plan_head(BackfillPlan("planned1", 0, (stage,), ()))
    assert isinstance(planned, ShownTable)
    assert planned.rows[0][3:7] == ("1,200", "10,095", "5.9 MB", "2,000")


def test_rows_without_a_key_that_differ_only_in_floating_point_columns_are_changed(session: SparkSession) -> None:
    old, new = (
        session.createDataFrame(rows, "k string, x double") for rows in ([("a", 1.0), ("b", 2.0)], [("a", 3.0)])
    )
    found = differences(old, new, keys=())
    changes = found.by_values[()]
    assert (changes.added, changes.removed, changes.changed, changes.columns) == (0, 1, 1, {"x": 1})
    assert {each.key for each in found.examples} == {"k=a", "k=b, x=2.0"}
