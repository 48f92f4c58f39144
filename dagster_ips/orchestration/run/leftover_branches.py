"""Drops branches to which a job wrote after its run had ended.

A commit to a branch that was dropped creates it again, without the age by which other branches expire. Nobody publishes
it, but it keeps files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import RUN
from dagster_ips.spark.branches import Branch, is_branch_of_run

if TYPE_CHECKING:
    from dagster_ips.spark.session import SparkSession


def drop_leftover_branches(
    target: TableMetadata, catalog: str, session: SparkSession, instance: dg.DagsterInstance
) -> None:
    """Drop the branches of ``target`` that were written for runs which are known to have ended."""
    for name in filter(is_branch_of_run, target.branches):
        head = target.snapshots.get(target.head_snapshot_id(name) or 0)
        run_id = head.summary.get(RUN, "") if head else ""
        if name.startswith(f"ips_{run_id[:8]}_") and (run := instance.get_run_by_id(run_id)) and run.is_finished:
            with effect(Effect.DROP_BRANCH):
                Branch(catalog, target.table, name).drop(session)
