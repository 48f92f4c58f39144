"""Compares this checkout with another commit, side by side: ``python -m benchmarks --only ticks --against COMMIT``.

The other commit is checked out to ``.local/against`` and set up there, with its own packages. The two take turns, and
what is shown is the median of all turns.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.report import said, table

FOLDER = Path(".local/against")
TURNS = 3
SAME = 0.02
"""Figures that differ by less aren't shown."""


class Checkout:
    """A folder with the project in it, whose benchmarks run with its own packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @classmethod
    def of(cls, commit: str) -> "Checkout":
        """Check the commit out, and set it up."""
        found = _said(["git", "rev-parse", "--verify", f"{commit}^{{commit}}"])
        folder = FOLDER / found[:12]
        if not folder.exists():
            _said(["git", "worktree", "prune"])
            _said(["git", "worktree", "add", "--detach", str(folder), found])
        subprocess.run([folder.absolute() / "scripts/setup.sh"], cwd=folder, check=True, stdout=sys.stderr)
        return cls(folder)

    def figures(self, module: str, into: Path) -> dict[str, float]:
        """Run a benchmark; returns all of its numbers, by what they are of."""
        command = [self.folder / ".local/venv/bin/python", "-m", f"benchmarks.{module}", "--docs", into.absolute()]
        cache = {"DAGSTER_IPS_CACHE": str(self.folder / ".local/cache")}
        subprocess.run(command, cwd=self.folder, check=True, env=os.environ | cache, stdout=sys.stderr)
        (written,) = into.glob("*.json")
        return dict(numbers(json.loads(written.read_text())["figures"]))


def numbers(figures: object, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in ``figures``, by the keys that lead to them, with the sum of each mapping that has only numbers.

    >>> dict(numbers({"append": {"plan": 2, "write": 3}}))
    {'append, plan': 2, 'append, write': 3, 'append, sum': 5}
    """
    within = f"{name}, " if name else ""
    match figures:
        case bool() | str() | None:
            return
        case int() | float():
            yield name, figures
        case Mapping():
            for key, each in figures.items():
                yield from numbers(each, f"{within}{key}")
            if all(type(each) in {int, float} for each in figures.values()):
                yield f"{within}sum", sum(figures.values())
        case Sequence():
            for at, each in enumerate(figures):
                yield from numbers(each, f"{within}{at}")


def compare(modules: Sequence[str], commit: str) -> str:
    """Measure ``modules`` here and at ``commit``, in turns; returns a Markdown table of what differs."""
    sides = {"now": Checkout(Path()), commit: Checkout.of(commit)}
    lines = []
    for module in modules:
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for turn in range(TURNS):
            for name, side in sides.items():
                said(f"benchmarks.{module}, {name}, {turn + 1} of {TURNS}")
                into = FOLDER / "results" / f"{module}-{name}-{turn}"
                turns[name].append(side.figures(module, into))
        now, then = ({of: _median(found, of) for of in found[0]} for found in turns.values())
        for of in now.keys() & then.keys():
            if abs(now[of] - then[of]) > SAME * abs(then[of]):
                ratio = f"{now[of] / then[of]:.2f}" if then[of] else ""
                lines.append([f"{module}: {of}", f"{now[of]:,.4g}", f"{then[of]:,.4g}", ratio])
    return table(["", "now", commit, "ratio"], sorted(lines))


def _median(found: Sequence[Mapping[str, float]], of: str) -> float:
    return statistics.median(each[of] for each in found if of in each)


def _said(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
