"""Waits within a tick for what may change the conditions' result: a changed table, or a run that began or ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from dagster_ips.orchestration.watch.run_at_work import UNFINISHED
from dagster_ips.orchestration.watch.watched_tables import WatchedTables

_LOOK_SECONDS = 0.2
_STILL_SECONDS = 1.0
"""How long tables must stay unchanged.

Outside jobs often commit several times in a row, and one run for all of it is done sooner than two.
"""


@dataclass(frozen=True)
class Situation:
    """Where each watched table's current metadata.json is, and which runs are not finished."""

    tables: Sequence[Mapping[str, str]] = ()
    runs: frozenset[str] = frozenset()


@dataclass
class ChangeWait:
    """Waits until a watched table has changed, or a run has begun or ended, since the last look.

    A look is one query per SQL catalog and one of Dagster's storage; REST catalogs are queried table by table. A
    catalog that doesn't answer counts as unchanged.
    """

    watched: Sequence[WatchedTables]
    _seen: Situation = field(default_factory=Situation)

    @classmethod
    def of(cls, watched: Iterable[WatchedTables]) -> ChangeWait:
        """A wait for the tables in ``watched``, which may contain duplicates."""
        return cls(list({id(each): each for each in watched}.values()))

    def look(self, instance: dg.DagsterInstance, *, until: float) -> None:
        """Take a look at the current situation; if a table has changed, repeat it until no more changes come.

        Stops at ``until``, a reading of ``time.monotonic``, but looks at least once.
        """
        self._seen, before = self._now(instance), self._seen.tables
        while self._seen.tables != before and _sleep(_STILL_SECONDS, until=until):
            self._seen, before = self._now(instance), self._seen.tables

    def came(self, instance: dg.DagsterInstance, *, until: float) -> bool:
        """Wait for a change; returns whether there was one before ``until``."""
        while _sleep(_LOOK_SECONDS, until=until):
            if self._now(instance) != self._seen:
                return True
        return False

    def _now(self, instance: dg.DagsterInstance) -> Situation:
        return Situation(
            [each.pointers() for each in self.watched],
            frozenset(instance.get_run_ids(dg.RunsFilter(statuses=UNFINISHED))),
        )


def _sleep(seconds: float, *, until: float) -> bool:
    """Sleep, but not beyond ``until``; returns whether there was any time left."""
    left = until - time.monotonic()
    time.sleep(max(0.0, min(seconds, left)))
    return left > 0
