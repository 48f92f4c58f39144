"""Random histories compared with time travel, for as long as you like.

``python -m tests.histories.fuzz --seed 1 --seconds 600``

With an even seed, Spark interprets its queries, which halves the CPU time; with an odd seed, Spark runs as it does for
users. The same seed gives the same histories in the same order; how many depends on the time. A history that fails is
made as small as possible and printed as the code of a test.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import math
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from dagster_ips.core.capture import Mode
from dagster_ips.local_spark.connect_server import ensure_connect_server, stop_connect_server
from tests.histories.checks import WrongCaptureError
from tests.histories.history import Coverage, History, quicken
from tests.histories.machine import Histories
from tests.histories.operations import OPERATIONS, Operation
from tests.histories.smallest import smallest
from tests.histories.targets import ENDS, EQUAL, KINDS
from tests.support.lake import Lake
from tests.support.lake_catalog import choose_catalog
from tests.support.quick_spark import ensure_quick_server
from tests.support.rest_catalog import running_rest_catalog

STEPS = 16
VERSIONS = (1, 2, 3)
BATCH = 6
FAVOURITES = 4


class BudgetSpentError(BaseException):
    """The time or the captures are used up. Not an Exception, so that it doesn't count as a failing history."""


@dataclass
class Budget:
    """The limits of a run, and what it has done so far."""

    seconds: float = math.inf
    captures: int | None = None
    coverage: Coverage = field(default_factory=Coverage)
    failures: int = 0
    histories: int = 0
    started: float = field(default_factory=time.monotonic)
    told: float = 0.0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def start_history(self) -> None:
        """Call this when a history begins.

        Raises:
            BudgetSpentError: the budget is spent.
        """
        if self.elapsed > self.seconds or (self.captures is not None and self.coverage.captures >= self.captures):
            raise BudgetSpentError
        self.histories += 1
        if self.elapsed - self.told > 5:
            self.told = self.elapsed
            print(f"{self.elapsed:6.0f} s  {self}", flush=True)

    def __str__(self) -> str:
        covered = {name for name, _ in self.coverage.operations}
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.coverage.outcomes.items()))
        targets = sum(self.coverage.targets[found] for found in self.coverage.targets if found[-1] in EQUAL)
        each = self.coverage.seconds / max(1, self.coverage.captures)
        return (
            f"{self.histories} histories, {self.coverage.captures} captures ({ends}; {each:.2f} s each), "
            f"{targets} targets equal, {self.failures} failures, {len(covered)} of {len(OPERATIONS)} operations"
        )


