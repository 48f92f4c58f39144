"""An Overwrite replaces exactly the rows that match its condition, and the target equals a full recompute after it."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.errors import (
    ConditionError,
    DeclarationError,
    FragmentOverwriteError,
    IpsError,
    MixedFilesError,
    OutputTypeError,
    OutsideConditionError,
    UnknownColumnError,
)
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.progress import copied_state
from tests.support.variants import mostly_slow

PLANS = ips.iceberg_asset("plans", table="media.plans")
BOTH = {"playback": ips.incremental(ranges=["event_date"]), "plans": ips.incremental(ranges=["valid_on"])}


def totals(playback: DataFrame, plans: DataFrame) -> DataFrame:
    """For each account and day: its seconds up to that day, and the plan that it had on that day."""
    days = playback.groupBy("event_date", "account").agg(F.sum("seconds").alias("seconds")).alias("d")
    known = F.expr("d.account <=> p.account AND p.valid_on <= d.event_date")
    valid = F.max_by("plan", "valid_on").alias("plan")
    with_plan = days.join(plans.alias("p"), known, "left").groupBy("d.event_date", "d.account", "seconds").agg(valid)
    so_far = Window.partitionBy("account").orderBy("event_date")
    return with_plan.select("event_date", "account", F.sum("seconds").over(so_far).alias("total"), "plan")


def since_the_first_change(playback: ips.IcdcView, plans: ips.IcdcView) -> ips.Overwrite:
    scope = (playback.range("event_date") | plans.range("valid_on")).since("event_date")
    return ips.Overwrite(totals(playback.source, plans.source).where(scope), where=scope)


@dg.asset(ins=BOTH, metadata=ips.table("media.by_date", partition_by=["event_date"]))
def by_date(playback: ips.IcdcView, plans: ips.IcdcView) -> ips.Overwrite:
    return since_the_first_change(playback, plans)


@dg.asset(ins=BOTH, metadata=ips.table("media.in_one"))
def in_one(playback: ips.IcdcView, plans: ips.IcdcView) -> ips.Overwrite:
    return since_the_first_change(playback, plans)


TARGETS = {"by_date": by_date, "in_one": in_one}
STEPS = {
    "nothing": "",
    "late rows": "INSERT INTO {p} VALUES (50, DATE '2026-01-02', 'a1', 11), (51, DATE '2026-01-03', 'new', 5)",
    "a deleted row": "DELETE FROM {p} WHERE event_id = 4",
    "an account's last row": "DELETE FROM {p} WHERE account = 'new'",
    "an update, to null too": "UPDATE {p} SET seconds = 99, account = nullif(account, 'a0') WHERE event_id IN (6, 21)",
    "a row that moves to another day": "UPDATE {p} SET event_date = DATE '2026-02-01' WHERE event_id = 3",
    "a day that is null": "UPDATE {p} SET event_date = NULL WHERE event_id = 7",
    "a plan that is back-dated": "INSERT INTO {q} VALUES ('a1', 'big', DATE '2026-01-02')",
    "a plan that is corrected": "UPDATE {q} SET plan = 'tiny' WHERE plan = 'big'",
    "a plan that was never valid": "DELETE FROM {q} WHERE account = 'a0'",
    "both at once": "INSERT INTO {q} VALUES ('a0', 'new', DATE '2026-01-03'); DELETE FROM {p} WHERE event_id = 22",
    "everything gone": "DELETE FROM {p}",
    "something again": "INSERT INTO {p} VALUES (90, DATE '2026-01-02', 'a1', 3)",
}

ROUNDS = (
    ("late rows", "a deleted row", "a plan that is back-dated"),
    ("an account's last row", "an update, to null too", "a row that moves to another day", "a plan that is corrected"),
    ("a day that is null", "a plan that was never valid", "both at once"),
    ("everything gone", "nothing"),
    ("something again",),
)


@pytest.fixture
def changing(lake: Lake) -> Lake:
    """Three days of events, changed merge-on-read, and four plans, changed copy-on-write."""
    lake.create_playback(events(range(10)) + events(range(20, 26), day=1) + events(range(30, 33), day=2))
    create_plans(lake)
    modes = ", ".join(f"'write.{change}.mode'='merge-on-read'" for change in ("delete", "update"))
    lake.sql(f"ALTER TABLE lake.media.playback SET TBLPROPERTIES ({modes})")
    return lake


def create_plans(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.media.plans (account string, plan string, valid_on date) USING iceberg")
    first = "('a0', 'small', DATE '2026-01-01'), ('a1', 'small', DATE '2026-01-01'), ('a2', 'mid', DATE '2026-01-02')"
    lake.sql(f"INSERT INTO lake.media.plans VALUES {first}, ('a0', 'mid', DATE '2026-01-03')")


def recomputed(lake: Lake) -> Counter[tuple[Any, ...]]:
    """The rows that a target must have, computed without Spark."""
    seconds: Counter[tuple[Any, Any]] = Counter()
    for _, day, account, played in lake.rows("media.playback").elements():
        seconds[account, day or dt.date.min] += played
    changes = sorted((valid_on, account, plan) for account, plan, valid_on in lake.rows("media.plans"))
    rows: Counter[tuple[Any, ...]] = Counter()
    for account, day in seconds:
        total = sum(played for (other, earlier), played in seconds.items() if other == account and earlier <= day)
        valid = [plan for valid_on, other, plan in changes if other == account and valid_on <= day]
        rows[None if day == dt.date.min else day, account, total, valid[-1] if valid else None] += 1
    return rows


def check_rounds(lake: Lake, instance: dg.DagsterInstance, rounds: Iterable[Sequence[str]]) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, PLANS, *TARGETS.values())
    materialize(definitions, instance, *TARGETS)
    for steps in rounds:
        for statement in "; ".join(STEPS[step] for step in steps).split("; "):
            if statement:
                lake.sql(statement.format(p="lake.media.playback", q="lake.media.plans"))
        materialize(definitions, instance, *TARGETS)
        expected = recomputed(lake)
        for target in TARGETS:
            assert lake.rows(f"media.{target}") == expected, f"{target} after {steps}"


@pytest.mark.slow
def test_ranges_of_two_inputs_replace_what_changes_of_both_affect(changing: Lake, instance: dg.DagsterInstance) -> None:
    check_rounds(changing, instance, ROUNDS)


@pytest.mark.slow
def test_ranges_of_two_inputs_replace_what_any_change_of_either_affects(
    changing: Lake, instance: dg.DagsterInstance
) -> None:
    check_rounds(changing, instance, [[step] for step in STEPS])


def test_rounds_have_every_step() -> None:
    assert sorted(step for steps in ROUNDS for step in steps) == sorted(STEPS)


@pytest.fixture
def two_days(lake: Lake) -> Lake:
    lake.create_playback(events(range(4)) + events(range(4, 8), day=1))
    create_plans(lake)
    return lake


def operations(lake: Lake, target: str) -> list[tuple[str, int]]:
    """Operation and number of removed files of each commit, oldest first."""
    snapshots = reversed(lake.catalog.load(f"media.{target}", asset="test").ancestry().snapshots)
    return [(s.operation, int(s.summary.get("deleted-data-files", 0))) for s in snapshots]


def test_a_condition_on_partitions_is_one_commit_that_leaves_the_other_partitions_alone(
    two_days: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(two_days.folder, two_days.spark_folder, PLANS, by_date)
    materialize(definitions, instance, "by_date")
    first = operations(two_days, "by_date")
    two_days.append(events([8], day=1))
    materialize(definitions, instance, "by_date")
    assert operations(two_days, "by_date") == [*first, ("overwrite", 1)]


def test_an_empty_change_publishes_nothing(two_days: Lake, instance: dg.DagsterInstance) -> None:
    definitions = pipeline(two_days.folder, two_days.spark_folder, PLANS, *TARGETS.values())
    materialize(definitions, instance, *TARGETS)
    before = {target: operations(two_days, target) for target in TARGETS}
    two_days.sql("UPDATE lake.media.playback SET seconds = seconds WHERE event_id = 3")
    materialize(definitions, instance, *TARGETS)
    assert {target: operations(two_days, target) for target in TARGETS} == before


def test_a_full_run_replaces_everything_even_rows_that_no_condition_would_match(
    two_days: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(two_days.folder, two_days.spark_folder, PLANS, by_date)
    materialize(definitions, instance, "by_date")
    two_days.sql("INSERT INTO lake.media.by_date VALUES (DATE '2020-01-01', 'stray', 1, NULL), (NULL, 'x', 1, NULL)")
    materialize(definitions, instance, "by_date", tags={"dagster_ips/mode": "full"})
    assert two_days.rows("media.by_date") == recomputed(two_days)


Compute = Callable[[ips.IcdcView], Any]
BY_DATE = ["event_date"]


def over_playback(compute: Compute, partition_by: list[str] | None = None) -> dg.AssetsDefinition:
    """An asset ``copy`` over ``playback`` that returns what ``compute`` does."""

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.table("media.copy", partition_by=partition_by or []))
    def copy(playback: ips.IcdcView) -> ips.Overwrite:
        return compute(playback)  # type: ignore[no-any-return]  # each test chooses what it returns

    return copy


def matching(where: str) -> Compute:
    return lambda view: ips.Overwrite(
        view.source.where(where) if view.mode is ips.Mode.INCREMENTAL else view.source, where
    )


@pytest.mark.parametrize(
    ("where", "partition_by"),
    mostly_slow(
        [
            ("event_date = '2026-01-02' OR event_date IS NULL", ["event_date"]),
            ("account = 'a1' AND event_date >= DATE '2026-01-02'", ["event_date"]),
            ("date_trunc('week', event_date) = TIMESTAMP '2025-12-29'", ["event_date"]),
            ("`ACCOUNT` LIKE 'a%'", ["account"]),
            ("account <> 'a0'", ["bucket(2, account)"]),
            ("account <> 'a0'", ["account"]),
            ("account NOT IN ('a0') OR NOT (event_date >= DATE '2026-01-02')", ["account", "event_date"]),
            ("event_date > '2026-01-01'", []),
        ]
    ),
)
def test_any_condition_replaces_the_rows_that_match_it_and_no_other(
    lake: Lake, instance: dg.DagsterInstance, where: str, partition_by: list[str]
) -> None:
    nulls = "(90, NULL, 'a1', 1), (91, DATE '2026-01-02', NULL, 2), (92, NULL, NULL, 3)"
    lake.create_playback(events(range(6)) + events(range(6, 12), day=1))
    lake.sql(f"INSERT INTO lake.media.playback VALUES {nulls}")
    definitions = pipeline(lake.folder, lake.spark_folder, over_playback(matching(where), partition_by))
    materialize(definitions, instance, "copy")
    kept = lake.sql(f"SELECT * FROM lake.media.playback WHERE NOT coalesce({where}, false)").collect()
    lake.sql("UPDATE lake.media.playback SET seconds = seconds + 100")
    lake.append(events([12], day=1))
    materialize(definitions, instance, "copy")
    expected = [*kept, *lake.sql(f"SELECT * FROM lake.media.playback WHERE {where}").collect()]
    assert lake.rows("media.copy") == Counter(tuple(row) for row in expected)


def test_a_table_whose_partitioning_changed_keeps_the_rows_that_do_not_match(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(4)) + events(range(4, 8), day=1))
    definitions = pipeline(lake.folder, lake.spark_folder, over_playback(matching("event_date = DATE '2026-01-02'")))
    materialize(definitions, instance, "copy")
    lake.sql("ALTER TABLE lake.media.copy ADD PARTITION FIELD event_date")
    for day in (1, 0):
        lake.append(events([8 + day], day=day))
        materialize(definitions, instance, "copy")
    assert set(lake.rows("media.playback") - lake.rows("media.copy")) == set(events([8]))


def fails(lake: Lake, instance: dg.DagsterInstance, kind: type[IpsError], compute: Compute) -> str:
    """After a full run, an incremental one fails with ``kind``; the table and the cursor stay. The error's message."""
    definitions = pipeline(lake.folder, lake.spark_folder, over_playback(compute, BY_DATE))
    materialize(definitions, instance, "copy")
    before = lake.rows("media.copy"), lake.commits("media.copy"), state_of(instance)
    lake.append([(99, None, "a1", 5)])  # type: ignore[list-item]
    with pytest.raises(kind) as raised:
        materialize(definitions, instance, "copy")
    assert (lake.rows("media.copy"), lake.commits("media.copy"), state_of(instance)) == before
    assert lake.branches("media.copy") == {"main"}
    return str(raised.value)


