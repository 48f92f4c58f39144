"""The parts of SQL that give a different value in each run: the clock and chance."""

from __future__ import annotations

import re

_BY_CHANCE = "rand|randn|random|randstr|uniform|uuid|shuffle"
_CLOCK = "current_date|current_time|current_timestamp|localtimestamp"  # SQL has them without brackets as well

IN_PLANS = re.compile(rf"(?<![\w`.])(?:{_BY_CHANCE}|now|curdate|{_CLOCK})\(")
"""Matches in a Spark plan in lower case. The plan doesn't show whether a Python function varies."""
IN_SQL = re.compile(rf"(?<![\w`.])(?:(?:{_BY_CHANCE}|now|curdate)\s*(?=\()|(?:{_CLOCK})\b)", re.IGNORECASE)
