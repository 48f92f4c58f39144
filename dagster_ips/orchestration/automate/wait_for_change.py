"""What makes it worth while to ask conditions again within a tick: a table changed, a run began or ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from dagster_ips.orchestration.watch.watched_tables import WatchedTables

_LOOK_SECONDS = 0.2
_STILL_SECONDS = 1.0
"""Outside jobs often commit several times in a row: one run for all of it is sooner done than two."""

_UNFINISHED = dg.RunsFilter(
    statuses=[
        dg.DagsterRunStatus.NOT_STARTED,
        dg.DagsterRunStatus.QUEUED,
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.CANCELING,
    ]
)


@dataclass(frozen=True)
class Situation:
    """Where each watched table has its current metadata.json, and which runs are not finished."""

    tables: Sequence[Mapping[str, str]] = ()
    runs: frozenset[str] = frozenset()


@dataclass
class ChangeWait:
    """Waits for a watched table that has changed, or a run that has begun or ended, since it was last looked.

    A look is a query of each SQL catalog and one of Dagster's storage; a REST catalog is asked table by table. Of a
    catalog that doesn't answer there are no news.
    """

    watched: Sequence[WatchedTables]
    _seen: Situation = field(default_factory=Situation)

    @classmethod
    def of(cls, watched: Iterable[WatchedTables]) -> ChangeWait:
        """Of tables of which some may be named several times."""
        return cls(list({id(each): each for each in watched}.values()))

    def look(self, instance: dg.DagsterInstance, *, until: float) -> None:
        """Look how things are; where a table has changed, when no more changes come.

        Not after ``until``, a reading of ``time.monotonic``; at least once.
        """
        self._seen, before = self._now(instance), self._seen.tables
        while self._seen.tables != before and _sleep(_STILL_SECONDS, until=until):
            self._seen, before = self._now(instance), self._seen.tables

    def came(self, instance: dg.DagsterInstance, *, until: float) -> bool:
        """Wait; whether there were news before ``until``."""
        while _sleep(_LOOK_SECONDS, until=until):
            if self._now(instance) != self._seen:
                return True
        return False

    def _now(self, instance: dg.DagsterInstance) -> Situation:
        return Situation([each.pointers() for each in self.watched], frozenset(instance.get_run_ids(_UNFINISHED)))


def _sleep(seconds: float, *, until: float) -> bool:
    """Whether there was time left to sleep."""
    left = until - time.monotonic()
    time.sleep(max(0.0, min(seconds, left)))
    return left > 0
