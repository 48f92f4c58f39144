"""What ``dagster-ips backfill`` does and says: plan, launch, status, diff, publish, cancel and revert."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dagster_ips.cli.context import Workplace, who_is_asking
from dagster_ips.cli.text_format import moment, table
from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage
from dagster_ips.core.backfill_progress import PartState, StageProgress
from dagster_ips.core.row_changes import RowChanges, SideOfRows
from dagster_ips.core.size_text import size_text
from dagster_ips.errors import BackfillError, BackfillRecordError, InstanceError, UnknownBackfillError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.differing import StageComparer, StageDifference
from dagster_ips.orchestration.backfill.following import BackfillFollower
from dagster_ips.orchestration.backfill.launching import BackfillLauncher
from dagster_ips.orchestration.backfill.planning import planned
from dagster_ips.orchestration.backfill.reverting import BackfillReverter, RevertPlan, revert_cascade
from dagster_ips.orchestration.backfill.staging import StagedBackfill
from dagster_ips.orchestration.backfill.validating import StageValidator
from dagster_ips.state.backfill_codec import plan_as_json, plan_from_json

_MOST_SHOWN = 3
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
    """Plan a backfill of an asset, print the plan and remember it."""
    lineage = lineage_of(workplace)
    partitions = _chosen(workplace, lineage, asset, span, single, older_code=older_code)
    made = planned(lineage, asset, partitions, now_ms=time.time_ns() // 1_000_000)
    with effect(Effect.RECORD_BACKFILL):
        workplace.store.set_backfill(made)
    text = json.dumps(plan_as_json(made), indent=2, ensure_ascii=False)
    if out is not None:
        with effect(Effect.RECORD_BACKFILL):
            Path(out).write_text(text + "\n", encoding="utf-8")
    click.echo(text if as_json else _plan_text(made))


def launch(  # noqa: PLR0913  # one per option
    workplace: Workplace, plan: str, *, staged: bool, although_moved: bool, keep_days: int, yes: bool
) -> None:
    """Launch a plan by its id or from a file, live or staged."""
    lineage, found = lineage_of(workplace), _plan_at(workplace, plan)
    click.echo(_plan_table(found))
    if not yes:
        click.confirm("Stage it?" if staged else "Launch it?", abort=True)
    launcher = BackfillLauncher(lineage, keep_days)
    now_ms = time.time_ns() // 1_000_000
    by = launcher.stage if staged else launcher.launch
    done = by(found, who=who_is_asking(), although_moved=although_moved, now_ms=now_ms)
    for name, snapshot_id in done.before.items():
        click.echo(f"{name}: snapshot {snapshot_id} is kept as {found.before_tag}.")
    if staged:
        click.echo(f"All stages are computed on branches {found.staged_branch}; main stays as it is.")
    click.echo(f"Backfill {found.id} is launched. To follow it: dagster-ips backfill status {found.id} --watch")


def status(workplace: Workplace, backfill_id: str, *, watch: bool, as_json: bool) -> None:
    """Print how far a backfill is; with ``watch`` until nothing is left to do."""
    follower, staged = _follower(workplace, backfill_id), _staged(workplace, backfill_id)
    shown_lines = 0
    while True:
        stages = follower.progress()
        text = (
            json.dumps(_progress_json(follower, stages, staged), indent=2)
            if as_json
            else _progress_text(follower, stages, staged)
        )
        if shown_lines and sys.stdout.isatty():
            click.echo(f"\x1b[{shown_lines}A\x1b[J", nl=False)
        click.echo(text)
        shown_lines = text.count("\n") + 1
        if not watch or not any(stage.is_open for stage in stages):
            return
        time.sleep(_LOOK_SECONDS)


def diff(workplace: Workplace, backfill_id: str, *, against: str, examples: int, as_json: bool) -> None:
    """Print how each stage differs from its state before the backfill, or from a full recompute."""
    lineage, plan = lineage_of(workplace), _launched(workplace, backfill_id).plan
    comparer: StageComparer | StageValidator = (
        StageValidator(lineage, plan, workplace.definitions) if against == "full" else StageComparer(lineage, plan)
    )
    found = comparer.compare(most_examples=examples)
    if as_json:
        shown = [_difference_json(each) for each in found]
        click.echo(json.dumps({"id": backfill_id, "stages": shown}, indent=2, ensure_ascii=False))
    else:
        click.echo("\n\n".join(_difference_text(each) for each in found))


def _difference_json(found: StageDifference) -> dict[str, Any]:
    def side(each: SideOfRows) -> dict[str, Any]:
        return {"rows": each.rows, "sums": {n: None if v is None else str(v) for n, v in each.sums.items()}} | {
            "nulls": dict(each.nulls)
        }

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
        "total": changes(found.total),
        "partitions": {part: changes(each) for part, each in found.parts.items()},
        "examples": [_as_sides(asdict(each)) for each in found.examples],
        "commits_of_other_changes": [str(each) for each in found.others],
    }


def _as_sides(example: dict[str, Any]) -> dict[str, Any]:
    kinds = {"missing": "removed", "extra": "added", "different": "changed"}
    before, after = example.pop("expected"), example.pop("actual")
    return {**example, "kind": kinds[example["kind"]], "before": before, "after": after}


def _difference_text(found: StageDifference) -> str:
    differing = {part: each for part, each in found.parts.items() if not each.is_none}
    other = "a full recompute" if found.against_full else "before"
    if not differing:
        return f"{found.asset}: no row differs from {other}."
    total = found.total
    by = f"by {', '.join(found.keys)}" if found.keys else "by whole rows, as no key is declared"
    counts = f"{total.added} rows added, {total.removed} removed, {total.changed} changed"
    head = f"{found.asset} ({by}): {counts}{', compared with a full recompute' if found.against_full else ''}."
    before, after = ("RECOMPUTED", "THERE") if found.against_full else ("BEFORE", "AFTER")
    rows = [
        (
            part or "all of it",
            f"{each.before.rows} → {each.after.rows}",
            str(each.added),
            str(each.removed),
            str(each.changed),
            ", ".join(f"{name} ({count})" for name, count in each.columns.items()) or "-",
        )
        for part, each in differing.items()
    ]
    parts = [head, table(("PARTITION", "ROWS", "ADDED", "REMOVED", "CHANGED", "COLUMNS THAT DIFFER"), rows)]
    if columns := [row for name in total.after.nulls if (row := _column_row(name, total))]:
        headings = ("COLUMN", *(f"{what} {side}" for what in ("SUM", "NULLS") for side in (before, after)))
        parts.append(table(headings, columns))
    if found.examples:
        shown = [_as_sides(asdict(each)) for each in found.examples]
        cells = [(e["kind"], e["key"], e["column"] or "-", e["before"] or "-", e["after"] or "-") for e in shown]
        parts.append(table(("FOR EXAMPLE", "KEY", "COLUMN", before, after), cells))
    if found.others:
        parts.append(f"{len(found.others)} commits since are of other changes; their rows are among these.")
    return "\n".join(parts)


def _column_row(name: str, total: RowChanges) -> tuple[str, ...] | None:
    """A column's sums and nulls on both sides; None if they are the same."""
    before, after = total.before, total.after
    values = (before.sums.get(name), after.sums.get(name)), (before.nulls.get(name, 0), after.nulls.get(name, 0))
    if all(one == other for one, other in values):
        return None
    return (name, *("-" if value is None else str(value) for pair in values for value in pair))


