"""``dagster-ips explain`` for a ``sql_asset``: what its runs will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dagster_ips.cli.context import Workplace
from dagster_ips.cli.text_format import json_text
from dagster_ips.core.aggregates import shown
from dagster_ips.core.columns import type_text
from dagster_ips.core.write_mode import ByQuery
from dagster_ips.errors import InstanceError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.orchestration.backfill.code_changes import code_changes
from dagster_ips.orchestration.declare.sql_assets import query_of
from dagster_ips.orchestration.run.known_consumers import KnownConsumer
from dagster_ips.query.foreseen_steps import ForeseenStep, foreseen_steps
from dagster_ips.query.maintenance_plan import MaintenancePlan, QueryColumn


def explain_query(workplace: Workplace, asset: str, *, as_json: bool) -> None:
    """Print what a change of each source would do to the asset's table.

    Raises:
        InstanceError: the asset isn't a ``sql_asset``, or the table of a source doesn't exist.
    """
    known = workplace.consumer(asset)
    declared = known.write_mode
    query = query_of(declared)
    if query is None or not isinstance(declared, ByQuery):
        raise InstanceError(
            problem=f"{asset} isn't declared by a query; what its runs do is up to its own code.",
            remedy="To see what a run of it did, pass the run's id.",
        )
    by_upstream = {each.upstream: each for each in known.consumer.inputs.values()}
    inputs = [by_upstream[each] for each in declared.upstreams]  # Dagster keeps inputs in alphabetical order.
    plan = MaintenancePlan(query, [_columns(known, each) for each in inputs])
    found = list(foreseen_steps(plan, range(len(inputs))))
    table = known.manager.catalog.open().find(known.consumer.table)
    changes = code_changes(table, known.code_version, declared, None)
    if as_json:
        told = {**_as_json(asset, inputs, found, query.notes), "code_changes": changes}
        click.echo(json_text(told))
        return
    click.echo(f"{asset}: what a run does, depending on what changed since the last one\n")
    for each in found:
        click.echo(f"{inputs[each.source].upstream}: {each.change}")
        click.echo(f"  {each.step.strategy}" + (f", because: {each.step.reason}" if each.step.reason else ""))
    for note in query.notes:
        click.echo(f"\nCaveat: {note}")
    if changes:
        click.echo("\nDiffers from the query that made the existing rows:")
        click.echo("\n".join(f"  {each}" for each in changes))
    click.echo(
        "\nThis is based on the query's text alone. Spark knows more about types, so a run may still compute "
        'everything. It also does so with refresh="full", and with refresh="auto" where that costs less.'
    )


def _columns(known: KnownConsumer, tracked: TrackedInput) -> list[QueryColumn]:
    metadata = known.manager.catalog.open().find(tracked.table)
    if metadata is None:
        raise InstanceError(
            problem=f"{known.consumer.name} reads {tracked.upstream}, whose table {tracked.table} doesn't exist yet, "
            "and what a run does depends on its columns.",
            remedy=f"Materialize {tracked.upstream} first; if an outside job writes its table, run that job first.",
        )
    kinds = {column.name: type_text(column.kind) for column in metadata.struct.fields}
    return [QueryColumn(name, kinds[name]) for name in shown(kinds)]


def _as_json(
    asset: str, inputs: Sequence[TrackedInput], found: Sequence[ForeseenStep], notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "asset": asset,
        "steps": [
            {
                "upstream": inputs[each.source].upstream,
                "change": str(each.change),
                "strategy": str(each.step.strategy),
                "why_not_better": {str(strategy): why for strategy, why in each.step.why_not.items()},
            }
            for each in found
        ],
        "beware": list(notes),
    }
