"""Runs that overlap, sleep, fail and are repeated: one publishes, the others leave nothing, and no row is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import dagster as dg
import pytest

from dagster_ips.exactly_once import effects
from dagster_ips.exactly_once.effects import Effect
from tests.support.backends import POSTGRES, SQLITE, on_every_backend
from tests.support.kind_runs import Runs
from tests.support.kinds import KINDS, start_run
from tests.support.lake import Lake

pytestmark = pytest.mark.slow

NAMES = [name for kind in KINDS for name in kind.names]
WAIT_SECONDS = 300


@pytest.fixture
def runs(lake: Lake, instance: dg.DagsterInstance) -> Runs:
    runs = Runs(lake, instance)
    runs.run_all()
    runs.arrive()
    return runs


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        state = subprocess.run(
            ["/bin/ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, text=True, check=False
        )
        if state.stdout.startswith("T"):
            return
        assert state.stdout, "it ended before it came to where it was to stop"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def repeatable_job(lake: Lake) -> Any:  # noqa: ANN401  # Dagster has no public name for it
    folders = (str(lake.folder), str(lake.spark_folder))  # Dagster keeps one job per module, name and arguments.
    return dg.build_reconstructable_job("tests.support.kinds", "kinds_job", reconstructable_args=folders)


@pytest.mark.parametrize(
    ("instance", "at"),
    [
        (SQLITE, f"after:{Effect.REGISTER_ICDC_TABLE}"),
        (SQLITE, f"after:{Effect.CREATE_BRANCH}"),
        (SQLITE, f"before:{Effect.PUBLISH}"),
        *((database, f"before:{Effect.COPY_PROGRESS}") for database in (SQLITE, POSTGRES)),
    ],
    indirect=["instance"],
)
def test_a_run_that_sleeps_while_others_publish_wakes_up_and_changes_nothing(runs: Runs, at: str) -> None:
    home, before = runs.instance.root_directory, len(runs.instance.get_runs())
    sleepers = [start_run(home, runs.lake, *kind.names, at=at, order=signal.SIGSTOP) for kind in KINDS]
    for sleeper in sleepers:
        assert sleeper.pid
        wait_until_stopped(sleeper.pid)
    runs.arrive()
    runs.run_all()
    runs.check()
    published = {table: runs.lake.commits(table) for table in runs.tables()}
    for sleeper in sleepers:
        os.kill(sleeper.pid or 0, signal.SIGCONT)
    for sleeper in sleepers:
        sleeper.join()
    assert {table: runs.lake.commits(table) for table in runs.tables()} == published
    runs.check_tables()
    runs.check_messages(since=before)
    runs.arrive()
    runs.run_all()
    runs.check()


@on_every_backend
@pytest.mark.parametrize("groups", [(NAMES[:1], NAMES[:1]), (NAMES, NAMES), (NAMES[:3], NAMES[2:], NAMES[1:4])])
def test_when_runs_are_launched_at_once_one_publishes_and_the_others_end_with_a_clear_message(
    runs: Runs, groups: Sequence[Sequence[str]]
) -> None:
    before = len(runs.instance.get_runs())
    for _ in range(3):
        processes = [start_run(runs.instance.root_directory, runs.lake, *names) for names in groups]
        for process in processes:
            process.join()
        runs.arrive()
    runs.check_messages(since=before)
    runs.run_all()
    runs.check()


@on_every_backend
@pytest.mark.parametrize(
    "at",
    [
        (Effect.REGISTER_ICDC_TABLE, "after"),
        (Effect.WRITE_BRANCH, "after"),
        (Effect.PUBLISH, "before"),
        (Effect.PUBLISH, "after"),
    ],
    ids=str,
)
def test_a_run_that_failed_is_repeated_from_where_it_failed(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, at: tuple[Effect, str]
) -> None:
    """Two assets succeed and every other fails; the second try runs the failed ones."""
    done: list[Effect] = []

    def fail(now: Effect, when: str) -> None:
        if (now, when) == (Effect.COPY_PROGRESS, "after"):
            done.append(now)
        if (now, when) == at and len(done) == 2:
            raise OSError

    job = repeatable_job(runs.lake)
    monkeypatch.setattr(effects, "observers", [fail])
    with dg.execute_job(job, instance=runs.instance) as failed:
        assert not failed.success
        run_id = failed.run_id
    monkeypatch.setattr(effects, "observers", [])
    runs.arrive()
    options = dg.ReexecutionOptions.from_failure(run_id, runs.instance)
    with dg.execute_job(job, instance=runs.instance, reexecution_options=options) as repeated:
        assert repeated.success
    runs.run_all()
    runs.check()


@on_every_backend
def test_a_publication_whose_answer_is_lost_is_found_in_the_table_itself(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Effect] = []

    def lose(now: Effect, when: str) -> None:
        if (now, when) == (Effect.PUBLISH, "after"):
            lost.append(now)
            raise OSError

    monkeypatch.setattr(effects, "observers", [lose])
    with dg.execute_job(repeatable_job(runs.lake), instance=runs.instance) as found:
        assert found.success
    assert len(lost) >= len(KINDS)
    runs.check()


@on_every_backend
def test_a_part_of_a_run_that_is_executed_again_consumes_only_new_rows(runs: Runs) -> None:
    job = repeatable_job(runs.lake)
    with dg.execute_job(job, instance=runs.instance) as whole:
        assert whole.success
    runs.check()
    for new in (False, True):
        if new:
            runs.arrive()
        options = dg.ReexecutionOptions(parent_run_id=whole.run_id, step_selection=["appended", "united"])
        with dg.execute_job(job, instance=runs.instance, reexecution_options=options) as part:
            assert part.success
    runs.run_all()
    runs.check()