def cancel(workplace: Workplace, backfill_id: str, *, yes: bool) -> None:
    """End a backfill and all of its runs."""
    follower, staged = _follower(workplace, backfill_id), _staged(workplace, backfill_id)
    if not yes:
        click.confirm(f"End backfill {backfill_id} and all of its runs?", abort=True)
    ended = follower.cancel()
    click.echo(
        f"Backfill {backfill_id} ends; {len(ended)} runs were told to end{': ' if ended else ''}{', '.join(ended)}."
    )
    if staged is not None and staged.discard():
        click.echo("What was staged is dropped, and nothing of it was published.")
        return
    click.echo(
        "What is published stays, and what it changed is followed. To take it back: "
        f"dagster-ips backfill revert {backfill_id}"
    )


def publish(workplace: Workplace, backfill_id: str, *, yes: bool) -> None:
    """Publish what a backfill has staged, or go on with that.

    Raises:
        BackfillError: it isn't staged, or can't be published.
    """
    follower, staged = _follower(workplace, backfill_id), _staged(workplace, backfill_id)
    if staged is None:
        remedy = f"To compare its stages with their states before: dagster-ips backfill diff {backfill_id}"
        raise BackfillError(backfill_id, "it was launched live, so that each stage is published as it runs.", remedy)
    if not yes:
        click.confirm(f"Publish what backfill {backfill_id} has staged?", abort=True)
    done = staged.publish(follower.unfinished())
    for stage in staged.plan.stages:
        what = (
            "published"
            if stage.asset in done.published
            else "left to follow by itself, as it changed since"
            if stage.asset in done.left
            else "nothing differs"
        )
        click.echo(f"{stage.table}: {what}.")
    click.echo(f"Backfill {backfill_id} is published. To take it back: dagster-ips backfill revert {backfill_id}")


