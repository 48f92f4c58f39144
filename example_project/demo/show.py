"""Shows the demo's progress, and the table at its end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from example_project.spark_meter import Read


@dataclass(frozen=True)
class Comparison:
    """One stage: what it read and how long it took incrementally, and with the 14-day lookback."""

    stage: str
    by_change: Read
    lookback: Read


class Show:
    """Prints lines that stay and, in a terminal, one line that is updated."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = 120
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line that stays, with the time since the start."""
        self.console.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/]  {text}")

    @contextmanager
    def phase(self, title: str) -> Iterator[Callable[[str], None]]:
        """Show that ``title`` is in progress and what it is doing, and at the end how long it took."""
        began, at = time.monotonic(), ""

        def line() -> Text:
            now = time.monotonic()
            return Text(f"{now - self._started:6.1f} s  … {title}  {now - began:.0f} s  {at}", style="cyan")

        def say_at(what: str) -> None:
            nonlocal at
            if what != at and not self.console.is_terminal:
                self.say(f"    {escape(what)}")
            at = what

        mark = "[red]✗[/]"
        try:
            if self.console.is_terminal:
                with Live(get_renderable=line, console=self.console, refresh_per_second=2, transient=True):
                    yield say_at
            else:
                self.say(f"… {title}")
                yield say_at
            mark = "[green]✓[/]"
        finally:
            self.say(f"{mark} {title}  [dim]{time.monotonic() - began:.1f} s[/]")

    def table(self, comparisons: list[Comparison], total: Comparison) -> None:
        """Print rows, bytes and seconds per stage, incrementally and with the lookback; ``total`` is the last line."""
        table = Table(
            title="One more day with late rows: rows and bytes read, and seconds, per stage", title_justify="left"
        )
        table.add_column("stage", no_wrap=True)
        for name in ("rows read", "bytes read", "seconds"):
            table.add_column(f"{name}\nincremental", justify="right", style="green")
            table.add_column(f"{name}\n14-day lookback", justify="right")
        for each in comparisons:
            table.add_row(each.stage, *_cells(each.by_change, each.lookback))
        table.add_section()
        table.add_row(total.stage, *_cells(total.by_change, total.lookback))
        self.console.print()
        self.console.print(table)


def _cells(mine: Read, other: Read) -> list[str]:
    return [
        f"{mine.rows:,}",
        f"{other.rows:,}",
        f"{mine.size_bytes / 1e6:,.1f} MB",
        f"{other.size_bytes / 1e6:,.1f} MB",
        f"{mine.seconds:.1f}",
        f"{other.seconds:.1f}",
    ]
