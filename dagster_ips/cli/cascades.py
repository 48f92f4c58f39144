"""``dagster-ips cascade``: the runs and commits that follow from one change, stage by stage."""

from __future__ import annotations

from typing import Any

import click
import dagster as dg

from dagster_ips.cli.context import Workplace
from dagster_ips.cli.text_format import json_text, table
from dagster_ips.core.time_text import moment
from dagster_ips.errors import UnknownCascadeError
from dagster_ips.orchestration.run.cascade_runs import (
    Commit,
    commits_of,
    outside_commit,
    recent_cascades,
    run_named,
    runs_of,
)

_MOST = 20


def cascade(workplace: Workplace, cascade: str | None, *, as_json: bool) -> None:
    """Print one cascade, or the cascades of the newest runs."""
    for problem in workplace.tables.problems:
        click.echo(f"What was published to this table isn't shown. {problem}", err=True)
    if cascade is None:
        _recent(workplace, as_json=as_json)
        return
    commits = commits_of(workplace.tables.read, cascade)
    runs = runs_of(workplace.instance, cascade, commits)
    if not runs and not commits:
        raise UnknownCascadeError(cascade=cascade)
    by_run: dict[str | None, list[Commit]] = {}
    for each in commits:
        by_run.setdefault(each.run_id, []).append(each)
    known = {record.dagster_run.run_id for record in runs}
    of_deleted_runs = [each for each in commits if each.run_id not in known]
    if as_json:
        shown = {
            "cascade": cascade,
            "runs": [_run_as_json(record, by_run) for record in runs],
            "published_by_deleted_runs": [{"run": each.run_id, **_commit_as_json(each)} for each in of_deleted_runs],
        }
        click.echo(json_text(shown))
        return
    text = cascade_text(workplace, cascade)
    click.echo(f"{text[0].upper()}{text[1:]}\n")
    rows = [_row(record, by_run) for record in runs]
    rows += [
        ("?", each.run_id or "?", "gone", moment(each.timestamp_ms), f"{each.table}: {each.snapshot_id}")
        for each in of_deleted_runs
    ]
    click.echo(table(("ASSETS", "RUN", "STATUS", "STARTED", "PUBLISHED"), rows))


def cascade_text(workplace: Workplace, cascade: str) -> str:
    """What started the cascade, in words, because a 19-digit id alone means nothing to a reader."""
    if (commit := outside_commit(workplace.tables.read, cascade)) is not None:
        return f"the commit of {moment(commit.timestamp_ms)} to {commit.table} (snapshot {commit.snapshot_id})"
    if cascade.isdecimal():
        return f"an outside commit (snapshot {cascade}…, which has expired or belongs to an unknown table)"
    if (run := run_named(workplace.instance, cascade)) is not None:
        return f"run {run}"
    return f"backfill {cascade}"


def _recent(workplace: Workplace, *, as_json: bool) -> None:
    found = recent_cascades(workplace.instance)
    shown = [
        {
            "cascade": each,
            "started_by": cascade_text(workplace, each),
            "runs": len(records),
            "failed": sum(record.dagster_run.is_failure for record in records),
            "newest": moment(round(max(record.create_timestamp.timestamp() for record in records) * 1000)),
        }
        for each, records in list(found.items())[:_MOST]
    ]
    if as_json:
        click.echo(json_text(shown))
    elif not shown:
        click.echo("No run has followed from a change yet.")
    else:
        keys = ("newest", "runs", "failed", "started_by", "cascade")
        click.echo(table([key.upper().replace("_", " ") for key in keys], [[str(e[k]) for k in keys] for e in shown]))


def _assets(run: dg.DagsterRun) -> str:
    return ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ())) or f"all of {run.job_name}"


def _row(record: dg.RunRecord, commits: dict[str | None, list[Commit]]) -> tuple[str, ...]:
    run = record.dagster_run
    published = ", ".join(f"{each.table}: {each.snapshot_id}" for each in commits.get(run.run_id, []))
    return (_assets(run), run.run_id, run.status.value, _moment(record.start_time), published or "nothing")


def _run_as_json(record: dg.RunRecord, commits: dict[str | None, list[Commit]]) -> dict[str, Any]:
    run = record.dagster_run
    return {
        "run": run.run_id,
        "status": run.status.value,
        "assets": sorted(key.to_user_string() for key in run.asset_selection or ()),
        "started_at": _moment(record.start_time),
        "published": [_commit_as_json(each) for each in commits.get(run.run_id, [])],
    }


def _commit_as_json(commit: Commit) -> dict[str, str]:
    return {"table": commit.table, "snapshot_id": str(commit.snapshot_id), "at": moment(commit.timestamp_ms)}


def _moment(seconds: float | None) -> str:
    return moment(None if seconds is None else round(seconds * 1000))
