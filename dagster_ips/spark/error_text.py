"""What is shown of Spark's errors, and what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_ips.spark.late import errors


def first_line(error: Exception) -> str:
    """The message without its further lines, in which Spark lists the columns, the plan and the JVM's stack."""
    return str(error).strip().partition("\n")[0]


def unresolved_column(error: errors.PySparkException) -> str | None:
    """The column that doesn't exist, if the error is about one."""
    if not (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
        return None
    return (error.getMessageParameters() or {}).get("objectName", "").strip("`")
