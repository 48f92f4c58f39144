"""Every way to write, killed before and after each durable effect: the next runs leave what undisturbed runs would."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.exactly_once.effects import OF_RUNS, Effect
from dagster_ips.local_spark.connect_server import ConnectServer
from tests.support.backends import POSTGRES, SQLITE, dagster_home
from tests.support.kind_runs import Runs
from tests.support.kinds import KINDS, Kind, start_run
from tests.support.lake import Lake

pytestmark = pytest.mark.slow

AT_ONCE = 3
OF_TWO_TABLES = [kind for kind in KINDS if len(kind.names) > 1]
NOT_IN_THESE_RUNS = (Effect.CREATE_TARGET, Effect.ORDER_TARGET, Effect.ALTER_TARGET, Effect.DROP_BRANCH)
IN_DAGSTERS_DATABASE = (Effect.COPY_PROGRESS,)
"""What changes Dagster's database: at all other points it is as at one of the points around these."""


def _points(effects: Iterable[Effect]) -> list[str]:
    return [f"{when}:{effect}" for effect in effects for when in ("before", "after")]


PLACES = [
    *((SQLITE, point) for point in _points(each for each in OF_RUNS if each not in NOT_IN_THESE_RUNS)),
    *((POSTGRES, point) for point in _points(IN_DAGSTERS_DATABASE)),
]
at_every_point = pytest.mark.parametrize(("database", "point"), PLACES)


@pytest.fixture(scope="module")
def runs_on(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    spark_server: ConnectServer,
    spark_folder: Path,
) -> Iterator[Callable[[str], Runs]]:
    """The runs that all tests of a database share: each test leaves and checks what undisturbed runs would leave."""
    with ExitStack() as open_instances:

        @cache
        def runs_on(database: str) -> Runs:
            folder = tmp_path_factory.mktemp(database)
            server = request.getfixturevalue("postgres") if database == POSTGRES else None
            home = dagster_home(folder / "dagster_home", server)
            instance = open_instances.enter_context(dg.DagsterInstance.from_config(home))
            runs = Runs(Lake(folder / "lake", spark_folder, spark_server), instance)
            for _ in range(2):
                runs.run_all()
                runs.arrive()
            return runs

        yield runs_on


def killed(runs: Runs, kinds: Sequence[Kind], point: str) -> list[int | None]:
    """The exit codes of runs of ``kinds`` that are killed at ``point``, ``AT_ONCE`` of them at a time.

    One thread starts all processes and waits for them: of two such threads, each may take the other's exit codes.
    """
    processes: list[multiprocessing.Process] = []
    for kind in kinds:
        if len(processes) >= AT_ONCE:
            processes[-AT_ONCE].join()
        processes.append(start_run(runs.instance.root_directory, runs.lake, *kind.names, at=point))
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def kill_each_and_run_again(runs: Runs, kinds: Sequence[Kind], point: str) -> None:
    """Rows that arrive, a run of each of ``kinds`` killed at ``point``, more rows, and undisturbed runs."""
    runs.arrive()
    before = len(runs.instance.get_runs())
    ends = killed(runs, kinds, point)
    assert ends == [-signal.SIGKILL] * len(kinds), runs.problems(since=before)
    runs.arrive()
    runs.run_all(kinds)


@at_every_point
def test_a_run_of_any_kind_killed_at_any_effect_duplicates_no_row_and_loses_none(
    runs_on: Callable[[str], Runs], database: str, point: str
) -> None:
    runs = runs_on(database)
    kill_each_and_run_again(runs, KINDS, point)
    runs.check()


@at_every_point
def test_a_run_of_two_tables_killed_at_any_effect_of_the_second_duplicates_no_row_and_loses_none(
    runs_on: Callable[[str], Runs], database: str, point: str
) -> None:
    runs = runs_on(database)
    kill_each_and_run_again(runs, OF_TWO_TABLES, f"{point}#2")
    runs.check(OF_TWO_TABLES)
