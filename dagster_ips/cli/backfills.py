"""``dagster-ips backfill``: calls the desk, and prints the results as text or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dagster_ips.cli.context import Workplace, confirm, who_is_asking
from dagster_ips.cli.next_commands import with_workspace
from dagster_ips.cli.shown_progress import shown_before_each, shown_while
from dagster_ips.cli.text_format import json_text, table
from dagster_ips.core.backfill_plan import BackfillPlan
from dagster_ips.core.backfill_progress import StageProgress
from dagster_ips.core.backfill_text import plan_as_json, plan_from_json
from dagster_ips.core.row_changes import RowChanges, SideOfRows
from dagster_ips.core.time_text import moment
from dagster_ips.errors import BackfillRecordError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from dagster_ips.orchestration.backfill.differing import StageDifference
from dagster_ips.orchestration.backfill.following import BackfillFollower
from dagster_ips.orchestration.backfill.reports import (
    KINDS_OF_CHANGE,
    Report,
    cancel_report,
    difference_report,
    launch_report,
    plan_head,
    plan_report,
    progress_report,
    publication_report,
    release_report,
    revert_report,
    reverted_report,
    staged_report,
)
from dagster_ips.orchestration.backfill.reverting import Reverted
from dagster_ips.orchestration.backfill.staging import StagedBackfill

_LOOK_SECONDS = 2


def plan(  # noqa: PLR0913  # one per option
    workplace: Workplace,
    asset: str,
    *,
    span: str | None,
    single: Sequence[str],
    older_code: bool,
    out: str | None,
    as_json: bool,
) -> None:
    """Plan a backfill of an asset, print the plan and store it."""
    if sum([span is not None, bool(single), older_code]) > 1:
        message = "Use only one of --partitions, --partition and --older-code."
        raise click.UsageError(message)
    desk = _desk(workplace)
    chosen = list(single) or (desk.span(asset, span) if span is not None else None)
    with shown_while("Reading the metadata of all downstream tables"):
        made = desk.plan(asset, desk.of_older_code(asset) if older_code else chosen)
    text = json_text(plan_as_json(made))
    click.echo(text if as_json else _text(plan_report(made), "\n\n"))
    if out is not None:
        try:
            with effect(Effect.RECORD_BACKFILL):
                Path(out).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            message = f"The plan is stored as {made.id}, but can't be written to {out}: {error.strerror}."
            raise click.ClickException(message) from error


def launch(  # noqa: PLR0913  # one per option
    workplace: Workplace, plan: str, *, staged: bool, although_moved: bool, keep_days: int, yes: bool
) -> None:
    """Launch a plan by its id or from a file, live or staged."""
    desk = _desk(workplace)
    found = _plan_at(desk, plan)
    click.echo(_text(plan_head(found), "\n\n"))
    confirm("Stage it?" if staged else "Launch it?", yes=yes)
    who = who_is_asking()
    done = desk.launch(found, who=who, staged=staged, although_moved=although_moved, keep_days=keep_days)
    click.echo(_text(launch_report(done)))


def status(workplace: Workplace, backfill_id: str, *, watch: bool, as_json: bool) -> None:
    """Print how far a backfill is; with ``watch``, again after each change, until nothing is left to do."""
    desk = _desk(workplace)
    follower, staged = desk.follower(backfill_id), desk.staged(backfill_id)
    shown = ""
    while True:
        stages, reverted = follower.progress(), desk.reverted(backfill_id)
        text = (
            json_text(_progress_json(follower, stages, staged, reverted))
            if as_json
            else _text(progress_report(backfill_id, follower.status(), stages, staged, reverted))
        )
        if text != shown:
            if shown and sys.stdout.isatty():
                lines = shown.count("\n") + 1
                click.echo(f"\x1b[{lines}A\x1b[J", nl=False)
            click.echo(text)
            shown = text
        if not watch or not any(stage.is_open for stage in stages):
            return
        time.sleep(_LOOK_SECONDS)


def diff(workplace: Workplace, backfill_id: str, *, against: str, examples: int, as_json: bool) -> None:
    """Print how each stage differs from its state before the backfill, or from a full recompute."""
    found = _desk(workplace).compare(backfill_id, against=against, examples=examples)
    if as_json:
        shown = [_difference_json(each) for each in found]
        click.echo(json_text({"id": backfill_id, "stages": shown}))
    else:
        for number, each in enumerate(shown_before_each(found, "Comparing the rows of the next stage")):
            click.echo(("\n" if number else "") + _text(difference_report(each)))


def cancel(workplace: Workplace, backfill_id: str, *, yes: bool) -> None:
    """Cancel a backfill and all of its runs."""
    desk = _desk(workplace)
    drops = " and drop what it has staged and not published" if desk.launched(backfill_id).is_staged else ""
    confirm(f"Cancel backfill {backfill_id} and all of its runs{drops}?", yes=yes)
    ended, is_dropped = desk.cancel(backfill_id)
    click.echo(_text(cancel_report(backfill_id, ended, is_dropped=is_dropped)))


def publish(workplace: Workplace, backfill_id: str, *, yes: bool) -> None:
    """Publish what a backfill has staged, or continue an interrupted publication.

    Raises:
        BackfillError: it isn't staged, or can't be published.
    """
    desk = _desk(workplace)
    staged = desk.publishable(backfill_id)
    if not yes:
        click.echo(_text(staged_report(staged)))
    confirm(f"Publish the staged results of backfill {backfill_id}?", yes=yes)
    click.echo(_text(publication_report(staged, desk.publish(backfill_id))))


def revert(  # noqa: PLR0913  # one per option
    workplace: Workplace, backfill_id: str, *, single: Sequence[str], leave_out_changed: bool, dry_run: bool, yes: bool
) -> None:
    """Revert a backfill."""
    desk = _desk(workplace)
    reverter = desk.reverter(backfill_id)
    click.echo(_text(revert_report(reverter, reverter.plan(single or None))))
    if dry_run:
        return
    confirm("Revert it?", yes=yes)
    done, published = desk.revert(backfill_id, single or None, leave_out_changed=leave_out_changed)
    click.echo(_text(reverted_report(backfill_id, done, published)))


def release(workplace: Workplace, backfill_id: str, *, yes: bool) -> None:
    """Stop keeping the states before a backfill."""
    desk = _desk(workplace)
    desk.launched(backfill_id)
    question = f"Without its previous states, backfill {backfill_id} can't be compared or reverted. Release them?"
    confirm(question, yes=yes)
    click.echo(_text(release_report(desk.release(backfill_id))))


def _desk(workplace: Workplace) -> BackfillDesk:
    return BackfillDesk.of(workplace.definitions, workplace.instance)


def _plan_at(desk: BackfillDesk, plan: str) -> BackfillPlan:
    """The plan in a file, or with an id.

    Raises:
        UnknownBackfillError: there is no such file or id.
        BackfillRecordError: the file doesn't contain a plan.
    """
    path = Path(plan)
    if not path.is_file():
        return desk.planned(plan)
    try:
        return plan_from_json(json.loads(path.read_text(encoding="utf-8")), where=plan)
    except (OSError, ValueError) as error:
        raise BackfillRecordError(where=plan, cause=str(error)) from error


def _text(report: Report, between: str = "\n") -> str:
    parts = [each if isinstance(each, str) else table(each.headings, each.rows) for each in report]
    return with_workspace(between.join(parts))


def _progress_json(
    follower: BackfillFollower,
    stages: Sequence[StageProgress],
    staged: StagedBackfill | None,
    reverted: Reverted | None,
) -> dict[str, Any]:
    return {
        "id": follower.plan.id,
        "status": follower.status(),
        "staged": {each.stage.table: each.standing for each in staged.tables()} if staged else None,
        "reverted": {
            "at": moment(reverted.snapshot.timestamp_ms),
            "snapshot_id": str(reverted.snapshot.snapshot_id),
            "partitions": reverted.parts,
        }
        if reverted
        else None,
        "is_open": any(stage.is_open for stage in stages),
        "stages": [asdict(each) for each in stages],
        "runs": [record.dagster_run.run_id for record in follower.runs()],
    }


def _difference_json(found: StageDifference) -> dict[str, Any]:
    def side(each: SideOfRows) -> dict[str, Any]:
        sums = {name: None if value is None else str(value) for name, value in each.sums.items()}
        return {"rows": each.rows, "sums": sums, "nulls": dict(each.nulls)}

    def changes(each: RowChanges) -> dict[str, Any]:
        counts = {"added": each.added, "removed": each.removed, "changed": each.changed}
        return {**counts, "columns": dict(each.columns), "before": side(each.before), "after": side(each.after)}

    return {
        "asset": found.asset,
        "table": found.table,
        "against": "full" if found.against_full else "before",
        "before_snapshot_id": found.before_snapshot_id and str(found.before_snapshot_id),
        "after_snapshot_id": found.after_snapshot_id and str(found.after_snapshot_id),
        "keys": list(found.keys),
        "repeated_keys": list(found.repeated_keys),
        "total": changes(found.total),
        "partitions": {part: changes(each) for part, each in found.parts.items()},
        "examples": [_as_sides(asdict(each)) for each in found.examples],
        "not_compared": list(found.uncompared),
        "not_compared_because": dict(found.uncompared),
        "commits_of_other_changes": [str(each) for each in found.others],
    }


def _as_sides(example: dict[str, Any]) -> dict[str, Any]:
    before, after = example.pop("expected"), example.pop("actual")
    return {**example, "kind": KINDS_OF_CHANGE[example["kind"]], "before": before, "after": after}
