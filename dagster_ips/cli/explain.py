"""``dagster-ips explain``: what a run read, why in that mode, and what it wrote, published and committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from dagster_ips.cli.cascades import cascade_text
from dagster_ips.cli.context import Workplace
from dagster_ips.cli.text_format import json_text, moment_json
from dagster_ips.core.size_text import counted, size_text
from dagster_ips.core.time_text import moment
from dagster_ips.orchestration.run.run_story import AssetStory, RunStory, story_of


def explain(workplace: Workplace, run: str, *, as_json: bool) -> None:
    """Print what the run did."""
    story = story_of(workplace.instance, run)
    if as_json:
        click.echo(json_text(_as_json(story)))
        return
    lasted = ""
    if story.started_ms is not None and story.ended_ms is not None:
        lasted = f", {(story.ended_ms - story.started_ms) / 1000:.0f} s"
    click.echo(f"Run {story.run.run_id}: {story.run.status.value}, {moment(story.started_ms)}{lasted}")
    if story.cascade:
        click.echo(f"Follows from {cascade_text(workplace, story.cascade)}")
    for each in story.assets.values():
        click.echo("\n" + "\n".join(_lines(each)))
    if story.others:
        names = ", ".join(story.others)
        click.echo(f"\n{names}: captured nothing, so there is nothing incremental to explain.")


def _lines(story: AssetStory) -> Iterator[str]:
    first = story.captures[0] if story.captures else None
    yield f"{story.asset}: {first['mode']} ({first['reason']})" if first else f"{story.asset}: captured nothing"
    for each in story.captures:
        yield f"  captured   {_captured(each)}"
    if story.refresh:
        strategy, why = story.refresh
        yield f"  refreshed  {strategy}{f' ({why})' if why else ''}"
    if story.written:
        each = story.written
        gone = f", {int(each['rows_removed']):,} removed" if each["rows_removed"] != "0" else ""
        rows, files = counted(int(each["rows_added"]), "row"), counted(int(each["files"]), "file")
        yield f"  wrote      {rows}{gone}, {files}, {size_text(int(each['bytes']))} to {each['table']}"
    if story.skipped:
        yield f"  skipped    nothing was written: {story.skipped['reason']}"
    elif story.published:
        yield f"  published  snapshot {story.published['snapshot']} of {story.published['table']}"
    else:
        yield "  published  nothing"
    yield f"  committed  {_committed(story)}"
    for error in story.errors[:1]:
        yield f"  failed     {error}"


def _captured(each: Mapping[str, str]) -> str:
    end = _at(each, "to_inclusive", "to_ms")
    start = _at(each, "from_exclusive", "from_ms")
    between = f"after {start} up to {end}" if start else f"everything up to {end}"
    what = _files(each)
    partitions = f", for {counted(int(each['partitions']), 'partition')}" if "partitions" in each else ""
    return (
        f"{each['input']} ({each['source']}), capture {each['number']}: {between if end else 'no snapshot yet'}: {what}"
        f"{partitions}, as {each['icdc_table']}"
    )


def _files(each: Mapping[str, str]) -> str:
    """How many files and rows; those that were added apart from the others, as Dagster's UI counts only the former."""
    files, rows, size = int(each["files"]), int(each["rows"]), size_text(int(each["bytes"]))
    files_added, rows_added = int(each.get("files_added", files)), int(each.get("rows_added", rows))
    if files_added == files:
        return f"{counted(files, 'file')}, {counted(rows, 'row')}, {size}"
    added = f"{counted(files_added, 'file')} added ({counted(rows_added, 'row')})"
    others, rows_of_others = counted(files - files_added, "file"), counted(rows - rows_added, "row")
    return f"{added}, {others} removed or with deleted rows ({rows_of_others}), together {size}"


def _at(each: Mapping[str, str], snapshot: str, ms: str) -> str | None:
    return f"snapshot {each[snapshot]} ({moment(int(each[ms]))})" if snapshot in each else None


def _committed(story: AssetStory) -> str:
    if not story.captures:
        return "nothing"
    done = {each["upstream"]: each for each in story.commits}
    if all(each["upstream"] in done for each in story.captures):
        return ", ".join(f"{name} up to snapshot {each.get('to_inclusive', 'none')}" for name, each in done.items())
    if story.published:
        return "with the publication; the run ended before it could copy that to Dagster"
    if story.skipped:
        return "nothing by this run"
    return "nothing, so the changes it read stay pending"


def _as_json(story: RunStory) -> dict[str, Any]:
    return {
        "run": story.run.run_id,
        "status": story.run.status.value,
        "started_at": moment_json(story.started_ms),
        "ended_at": moment_json(story.ended_ms),
        "cascade": story.cascade,
        "assets": [
            {
                "asset": each.asset,
                "captured": [dict(capture) for capture in each.captures],
                "refresh": each.refresh and dict(zip(("strategy", "why_not_better"), each.refresh, strict=True)),
                "written": each.written,
                "skipped": each.skipped,
                "published": each.published,
                "committed": [dict(commit) for commit in each.commits],
                "is_consumed": bool(each.commits or each.published),
                "errors": each.errors,
            }
            for each in story.assets.values()
        ],
        "other_assets": list(story.others),
    }