def revert(  # noqa: PLR0913  # one per option
    workplace: Workplace, backfill_id: str, *, single: Sequence[str], leave_out_changed: bool, dry_run: bool, yes: bool
) -> None:
    """Take a backfill back."""
    reverter = BackfillReverter(lineage_of(workplace), _launched(workplace, backfill_id))
    staged = _staged(workplace, backfill_id)
    if staged is not None:
        staged.require_published()
    click.echo(_revert_text(reverter, reverter.plan(single or None)))
    if dry_run:
        return
    if not yes:
        click.confirm("Take it back?", abort=True)
    if staged is not None:
        staged.discard()  # A publication that is under way doesn't go on.
    done, published = reverter.revert(single or None, leave_out_changed=leave_out_changed)
    if published.snapshots:
        at = published.snapshots[-1].snapshot_id
        click.echo(f"Taken back: {partitions_text(_named(done.restored))}, by snapshot {at}. What follows from it:")
        click.echo(f"  dagster-ips cascade {revert_cascade(backfill_id)}")
    else:
        click.echo("Nothing is left to take back.")


def release(workplace: Workplace, backfill_id: str, *, yes: bool) -> None:
    """Let the states before a backfill go."""
    found = _launched(workplace, backfill_id)
    if not yes:
        click.confirm(f"Without them backfill {backfill_id} can't be compared or taken back. Let them go?", abort=True)
    launcher = BackfillLauncher(lineage_of(workplace))
    launcher.drop_branches(found.plan)
    released = launcher.release(found.plan)
    click.echo(f"Not kept any more: the state before it of {', '.join(released) or 'no table'}.")


def _revert_text(reverter: BackfillReverter, planned: RevertPlan) -> str:
    root = reverter.backfill.plan.root
    lines = [f"{root.table}: rows of {partitions_text(_named(planned.restored))} come back as they were."]
    if planned.already:
        lines.append(f"Already back: {partitions_text(_named(planned.already))}.")
    if planned.new:
        lines.append(
            f"First computed by the backfill, so that there is nothing to bring back; they stay as they are: "
            f"{partitions_text(_named(planned.new))}."
        )
    if planned.later_runs:
        lines.append(
            f"{planned.later_runs} later commits of {root.asset} wrote them as well: their input is pending again."
        )
    lines += [f"{part or root.table}: {what}. That would be lost." for part, what in planned.changed.items()]
    code = reverter.lineage.code_version(root.asset)
    if code == root.code_version and code is not None:
        lines.append(
            f"{root.asset} still has code version {code}, by which the next run computes what is new. To have it "
            "computed as before, deploy the earlier code first."
        )
    return "\n".join(lines)