def fails_at_once(lake: Lake, instance: dg.DagsterInstance, kind: type[IpsError], compute: Compute) -> str:
    """The first run fails with ``kind``, and nothing is written or consumed. The error's message."""
    with pytest.raises(kind) as raised:
        materialize(pipeline(lake.folder, lake.spark_folder, over_playback(compute, BY_DATE)), instance, "copy")
    assert lake.commits("media.copy") == 0
    assert state_of(instance)[0] is None
    return str(raised.value)


def state_of(instance: dg.DagsterInstance) -> tuple[object, int]:
    state: EdgeState = copied_state(instance, Edge("copy", "playback"))
    return state.committed, state.number


def test_rows_outside_the_condition_are_refused_including_nulls(two_days: Lake, instance: dg.DagsterInstance) -> None:
    where = "event_date >= DATE '2026-01-02'"
    error = fails(
        two_days,
        instance,
        OutsideConditionError,
        lambda view: ips.Overwrite(view.source.where(f"{where} OR event_date IS NULL"), where),
    )
    assert "1 of the rows" in error
    assert "event_date is null" in error


@pytest.mark.slow
def test_a_condition_that_matches_nothing_refuses_every_row(two_days: Lake, instance: dg.DagsterInstance) -> None:
    nothing = ips.ChangeRange.nothing("event_date").since("event_date")
    error = fails(two_days, instance, OutsideConditionError, lambda view: ips.Overwrite(view.source, nothing))
    assert "9 of the rows" in error


