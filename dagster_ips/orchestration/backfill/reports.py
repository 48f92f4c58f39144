"""Reports on managed backfills, as sentences and tables: for the command line and for a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage
from dagster_ips.core.backfill_progress import PartState, StageProgress
from dagster_ips.core.row_changes import RowChanges
from dagster_ips.core.size_text import counted, size_text
from dagster_ips.core.time_text import moment
from dagster_ips.exactly_once.publish.publisher import Publication
from dagster_ips.orchestration.backfill.differing import StageDifference
from dagster_ips.orchestration.backfill.reverting import BackfillReverter, Reverted, RevertPlan, revert_cascade
from dagster_ips.orchestration.backfill.staging import BranchStanding, StagedBackfill, StagedPublication

_MOST_SHOWN = 3
KINDS_OF_CHANGE = {"missing": "removed", "extra": "added", "different": "changed"}
"""The kinds of differing rows: ``Example``'s words and the words for users."""


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table to show; ``title`` distinguishes it from others."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Report = Sequence[str | ShownTable]
"""Sentences and tables, to be shown one below the other."""


def plan_head(plan: BackfillPlan) -> Report:
    """Which stages a plan computes, and what they read."""
    headings = ("STAGE", "PARTITIONS", "READS", "FILES", "ROWS", "SIZE", "SECONDS", "CODE")
    return [
        f"Plan {plan.id}, created at {moment(plan.made_at_ms)}: recompute {plan.root.asset}.",
        ShownTable("plan", headings, tuple(_stage_row(stage) for stage in plan.stages)),
    ]


def plan_report(plan: BackfillPlan) -> Report:
    """Like ``plan_head``, plus what else a user should know before launching the plan."""
    report = list(plan_head(plan))
    for asset, readers in plan.not_started.items():
        report.append(f"{', '.join(readers)}: reads all of {asset}, and this backfill doesn't start it.")
    changes = [f"  {stage.asset}: {each}." for stage in plan.stages for each in stage.code_changes]
    if changes:
        report.append("Differs from the code that made the existing rows:\n" + "\n".join(changes))
    unknown: dict[str, list[str]] = {}
    for stage in plan.stages:
        for each in stage.unknown:
            unknown.setdefault(each.rstrip("."), []).append(stage.asset)
    if unknown:
        lines = [f"  {', '.join(stages)}: {each}." for each, stages in unknown.items()]
        report.append("Unknown until it runs:\n" + "\n".join(lines))
    return [*report, f"To launch it: dagster-ips backfill launch {plan.id}"]


def launch_report(done: LaunchedBackfill) -> Report:
    """Which states a launch has tagged, and what it has started."""
    plan = done.plan
    kept = [
        f"{name}: kept snapshot {snapshot_id} as tag {plan.before_tag}." for name, snapshot_id in done.before.items()
    ]
    staged = f"All stages are computed on branches {plan.staged_branch}; main doesn't change."
    follow = f"Backfill {plan.id} is launched. To follow it: dagster-ips backfill status {plan.id} --watch"
    return [*kept, *([staged] if done.is_staged else []), follow]


def progress_report(
    backfill: str,
    status: str,
    stages: Sequence[StageProgress],
    staged: StagedBackfill | None,
    reverted: Reverted | None,
) -> Report:
    """How far each stage is; ``status`` is that of Dagster's backfill."""
    rows = [
        (
            each.asset,
            *(f"{each.count(state):,}" for state in PartState),
            f"{each.rows:,} of {each.planned_rows:,}",
            f"{size_text(each.size_bytes)} of {size_text(each.planned_bytes)}",
        )
        for each in stages
    ]
    failed = [
        f"{each.asset}: {ended}: {partitions_text([part or 'all of it' for part in parts])}"
        for each in stages
        for ended in (PartState.FAILED, PartState.NOT_RUN)
        if (parts := [part for part, state in each.parts.items() if state is ended])
    ]
    head = f"Backfill {backfill}: status in Dagster is {status}."
    headings = ("STAGE", *(state.upper() for state in PartState), "ROWS READ", "READ")
    standing: list[str] = [staged.summary()] if staged and not (reverted and reverted.is_all) else []
    if reverted:
        at, what = moment(reverted.snapshot.timestamp_ms), parts_text(reverted.parts)
        standing.append(f"Reverted at {at}: {what}, in snapshot {reverted.snapshot.snapshot_id}.")
    return [head, *standing, ShownTable("stages", headings, tuple(rows)), *failed]


