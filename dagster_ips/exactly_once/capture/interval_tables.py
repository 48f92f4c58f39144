"""ICDC tables of the change in any interval of a table. They belong to no consumer, and nothing is consumed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.change_set import ChangeSet
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import Place
from dagster_ips.core.policy import InputPolicies, OnExpired, OnRollback
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import IntervalError, UnknownIcdcTableError
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare
from dagster_ips.exactly_once.capture.edge_start import snapshot_at
from dagster_ips.exactly_once.capture.icdc_making import make_icdc_table
from dagster_ips.exactly_once.capture.tracked_input import (
    StartOver,
    TrackedInput,
    files_in,
    follow,
)
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.change_reader import ChangedFiles, live_files
from dagster_ips.iceberg.icdc import icdc_names
from dagster_ips.iceberg.icdc.icdc_dropping import drop_icdc_table, icdc_tables
from dagster_ips.iceberg.icdc.icdc_tables import Tag
from dagster_ips.iceberg.metadata import TableMetadata

NOBODY = "dagster-ips icdc"
"""Takes the place of the consumer in an ICDC table. No asset key contains a space."""


@dataclass(frozen=True, slots=True)
class IntervalTable:
    """An ICDC table of ``(from_exclusive, to_inclusive]``; ``from_exclusive`` None is the table's beginning."""

    name: str
    source: str
    from_exclusive: Watermark | None
    to_inclusive: Watermark
    changes: ChangeSet
    tags: Mapping[Tag, int]


@dataclass(frozen=True)
class IntervalTables:
    """Makes and drops ICDC tables of one catalog that belong to no consumer, in ``icdc_namespace``."""

    catalog: LakeCatalog
    icdc_namespace: str = "ips"

    def make(self, table: str, *, start: Place | None, end: Place | None, ref: str = "main") -> IntervalTable:
        """Make a table of what changed in ``table`` after ``start``, up to and including ``end`` (None: its head).

        Without ``start``, it is all that is live at ``end``. An empty interval gives an empty table.

        Raises:
            UnknownTableError: there is no such table.
            UnknownPlaceError: a place isn't in the table's history, or no longer.
            IntervalError: the interval ends before it begins, there is no such ref or no snapshot before the end, or a
                data file was overwritten in it.
            BrokenHistoryError: column names stand for other columns at the end.
            NoRegisterError: the catalog can't have such a table.
        """
        self.catalog.require_register()
        source = self.catalog.load(table, asset="icdc")
        if ref not in ("main", *source.branches, *source.tags):
            known = ", ".join(("main", *(each for each in source.branches if each != "main")))
            raise IntervalError(table, f"it has no branch {ref!r}, only {known}", "Name one of them with --ref.")
        last = snapshot_at(end, source, ref, asked_by="--to") if end else source.ancestry(ref).head
        if last is None and end is not None:
            raise IntervalError(table=table, problem="it has no snapshot before the end")
        if last is None:
            raise IntervalError(table, "it has no snapshot", "Write rows to it first, or name a branch with --ref.")
        until = source.as_of(last.snapshot_id, ref)
        first = snapshot_at(start, source, ref, asked_by="--from") if start else None
        if first is not None and until.ancestry(ref).find(first.snapshot_id) is None:
            problem = f"it ends at snapshot {last.snapshot_id}, before its start, {first.snapshot_id}"
            raise IntervalError(table=table, problem=problem)
        begin, upto = source.watermark_at(first, ref) if first else None, source.watermark_at(last, ref)
        edge = Edge(NOBODY, table)
        files = self._files(EdgeState(edge, committed=begin), until, ref)
        number = time.time_ns() // 1_000_000
        capture = Capture(
            edge=edge,
            number=number,
            mode=Mode.INCREMENTAL if begin else Mode.FULL,
            reason="requested by dagster-ips icdc",
            from_exclusive=begin,
            to_inclusive=upto,
            icdc_table=f"{self.icdc_namespace}.{icdc_names.new_name(edge, number)}",
            run_id=NOBODY,
        )
        tags = make_icdc_table(self.catalog, [capture], number, until, BacklogShare(last, files))
        return IntervalTable(capture.icdc_table, table, begin, upto, files.changes, tags)

    def names(self, table: str) -> list[str]:
        """The names of the existing ICDC tables of ``table``, oldest first."""
        found = icdc_tables(self.catalog, Edge(NOBODY, table), namespace=self.icdc_namespace)
        return [each.name for each in sorted(found, key=lambda each: each.number)]

    def remove(self, name: str) -> str:
        """Drop an ICDC table with its own metadata files; return the name of the table whose change it contained.

        Raises:
            UnknownIcdcTableError: there is no such table, or it belongs to a consumer.
        """
        found = self.catalog.find(name)
        edge = icdc_names.edge_of(found) if found else None
        if edge is None or edge.consumer != NOBODY:
            raise UnknownIcdcTableError(name=name, consumer=edge.consumer if edge else None)
        with effect(Effect.DROP_ICDC_TABLE):
            drop_icdc_table(self.catalog, name, edge)
        return edge.upstream

    def _files(self, state: EdgeState, until: TableMetadata, ref: str) -> ChangedFiles:
        storage, head = self.catalog.storage, until.ancestry(ref).head
        assert head is not None  # noqa: S101  # the caller found it
        if state.committed is None:
            return live_files(storage, until, head=head)
        policies = InputPolicies(on_rollback=OnRollback.ERROR, on_expired=OnExpired.ERROR)
        tracked = TrackedInput(upstream=until.table, table=until.table, ref=ref, policies=policies)
        interval = follow(storage, state, until, tracked)
        assert not isinstance(interval, StartOver)  # noqa: S101  # these policies raise instead
        files = files_in(storage, until, interval, head)
        if lost := files.changes.overwritten:
            problem = f"in it, {min(lost)} was removed, and another file was added under the same path"
            raise IntervalError(until.table, problem, "Give an interval that begins or ends in between.")
        return files
