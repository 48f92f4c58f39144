"""What a run does with a change, as log lines that people read and programs parse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_START = "dagster_ips "
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
_PLAIN = re.compile(r'[^\s"=\\]+')


class Event(StrEnum):
    """Events in the order in which they happen; ``SKIP`` replaces ``WRITE`` and ``PUBLISH`` if nothing was written."""

    CAPTURE = "capture"
    WRITE = "write"
    PUBLISH = "publish"
    SKIP = "skip"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event and its values, each as text; a value that is None is left out of the line.

    Example:
        >>> line = LogLine.of(Event.SKIP, asset="daily", reason="no change", snapshot=None)
        >>> str(line)
        'dagster_ips skip asset=daily reason="no change"'
        >>> LogLine.parse(str(line)) == line
        True
    """

    event: Event
    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, event: Event, **values: object) -> LogLine:
        """The line with the ``str`` of each value."""
        return cls(event, {name: str(value) for name, value in values.items() if value is not None})

    @classmethod
    def parse(cls, text: str) -> LogLine | None:
        """The line whose ``str`` is ``text``; None for any other text."""
        event, _, rest = text.removeprefix(_START).partition(" ")
        if not text.startswith(_START) or event not in set(Event):
            return None
        pairs = {name: json.loads(value) if value.startswith('"') else value for name, value in _PAIR.findall(rest)}
        return cls(Event(event), pairs)

    def __str__(self) -> str:
        pairs = [f"{name}={_written(value)}" for name, value in self.values.items()]
        return _START + " ".join([self.event, *pairs])


Tell = Callable[[LogLine], None]
"""Receives a line as soon as its event has happened."""


def tell_nobody(_: LogLine) -> None:
    """Ignore the line."""


def _written(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
