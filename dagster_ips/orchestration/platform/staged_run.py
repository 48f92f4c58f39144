"""A run of a staged backfill: it reads and writes branches, and what is consumed outside of them stays as it was."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import dagster as dg

from dagster_ips.core.backfill_plan import LaunchedBackfill, staged_branch
from dagster_ips.core.cascade import Cascade
from dagster_ips.errors import BackfillError, UnknownBackfillError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.orchestration.platform.cursor_store import CursorStore

STAGED_TAG = "dagster_ips/staged"
"""On runs, the backfill that they are staged for."""


@dataclass(frozen=True)
class StagedRun:
    """What a run is staged for: the ``backfill``, whose ``root`` is computed anew; ``before`` is where tables were."""

    backfill: str
    root: str
    before: Mapping[str, int]

    @property
    def branch(self) -> str:
        """The branch that it reads and writes instead of ``main``, in tables that have it."""
        return staged_branch(self.backfill)

    @property
    def cascade(self) -> Cascade:
        """What its commits follow from."""
        return Cascade((self.backfill,))

    @property
    def metadata(self) -> dict[str, dg.MetadataValue[str]]:
        """What its materialisations say first."""
        how = f"on branch {self.branch}, not on main. To publish it: dagster-ips backfill publish {self.backfill}"
        return {"staged": dg.MetadataValue.text(how)}

    def require_unmoved(self, lake: LakeCatalog, tables: Collection[str]) -> None:
        """Fail if ``main`` of a staged table isn't any more where its branch was cut.

        While it is, cursors say nothing of these tables that their branches don't have: runs publish before they
        commit.

        Raises:
            BackfillError: it isn't.
        """
        for table in sorted(self.before.keys() & set(tables)):
            found = lake.find(table)
            if found is None or found.head_snapshot_id() != self.before[table]:
                raise moved(self.backfill, [table])


def staged_run(run: dg.DagsterRun, instance: dg.DagsterInstance) -> StagedRun | None:
    """What ``run`` is staged for; None of any other.

    Raises:
        UnknownBackfillError: the instance knows of no such backfill.
    """
    backfill = run.tags.get(STAGED_TAG)
    if backfill is None:
        return None
    found = CursorStore(instance).get_backfill(backfill)
    if not isinstance(found, LaunchedBackfill) or not found.is_staged:
        raise UnknownBackfillError(backfill=backfill)
    return StagedRun(backfill, found.plan.root.asset, found.before)


def moved(backfill: str, tables: Collection[str]) -> BackfillError:
    """What to say if ``main`` of staged tables isn't any more where their branches were cut."""
    listed = ", ".join(tables)
    problem = (
        f"{listed} changed since it was staged, and publishing now would lose that change. Nothing was published and "
        "no state changed."
    )
    remedy = (
        f"Stage it again: dagster-ips backfill cancel {backfill}, then plan and launch again. If new rows arrive all "
        "the time, stop the automation sensor until the backfill is published; they stay pending and aren't lost."
    )
    return BackfillError(backfill, problem, remedy)
