"""``dagster-ips run``: runs an asset once, in this process, and prints what the run did."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import dagster as dg

from dagster_ips import errors
from dagster_ips._compat import knowing_partitions
from dagster_ips.cli.context import Workplace
from dagster_ips.cli.next_commands import with_workspace
from dagster_ips.cli.pending_changes import waiting_partitions
from dagster_ips.cli.shown_progress import shown_while
from dagster_ips.core.capture import Mode
from dagster_ips.core.policy import OnRemoved
from dagster_ips.errors import InstanceError, UnknownConsumerError
from dagster_ips.orchestration.automate.run_requests import in_few_runs
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from dagster_ips.orchestration.run.runs import ACCEPT_TAG, MODE_TAG, REMOVED_TAG, TAKE_OVER_TAG

_MARKS = re.compile(r"\*\*|\\(.)")
_CONSOLE = "console"


def run(  # noqa: PLR0913  # one per option
    workplace: Workplace,
    asset: str,
    *,
    full: bool,
    incremental: bool,
    accept: int | None,
    take_over: str | None,
    ignore_removed: bool,
    spans: Sequence[str],
) -> None:
    """Run the asset, or the asset that writes the table of that name; the runs after one that failed aren't begun.

    Raises:
        click.ClickException: a run failed.
    """
    if full and incremental:
        message = "Use only one of --full and --incremental."
        raise click.UsageError(message)
    key, definitions = _found(workplace, asset)
    graph: Any = definitions.resolve_asset_graph()
    mode = Mode.FULL if full else Mode.INCREMENTAL if incremental else None
    partitions = _partitions(workplace, key, graph, spans, is_all=full or take_over is not None)
    if partitions is not None and not partitions:
        click.echo(f"{key.to_user_string()}: no partition is pending. To recompute some, name them with --partitions.")
        return
    if partitions is not None and not spans and mode is None and take_over is None:
        mode = Mode.INCREMENTAL  # These are pending. Partitions that a person names are recomputed.
    wishes = {
        MODE_TAG: mode,
        ACCEPT_TAG: accept,
        TAKE_OVER_TAG: take_over,
        REMOVED_TAG: OnRemoved.IGNORE if ignore_removed else None,
    }
    tags = {tag: str(wish) for tag, wish in wishes.items() if wish is not None}
    selection = sorted(graph.get(key).execution_set_asset_keys)
    each_alone: list[str | None] = [None] if partitions is None else [*partitions]
    requests = [dg.RunRequest(asset_selection=selection, partition_key=each, tags=tags) for each in each_alone]
    with knowing_partitions(workplace.instance):
        few = in_few_runs(requests, graph)
    for number, request in enumerate(few, 1):
        _run(workplace.instance, definitions, request, f" ({number:,} of {len(few):,})" if len(few) > 1 else "")


def _found(workplace: Workplace, asset: str) -> tuple[dg.AssetKey, dg.Definitions]:
    """The asset with that key or table, and the definitions that can run it.

    Raises:
        UnknownConsumerError: there is none.
    """
    writers = {each.table: each.asset for each in workplace.known_tables if not each.is_outside}
    can_run: set[str] = set()
    for name in [asset, *([writers[asset]] if asset in writers else [])]:
        key = dg.AssetKey.from_user_string(name)
        for definitions in workplace.definitions:
            graph: Any = definitions.resolve_asset_graph()
            keys = graph.executable_asset_keys
            can_run |= {each.to_user_string() for each in keys}
            if key in keys:
                return key, definitions
    raise UnknownConsumerError(asset, "isn't an asset that these definitions can run", tuple(sorted(can_run)))


def _partitions(
    workplace: Workplace,
    key: dg.AssetKey,
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    spans: Sequence[str],
    *,
    is_all: bool,
) -> list[str] | None:
    """The partitions to run: those named, all, or those pending; None for an asset without partitions."""
    name, definition = key.to_user_string(), graph.get(key).partitions_def
    if definition is None:
        if spans:
            problem = f"{name} has no partitions in Dagster."
            raise InstanceError(problem=problem, remedy="Omit --partitions: the whole asset runs.")
        return None
    keys = list(definition.get_partition_keys(dynamic_partitions_store=workplace.instance))
    if spans:
        desk = BackfillDesk.of(workplace.definitions, workplace.instance)
        wanted = {partition for span in spans for partition in desk.span(name, span)}
        if unknown := sorted(wanted - set(keys)):
            known = f"Its partitions are {keys[0]} to {keys[-1]}." if keys else "It has none."
            raise InstanceError(problem=f"{name} has no partition {', '.join(unknown)}.", remedy=known)
    elif is_all:
        return keys
    elif name not in workplace.consumers:
        problem = f"{name} is partitioned and reads nothing incrementally, so no partition is known to be pending."
        raise InstanceError(problem=problem, remedy="Name them: --partitions K, or --partitions A...B.")
    else:
        known_consumer = workplace.consumers[name]
        with shown_while("Reading the metadata of pending changes"):
            wanted = {
                partition
                for tracked in known_consumer.consumer.inputs.values()
                for partition in waiting_partitions(workplace, known_consumer, tracked).pending
            }
    return [each for each in keys if each in wanted]


def _run(instance: dg.DagsterInstance, definitions: dg.Definitions, request: dg.RunRequest, place: str) -> None:
    job, run_id = definitions.resolve_implicit_global_asset_job_def(), str(uuid.uuid4())
    names = ", ".join(each.to_user_string() for each in request.asset_selection or ())
    click.echo(f"{names}{_of_partitions(request)}: run {run_id}{place}")
    quiet = {"loggers": {_CONSOLE: {"config": {"log_level": "CRITICAL"}}}} if _CONSOLE in job.loggers else None
    with shown_while("Running"), _canceled_if_interrupted(instance, run_id):
        result = job.execute_in_process(
            run_config=quiet,
            instance=instance,
            partition_key=request.partition_key,
            raise_on_error=False,
            asset_selection=list(request.asset_selection or ()),
            run_id=run_id,
            tags=request.tags,
            resources=job.resource_defs,  # Else Dagster replaces its default IO manager by one that keeps no file.
        )
    for line in dict.fromkeys(_summary(instance, run_id)):
        click.echo(line)
    details = f"The whole story: dagster-ips explain {run_id[:8]}"
    if not result.success:
        raise click.ClickException(with_workspace(f"The run failed. {_failure(instance, run_id)}\n{details}"))
    click.echo(with_workspace(details))


@contextlib.contextmanager
def _canceled_if_interrupted(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Around a run: Ctrl-C and SIGTERM cancel it. Otherwise Dagster would take it for one at work forever."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        run = instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            instance.report_run_canceled(run)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _of_partitions(request: dg.RunRequest) -> str:
    if request.partition_key is not None:
        return f", partition {request.partition_key}"
    ends = [value for tag, value in request.tags.items() if tag.startswith("dagster/asset_partition_range_")]
    return f", partitions {' to '.join(ends)}" if ends else ""


def _summary(instance: dg.DagsterInstance, run_id: str) -> Iterator[str]:
    """What the run's materializations say, asset by asset, and what it warned of."""
    for entry in instance.all_logs(run_id):
        made = entry.asset_materialization
        if made is not None:
            yield from _told(made.metadata)
        elif not entry.is_dagster_event and entry.level == logging.WARNING:
            yield f"  warning: {entry.user_message}"


def _told(metadata: Mapping[str, dg.MetadataValue[Any]]) -> Iterator[str]:
    summary = metadata.get("summary")
    text = str(summary.value) if summary is not None else "- materialized"
    for line in text.splitlines():
        yield f"  {_MARKS.sub(lambda found: found[1] or '', line.removeprefix('- '))}"


def _failure(instance: dg.DagsterInstance, run_id: str) -> str:
    """Why the run failed: the causes of its errors, with the stack trace of those that aren't the library's."""
    told: dict[str, None] = {}
    for entry in instance.all_logs(run_id):
        error = getattr(entry.dagster_event and entry.dagster_event.event_specific_data, "error", None)
        if error is None:
            continue
        while error.cause is not None:
            error = error.cause
        trace = "" if error.cls_name in errors.__all__ else "".join(error.stack)
        told[f"{trace}{error.message.strip()}"] = None
    return "\n".join(told) or "Its log in Dagster's UI says why."
