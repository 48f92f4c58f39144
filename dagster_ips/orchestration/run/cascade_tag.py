"""Cascades in Dagster: the run tag by which all runs that follow from one change are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

import dagster as dg

from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.iceberg.cascade_stamps import cascade_at_head, caused_by
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.declare.consumers import reads_incrementally
from dagster_ips.orchestration.platform.markdown_text import escaped
from dagster_ips.progress.advance import Advance

CASCADE_TAG = "dagster_ips/cascade"
BACKFILL_TAG = "dagster/backfill"
PLAN_TAG = "dagster_ips/plan"
"""Names the managed backfill that a run belongs to. Dagster keeps the tag when it re-executes a run or a backfill."""
_AUTOMATIC_TAGS = ("dagster/sensor_name", "dagster/schedule_name", "dagster/from_automation_condition")

Running: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext
"""The context of an asset that captures: of its own function, or of an op in its graph."""


def is_automatic(run: dg.DagsterRun) -> bool:
    """Whether a sensor, a schedule or a condition launched the run, and not a person."""
    return any(tag in run.tags for tag in _AUTOMATIC_TAGS)


def cascade_of(running: Running, consumed: Sequence[tuple[TableMetadata, Capture]], advance: Advance) -> Cascade:
    """The cascade that the run belongs to, from the snapshots that it consumes; the run is tagged with it.

    A full recompute that a person requests starts a new cascade, named after the backfill or the run. So does an asset
    that a person rewound or reset, because the cascades of its snapshots have already passed. A run that finds nothing
    new belongs to no cascade.
    """
    run = running.run
    is_full = any(capture.mode is Mode.FULL for _, capture in consumed)
    if (is_full and not is_automatic(run)) or advance.obeyed:
        cascade = started_by(run)
    else:
        known = advance.base.progress.inputs if advance.base is not None else {}
        cascade = caused_by(consumed, {upstream: each.at.snapshot_id for upstream, each in known.items() if each.at})
    if cascade.main is not None:
        # The step that captures last sets the tag: most runs have one such step, or steps of the same cascade.
        running.instance.add_run_tags(run.run_id, {CASCADE_TAG: cascade.main})
    return cascade


def follow_head(running: dg.AssetExecutionContext | None, table: TableMetadata) -> None:
    """Tag an automatic run with the cascade of a table's newest snapshot.

    This is for assets that read nothing incrementally: they read the table as a whole, and run because it changed.
    """
    if running is None or not is_automatic(running.run) or reads_incrementally(running.assets_def):
        return
    if (main := cascade_at_head(table).main) is not None:
        running.instance.add_run_tags(running.run.run_id, {CASCADE_TAG: main})


def cascade_of_run(step: Any) -> Cascade:  # noqa: ANN401  # Dagster's class for it isn't public
    """The cascade of what a run without captures publishes: the one in its tag, or else one that it starts."""
    run = step.instance.get_run_by_id(step.run_id) or step.dagster_run
    return Cascade.of([run.tags[CASCADE_TAG]]) if CASCADE_TAG in run.tags else started_by(run)


def started_by(run: dg.DagsterRun) -> Cascade:
    """The cascade that a run starts, named after its managed backfill (even if re-executed), its backfill or itself."""
    named = (run.tags[tag] for tag in (PLAN_TAG, BACKFILL_TAG) if tag in run.tags)
    return Cascade.of([next(named, run.run_id)])


def links(cascade: Cascade) -> dg.MetadataValue[str]:
    """A metadata value with a link to the runs of each of the cascade's ids, and the number of further ids."""
    links = [f"[{escaped(each)}](/runs?q%5B%5D={quote(f'tag:{CASCADE_TAG}={each}', safe='')})" for each in cascade.ids]
    more = [f"and {cascade.more:,} more"] if cascade.more else []
    return dg.MetadataValue.md(" ".join([*links, *more]))
