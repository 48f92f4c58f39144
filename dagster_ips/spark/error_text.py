"""What is shown of Spark's errors, and what they say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dagster_ips.errors import LostCheckpointError

if TYPE_CHECKING:
    from dagster_ips.spark.late import errors


def first_line(error: Exception) -> str:
    """The message without its further lines, in which Spark lists the columns, the plan and the JVM's stack."""
    return str(error).strip().partition("\n")[0]


def column_without_nulls(error: errors.PySparkException) -> str | None:
    """The column that can't hold a null, if the error is that a row has one."""
    if error.getCondition() != "NOT_NULL_ASSERT_VIOLATION":
        return None
    path = (error.getMessageParameters() or {}).get("walkedTypePath", "")
    return ".".join(path.split()) or "a column"


def unresolved_column(error: errors.PySparkException) -> str | None:
    """The column that doesn't exist, if the error is about one."""
    if not (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
        return None
    return (error.getMessageParameters() or {}).get("objectName", "").strip("`")


@contextlib.contextmanager
def naming_lost_checkpoints(asset: str) -> Iterator[None]:
    """Within it, the error that Spark Connect has dropped a checkpoint says so.

    Raises:
        LostCheckpointError: it has.
    """
    try:
        yield
    except Exception as error:
        if "No DataFrame with id" not in str(error):
            raise
        raise LostCheckpointError(asset) from error
