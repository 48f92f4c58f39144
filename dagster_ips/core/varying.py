"""The parts of SQL whose value differs between runs: the clock, chance and settings."""

from __future__ import annotations

import re

_PLACE = "spark_partition_id|input_file_name|input_file_block_start|input_file_block_length"  # a compaction moves rows
_IN_JAVA = "reflect|try_reflect|java_method"  # any method, such as one that gives a random number
_BY_CHANCE = f"rand|randn|random|randstr|uniform|uuid|shuffle|{_IN_JAVA}|{_PLACE}"
_CLOCK = "current_date|current_time|current_timestamp|localtimestamp"  # SQL has them without brackets as well

OF_THE_MOMENT = frozenset(("now", "today", "tomorrow", "yesterday"))
"""Strings that mean a different date or time on another day."""
_MOMENT = "|".join(sorted(OF_THE_MOMENT))

IN_PLANS = re.compile(
    rf"(?<![\w`.])(?:{_BY_CHANCE}|now|curdate|{_CLOCK})\("
    rf"|cast\(\s*(?:{_MOMENT})\b[^#()]* as (?:date|timestamp)"
    rf"|(?<![\w`.])to_(?:date|timestamp)(?:_\w+)?\(\s*(?:{_MOMENT})\b(?![#(])"
)
"""Matches in a Spark plan in lower case. The plan doesn't show whether a Python function varies."""
IN_SQL = re.compile(
    rf"(?<![\w`.])(?:(?:{_BY_CHANCE}|now|curdate)\s*(?=\()|(?:{_CLOCK})\b|unix_timestamp\s*\(\s*\))", re.IGNORECASE
)
"""Matches in SQL without what is in quotes."""
MOMENTS_IN_SQL = re.compile(
    rf"(?<![\w`.])(?:to_)?(?:date|timestamp)(?:_\w+)?\s*\(?\s*['\"]\s*(?:{_MOMENT})\b"
    rf"|(?P<quote>['\"])\s*(?:{_MOMENT})\b[^'\"]*(?P=quote)\s*(?:as|::)\s*(?:date|timestamp)",
    re.IGNORECASE,
)
"""Matches a string in SQL that is read as a date or time of the moment."""
PERHAPS_MOMENTS_IN_SQL = re.compile(rf"['\"]\s*(?:{_MOMENT})\b", re.IGNORECASE)
"""Matches a string in SQL that is read as a date or time of the moment if it is compared with one, for example."""
SETTINGS_IN_SQL = re.compile(r"\$\{\S+?\}")
"""Matches what Spark replaces in SQL, even in quotes, by one of its settings, or by nothing if it has no such one."""
