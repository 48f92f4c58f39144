"""What of SQL gives another value in each run: the clock and chance."""

from __future__ import annotations

import re

_BY_CHANCE = "rand|randn|random|randstr|uniform|uuid|shuffle"
_CLOCK = "current_date|current_time|current_timestamp|localtimestamp"  # SQL has them without brackets as well

IN_PLANS = re.compile(rf"(?<![\w`.])(?:{_BY_CHANCE}|now|curdate|{_CLOCK})\(")
"""In a plan of Spark's, in lower case. A function of Python doesn't show there whether it varies."""
IN_SQL = re.compile(rf"(?<![\w`.])(?:(?:{_BY_CHANCE}|now|curdate)\s*(?=\()|(?:{_CLOCK})\b)", re.IGNORECASE)
