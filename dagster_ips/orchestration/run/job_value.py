"""What a job in another process, on this machine or another one, is given: one value that is plain JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dagster_ips.exactly_once.capture.icdc_parameters import parameters
from dagster_ips.exactly_once.publish.input_change import Frame
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.run_view import RunView
from dagster_ips.spark.branches import SNAPSHOT_PROPERTY
from dagster_ips.spark.session import is_secret

_PREFIX = "spark.icdc."
"""Spark passes on to jobs only settings that begin with ``spark.``; SQL text takes them as ``${spark.icdc.added}``."""


def job_value(  # noqa: PLR0913  # all are independent
    asset: str,
    target: str,
    views: Mapping[str, RunView],
    lake: LakeCatalog,
    stamp: Mapping[str, str],
    *,
    partition_keys: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The value that ``OwnSql.job`` describes; commits to ``target`` get the summary properties ``stamp``."""
    from dagster_ips.local_spark.launch import LEFT_OUT  # noqa: PLC0415  # it imports PySpark

    inputs = {name: _input(view, lake.name) for name, view in views.items()}
    common = {"target": target, "mode": next(iter(views.values())).mode.value}
    flat = common | next(iter(inputs.values())) if len(inputs) == 1 else common
    catalog = lake.spark_configuration()
    settings = {key: value for key, value in catalog.items() if not is_secret(key)}
    settings |= {SNAPSHOT_PROPERTY + key: value for key, value in stamp.items()}
    return {
        "asset": asset,
        **flat,
        "inputs": inputs,
        "partition_keys": None if partition_keys is None else [*partition_keys],
        "spark_conf": settings | dict(_texts(_PREFIX, flat if len(inputs) == 1 else common | inputs)),
        "secrets": {key: _variable_with(value) for key, value in catalog.items() if is_secret(key)},
        "environment": {
            "set": {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)},
            "unset": [*LEFT_OUT],
        },
    }


def _input(view: RunView, catalog: str) -> dict[str, Any]:
    known, partitions = parameters(view.captured, catalog), view.reported_partitions
    texts = {frame.value: view.sql_of(frame) for frame in (Frame.ADDED, Frame.REMOVED, Frame.SOURCE)}
    return {
        **known,
        **texts,
        # Not if rows have to be compared, or columns read in another way, to get the added ones.
        "icdc_table": known["icdc_table"] if known["icdc_table"] == texts[Frame.ADDED] else None,
        "partitions": None
        if partitions is None
        else [{name: None if value is None else str(value) for name, value in each.items()} for each in partitions],
    }


def _texts(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, str):
            yield prefix + name, value
        elif isinstance(value, Mapping):
            yield from _texts(f"{prefix}{name}.", value)


def _variable_with(secret: str) -> str | None:
    """The environment variable that holds the secret, as with ``dg.EnvVar``; None if there is none."""
    return next((name for name, value in sorted(os.environ.items()) if value == secret), None)