def run_batch(lake: Lake, number: int, budget: Budget) -> tuple[History, Exception] | None:
    """Run a few histories that favor what is least covered so far; returns the first failing one and its error.

    Raises:
        BudgetSpentError: the budget is spent.
    """
    version = 1 + number % 3
    members = {
        "lake": lake,
        "coverage": budget.coverage,
        "on_start": staticmethod(budget.start_history),
        "version": version,
        "favourites": least_covered(budget.coverage, version),
        "kinds": least_covered_kinds(budget.coverage, version),
    }
    machine = seeded(number)(type("Histories", (Histories,), members))
    quietly = settings(
        max_examples=BATCH,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    try:
        run_state_machine_as_test(machine, settings=quietly)
    except Exception as error:  # a failing history is this function's result
        history = machine.failed or machine.newest
        if history is None:
            raise
        return history, error
    return None


def least_covered(coverage: Coverage, version: int) -> list[Operation]:
    """The operations that precede the fewest checked captures on this format version."""
    there = [operation for operation in OPERATIONS.values() if version in operation.versions]
    return sorted(there, key=lambda operation: coverage.operations[operation.name, version])[:FAVOURITES]


def least_covered_kinds(coverage: Coverage, version: int) -> list[str]:
    """The kinds of targets without an incremental run on this format version, then those with the fewest runs."""

    def order(kind: str) -> tuple[bool, int]:
        runs = sum(count for (name, v, _), count in coverage.targets.items() if (name, v) == (kind, version))
        return coverage.targets[kind, version, Mode.INCREMENTAL] > 0, runs

    return sorted(KINDS, key=order)[:FAVOURITES]


def uncovered(coverage: Coverage) -> list[str]:
    """The operations, on each format version that has them, that preceded no checked capture.

    Also the kinds of targets that no incremental run wrote, even if only because every such run was refused.
    """
    wanted = [(o.name, version) for o in OPERATIONS.values() for version in sorted(o.versions)]
    missing = [(name, version) for name, version in wanted if not coverage.operations[name, version]]
    kinds = [(kind, version) for kind in KINDS for version in VERSIONS]
    missing += [(kind, v) for kind, v in kinds if not coverage.targets[kind, v, Mode.INCREMENTAL]]
    return [f"{name} on v{version}" for name, version in missing]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--captures", type=int, help="end after so many")
    parser.add_argument("--failures", type=int, default=1, help="end after so many")
    parser.add_argument("--spark", type=Path, help="folder of a Spark Connect server to use and leave running")
    parser.add_argument("--rest", action="store_true", help="on an Iceberg REST catalog instead of the embedded one")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.disable()  # pyspark logs every error in full
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        if given.rest:
            catalog = stack.enter_context(running_rest_catalog())
            choose_catalog(Path(temporary) / "lake", catalog.properties)
        spark_folder = given.spark or Path(temporary) / "spark"
        try:
            server = (ensure_connect_server if given.seed % 2 else ensure_quick_server)(spark_folder)
            lake = Lake(Path(temporary) / "lake", spark_folder, server)
            quicken(lake)
            return fuzz(lake, Budget(given.seconds, given.captures), seed=given.seed, most_failures=given.failures)
        finally:
            if not given.spark:
                stop_connect_server(spark_folder)


def fuzz(lake: Lake, budget: Budget, *, seed: int, most_failures: int) -> int:
    """Run until the budget is spent or enough failures were found; returns the exit code."""
    failures: list[str] = []
    try:
        for number in itertools.count(seed * 1_000_000):
            if found := run_batch(lake, number, budget):
                budget.failures += 1
                failures.append(explained(lake, *found))
                print(f"\n{failures[-1]}\n", flush=True)
                if budget.failures >= most_failures:
                    break
    except BudgetSpentError:
        pass
    print(f"\n{budget.elapsed:6.0f} s  {budget}\n\n{table_of(budget.coverage)}\n\n{targets_of(budget.coverage)}")
    missing = [] if failures else uncovered(budget.coverage)
    if missing:
        print(f"\nNot covered, so this run has not shown enough: {', '.join(missing)}")
    return 1 if failures or missing else 0


def explained(lake: Lake, history: History, error: Exception) -> str:
    """The smallest history that fails in the same way, as the code of a test, and its failure."""
    found, error = smallest(lake, history, error)
    lines = "\n".join(f"    {line}" for line in str(found).splitlines())
    return f"def test_(lake: Lake) -> None:\n{lines}\n\n{how(error)}"


def how(error: Exception) -> str:
    """What broke. For another error: where it was raised and what caused it, without the JVM's frames."""
    if isinstance(error, WrongCaptureError):
        return str(error)
    said = [line for line in str(error).splitlines() if not line.startswith("\tat ")]
    causes = [line for line in str(error).splitlines() if line.startswith("Caused by")]
    ours = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    places = [place for place in ours if "site-packages" not in place]
    return "\n".join([*places[-4:], f"{type(error).__name__}: {' '.join(said)}"[:600], *causes])


def table_of(coverage: Coverage) -> str:
    """How many checked captures had each operation in their interval, on each format version."""
    lines = [f"{'captures over':42} {'v1':>6} {'v2':>6} {'v3':>6}"]
    for name, operation in OPERATIONS.items():
        counts = [coverage.operations[name, v] if v in operation.versions else "-" for v in VERSIONS]
        lines.append(f"{name:42} {counts[0]:>6} {counts[1]:>6} {counts[2]:>6}")
    return "\n".join(lines)


def targets_of(coverage: Coverage) -> str:
    """How often each kind of target was equal, or refused, on each format version of its source."""
    refused = sorted({end for _, _, end in coverage.targets} - set(ENDS))
    ends = [*ENDS, *refused]
    lines = [f"{'targets, v1 + v2 + v3':32} {' '.join(f'{end:>22}' for end in ends)}"]
    for kind in KINDS:
        counts = (" + ".join(str(coverage.targets[kind, v, end]) for v in VERSIONS) for end in ends)
        lines.append(f"{kind:32} {' '.join(f'{count:>22}' for count in counts)}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
