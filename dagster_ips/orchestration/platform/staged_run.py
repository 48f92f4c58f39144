"""A run of a staged backfill: it reads and writes branches, and leaves the cursors unchanged."""

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
"""The run tag that names the backfill that a run is staged for."""


@dataclass(frozen=True)
class StagedRun:
    """The ``backfill`` that a run is staged for.

    ``root`` is the asset that the backfill recomputes. ``before`` gives the snapshot that ``main`` of each staged table
    had when its branch was created.
    """

    backfill: str
    root: str
    before: Mapping[str, int]

    @property
    def branch(self) -> str:
        """The branch that the run reads and writes instead of ``main``, in tables that have it."""
        return staged_branch(self.backfill)

    @property
    def cascade(self) -> Cascade:
        """The cascade that its commits belong to."""
        return Cascade((self.backfill,))

    @property
    def metadata(self) -> dict[str, dg.MetadataValue[str]]:
        """The first entry in the metadata of its materializations."""
        how = f"on branch {self.branch}, not on main. To publish it: dagster-ips backfill publish {self.backfill}"
        return {"staged": dg.MetadataValue.text(how)}

    def require_unmoved(self, lake: LakeCatalog, tables: Collection[str]) -> None:
        """Fail if ``main`` of a staged table has moved since its branch was created.

        Its branch could never be published.

        Raises:
            BackfillError: ``main`` has moved.
        """
        for table in sorted(self.before.keys() & set(tables)):
            found = lake.find(table)
            if found is None or found.head_snapshot_id() != self.before[table]:
                raise moved(self.backfill, [table])


def staged_run(run: dg.DagsterRun, instance: dg.DagsterInstance) -> StagedRun | None:
    """What ``run`` is staged for; None if it isn't staged.

    Raises:
        UnknownBackfillError: the instance has no such backfill.
    """
    backfill = run.tags.get(STAGED_TAG)
    if backfill is None:
        return None
    found = CursorStore(instance).get_backfill(backfill)
    if not isinstance(found, LaunchedBackfill) or not found.is_staged:
        raise UnknownBackfillError(backfill=backfill)
    return StagedRun(backfill, found.plan.root.asset, found.before)


def moved(backfill: str, tables: Collection[str]) -> BackfillError:
    """The error for staged tables whose ``main`` has moved since their branches were created."""
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
