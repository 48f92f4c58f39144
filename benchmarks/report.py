"""What every benchmark writes: Markdown for people, JSON for machines, and how busy the machine was.

``--docs docs`` writes both; without it, the Markdown is printed. ``--full`` also measures the large sizes.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DOCS = Path("docs")


@dataclass(frozen=True)
class Best:
    """The fewest milliseconds of several rounds: elapsed time, and CPU time of this process."""

    wall_ms: float
    cpu_ms: float

    def __str__(self) -> str:
        return f"{self.wall_ms:,.0f} ms"


def best(ways: Mapping[str, Callable[[], object]], rounds: int = 7) -> dict[str, Best]:
    """Each way's best of ``rounds``, in which the ways take turns, after a round of warm-up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            started, cpu = time.perf_counter(), time.process_time()
            way()
            found[name].append((time.perf_counter() - started, time.process_time() - cpu))
    return {
        name: Best(min(wall for wall, _ in each[1:]) * 1000, min(cpu for _, cpu in each[1:]) * 1000)
        for name, each in found.items()
    }


class Differs(Exception):  # noqa: N818  # it reads better in the output
    """A measured result differs from another computation in the same run."""


def require_same(found: object, expected: object, *, of: str) -> None:
    """Raise ``Differs`` if ``found`` isn't what another computation gives."""
    if found != expected:
        message = f"{of}: {found} instead of {expected}"
        raise Differs(message)


@dataclass(frozen=True)
class Report:
    """Where a benchmark's results go, and the machine's load when the benchmark began."""

    name: str
    is_full: bool
    docs: Path | None
    load: float

    @classmethod
    def from_arguments(cls, name: str, explained: str | None, arguments: Sequence[str] | None = None) -> "Report":
        parser = argparse.ArgumentParser(description=explained)
        parser.add_argument("--full", action="store_true", help="the large sizes, too")
        parser.add_argument("--docs", type=Path, help=f"a folder for {name}.md and {name}.json, as {DOCS}")
        given = parser.parse_args(arguments)
        return cls(name, given.full, given.docs, os.getloadavg()[0])

    def conditions(self) -> str:
        """A sentence for readers about the machine and its load before and after."""
        before, after = self.load, os.getloadavg()[0]
        return f"Measured on {os.cpu_count()} cores; the load was {before:.1f} before and {after:.1f} after it."

    def publish(self, markdown: str, figures: object) -> None:
        """Write or print the results; ``figures`` must be serializable as JSON."""
        if self.docs is None:
            print(markdown)
            return
        self.docs.mkdir(parents=True, exist_ok=True)
        (self.docs / f"{self.name}.md").write_text(markdown.rstrip() + "\n")
        machine = {"cores": os.cpu_count(), "load before": self.load, "load after": os.getloadavg()[0]}
        content = {"machine": machine, "full": self.is_full, "figures": figures}
        (self.docs / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n")


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, words: int = 1) -> str:
    """A Markdown table; its first ``words`` columns are text and the others numbers."""
    kinds = ["---" if at < words else "---:" for at in range(len(heads))]
    lines = [heads, kinds, *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def said(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
