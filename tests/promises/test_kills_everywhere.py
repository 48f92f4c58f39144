"""Every way to write, killed before and after each durable effect: run again, the tables of an undisturbed run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.core.edge import Edge
from dagster_ips.orchestration.cursor_store import CursorStore
from dagster_ips.spark.connect_server import ConnectServer
from dagster_ips.tracking.effects import Effect
from tests.backends import POSTGRES, SQLITE, dagster_home
from tests.kinds import KINDS, SOURCES, kinds, start_run
from tests.lake import Event, Lake, events
from tests.pipeline import materialize

pytestmark = pytest.mark.slow

AT_ONCE = 2
FIRST_RUNS_ONLY = (Effect.CREATE_TARGET, Effect.ORDER_TARGET)
POINTS = [f"{when}:{effect}" for effect in Effect if effect not in FIRST_RUNS_ONLY for when in ("before", "after")]


class Runs:
    """The assets of every kind on one lake, with rows that keep arriving."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance) -> None:
        self.lake, self.instance = lake, instance
        self.rows: dict[str, list[Event]] = {name: [] for name in SOURCES}
        for name in SOURCES:
            lake.create_playback(table=f"media.{name}")
        self._next_id = 0
        self.arrive()

    def arrive(self) -> None:
        """Some rows in every source, of two of three days."""
        for name in SOURCES:
            rows = [row for day in (0, 1) for row in events(range(self._next_id, self._next_id + 3), day=day)]
            self.lake.append(rows, f"media.{name}")
            self.rows[name] += rows
        self._next_id += 3

    def killed(self, point: str) -> dict[str, int | None]:
        """A run of each kind, killed at ``point``, by its exit code."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            names = [kind.name for kind in KINDS]
            return dict(zip(names, threads.map(lambda name: self._killed(name, point), names), strict=True))

    def _killed(self, name: str, point: str) -> int | None:
        process = start_run(self.instance.root_directory, self.lake, name, at=point, order=signal.SIGKILL)
        process.join()
        return process.exitcode

    def run_all(self) -> None:
        """An undisturbed run of every kind."""
        definitions = kinds(self.lake.folder, self.lake.spark_folder)
        materialize(definitions, self.instance, *(kind.name for kind in KINDS))

    def check(self) -> None:
        """Every table is right, and every cursor says that all was consumed and nothing is in flight."""
        for kind in KINDS:
            for table, expected in kind.expected.items():
                assert self.lake.rows(table) == expected(*(self.rows[name] for name in SOURCES)), table
        edges = [Edge(kind.name, upstream) for kind in KINDS for upstream in kind.upstreams]
        for edge, state in CursorStore(self.instance).get_many(edges).items():
            head = self.lake.catalog.load(f"media.{edge.upstream}", asset="test").head_snapshot_id()
            assert state.committed is not None
            assert (state.committed.snapshot_id, state.in_flight) == (head, None), edge


@pytest.fixture(scope="module", params=[SQLITE, POSTGRES])
def runs(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    spark_server: ConnectServer,
    spark_folder: Path,
) -> Iterator[Runs]:
    """One for all tests of a backend: each leaves it as an undisturbed run would, which it checks."""
    folder = tmp_path_factory.mktemp(request.param)
    server = request.getfixturevalue("postgres") if request.param == POSTGRES else None
    with dg.DagsterInstance.from_config(dagster_home(folder / "dagster_home", server)) as instance:
        runs = Runs(Lake(folder / "lake", spark_folder, spark_server.remote), instance)
        for _ in range(2):
            runs.run_all()
            runs.arrive()
        yield runs


@pytest.mark.parametrize("point", POINTS)
def test_a_run_of_any_kind_killed_at_any_effect_leaves_nothing_twice_and_nothing_out(runs: Runs, point: str) -> None:
    runs.arrive()
    assert runs.killed(point) == dict.fromkeys((kind.name for kind in KINDS), -signal.SIGKILL)
    runs.arrive()
    runs.run_all()
    runs.check()
