"""What stands in the way of a managed backfill: whoever started the command decides how to go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError

_SHOWN = 10


@dataclass(eq=False)
class UnknownBackfillError(IpsError):
    """No plan and no backfill of that id is known to the instance."""

    backfill: str

    def __str__(self) -> str:
        return (
            f"This Dagster instance knows no plan and no backfill {self.backfill!r}, and there is no such file. Give "
            f"the id that dagster-ips backfill plan printed, or the file that it wrote by --out; check DAGSTER_HOME."
        )


@dataclass(eq=False)
class BackfillRecordError(IpsError):
    """A saved plan, or what is remembered of a backfill, can't be read."""

    where: str
    cause: str

    def __str__(self) -> str:
        return (
            f"{self.where} can't be read as a plan of a backfill: {self.cause}. Nothing was launched and no state "
            f"changed. Plan again: dagster-ips backfill plan ASSET. If a newer version wrote it, upgrade dagster_ips."
        )


@dataclass(eq=False)
class StalePlanError(IpsError):
    """Tables or code aren't any more as they were when the plan was made."""

    backfill: str
    asset: str
    moved: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"Plan {self.backfill} isn't true any more: {listed(self.moved)}. What it says of partitions and sizes may "
            f"be wrong, so nothing was launched. Plan again: dagster-ips backfill plan {self.asset}. Where tables move "
            f"all the time, launch it with --although-moved: the partitions that the plan names are computed then."
        )


@dataclass(eq=False)
class BackfillError(IpsError):
    """What was asked for can't be done with this backfill, or not now."""

    backfill: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"Backfill {self.backfill}: {self.problem} {self.remedy}"


@dataclass(eq=False)
class RevertError(IpsError):
    """Rows can't be restored to what they were before a backfill without losing what others did since."""

    backfill: str
    table: str
    problems: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table} can't be reverted to what it was before backfill {self.backfill}: {listed(self.problems)}. "
            f"Nothing was written and no state changed. {self.remedy}"
        )


@dataclass(eq=False)
class StagedBranchGoneError(IpsError):
    """A staged run finds the branch gone that it was to publish to."""

    table: str
    branch: str

    def __str__(self) -> str:
        return (
            f"{self.table} has no branch {self.branch} any more: the backfill that was staged on it was cancelled, "
            f"released or published, or the branch expired. Nothing was written, and main is as it was. Plan the "
            f"backfill again if it is still needed."
        )


def listed(items: Sequence[str]) -> str:
    """Several things as one text, of many the first.

    Example:
        >>> listed(("a", "b"))
        'a; b'
    """
    more = f"; and {len(items) - _SHOWN:,} more" if len(items) > _SHOWN else ""
    return "; ".join(items[:_SHOWN]) + more
