"""The values in the composed tables: few, so that rows meet, and some of them awkward."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

from tests.histories.values import Column

_DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
COLUMNS = (
    Column("number", "int", (0, 1, 2, None)),
    Column("day", "date", (dt.date(2026, 1, 1), dt.date(2026, 1, 2), None), shared_by=4),
    Column("title", "string", ("a", "b/ c='é'", None, ""), shared_by=2),
    Column("price", "decimal(9, 2)", (Decimal("1.50"), None, Decimal("-3.25")), shared_by=2),
    Column("amount", "double", (1.5, math.nan, None, -0.0, 0.0)),
    Column("at", "int", (0, 1, 2, 1, 3), shared_by=4),
    Column(
        "written",
        "string",
        (*_DAYS, *_DAYS, "2026-01-01", *_DAYS, *_DAYS, "2026-01-03", *_DAYS, *_DAYS, "2026-1-2", *_DAYS),
    ),
    Column("ratio", "float", (0.5, None, math.nan), shared_by=3),
    Column("_change_type", "string", ("insert", "delete", None), shared_by=3),
)
FREE = ("ratio", "_change_type")
"""The columns that no asset uses by name."""
ASKED_FOR = frozenset(column.name for column in COLUMNS) - {*FREE}
ALIKE = (FREE, ("title", "_change_type"), ("title", "written"))
"""Pairs of columns whose names can be swapped. Assets then get the other column, and only its values show that."""
