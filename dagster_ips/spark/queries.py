"""SQL over frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster_ips.errors import UnresolvedQueryError
from dagster_ips.spark.late import errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def query_over(session: SparkSession, text: str, frames: Mapping[str, DataFrame], *, asset: str) -> DataFrame:
    """The query ``text`` of ``asset``, in which a name of ``frames`` in backquotes stands for that frame. Lazy.

    Raises:
        UnresolvedQueryError: the query names something that its sources don't have.
    """
    found = text.replace("{", "{{").replace("}", "}}")
    for name in frames:
        found = found.replace(f"`{name}`", f"{{{name}}}")
    try:
        return session.sql(found, **dict[str, Any](frames))
    except errors.AnalysisException as error:
        raise UnresolvedQueryError(asset=asset, problem=str(error).strip().partition("\n")[0].rstrip(";")) from error


def types_of(frame: DataFrame) -> list[tuple[str, str]]:
    """The columns of ``frame``: name and type in Spark's SQL."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