def test_a_condition_that_matches_nothing_leaves_the_table_as_it_is(
    two_days: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(two_days.folder, two_days.spark_folder, over_playback(matching("FALSE")))
    materialize(definitions, instance, "copy")
    before = two_days.rows("media.copy"), two_days.commits("media.copy")
    two_days.append(events([9]))
    materialize(definitions, instance, "copy")
    assert (two_days.rows("media.copy"), two_days.commits("media.copy")) == before


def test_a_condition_on_an_unknown_column_is_refused_and_the_column_named(
    two_days: Lake, instance: dg.DagsterInstance
) -> None:
    error = fails_at_once(
        two_days, instance, UnknownColumnError, lambda view: ips.Overwrite(view.source, "event_dat > DATE '2026-01-01'")
    )
    assert "'event_dat'; it has event_id, event_date" in error


def test_a_condition_on_a_column_that_only_the_frame_has_is_refused(
    two_days: Lake, instance: dg.DagsterInstance
) -> None:
    def compute(view: ips.IcdcView) -> ips.Overwrite:
        is_full = view.mode is ips.Mode.FULL
        frame = view.source if is_full else view.source.withColumn("hour", F.lit(1))
        return ips.Overwrite(frame, "TRUE" if is_full else "hour = 1")

    error = fails(two_days, instance, UnknownColumnError, compute)
    assert error.startswith("media.copy has no column 'hour'")


@pytest.mark.parametrize("where", ["seconds", "seconds >", "rand() >= 0"])
def test_a_text_that_is_no_usable_condition_is_refused(
    two_days: Lake, instance: dg.DagsterInstance, where: str
) -> None:
    error = fails_at_once(two_days, instance, ConditionError, lambda view: ips.Overwrite(view.source, where))
    assert "can't be applied" in error


def test_a_condition_with_a_subquery_is_refused(two_days: Lake, instance: dg.DagsterInstance) -> None:
    where = "event_id <= (SELECT max(event_id) FROM lake.media.playback)"
    error = fails(two_days, instance, ConditionError, lambda view: ips.Overwrite(view.source, where))
    assert "can't be applied" in error


@pytest.mark.parametrize("frame", ["added", "affected(event_date)"])
def test_a_frame_that_does_not_hold_every_matching_row_is_refused(
    two_days: Lake, instance: dg.DagsterInstance, frame: str
) -> None:
    def compute(view: ips.IcdcView) -> ips.Overwrite:
        taken = view.affected("event_date") if "(" in frame else getattr(view, frame)
        return ips.Overwrite(taken, view.range("event_date").since("event_date"))

    definitions = pipeline(two_days.folder, two_days.spark_folder, over_playback(compute, BY_DATE))
    with pytest.raises(FragmentOverwriteError) as raised:  # in the first run already
        materialize(definitions, instance, "copy")
    assert two_days.commits("media.copy") == 0
    error = str(raised.value)
    assert f"built its frame on {frame}" in error
    assert "Build the frame on source" in error


@pytest.mark.parametrize(
    ("frame", "where", "found"),
    [(5, "TRUE", r"returned Overwrite\(int, str\)"), (None, 1, r"returned Overwrite\(pyspark DataFrame, int\)")],
)
def test_an_overwrite_whose_frame_or_condition_has_a_wrong_type_is_refused(
    two_days: Lake, instance: dg.DagsterInstance, frame: object, where: object, found: str
) -> None:
    asset = over_playback(lambda view: ips.Overwrite(frame or view.source, where))  # type: ignore[arg-type]
    with pytest.raises(OutputTypeError, match=found):
        materialize(pipeline(two_days.folder, two_days.spark_folder, asset), instance, "copy")


def test_an_overwrite_beside_another_write_mode_is_refused_at_load() -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append())
    def twofold(playback: ips.IcdcView) -> ips.Overwrite:
        return ips.Overwrite(playback.source, "TRUE")

    with pytest.raises(DeclarationError, match="also declares another write mode"):
        pipeline(Path("nowhere"), Path("nowhere"), twofold)


