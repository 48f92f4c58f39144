"""What is shown of Spark's errors, and what they say."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dagster_ips.errors import LostCheckpointError

if TYPE_CHECKING:
    from dagster_ips.spark.late import errors


_NO_FOLDER = re.compile(r"Mkdirs failed to create (\S+)")
_LONGEST_NAME = 255
"""In bytes, of a file or folder in most file systems; Iceberg writes other characters than ASCII as ``%C3%A9``."""


def first_line(error: Exception) -> str:
    """The message without its further lines, in which Spark lists the columns, the plan and the JVM's stack."""
    return str(error).strip().partition("\n")[0]


def column_without_nulls(error: errors.PySparkException) -> str | None:
    """The column that can't hold a null, if the error is that a row has one."""
    if error.getCondition() != "NOT_NULL_ASSERT_VIOLATION":
        return None
    path = (error.getMessageParameters() or {}).get("walkedTypePath", "")
    return ".".join(path.split()) or "a column"


def is_of_long_path(error: errors.PySparkException) -> bool:
    """Whether a file can't be written because its path or a folder of it has too long a name."""
    text = str(error)
    folder = _NO_FOLDER.search(text)
    is_long = folder is not None and max(map(len, folder[1].split("/"))) > _LONGEST_NAME
    return is_long or "File name too long" in text or "KeyTooLong" in text


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
