"""Random lives of assets as users combine them, for as long as you like.

``python -m tests.histories.composed.fuzz --seed 1 --seconds 600``

With an even seed, Spark interprets its queries, which halves the CPU time; with an odd seed, Spark runs as it does for
users. The same seed gives the same lives in the same order; how many depends on the time. A life that fails is made
as small as possible and printed as the code of a test.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
from sqlalchemy import event
from sqlalchemy.engine import Engine

from dagster_ips.local_spark.connect_server import ConnectServer, ensure_connect_server, stop_connect_server
from tests.histories.composed.choices import KINDS_OF_STEPS, STEPS, Chance
from tests.histories.composed.expected import EXPECTED
from tests.histories.composed.life import Coverage, Life, Step
from tests.histories.composed.runs import Assets
from tests.histories.fuzz import how
from tests.histories.history import quicken
from tests.histories.smallest import failure_of
from tests.support.backends import dagster_home
from tests.support.lake import Lake
from tests.support.quick_spark import ensure_quick_server
from tests.support.quick_storage import write_without_waiting_for_the_disk


@dataclass
class Budget:
    """The limits of a run, and what it has done so far."""

    seconds: float = math.inf
    captures: float = math.inf
    coverage: Coverage = field(default_factory=Coverage)
    lives: int = 0
    failures: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def is_spent(self) -> bool:
        return self.elapsed > self.seconds or self.coverage.captures >= self.captures

    def __str__(self) -> str:
        return (
            f"{self.elapsed:6.0f} s  {self.lives} lives, {self.coverage.runs} runs, {self.coverage.captures} captures, "
            f"{self.failures} failures"
        )


Failure = tuple[Life, BaseException]


def live(assets: Assets, seed: int, budget: Budget) -> Failure | None:
    """Live one life; returns its failure, if it failed."""
    budget.lives += 1
    chance = Chance(seed)
    life = chance.life(assets, budget.coverage)
    try:
        for step in chance.first(life):
            life.take(step)
        while len(life.steps) < STEPS:
            for step in chance.then(life):
                life.take(step)
        life.take(Step.of("catch_up"))
    except Exception as error:  # noqa: BLE001  # a failing life is this function's result
        return life, error
    else:
        return None
    finally:
        life.close()


def again(assets: Assets, life: Life, steps: Sequence[Step]) -> Failure | None:
    """Live the same life with other steps."""
    retried = Life(assets, life.names, life.shapes)
    try:
        for step in steps:
            retried.take(step)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the result
        return retried, error
    else:
        return None
    finally:
        retried.close()


def smallest(assets: Assets, failure: Failure, *, seconds: float) -> Failure:
    """The smallest life found that fails the same way."""
    until, best = time.monotonic() + seconds, failure
    candidates: Iterator[Sequence[Step]] = iter([failure[0].steps])
    while (steps := next(candidates, None)) is not None and time.monotonic() < until:
        found = again(assets, best[0], steps)
        if found and failure_of(found[1]) == failure_of(best[1]):  # type: ignore[arg-type]
            best = found
            candidates = _fewer(best[0].steps)
    return best


def _fewer(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    size = len(steps) // 2
    while size:
        for start in range(0, len(steps), size):
            yield [*steps[:start], *steps[start + size :]]
        size //= 2


def explained(assets: Assets, failure: Failure, *, seconds: float = 120) -> str:
    """The smallest life that fails in the same way, as the code of a test, and its failure."""
    life, error = smallest(assets, failure, seconds=seconds)
    lines = "\n".join(f"    {line}" for line in str(life).splitlines())
    return f"def test_(assets: Assets) -> None:\n{lines}\n\n{how(error)}"  # type: ignore[arg-type]


def table_of(coverage: Coverage) -> str:
    """How the runs of each asset ended, and how many kinds of steps preceded them."""
    ends = sorted({end for _, end in coverage.ends}, key=lambda end: (end not in ("incremental", "full"), end))
    lines = [f"{'':12} {'kinds of steps':>15} {' '.join(f'{end[:19]:>19}' for end in ends)}"]
    for name in EXPECTED:
        kinds = len({kind for asset, kind in coverage.steps if asset == name})
        counts = " ".join(f"{coverage.ends[name, end]:>19}" for end in ends)
        lines.append(f"{name:12} {kinds:>15} {counts}")
    return "\n".join(lines)


def steps_of(coverage: Coverage) -> str:
    """How many checked runs each kind of step preceded."""
    kinds = sorted({kind for _, kind in coverage.steps})
    each = {kind: sum(n for (_, k), n in coverage.steps.items() if k == kind) for kind in kinds}
    return "\n".join(f"{kind:36} {count:>6}" for kind, count in each.items())


def uncovered(coverage: Coverage) -> list[str]:
    """The assets without an incremental run, and the kinds of steps that preceded no run."""
    covered = {kind for _, kind in coverage.steps}
    assets = [name for name in EXPECTED if not coverage.ends[name, "incremental"]]
    return assets + [kind for kind in KINDS_OF_STEPS if kind not in covered]


@contextlib.contextmanager
def new_assets(folder: Path, spark_folder: Path, server: ConnectServer) -> Iterator[Assets]:
    """The assets on a lake in ``folder``, with a Dagster instance on SQLite."""
    event.listen(Engine, "connect", write_without_waiting_for_the_disk)
    lake = Lake(folder / "lake", spark_folder, server)
    quicken(lake)
    with dg.DagsterInstance.from_config(dagster_home(folder / "dagster_home", None)) as instance:
        yield Assets(lake, instance)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories.composed.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--captures", type=float, default=math.inf, help="end after so many")
    parser.add_argument("--failures", type=int, default=1, help="end after so many")
    parser.add_argument("--shrink", type=float, default=120, help="seconds to make a failing life smaller")
    parser.add_argument("--spark", type=Path, help="folder of a Spark Connect server to use and leave running")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.disable()
    with tempfile.TemporaryDirectory() as temporary:
        spark_folder = given.spark or Path(temporary) / "spark"
        try:
            server = (ensure_connect_server if given.seed % 2 else ensure_quick_server)(spark_folder)
            with new_assets(Path(temporary), spark_folder, server) as assets:
                budget = Budget(given.seconds, given.captures)
                return fuzz(assets, budget, seed=given.seed, most_failures=given.failures, shrink=given.shrink)
        finally:
            if not given.spark:
                stop_connect_server(spark_folder)


def fuzz(assets: Assets, budget: Budget, *, seed: int, most_failures: int, shrink: float) -> int:
    """Run until the budget is spent or enough failures were found; returns the exit code."""
    for number in itertools.count(seed * 1_000_000):
        if budget.is_spent or budget.failures >= most_failures:
            break
        if failure := live(assets, number, budget):
            budget.failures += 1
            print(f"\nseed {number}:\n{explained(assets, failure, seconds=shrink)}\n", flush=True)
        print(budget, flush=True)
    print(f"\n{budget}\n\n{table_of(budget.coverage)}\n\n{steps_of(budget.coverage)}")
    missing = [] if budget.failures else uncovered(budget.coverage)
    if missing:
        print(f"\nNot covered, so this run has not shown enough: {', '.join(missing)}")
    return 1 if budget.failures or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
