"""What ``dagster-ips backfill`` does and says: plan, launch, status, diff, cancel and revert."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click

from dagster_ips.cli.context import Workplace
from dagster_ips.cli.text_format import moment, table
from dagster_ips.core.backfill_plan import BackfillPlan, PlannedStage
from dagster_ips.core.size_text import size_text
from dagster_ips.errors import InstanceError
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.planning import planned
from dagster_ips.state.backfill_codec import plan_as_json

_MOST_SHOWN = 3


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
    workplace.store.set_backfill(made)
    text = json.dumps(plan_as_json(made), indent=2, ensure_ascii=False)
    if out is not None:
        Path(out).write_text(text + "\n", encoding="utf-8")
    click.echo(text if as_json else _plan_text(made))


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


def _plan_text(made: BackfillPlan) -> str:
    rows = [_stage_row(stage) for stage in made.stages]
    parts = [
        f"Plan {made.id}, made at {moment(made.made_at_ms)}: {made.root.asset} is computed anew.",
        table(("STAGE", "PARTITIONS", "READS", "FILES", "ROWS", "SIZE", "SECONDS", "CODE"), rows),
    ]
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
