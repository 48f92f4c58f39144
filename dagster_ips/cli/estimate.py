"""``dagster-ips estimate``: what rewriting windows of tables has cost, according to their own history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from dagster_ips.cli.context import table_name
from dagster_ips.cli.text_format import json_text, table
from dagster_ips.core.lookback_cost import LookbackCost, total
from dagster_ips.core.size_text import size_text
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.commit_costs import cost_of_history

_DAY_MS = 86_400_000
_MEANING = """
NEW PER DAY is a range: at least the net rows of each commit, and at most everything in partitions whose files changed
in size or statistics. append() and merge() write close to the lower bound, overwrite_partitions() up to the upper one.
Savings on reads, and on downstream jobs that rewrite because of this, come on top. Compactions aren't counted."""


def estimate(lake: LakeCatalog, tables: Sequence[str], *, days: int | None, as_json: bool) -> None:
    """Print what each table, and all of them together, would have saved."""
    since_ms = None if days is None else round(time.time() * 1000 - days * _DAY_MS)
    costs = {
        name: cost_of_history(lake.storage, lake.load(table_name(name), asset="estimate"), since_ms=since_ms)
        for name in tables
    }
    if as_json:
        shown = [{"table": name, **_as_json(cost)} for name, cost in costs.items()]
        click.echo(json_text({"tables": shown, "total": _as_json(total(costs.values()))}))
        return
    rows = [_row(name, cost) for name, cost in costs.items()]
    if len(rows) > 1:
        rows.append(_row("all", total(costs.values())))
    headings = ("TABLE", "DAYS", "COMMITS", "OVERWRITES", "WRITTEN PER DAY", "NEW PER DAY", "WOULD SAVE")
    click.echo(table(headings, rows))
    for name, cost in costs.items():
        if not cost.commits:
            click.echo(f"\n{name}: no commits are retained, so no estimate is possible.")
        elif not cost.overwrites:
            click.echo(f"\n{name}: nothing was rewritten in this period, so there is nothing to save.")
        if cost.unknown:
            click.echo(f"\n{name}: {cost.unknown} commits can no longer be read and aren't counted.")
    click.echo(_MEANING)


def _row(name: str, cost: LookbackCost) -> tuple[str, ...]:
    new = (cost.bytes_new_at_least, cost.bytes_new_at_most)
    return (
        name,
        f"{cost.days:.1f}",
        str(cost.commits),
        str(cost.overwrites),
        size_text(round(cost.bytes_written_per_day)),
        " to ".join(dict.fromkeys(size_text(round(each / cost.days)) for each in new)),
        " to ".join(dict.fromkeys(f"{each:.0%}" for each in cost.saved)) if cost.saved else "?",
    )


def _as_json(cost: LookbackCost) -> dict[str, Any]:
    return {
        "days": round(cost.days, 3),
        "commits": cost.commits,
        "overwrites": cost.overwrites,
        "unknown_commits": cost.unknown,
        "bytes_written": cost.bytes_written,
        "bytes_new_at_least": cost.bytes_new_at_least,
        "bytes_new_at_most": cost.bytes_new_at_most,
        "saved_at_least": cost.saved and round(cost.saved[0], 4),
        "saved_at_most": cost.saved and round(cost.saved[1], 4),
    }