def difference_report(found: StageDifference) -> Report:
    """How one stage differs: by partition, by column, and example rows."""
    differing = {part: each for part, each in found.parts.items() if not each.is_none}
    other = "a full recompute" if found.against_full else "the state before"
    untold: dict[str, list[str]] = {}
    for part, why in found.uncompared.items():
        untold.setdefault(why, []).append(part)
    uncompared = [f"{found.asset}: not compared: {parts_text(of)}, because {why}" for why, of in untold.items()]
    if not differing:
        same = f"{found.asset}: no rows differ from {other}."
        return [*([same] if found.parts or not uncompared else []), *uncompared]
    total = found.total
    counts = f"{counted(total.added, 'row')} added, {total.removed:,} removed, {total.changed:,} changed"
    compared = ", compared with a full recompute" if found.against_full else ""
    head = f"{found.asset} ({_matched_by(found)}): {counts}{compared}."
    before, after = ("RECOMPUTED", "ACTUAL") if found.against_full else ("BEFORE", "AFTER")
    rows = [
        (
            part or "all of it",
            f"{each.before.rows:,} → {each.after.rows:,}",
            f"{each.added:,}",
            f"{each.removed:,}",
            f"{each.changed:,}",
            ", ".join(f"{name} ({count:,})" for name, count in each.columns.items()) or "-",
        )
        for part, each in differing.items()
    ]
    headings: tuple[str, ...] = ("PARTITION", "ROWS", "ADDED", "REMOVED", "CHANGED", "COLUMNS THAT DIFFER")
    report: list[str | ShownTable] = [head, ShownTable(f"{found.asset} by partition", headings, tuple(rows))]
    if columns := [row for name in total.after.nulls if (row := _column_row(name, total))]:
        headings = ("COLUMN", *(f"{what} {side}" for what in ("SUM", "NULLS") for side in (before, after)))
        report.append(ShownTable(f"{found.asset} by column", headings, tuple(columns)))
    if found.examples:
        cells = [
            (KINDS_OF_CHANGE[each.kind], each.key or "-", each.column or "-", each.expected or "-", each.actual or "-")
            for each in found.examples
        ]
        headings = ("FOR EXAMPLE", "KEY", "COLUMN", before, after)
        report.append(ShownTable(f"{found.asset} for example", headings, tuple(cells)))
    report += uncompared
    if found.others:
        report.append(f"{len(found.others):,} later commits come from other changes; their rows are included here.")
    return report


def staged_report(staged: StagedBackfill) -> Report:
    """What publishing would do to each table."""
    said = {
        BranchStanding.STAGED: "its branch will be published",
        BranchStanding.UNCHANGED: "nothing differs on its branch",
        BranchStanding.PUBLISHED: "is published already",
        BranchStanding.MOVED: "changed since it was staged",
        BranchStanding.GONE: "has no branch",
    }
    return [f"{each.stage.table}: {said[each.standing]}." for each in staged.tables()]


def publication_report(staged: StagedBackfill, done: StagedPublication) -> Report:
    """Which stages were published, and why the others weren't."""
    backfill = staged.plan.id
    if done.is_repeated:
        tables = ", ".join(stage.table for stage in staged.plan.stages if stage.asset in done.published)
        return [f"{tables} was published before. Nothing was left to publish, so nothing was done."]
    stages = [f"{stage.table}: {_published(stage, done)}." for stage in staged.plan.stages]
    return [*stages, f"Backfill {backfill} is published. To undo it: dagster-ips backfill revert {backfill}"]


def cancel_report(backfill: str, ended: Sequence[str], *, is_dropped: bool) -> Report:
    """Which runs were asked to stop, and what stays: nothing if ``is_dropped``, as only staged results existed."""
    were = "was" if len(ended) == 1 else "were"
    runs = f"{counted(len(ended), 'run')} {were} asked to stop{': ' if ended else ''}{', '.join(ended)}"
    stays = (
        "The staged results are dropped; nothing was published."
        if is_dropped
        else "Published results stay, and downstream assets still follow them. To undo them: dagster-ips backfill "
        f"revert {backfill}"
    )
    return [f"Backfill {backfill} is cancelled; {runs}.", stays]


