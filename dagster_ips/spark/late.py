"""PySpark as this package uses it, imported on first use. Only annotations name its classes directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ips._late import LateModule

if TYPE_CHECKING:
    from pyspark import errors, sql
    from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it
    from pyspark.sql import types
else:
    errors, sql = LateModule("pyspark.errors"), LateModule("pyspark.sql")
    F, types = LateModule("pyspark.sql.functions"), LateModule("pyspark.sql.types")

__all__ = ["F", "errors", "sql", "types"]
