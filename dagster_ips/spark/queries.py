"""SQL over frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import quoted
from dagster_ips.core.row_places import METADATA_COLUMNS
from dagster_ips.errors import UnresolvedQueryError
from dagster_ips.spark.error_text import first_line
from dagster_ips.spark.late import errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def query_over(session: SparkSession, text: str, names: Mapping[str, str], *, asset: str) -> DataFrame:
    """The query ``text`` of ``asset``, which names temporary views in backquotes, by the keys of ``names``. Lazy.

    Raises:
        UnresolvedQueryError: the query names something that its sources don't have.
    """
    for name, view in names.items():
        text = text.replace(f"`{name}`", quoted(view))
    try:
        return session.sql(text)
    except errors.AnalysisException as error:
        problem = first_line(error).rstrip(";")
        if places := [name for name in sorted(METADATA_COLUMNS) if f"`{name}`" in problem.lower()]:
            problem += f" ({places[0]} says where a row lies, which no run follows: leave it out)"
        raise UnresolvedQueryError(asset=asset, problem=problem) from error


def types_of(frame: DataFrame) -> list[tuple[str, str]]:
    """The columns of ``frame``: name and type in Spark's SQL."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
