"""Rounds of rows, kills, duplicate launches, daemon restarts and code reloads: in the end everything agrees.

``SOAK_ROUNDS`` (200) and ``SOAK_SEED`` (1) choose other rounds; the timing of the processes is not repeatable.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import Process
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.edge import Edge
from dagster_ips.core.ownership import ATTEMPT
from dagster_ips.exactly_once.effects import OF_RUNS
from dagster_ips.iceberg.stamps import RUN
from dagster_ips.progress.table_progress import PROGRESS, progress_at
from tests.support.daemon import Daemon
from tests.support.kinds import start_run
from tests.support.lake import Event, Lake, events
from tests.support.pipeline import expected_agg, expected_daily, pipeline
from tests.support.progress import copied_state

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "200"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
EDGES = {"daily": Edge("daily", "playback"), "agg": Edge("agg", "daily")}
DRAIN_SECONDS = 600
MOST_EVENTS = 10_000  # Dagster returns no more at a time; a soak has some hundreds.
_STATUS = dg.DagsterRunStatus
UNFINISHED = dg.RunsFilter(
    statuses=[_STATUS.NOT_STARTED, _STATUS.QUEUED, _STATUS.STARTING, _STATUS.STARTED, _STATUS.CANCELING]
)


class Soak:
    """The rounds, and what must be true after them."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, daemon: Daemon) -> None:
        self.lake, self.instance, self.daemon = lake, instance, daemon
        self.random = random.Random(SEED)
        self.rows: list[Event] = []
        self.done: Counter[str] = Counter()
        self._home = instance.root_directory
        lake.create_playback()
        self.ingest()

    def ingest(self) -> None:
        start = len(self.rows)
        rows = events(range(start, start + self.random.randint(1, 5)), day=self.random.randint(0, 4))
        self.lake.append(rows)
        self.rows += rows

    def round(self, number: int) -> None:
        if self.random.random() < 0.9:
            self.ingest()
        if number % 20 == 10:
            self.daemon.restart(self.random.choice([signal.SIGTERM, signal.SIGKILL]))
            self.done["daemon restarted"] += 1
        if number % 25 == 15:
            self.daemon.reload()
            self.done["code reloaded"] += 1
        actions: list[Callable[[], None]] = [self.kill, self.kill, self.launch, self.launch_twice, self.kill_worker]
        self.random.choice(actions)()

    def kill(self) -> None:
        """A run that a person launched is killed at a random effect, or ends if it never gets there."""
        at = f"{self.random.choice(['before', 'after'])}:{self.random.choice(OF_RUNS)}"
        self._finish(start_run(self._home, self.lake, self._some(), at=at, of=pipeline))

    def launch(self) -> None:
        """A person runs both stages, whatever the daemon is doing."""
        self._finish(start_run(self._home, self.lake, "daily", "agg", of=pipeline))

    def launch_twice(self) -> None:
        """Two people run the same asset at once."""
        asset = self._some()
        self._finish(*[start_run(self._home, self.lake, asset, of=pipeline) for _ in range(2)])

    def kill_worker(self) -> None:
        """A run that the daemon launched dies, wherever it is."""
        time.sleep(self.random.uniform(0, 4))
        for worker in self.daemon.workers()[:1]:
            os.kill(worker, signal.SIGKILL)
            self.done["worker killed"] += 1

    def drain(self) -> None:
        """Add rows once more, so that no asset waits for a retry; then wait until the daemon has updated everything."""
        self.ingest()
        deadline = time.monotonic() + DRAIN_SECONDS
        while not self.is_up_to_date():
            assert time.monotonic() < deadline, f"{self.states()}\n{self.daemon.log('daemon')}"
            time.sleep(2)

    def is_up_to_date(self) -> bool:
        if self.instance.get_runs_count(UNFINISHED):
            return False
        return all(committed == head for committed, head in self.states().values())

    def states(self) -> dict[str, tuple[int | None, int | None]]:
        """For each asset: the consumed snapshot and its upstream's head."""
        found = {}
        for asset, edge in EDGES.items():
            state, source = copied_state(self.instance, edge), self.lake.catalog.find(f"media.{edge.upstream}")
            committed = state.committed.snapshot_id if state.committed else None
            found[asset] = (committed, source.head_snapshot_id() if source else None)
        return found

    def check(self) -> None:
        assert self.lake.rows("media.daily") == expected_daily(self.rows)
        assert self.lake.rows("media.agg") == expected_agg(self.rows)
        for asset, edge in EDGES.items():
            self._check_progress_and_copy(asset, edge)
            self._check_event_log(asset)

    def _check_progress_and_copy(self, asset: str, edge: Edge) -> None:
        """Publications follow each other, and the copy is of the newest."""
        target = self.lake.catalog.load(f"media.{asset}", asset="test")
        found = [progress_at(target, each) for each in target.ancestry().snapshots if PROGRESS in each.summary]
        numbers = [each.progress.number for each in found]
        assert numbers == sorted(numbers, reverse=True)
        state = copied_state(self.instance, edge)
        assert state.target == found[0].mark
        assert state.number == numbers[0]

    def _check_event_log(self, asset: str) -> None:
        """Each snapshot belongs to a known run, and is claimed by at most one materialization, which is of that run."""
        target = self.lake.catalog.load(f"media.{asset}", asset="test")
        stamped: dict[str, Snapshot] = {
            str(s.snapshot_id): s for s in target.ancestry().snapshots if ATTEMPT in s.summary
        }
        for snapshot in stamped.values():
            assert self.instance.get_run_by_id(snapshot.summary[RUN]) is not None
        records = self.instance.fetch_materializations(dg.AssetKey(asset), limit=MOST_EVENTS).records
        claimed: Counter[str] = Counter()
        for record in records:
            published = record.asset_materialization.metadata.get("published snapshot")
            if published is not None:
                claimed[str(published.value)] += 1
                assert stamped[str(published.value)].summary[RUN] == record.run_id
        assert set(claimed.values()) == {1}

    def _some(self) -> str:
        return self.random.choice(list(EDGES))

    def _finish(self, *processes: Process) -> None:
        for process in processes:
            process.join()
            self.done[{0: "run ended", -signal.SIGKILL: "run killed"}.get(process.exitcode, "run failed")] += 1
        # A launcher would notice that its runs ended; these runs have no launcher.
        for run in self.instance.get_runs(UNFINISHED):
            if "__ASSET_JOB" in run.job_name and not run.remote_job_origin:
                self.instance.report_run_failed(run, "Its process is gone.")


def test_after_rounds_of_rows_kills_duplicates_restarts_and_reloads_everything_agrees(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    faulthandler.cancel_dump_traceback_later()  # the test takes as long as its rounds
    environment = {"SOAK_LAKE": str(lake.folder), "SOAK_SPARK": str(lake.spark_folder)}
    with Daemon(Path(instance.root_directory), "tests.support.soak_definitions", environment) as daemon:
        soak = Soak(lake, instance, daemon)
        started = time.monotonic()
        for number in range(ROUNDS):
            soak.round(number)
        soak.drain()
        seconds = time.monotonic() - started
        print(f"{ROUNDS} rounds, seed {SEED}: {seconds:.0f} s, {dict(soak.done)}")  # noqa: T201  # for pytest -s
        soak.check()
