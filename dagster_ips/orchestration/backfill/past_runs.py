"""What earlier runs of an asset read and how long they took, from the metadata of their materializations."""

from __future__ import annotations

import dagster as dg

from dagster_ips.core.run_seconds import PastRun
from dagster_ips.orchestration.declare.run_numbers import (
    BYTES_CAPTURED,
    CAPTURE_SECONDS,
    ROWS_CAPTURED,
    WRITE_SECONDS,
)
from dagster_ips.orchestration.run.run_metadata import of_run

_MOST_EVENTS = 200
_MOST_RUNS = 30
_SECONDS = (CAPTURE_SECONDS, WRITE_SECONDS)


def past_runs(instance: dg.DagsterInstance, asset: str) -> list[PastRun]:
    """The newest runs that recorded it, each once; their times don't include starting the process."""
    key = dg.AssetKey.from_user_string(asset)
    found: dict[str, PastRun] = {}
    for record in instance.fetch_materializations(key, limit=_MOST_EVENTS).records:
        told = record.asset_materialization
        run_id = record.event_log_entry.run_id
        if told is None or run_id in found or len(found) >= _MOST_RUNS:
            continue
        numbers = {name: _number(told.metadata, name) for name in (*_SECONDS, BYTES_CAPTURED)}
        size, seconds = numbers[BYTES_CAPTURED], [numbers[name] for name in _SECONDS]
        known = [each for each in seconds if each is not None]
        if size is not None and len(known) == len(_SECONDS):
            found[run_id] = PastRun(int(size), sum(known))
    return list(found.values())


def captured_by(instance: dg.DagsterInstance, asset: str, run_ids: set[str]) -> tuple[int, int]:
    """How many bytes and rows the runs ``run_ids`` captured for an asset, as far as they recorded it."""
    key = dg.AssetKey.from_user_string(asset)
    told: dict[str, tuple[int, int]] = {}
    cursor = None
    while run_ids - told.keys():
        page = instance.fetch_materializations(key, limit=_MOST_EVENTS, cursor=cursor)
        for record in page.records:
            run_id, made = record.event_log_entry.run_id, record.asset_materialization
            if run_id in run_ids and made is not None:
                numbers = [_number(made.metadata, name) for name in (BYTES_CAPTURED, ROWS_CAPTURED)]
                told.setdefault(run_id, (int(numbers[0] or 0), int(numbers[1] or 0)))
        cursor = page.cursor
        if not page.has_more:
            break
    return sum(size for size, _ in told.values()), sum(rows for _, rows in told.values())


def _number(metadata: object, name: str) -> float | None:
    """The number with that name; the whole run's number if the materialization is of one partition of several."""
    assert isinstance(metadata, dict)  # noqa: S101  # Dagster gives a dict
    for each in (of_run(name), name):
        value = getattr(metadata.get(each), "value", None)
        if isinstance(value, int | float):
            return float(value)
    return None
