"""Runs all benchmarks one after the other and writes their results to the docs: ``python -m benchmarks``.

With ``--full``, it measures all sizes. A benchmark fails if what it measures differs from another computation's result.
The others still run, and the names of those that failed are printed at the end. With ``--against COMMIT``, each is
compared with that commit's instead, side by side, and nothing is written to the docs.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.against import compare
from benchmarks.report import DOCS, said

OTHER = Path(".local")
"""The folder for results that the docs quote within other text."""


@dataclass(frozen=True)
class Benchmark:
    """A module of this package. If it doesn't write files itself, its output is written to ``printed``."""

    module: str
    arguments: tuple[str, ...] = ()
    printed: Path | None = None

    def run(self) -> bool:
        """Run it; returns whether it succeeded. If not, earlier results stay."""
        command = [sys.executable, "-m", f"benchmarks.{self.module}", *self.arguments]
        if self.printed is None:
            return subprocess.run(command, check=False).returncode == 0
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            self.printed.parent.mkdir(parents=True, exist_ok=True)
            self.printed.write_text(done.stdout)
        return done.returncode == 0


def benchmarks(*, full: bool) -> list[Benchmark]:
    into = ("--docs", str(DOCS), *["--full"] * full)
    rows = ("30000", "300000", "1000000") if full else ("300000",)
    playback = ("--rows", *rows, "--json", str(DOCS / "playback.json"))
    quick = [Benchmark(module, into) for module in ("capture", "ticks", "fixed_cost", "cost", "maintenance")]
    quick.append(Benchmark("playback", playback, DOCS / "playback.md"))
    if not full:
        return quick
    return [
        *quick,
        Benchmark("sweeps", into),
        Benchmark("edges", into),
        Benchmark("queries", ("--docs", str(DOCS))),  # All 22 of them take hours.
        Benchmark("cluster", into),
        Benchmark("histories", (), DOCS / "histories.md"),
        Benchmark("proof", (), DOCS / "proof.md"),
        Benchmark("latency", (), OTHER / "latency.md"),
        Benchmark("latency", ("--late", "0.03"), OTHER / "latency-late.md"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all of them, and the large sizes: four hours")
    parser.add_argument("--only", nargs="+", default=(), help="modules, as capture or ticks")
    parser.add_argument("--against", metavar="COMMIT", help="compare with the benchmarks of that commit, given --only")
    given = parser.parse_args()
    failed, began = [], time.monotonic()
    known = benchmarks(full=given.full)
    if unknown := set(given.only) - {each.module for each in benchmarks(full=True)}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if given.against:
        print(compare(given.only or ("fixed_cost", "ticks"), given.against))
        return 0
    chosen = {each.module: each for each in benchmarks(full=True) + known}
    for each in [chosen[name] for name in given.only] or known:
        started = time.monotonic()
        if not each.run():
            failed.append(each.module)
        said(f"benchmarks.{each.module}: {time.monotonic() - started:.0f} s, load {os.getloadavg()[0]:.1f}")
    said(f"{time.monotonic() - began:.0f} s in all" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
