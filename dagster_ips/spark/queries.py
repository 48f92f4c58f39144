"""SQL over frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def query_over(session: SparkSession, text: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """The query ``text``, in which a name of ``frames`` in backquotes stands for that frame. Lazy."""
    found = text.replace("{", "{{").replace("}", "}}")
    for name in frames:
        found = found.replace(f"`{name}`", f"{{{name}}}")
    return session.sql(found, **dict[str, Any](frames))


def types_of(frame: DataFrame) -> list[tuple[str, str]]:
    """The columns of ``frame``: name and type in Spark's SQL."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def renamed_to(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """``frame`` with its columns called ``names``, in order."""
    return frame.toDF(*names)