def revert_report(reverter: BackfillReverter, planned: RevertPlan) -> Report:
    """What a revert will do, and what it would lose."""
    return list(_revert_lines(reverter, planned))


def reverted_report(backfill: str, done: RevertPlan, published: Publication) -> Report:
    """What was reverted."""
    if not published.snapshots:
        return ["Nothing was reverted."]
    at = published.snapshots[-1].snapshot_id
    return [
        f"Reverted: {parts_text(done.restored)}, in snapshot {at}. To see what follows from it:",
        f"  dagster-ips cascade {revert_cascade(backfill)}",
    ]


def release_report(released: Sequence[str]) -> Report:
    """Which states are no longer kept."""
    return [f"No longer kept: the previous state of {', '.join(released) or 'no table'}."]


def partitions_text(keys: Sequence[str] | None) -> str:
    """How many partitions, and which; ``all of it`` for an asset without partitions.

    Example:
        >>> partitions_text(None), partitions_text(["a"]), partitions_text(["a", "b", "c", "d"])
        ('all of it', 'a', '4: a … d')
    """
    if keys is None:
        return "all of it"
    return ", ".join(keys) or "none" if len(keys) <= _MOST_SHOWN else f"{len(keys):,}: {keys[0]} … {keys[-1]}"


def parts_text(parts: Sequence[str]) -> str:
    """Like ``partitions_text``, for parts, where ``""`` stands for the whole of an asset without partitions."""
    return partitions_text(None if "" in parts else list(parts))


def _stage_row(stage: PlannedStage) -> tuple[str, ...]:
    most = "≤ " if any(read.at_most for read in stage.reads) else ""
    reads = ", ".join(read.table for read in stage.reads) or "?"
    return (
        stage.asset,
        partitions_text(stage.partitions),
        reads,
        f"{most}{stage.files:,}" if stage.reads else "?",
        f"{most}{stage.rows:,}" if stage.reads else "?",
        f"{most}{size_text(stage.size_bytes)}" if stage.reads else "?",
        "unknown" if stage.seconds is None else f"{stage.seconds:,.0f}",
        stage.code_version or "-",
    )


def _matched_by(found: StageDifference) -> str:
    """By what the rows before and after were matched."""
    keys, repeated = (", ".join(names) for names in (found.keys, found.repeated_keys))
    if keys and repeated:
        return f"by {keys}; by whole rows in partitions where several rows have the same {repeated}"
    if keys:
        return f"by {keys}"
    return f"by whole rows, because {f'several have the same {repeated}' if repeated else 'no key is known'}"


def _column_row(name: str, total: RowChanges) -> tuple[str, ...] | None:
    """A column's sums and nulls on both sides; None if they are the same."""
    before, after = total.before, total.after
    values = (before.sums.get(name), after.sums.get(name)), (before.nulls.get(name, 0), after.nulls.get(name, 0))
    if all(one == other for one, other in values):
        return None
    return (name, *("-" if value is None else f"{value:,}" for pair in values for value in pair))


def _published(stage: PlannedStage, done: StagedPublication) -> str:
    if stage.asset in done.published:
        return "published"
    return (
        "not published because it has changed since; it will follow automatically"
        if stage.asset in done.left
        else "no differences"
    )


def _revert_lines(reverter: BackfillReverter, planned: RevertPlan) -> Iterator[str]:
    root = reverter.backfill.plan.root
    if planned.restored:
        yield f"{root.table}: restores the previous rows of {parts_text(planned.restored)}."
    elif planned.changed:
        yield f"{root.table}: no rows can be restored without losing other changes."
    else:
        yield f"{root.table}: nothing is left to revert."
    if planned.already:
        yield f"Already restored: {parts_text(planned.already)}."
    if planned.new:
        yield (
            "First computed by this backfill, so there is nothing to restore; left unchanged: "
            f"{parts_text(planned.new)}."
        )
    if planned.later_runs:
        later = f"{planned.later_runs:,} later commits of {root.asset}"
        yield f"{later} also wrote them: their input becomes pending again."
    for part, what in planned.changed.items():
        yield f"{part or root.table}: {what}. This is refused without --leave-out-changed."
    code = reverter.lineage.code_version(root.asset)
    if planned.restored and code == root.code_version and code is not None:
        yield (
            f"{root.asset} still has code version {code}, which the next run uses for new changes. To compute them as "
            "before, deploy the earlier code first."
        )
