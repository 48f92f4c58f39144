"""``dagster-ips reset`` and ``dagster-ips rewind``: change what counts as consumed."""

from __future__ import annotations

import click
import dagster as dg

from dagster_ips.cli.context import UNKNOWN, Workplace, confirm, who_is_asking
from dagster_ips.cli.text_format import at_text
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import Everywhere, Place
from dagster_ips.core.size_text import counted, size_text
from dagster_ips.errors import InstanceError
from dagster_ips.errors.remedies import full_run
from dagster_ips.exactly_once.administration import Rewind
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.orchestration.run.known_consumers import KnownConsumer
from dagster_ips.progress.cursor import Request


def reset(  # noqa: PLR0913  # one per option
    workplace: Workplace, asset: str, *, upstream: str | None, why: str | None, yes: bool, dry_run: bool
) -> None:
    """Forget what the asset has consumed from an upstream."""
    known = workplace.unpartitioned(asset)
    tracked = known.tracked(upstream)
    edge = Edge(known.consumer.name, tracked.upstream)
    workplace.require_idle(known)
    _require_no_rows_twice(workplace, known, tracked, edge)
    then = (
        "the next run computes its whole table"
        if tracked.start is Everywhere.ALL
        else f"the next run starts at {tracked.start}"
    )
    click.echo(f"{edge}: forgets everything that was consumed; {then}.")
    if tracked.start is Everywhere.ALL:
        click.echo(f"It will read {workplace.everything_text(known)}.")
    if dry_run:
        return
    reason = _require_reason(why, "reset")
    confirm("Continue?", yes=yes)
    workplace.require_idle(known)
    done = workplace.administrator(known).reset(edge, who=who_is_asking(), why=reason)
    _report(workplace, known, done)


def rewind(  # noqa: PLR0913  # one per option
    workplace: Workplace, asset: str, *, upstream: str | None, place: Place, why: str | None, yes: bool, dry_run: bool
) -> None:
    """Make the asset read a part of an upstream again."""
    known = workplace.unpartitioned(asset)
    tracked = known.tracked(upstream)
    administrator = workplace.administrator(known)
    planned = administrator.plan_rewind(known.consumer.name, tracked, place, may_repeat=known.may_repeat)
    click.echo(_preview(planned))
    if dry_run:
        return
    reason = _require_reason(why, "rewind")
    workplace.require_idle(known)
    confirm("Continue?", yes=yes)
    workplace.require_idle(known)
    done = administrator.rewind(planned, who=who_is_asking(), why=reason)
    _report(workplace, known, done)


def _require_reason(why: str | None, what: str) -> str:
    if not why:
        raise InstanceError(problem=f"A {what} needs a reason for the record.", remedy="Give it with --why '...'.")
    return why


def _preview(planned: Rewind) -> str:
    pending = planned.pending
    partitions = "" if pending.partitions is None else f", {counted(pending.partitions, 'partition')}"
    return (
        f"{planned.edge}: moves back from snapshot {at_text(planned.before)} to {at_text(planned.after)}. "
        f"Will be read again: {counted(pending.snapshots, 'snapshot')}, {counted(pending.files, 'file')}, "
        f"{counted(pending.rows, 'row')}, {size_text(pending.size_bytes)}{partitions}."
    )


def _require_no_rows_twice(workplace: Workplace, known: KnownConsumer, tracked: TrackedInput, edge: Edge) -> None:
    """Fail if the next run would begin at a start before what is consumed, and add rows that the table has already."""
    begins_earlier = tracked.start not in (Everywhere.ALL, Everywhere.LATEST)
    if begins_earlier and not known.may_repeat and _may_have_consumed(workplace, known, edge.upstream):
        raise InstanceError(
            problem=f"After a reset, {edge.consumer} would begin again at {tracked.start}. Its runs add rows to its "
            "table, so rows that it has already would be there twice.",
            remedy=f"To compute all rows anew: {full_run(edge.consumer)}. To skip what has not been consumed yet, "
            'declare start="latest" before the reset.',
        )


def _may_have_consumed(workplace: Workplace, known: KnownConsumer, upstream: str) -> bool:
    """Whether the table contains anything of the upstream, or that is unknown."""
    try:
        found = workplace.progress(known)
    except UNKNOWN:
        return True
    progress = found.progress.inputs.get(upstream) if found is not None else None
    return progress is not None and bool(progress.marks)


def _report(workplace: Workplace, known: KnownConsumer, done: Request) -> None:
    """Report the request in the asset's timeline and on the command line."""
    with effect(Effect.REPORT_EVENT):
        workplace.instance.report_runless_asset_event(
            dg.AssetObservation(
                asset_key=known.consumer.key,
                description=f"{done.kind} on {done.upstream} by {done.who}: {done.why}",
                metadata={
                    "what": str(done.kind),
                    "upstream": done.upstream,
                    "who": done.who,
                    "why": done.why,
                    # As text: JavaScript would round a snapshot's id.
                    "consumed before": at_text(done.before),
                    "consumed now": at_text(done.after),
                },
            )
        )
    click.echo("Done: the next run does it.")
