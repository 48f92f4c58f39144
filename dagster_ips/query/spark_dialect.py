"""Spark's SQL as Spark reads it: a query that is written again for the rows that changed has to mean the same."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel

from dagster_ips.core.installed_spark import installed_version, minor_version


class SparkSql(Spark):
    """sqlglot's dialect, but for what it takes for something else than Spark does."""

    class Tokenizer(Spark.Tokenizer):
        """Since Spark 4.1 ``'it''s'`` is ``it's``, and not the two texts ``it`` and ``s``."""

        STRING_ESCAPES = ["\\"] if minor_version(installed_version()) < (4, 1) else ["\\", "'", '"']

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """``path`` as it is: to read it would be to write it as another engine does."""
        return path


DIALECT = SparkSql


def in_spark(expression: exp.Expr) -> str:
    """``expression`` as Spark's SQL, with every name quoted.

    Raises:
        UnsupportedError: it can't be written without leaving out a part.
    """
    return expression.sql(DIALECT, identify=True, unsupported_level=ErrorLevel.RAISE)
