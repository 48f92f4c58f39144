"""How many of a table's rows meet conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import Predicate, quoted
from dagster_ips.spark.late import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def count_where(rows: DataFrame, conditions: Sequence[Predicate]) -> tuple[int, ...]:
    """How many of ``rows`` meet each of ``conditions``, and how many rows there are; one query."""
    (found,) = rows.agg(*[F.count_if(_is_true(each)) for each in conditions], F.count(F.lit(1))).collect()
    return tuple(found)


def values_without(
    rows: DataFrame, condition: Predicate, columns: Sequence[str], *, null: str, most: int
) -> tuple[str, ...]:
    """At most ``most`` values, as text, that ``columns`` have in rows that don't meet ``condition``."""
    shown = [F.coalesce(F.col(quoted(column)).cast("string"), F.lit(null)) for column in columns]
    found = rows.where(~_is_true(condition)).select(*shown).distinct().limit(most).collect()
    return tuple(sorted(", ".join(row) for row in found))


def _is_true(condition: Predicate) -> Column:
    return F.coalesce(F.expr(condition), F.lit(False))  # noqa: FBT003