def test_an_overwrite_without_a_return_annotation_is_refused_beside_another_write_mode(
    two_days: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.copy"))
    def copy(playback: ips.IcdcView):  # type: ignore[no-untyped-def]  # noqa: ANN202  # this is what is tested
        return ips.Overwrite(playback.source, "TRUE")

    with pytest.raises(DeclarationError, match="declares another write mode"):
        materialize(pipeline(two_days.folder, two_days.spark_folder, copy), instance, "copy")
    assert two_days.catalog.find("media.copy") is None


def test_an_overwrite_without_an_incremental_input_is_refused(two_days: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(metadata=ips.table("media.copy"))
    def copy(playback: DataFrame) -> ips.Overwrite:
        return ips.Overwrite(playback, "TRUE")

    with pytest.raises(DeclarationError, match="no incremental input"):
        materialize(pipeline(two_days.folder, two_days.spark_folder, copy), instance, "copy")


@pytest.mark.slow
def test_partitions_are_not_replaced_within_files_from_before_the_table_was_partitioned(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.overwrite_partitions() | ips.table("media.days", partition_by=["event_date"]),
    )
    def days(playback: ips.IcdcView) -> DataFrame:
        return playback.scope

    definitions, full = pipeline(lake.folder, lake.spark_folder, days), {"dagster_ips/mode": "full"}
    lake.create_playback(events(range(4)) + events(range(10, 14), day=1))
    materialize(definitions, instance, "days")
    lake.sql("ALTER TABLE lake.media.days DROP PARTITION FIELD event_date")
    materialize(definitions, instance, "days", tags=full)
    lake.sql("ALTER TABLE lake.media.days ADD PARTITION FIELD event_date")
    before = lake.rows("media.days")
    lake.append(events([4]))
    with pytest.raises(MixedFilesError, match=r"media\.days has files .* dagster_ips/mode=full"):
        materialize(definitions, instance, "days")
    assert lake.rows("media.days") == before
    materialize(definitions, instance, "days", tags=full)
    lake.append(events([5]))
    materialize(definitions, instance, "days")
    assert lake.rows("media.days") == lake.rows("media.playback")