def _named(parts: Sequence[str]) -> list[str] | None:
    """Partitions as ``partitions_text`` takes them: None stands for an asset without."""
    return None if "" in parts else list(parts)


def _plan_at(workplace: Workplace, plan: str) -> BackfillPlan:
    """The plan in a file, or of an id.

    Raises:
        UnknownBackfillError: there is neither.
        BackfillRecordError: the file is no plan.
    """
    path = Path(plan)
    if path.is_file():
        try:
            return plan_from_json(json.loads(path.read_text(encoding="utf-8")), where=plan)
        except ValueError as error:
            raise BackfillRecordError(where=plan, cause=str(error)) from error
    found = workplace.store.get_backfill(plan)
    if found is None:
        raise UnknownBackfillError(backfill=plan)
    return found if isinstance(found, BackfillPlan) else found.plan


def _launched(workplace: Workplace, backfill_id: str) -> LaunchedBackfill:
    """What is remembered of a backfill.

    Raises:
        UnknownBackfillError: nothing is.
        BackfillError: it was planned only.
    """
    found = workplace.store.get_backfill(backfill_id)
    if found is None:
        raise UnknownBackfillError(backfill=backfill_id)
    if isinstance(found, BackfillPlan):
        remedy = f"To launch it: dagster-ips backfill launch {backfill_id}"
        raise BackfillError(backfill=backfill_id, problem="it was planned, and isn't launched.", remedy=remedy)
    return found


def _follower(workplace: Workplace, backfill_id: str) -> BackfillFollower:
    launched = _launched(workplace, backfill_id)
    return BackfillFollower(lineage_of(workplace), launched.plan, launched.is_staged)


def _staged(workplace: Workplace, backfill_id: str) -> StagedBackfill | None:
    """What is staged; None of a backfill that was launched live."""
    launched = _launched(workplace, backfill_id)
    return StagedBackfill(lineage_of(workplace), launched) if launched.is_staged else None


def _progress_text(follower: BackfillFollower, stages: Sequence[StageProgress], staged: StagedBackfill | None) -> str:
    rows = [
        (
            each.asset,
            *(str(each.count(state)) for state in PartState),
            f"{each.rows} of {each.planned_rows}",
            f"{size_text(each.size_bytes)} of {size_text(each.planned_bytes)}",
        )
        for each in stages
    ]
    headings = ("STAGE", *(state.upper() for state in PartState), "ROWS READ", "READ")
    failed = [
        f"{each.asset}: failed: {partitions_text([part or 'all of it' for part in parts])}"
        for each in stages
        if (parts := [part for part, state in each.parts.items() if state is PartState.FAILED])
    ]
    head = f"Backfill {follower.plan.id}: Dagster says {follower.status()}."
    head += f"\n{staged.summary()}" if staged else ""
    return "\n".join([head, table(headings, rows), *failed])


def _progress_json(
    follower: BackfillFollower, stages: Sequence[StageProgress], staged: StagedBackfill | None
) -> dict[str, Any]:
    return {
        "id": follower.plan.id,
        "status": follower.status(),
        "staged": {each.stage.table: each.standing for each in staged.tables()} if staged else None,
        "is_open": any(stage.is_open for stage in stages),
        "stages": [asdict(each) for each in stages],
        "runs": [record.dagster_run.run_id for record in follower.runs()],
    }


def lineage_of(workplace: Workplace) -> AssetLineage:
    """What follows from what in all of the workplace's definitions."""
    graphs = [each.resolve_asset_graph() for each in workplace.definitions]
    return AssetLineage(workplace.consumers, workplace.known_tables, graphs, workplace.instance)


