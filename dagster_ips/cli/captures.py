"""``dagster-ips capture`` and ``dagster-ips commit``, for jobs that Dagster doesn't run."""

from __future__ import annotations

import shlex
import uuid
from typing import TYPE_CHECKING, cast

import click
import dagster as dg

from dagster_ips.cli.context import Workplace
from dagster_ips.cli.next_commands import with_workspace
from dagster_ips.cli.text_format import json_text
from dagster_ips.core.capture import Mode
from dagster_ips.core.ownership import Consent
from dagster_ips.core.time_text import moment
from dagster_ips.errors import InstanceError
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.publish.old_icdc_tables import drop_expired_tables
from dagster_ips.iceberg.stamps import stamp_properties
from dagster_ips.orchestration.run.job_value import job_value
from dagster_ips.orchestration.watch.living_runs import OfLivingRuns
from dagster_ips.run_view import RunView
from dagster_ips.spark.branches import sql_name

if TYPE_CHECKING:
    from dagster_ips.spark.session import SparkSession

_PROMISE = (
    "At least once: if the job writes its table and dies before the commit, the next capture holds the same rows. A "
    "Spark job that publishes everything in a single commit, with spark_conf set, is exactly once: its stamp then "
    "records what was consumed, even without `dagster-ips commit`. Nothing prevents a job from writing after its "
    "capture was replaced."
)


def capture(workplace: Workplace, asset: str, *, full: bool) -> None:
    """Capture what is new and print it."""
    known = workplace.unpartitioned(asset)
    states = [workplace.store.get(edge) for edge in known.consumer.edges]
    workplace.require_idle(known, states)
    given_up = {state.in_flight.run_id for state in states if state.in_flight and state.in_flight.is_of_job}
    lake, consumer = known.manager.catalog.open(), known.consumer
    token = f"{consumer.name}:{uuid.uuid4().hex[:12]}"
    found = Capturer(lake, workplace.store, known.manager.icdc_namespace).capture(
        CaptureRequest(
            consumer.name,
            list(consumer.inputs.values()),
            target=consumer.table,
            asked_for=Mode.FULL if full else None,
            consent=Consent(any_writes=True),
        ),
        run_id=token,
    )
    for other in sorted(given_up):
        click.echo(f"{other} was in flight and has been replaced: its commit will be refused.", err=True)
    captures = tuple(each.capture for each in found)
    stamp = stamp_properties(captures, attempt=token, run_id=token)
    table, no_session = sql_name(lake.name, consumer.table), cast("SparkSession", None)  # Only SQL text is made.
    views = {
        name: RunView(each, no_session, lake.name, storage=lake.storage)
        for name, each in zip(consumer.inputs, found, strict=True)
    }
    job = job_value(consumer.name, table, views, lake, stamp)
    for name, view in views.items():
        job["inputs"][name]["number"] = view.captured.capture.number
    printed = {
        "capture": token,
        **job,
        "table": table,
        "reason": captures[0].reason,
        "is_empty": all(each.files.changes.is_empty for each in found),
        "promise": _PROMISE,
        "commit": with_workspace(f"dagster-ips commit {shlex.quote(token)}"),
    }
    click.echo(json_text(printed))


def commit(workplace: Workplace, capture: str) -> None:
    """Mark the capture as consumed."""
    asset, _, attempt = capture.rpartition(":")
    if not asset or not attempt:
        problem = f"{capture!r} isn't the id of a capture."
        raise InstanceError(problem=problem, remedy='Pass the value of "capture" that dagster-ips capture printed.')
    known = workplace.unpartitioned(asset)
    edges = known.consumer.edges
    held = [state.in_flight for edge in edges if (state := workplace.store.get(edge)).in_flight]
    upstreams = [edge.upstream for edge in edges]
    states = workplace.administrator(known).commit(known.consumer.name, upstreams, capture)
    shown: dict[str, str | int] = {"capture": capture, "mode": held[0].mode.value}
    for state in states:
        at = state.committed
        what = f"snapshot {at.snapshot_id} ({moment(at.timestamp_ms)})" if at else "nothing, because it has no snapshot"
        shown[f"{state.edge.upstream}: consumed up to"] = what
        click.echo(f"{state.edge}: capture {state.number} is committed, up to {what}.")
    with effect(Effect.REPORT_EVENT):
        workplace.instance.report_runless_asset_event(
            dg.AssetMaterialization(known.consumer.key, description="by a job outside Dagster", metadata=shown)
        )
    living = OfLivingRuns(workplace.store, workplace.instance)
    for each in held:
        drop_expired_tables(known.manager.catalog.open(), living, each, known.retention)
