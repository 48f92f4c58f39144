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
from dagster_ips.iceberg.stamps import attempt_properties, computed_properties, owner_properties
from dagster_ips.orchestration.run.job_value import job_value
from dagster_ips.progress.advance import Advance
from dagster_ips.progress.cursor import Job
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PROGRESS
from dagster_ips.run_view import RunView
from dagster_ips.spark.branches import sql_name

if TYPE_CHECKING:
    from dagster_ips.spark.session import SparkSession

_PROMISE = (
    "At least once: if the job writes its table and dies before the commit, the next capture holds the same rows. A "
    "Spark job that publishes everything in a single commit, with spark_conf set, is exactly once: the commit itself "
    "then says what was consumed, even without `dagster-ips commit`. Nothing prevents a job from writing after its "
    "capture was replaced."
)


def capture(workplace: Workplace, asset: str, *, full: bool) -> None:
    """Capture what is new and print it."""
    known = workplace.unpartitioned(asset)
    workplace.require_idle(known)
    given_up = workplace.store.get(known.consumer.name).job
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
    captures = tuple(each.capture for each in found)
    progress = _progress(found[0].advance)
    with effect(Effect.COPY_PROGRESS):
        workplace.store.set_job(consumer.name, Job(captures, progress))
    if given_up is not None and given_up.progress.number >= progress.number:
        other = given_up.captures[0].run_id
        click.echo(f"{other} was in flight and has been replaced: its commit will be refused.", err=True)
    stamp = attempt_properties(token, token) | owner_properties(consumer.name, None)
    stamp |= computed_properties(captures[0].mode, ()) | {PROGRESS: progress_text(progress)}
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


def _progress(advance: Advance) -> Progress:
    """The table's progress once the job has written what was captured; by which code is unknown."""
    continued = advance.base if advance.mode is Mode.INCREMENTAL else None
    made = continued.progress.made if continued is not None else {}
    return advance.progress(advance.base, made=made, lookups={})


def commit(workplace: Workplace, capture: str) -> None:
    """Mark the capture as consumed."""
    asset, _, attempt = capture.rpartition(":")
    if not asset or not attempt:
        problem = f"{capture!r} isn't the id of a capture."
        raise InstanceError(problem=problem, remedy='Pass the value of "capture" that dagster-ips capture printed.')
    known = workplace.unpartitioned(asset)
    job = workplace.store.get(known.consumer.name).job
    upstreams = [edge.upstream for edge in known.consumer.edges]
    states = workplace.administrator(known).commit(known.consumer.name, upstreams, capture)
    captures = job.captures if job is not None else ()
    shown: dict[str, str | int] = {"capture": capture, "mode": captures[0].mode.value}
    for state in states:
        at = state.committed
        what = f"snapshot {at.snapshot_id} ({moment(at.timestamp_ms)})" if at else "nothing, because it has no snapshot"
        shown[f"{state.edge.upstream}: consumed up to"] = what
        click.echo(f"{state.edge}: capture {state.number} is committed, up to {what}.")
    with effect(Effect.REPORT_EVENT):
        workplace.instance.report_runless_asset_event(
            dg.AssetMaterialization(known.consumer.key, description="by a job outside Dagster", metadata=shown)
        )
    lake, is_at_work = known.manager.catalog.open(), workplace.runs_at_work(known)
    for each in captures:
        drop_expired_tables(lake, each, known.retention, is_at_work=is_at_work)
