"""The assets of every kind on one lake, with rows that keep arriving, and the check that all tables are right."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dagster_ips.core.edge import Edge
from tests.support.kinds import KINDS, SOURCES, Kind, kinds
from tests.support.lake import Event, Lake, events
from tests.support.pipeline import materialize
from tests.support.progress import copied_state


class Runs:
    """The assets of every kind on one lake, with rows that keep arriving."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance) -> None:
        self.lake, self.instance = lake, instance
        self.rows: dict[str, list[Event]] = {name: [] for name in SOURCES}
        for name in SOURCES:
            lake.create_playback(table=f"media.{name}")
        self._next_id = 0
        self.arrive()

    def arrive(self) -> None:
        """Add rows to every source, on two days."""
        for name in SOURCES:
            rows = [row for day in (0, 1) for row in events(range(self._next_id, self._next_id + 3), day=day)]
            self.lake.append(rows, f"media.{name}")
            self.rows[name] += rows
        self._next_id += 3

    def run_all(self, of: Sequence[Kind] = KINDS) -> None:
        """An undisturbed run of every kind, and a second run of those steps that had tables ahead of others."""
        definitions = kinds(self.lake.folder, self.lake.spark_folder)
        materialize(definitions, self.instance, *(name for kind in of for name in kind.names))
        if late := [name for kind in self.behind(of) if len(kind.names) > 1 for name in kind.names]:
            materialize(definitions, self.instance, *late)

    def tables(self) -> list[str]:
        """The tables of every kind."""
        return [table for kind in KINDS for table in kind.expected]

    def behind(self, of: Sequence[Kind]) -> list[Kind]:
        """The kinds whose cursors say that not every row is consumed yet."""
        heads = {name: self.lake.catalog.load(f"media.{name}", asset="test").head_snapshot_id() for name in SOURCES}
        found = []
        for kind in of:
            states = {edge: copied_state(self.instance, edge) for edge in _edges(kind)}
            if any(at.committed is None or at.committed.snapshot_id != heads[e.upstream] for e, at in states.items()):
                found.append(kind)
        return found

    def check(self, of: Sequence[Kind] = KINDS) -> None:
        """Every table is right, and every cursor says that everything is consumed."""
        self.check_tables(of)
        assert [kind.names for kind in self.behind(of)] == []

    def check_tables(self, of: Sequence[Kind] = KINDS) -> None:
        """Every table holds what follows from the rows that arrived."""
        for kind in of:
            for table, expected in kind.expected.items():
                assert self.lake.rows(table) == expected(*(self.rows[name] for name in SOURCES)), table

    def check_messages(self, *, since: int) -> None:
        """Runs that failed, except the oldest ``since`` runs, have an error of this library."""
        others = [said for said in self.problems(since=since) if "dagster_ips.errors" not in said]
        assert not others, "\n\n".join(others)

    def problems(self, *, since: int) -> list[str]:
        """The errors of all failed runs except the oldest ``since`` runs."""
        said = []
        runs = self.instance.get_runs()
        for run in runs[: len(runs) - since]:
            failures = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
            said += [entry.dagster_event.step_failure_data.error_display_string for entry in failures]
        return said


def _edges(kind: Kind) -> list[Edge]:
    return [Edge(name, upstream) for name in kind.names for upstream in kind.upstreams]
