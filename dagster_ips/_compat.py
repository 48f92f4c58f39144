"""Private names of other packages, one function each, with the version it was checked on."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster import RunRequest, SensorDefinition, SensorEvaluationContext
    from pyspark.sql import SparkSession

RANGE_START_TAG, RANGE_END_TAG = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"

_KEPT: list[SparkSession] = []


def never_collect(session: SparkSession) -> None:
    """Keep a Spark Connect session for as long as the process lives (pyspark 4.1.4).

    One that is garbage-collected shuts down a thread pool which all sessions of the process share. If that happens in
    the middle of another session's request, which is whenever Python likes, the process hangs in a lock of its own.
    """
    _KEPT.append(session)


def leave_without_asking_the_server(session: SparkSession) -> None:
    """Keep a Spark Connect client from calling its server as the process exits (pyspark 4.1.4).

    It frees machine-learning models there, and if the server is gone it retries for ten minutes: the process hangs.
    """
    client: Any = getattr(session, "client")  # noqa: B009  # typed as the classic session, which has none
    atexit.unregister(client._cleanup_ml_cache)  # noqa: SLF001  # there is no public way


def change_run_requests(
    sensor: SensorDefinition, change: Callable[[SensorEvaluationContext, Sequence[RunRequest]], Sequence[RunRequest]]
) -> None:
    """Let ``change`` have a say in what ``sensor`` requests (dagster 1.13.27).

    The automation sensor asks for a run per partition, or for a backfill, which is looked at twice a minute only.
    """
    evaluate: Any = sensor._evaluation_fn  # noqa: SLF001  # there is no public way

    def changed(context: SensorEvaluationContext) -> Any:  # noqa: ANN401  # as in Dagster
        return [
            result._replace(run_requests=list(change(context, result.run_requests)))
            if getattr(result, "run_requests", None)
            else result
            for result in evaluate(context)
        ]

    sensor._evaluation_fn = changed  # noqa: SLF001  # as above
