"""What every benchmark leaves: Markdown for people, JSON beside it for machines, and how busy the machine was.

``--docs docs`` writes both; without it the Markdown is printed. ``--full`` measures the large sizes, too.
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
    """The least milliseconds of several rounds, by the clock and of this process' CPU."""

    wall_ms: float
    cpu_ms: float

    def __str__(self) -> str:
        return f"{self.wall_ms:,.0f} ms"


def best(ways: Mapping[str, Callable[[], object]], rounds: int = 7) -> dict[str, Best]:
    """Each way's best of ``rounds`` in which they take turns, after one that warms up."""
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


class Differs(Exception):  # noqa: N818  # what the benchmark says then
    """What was measured isn't what another computation in the same run gives."""


def require_same(found: object, expected: object, *, of: str) -> None:
    """Raises: ``found`` isn't what another computation gives."""
    if found != expected:
        message = f"{of}: {found} instead of {expected}"
        raise Differs(message)


@dataclass(frozen=True)
class Report:
    """Where a benchmark's results go; the load is noted when it begins and when it ends."""

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
        """A sentence on the machine, for the reader."""
        before, after = self.load, os.getloadavg()[0]
        return f"Measured on {os.cpu_count()} cores; the load was {before:.1f} before and {after:.1f} after it."

    def publish(self, markdown: str, figures: object) -> None:
        """Leave both; ``figures`` is what JSON can hold."""
        if self.docs is None:
            print(markdown)
            return
        self.docs.mkdir(parents=True, exist_ok=True)
        (self.docs / f"{self.name}.md").write_text(markdown.rstrip() + "\n")
        machine = {"cores": os.cpu_count(), "load before": self.load, "load after": os.getloadavg()[0]}
        content = {"machine": machine, "full": self.is_full, "figures": figures}
        (self.docs / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n")


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, words: int = 1) -> str:
    """A table of Markdown, of which the first ``words`` columns are text and the others numbers."""
    kinds = ["---" if at < words else "---:" for at in range(len(heads))]
    lines = [heads, kinds, *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def said(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
