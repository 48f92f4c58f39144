"""Have a MERGE send its source to where the target's rows are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEY = "spark.sql.autoBroadcastJoinThreshold"
_SPARKS_DEFAULT = "10485760b"
_MOST_BYTES = "64m"


@contextlib.contextmanager
def small_sources_broadcast(session: SparkSession) -> Iterator[None]:
    """A MERGE within broadcasts a source of up to 64 MB, and leaves the target's rows where they are.

    Spark goes by the source's size alone: it gives the join of a MERGE a hint of its own, and drops any other. A
    threshold that the user set stays.

    Source: Spark 4.1, ``RewriteMergeIntoTable.join`` and ``EliminateResolvedHint``.
    """
    if session.conf.get(_KEY) != _SPARKS_DEFAULT:
        yield
        return
    session.conf.set(_KEY, _MOST_BYTES)
    try:
        yield
    finally:
        session.conf.unset(_KEY)
