"""The runs and the commits of one cascade, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from dagster_ips.core.cascade import short
from dagster_ips.iceberg.cascade_stamps import belongs_to
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import RUN
from dagster_ips.orchestration.run.cascade_tag import BACKFILL_TAG, CASCADE_TAG, PLAN_TAG

_MOST_RUNS = 1000


@dataclass(frozen=True)
class Commit:
    """A snapshot of ``table``, and the run that published it; None if a job outside Dagster did."""

    table: str
    snapshot_id: int
    timestamp_ms: int
    run_id: str | None


def outside_commit(tables: Sequence[TableMetadata], cascade: str) -> Commit | None:
    """The outside commit that the cascade is named after; None for other cascades, or once the snapshot has expired."""
    found = ((table, id_) for table in tables for id_ in table.snapshots if short(str(id_)) == short(cascade))
    commits = (Commit(table.table, id_, table.snapshots[id_].timestamp_ms, None) for table, id_ in found)
    return next(commits, None)


def run_named(instance: dg.DagsterInstance, cascade: str) -> str | None:
    """The id of the run that the cascade is named after, if it is among the newest."""
    return next((id_ for id_ in instance.get_run_ids(limit=_MOST_RUNS) if short(id_) == short(cascade)), None)


def commits_of(tables: Sequence[TableMetadata], cascade: str) -> list[Commit]:
    """Every retained commit to ``main`` of the tables that follows from the cascade, oldest first."""
    found = [
        Commit(table.table, snapshot.snapshot_id, snapshot.timestamp_ms, snapshot.summary.get(RUN))
        for table in tables
        for snapshot in table.ancestry().snapshots
        if belongs_to(snapshot, cascade)
    ]
    return sorted(found, key=lambda commit: commit.timestamp_ms)


def runs_of(instance: dg.DagsterInstance, cascade: str, commits: Sequence[Commit]) -> list[dg.RunRecord]:
    """The runs that are tagged with the cascade, started it, or published one of its ``commits``; oldest first."""
    by_tag = [dg.RunsFilter(tags={tag: short(cascade)}) for tag in (CASCADE_TAG, PLAN_TAG, BACKFILL_TAG)]
    named = sorted({run_named(instance, cascade) or cascade, *(each.run_id for each in commits if each.run_id)})
    filters = [*by_tag, dg.RunsFilter(run_ids=named)]
    records = [record for each in filters for record in instance.get_run_records(each)]
    found = {record.dagster_run.run_id: record for record in records}
    return sorted(found.values(), key=lambda record: record.create_timestamp)


def recent_cascades(instance: dg.DagsterInstance) -> Mapping[str, list[dg.RunRecord]]:
    """The cascades of the newest runs, newest first, each with its runs."""
    found: dict[str, list[dg.RunRecord]] = {}
    for record in instance.get_run_records(limit=_MOST_RUNS):
        if (cascade := record.dagster_run.tags.get(CASCADE_TAG)) is not None:
            found.setdefault(cascade, []).append(record)
    return found
