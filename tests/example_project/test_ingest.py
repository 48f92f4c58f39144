"""The job that lands events: the same events for the same seed, as late as configured, and never twice after a kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from example_project import ingest as job
from example_project.events import BATCHES_PER_DAY, FIRST_DAY, LATE_DAYS, Workload, landing_batches, plan_changes
from example_project.ingest import Landed, ingest, landed
from example_project.lake import open_catalog

SMALL = Workload(rows_per_day=1_200, late=0.05, seed=3)


def landing_day(day: int, workload: Workload) -> pa.Table:
    return pa.concat_tables(landing_batches(day, workload))


def days_late(day: int, workload: Workload) -> np.ndarray:
    happened = landing_day(day, workload)["event_date"].cast(pa.int32()).to_numpy()
    return (FIRST_DAY.toordinal() - 719_163 + day) - happened


def read(folder: Path) -> pa.Table:
    table = open_catalog(folder).load_table(job.PLAYBACK)
    return table.scan().to_arrow().sort_by("event_id")


@given(day=st.integers(0, 40), rows=st.integers(0, 3_000), late=st.floats(0, 1), seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_any_workload_lands_all_its_rows_once_and_none_in_the_future_or_too_old(
    day: int, rows: int, late: float, seed: int
) -> None:
    workload = Workload(rows, late, seed)
    events = landing_day(day, workload)
    assert len(landing_batches(day, workload)) == BATCHES_PER_DAY
    assert events.num_rows == rows == pc.count_distinct(events["event_id"]).as_py()
    lateness = days_late(day, workload)
    assert np.count_nonzero(lateness) == (round(rows * late) if day else 0)
    assert ((lateness >= 0) & (lateness <= min(day, LATE_DAYS))).all()
    assert events["event_date"].equals(events["event_ts"].cast(pa.date32()))
    assert pc.all(pc.less_equal(events["event_ts"], events["ingested_at"])).as_py() in (True, None)
    assert events.equals(landing_day(day, workload))


def test_another_seed_or_day_gives_other_events() -> None:
    seconds = [landing_day(day, Workload(1_200, 0.05, seed))["play_seconds"] for day, seed in ((1, 1), (1, 2), (2, 1))]
    assert not any(seconds[i].equals(seconds[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_event_ids_of_different_days_differ() -> None:
    days = pa.concat_tables([landing_day(day, SMALL) for day in range(5)])
    assert pc.count_distinct(days["event_id"]).as_py() == days.num_rows


def test_lateness_decays_by_the_same_factor_every_day_over_thirteen_days() -> None:
    counts = np.bincount(days_late(20, Workload(1_000_000, late=0.5)), minlength=LATE_DAYS + 1)
    assert len(counts) == LATE_DAYS + 1
    assert counts[0] == 500_000
    expected = 0.6 ** np.arange(LATE_DAYS)
    assert counts[1:] == pytest.approx(500_000 * expected / expected.sum(), rel=0.2, abs=30)


def test_few_accounts_make_many_of_the_plays() -> None:
    accounts = landing_day(1, Workload(100_000))["account_id"].to_numpy()
    busiest = np.sort(np.bincount(accounts))[::-1]
    assert busiest[: len(busiest) // 100].sum() > 0.05 * len(accounts)


def test_a_day_lands_as_many_small_files(tmp_path: Path) -> None:
    ingest(tmp_path, 3, SMALL)
    table = open_catalog(tmp_path).load_table(job.PLAYBACK)
    assert len(table.snapshots()) == 3 * BATCHES_PER_DAY
    files = table.inspect.files()
    assert files.num_rows > 3 * BATCHES_PER_DAY
    assert sum(files["record_count"].to_pylist()) == 3 * SMALL.rows_per_day
    assert {operation.value for operation in (s.summary.operation for s in table.snapshots() if s.summary)} == {
        "append"
    }


def test_days_landed_one_by_one_are_the_same_as_landed_at_once(tmp_path: Path) -> None:
    ingest(tmp_path / "at_once", 3, SMALL)
    for _ in range(3):
        ingest(tmp_path / "one_by_one", 1, SMALL)
    assert read(tmp_path / "at_once").equals(read(tmp_path / "one_by_one"))


def test_a_killed_ingest_continues_with_the_first_batch_that_had_not_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(tmp_path / "whole", 2, SMALL)
    append, calls = Table.append, iter(range(100))

    def killed_on_the_10th(table: Table, *arguments: object, **named: object) -> None:  # the first call appends plans
        if next(calls) == 9:
            raise KeyboardInterrupt
        append(table, *arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Table, "append", killed_on_the_10th)
        with pytest.raises(KeyboardInterrupt):
            ingest(tmp_path / "killed", 2, SMALL)
    table = open_catalog(tmp_path / "killed").load_table(job.PLAYBACK)
    assert landed(table) == Landed(day=1, batches=2)
    ingest(tmp_path / "killed", 1, SMALL)
    assert read(tmp_path / "killed").equals(read(tmp_path / "whole"))


def test_a_commit_by_another_job_does_not_make_the_ingest_start_over(tmp_path: Path) -> None:
    ingest(tmp_path, 2, SMALL)
    table = open_catalog(tmp_path).load_table(job.PLAYBACK)
    table.delete("account_id = 0")
    assert landed(table) == Landed(day=2, batches=0)


def test_the_ingest_job_is_independent_of_dagster_and_spark() -> None:
    """The job imports neither Dagster nor Spark nor this library."""
    loaded = "import example_project.ingest, sys; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert not {"dagster", "dagster_ips", "pyspark"} & set(done.stdout.split())


@given(rows=st.integers(0, 3_000), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_every_account_has_a_plan_from_the_first_day_and_changes_land_weekly_at_most_half_of_them_late(
    rows: int, seed: int
) -> None:
    workload = Workload(rows, seed=seed)
    accounts = pc.unique(landing_day(0, workload)["account_id"]).to_pylist()
    first = plan_changes(0, workload)
    assert set(accounts) <= set(first["account_id"].to_pylist())
    assert set(first["valid_on"].to_pylist()) == {FIRST_DAY}
    later = {day: plan_changes(day, workload) for day in range(1, 29)}
    assert {day for day, changes in later.items() if changes.num_rows} == {7, 14, 21, 28}
    for day, changes in later.items():
        lateness = [(FIRST_DAY - valid).days + day for valid in changes["valid_on"].to_pylist()]
        assert all(0 <= late <= min(day, LATE_DAYS) for late in lateness)
        assert sum(late > 0 for late in lateness) <= (len(lateness) + 1) // 2
    ids = pc.count_distinct(pa.concat_tables([first, *later.values()])["change_id"]).as_py()
    assert ids == first.num_rows + sum(changes.num_rows for changes in later.values())


@pytest.mark.slow
def test_plans_land_once_whether_days_land_at_once_one_by_one_or_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plans(folder: Path) -> pa.Table:
        return open_catalog(folder).load_table(job.ACCOUNT_PLAN).scan().to_arrow().sort_by("change_id")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    ingest(tmp_path / "at_once", 9, SMALL)
    ingest(tmp_path / "killed", 7, SMALL)
    with monkeypatch.context() as patched:
        patched.setattr(job, "_land_day", killed)
        with pytest.raises(KeyboardInterrupt):
            ingest(tmp_path / "killed", 1, SMALL)
    for _ in range(2):
        ingest(tmp_path / "killed", 1, SMALL)
    assert plans(tmp_path / "killed").equals(plans(tmp_path / "at_once"))