def _chosen(  # noqa: PLR0913  # as plan
    workplace: Workplace,
    lineage: AssetLineage,
    asset: str,
    span: str | None,
    single: Sequence[str],
    *,
    older_code: bool,
) -> list[str] | None:
    """The partitions that were asked for; None if that is all of them."""
    if sum([span is not None, bool(single), older_code]) > 1:
        message = "Say which partitions in one way: by --partitions, --partition or --older-code."
        raise click.UsageError(message)
    if single:
        return list(single)
    if older_code:
        return _of_older_code(workplace, lineage, asset)
    if span is None:
        return None
    definition = lineage.partitions_def(asset)
    first, dots, last = span.partition("..")
    if definition is None or not dots:
        return [span]
    keys = list(definition.get_partition_keys(dynamic_partitions_store=workplace.instance))
    if first not in keys or last not in keys or keys.index(first) > keys.index(last):
        problem = f"{asset} has no partitions from {first} to {last}."
        raise InstanceError(problem=problem, remedy=f"They are {keys[0]} to {keys[-1]}." if keys else "It has none.")
    return keys[keys.index(first) : keys.index(last) + 1]


def _of_older_code(workplace: Workplace, lineage: AssetLineage, asset: str) -> list[str] | None:
    older = workplace.older_rows(workplace.consumer(asset))
    if older is None:
        problem = f"No rows of {asset} are known to be made by other code than its code of now."
        raise InstanceError(problem=problem, remedy="Name the partitions, or leave the option out for all of them.")
    definition = lineage.partitions_def(asset)
    if definition is None:
        return None
    there = set(definition.get_partition_keys(dynamic_partitions_store=workplace.instance))
    return [key for key in older.partitions if key in there]


def _plan_table(made: BackfillPlan) -> str:
    head = f"Plan {made.id}, made at {moment(made.made_at_ms)}: {made.root.asset} is computed anew."
    headings = ("STAGE", "PARTITIONS", "READS", "FILES", "ROWS", "SIZE", "SECONDS", "CODE")
    return f"{head}\n\n" + table(headings, [_stage_row(stage) for stage in made.stages])


def _plan_text(made: BackfillPlan) -> str:
    parts = [_plan_table(made)]
    for asset, readers in made.not_started.items():
        parts.append(f"{', '.join(readers)}: made of {asset} as a whole. Nothing here starts them.")
    unknown = [f"  {stage.asset}: {each}" for stage in made.stages for each in stage.unknown]
    if unknown:
        parts.append("Not known before it runs:\n" + "\n".join(unknown))
    parts.append(f"To launch it: dagster-ips backfill launch {made.id}")
    return "\n\n".join(parts)


def _stage_row(stage: PlannedStage) -> tuple[str, ...]:
    most = "≤ " if any(read.at_most for read in stage.reads) else ""
    reads = ", ".join(read.table for read in stage.reads) or "?"
    return (
        stage.asset,
        partitions_text(stage.partitions),
        reads,
        f"{most}{stage.files}" if stage.reads else "?",
        f"{most}{stage.rows}" if stage.reads else "?",
        f"{most}{size_text(stage.size_bytes)}" if stage.reads else "?",
        "unknown" if stage.seconds is None else f"{stage.seconds:.0f}",
        stage.code_version or "-",
    )


def partitions_text(keys: Sequence[str] | None) -> str:
    """How many, and which: ``all of it`` of an asset without.

    Example:
        >>> partitions_text(None), partitions_text(["a"]), partitions_text(["a", "b", "c", "d"])
        ('all of it', 'a', '4: a … d')
    """
    if keys is None:
        return "all of it"
    return ", ".join(keys) or "none" if len(keys) <= _MOST_SHOWN else f"{len(keys)}: {keys[0]} … {keys[-1]}"
