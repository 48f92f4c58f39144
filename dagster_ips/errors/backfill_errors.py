"""Why a managed backfill can't proceed: whoever ran the command decides what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from dagster_ips.errors.base_error import IpsError

_SHOWN = 10


@dataclass(eq=False)
class UnknownBackfillError(IpsError):
    """The instance has no plan and no managed backfill with that id; ``is_of_dialog`` says that Dagster has one."""

    backfill: str
    is_of_dialog: bool = False

    def __str__(self) -> str:
        if self.is_of_dialog:
            return (
                f"Backfill {self.backfill} was launched without a plan, for example from Dagster's dialog, so there is "
                f"nothing to compare it with or revert it to. For its runs: dagster-ips cascade {self.backfill}"
            )
        return (
            f"This Dagster instance has no plan or backfill {self.backfill!r}, and there is no such file. Pass the id "
            f"that dagster-ips backfill plan printed, or the file it wrote with --out, and check DAGSTER_HOME."
        )


@dataclass(eq=False)
class BackfillRecordError(IpsError):
    """A saved plan, or the stored record of a backfill, can't be read."""

    where: str
    cause: str

    def __str__(self) -> str:
        return (
            f"{self.where} can't be read as a backfill plan: {self.cause}. Nothing was launched and no state changed. "
            f"Plan again: dagster-ips backfill plan ASSET. If a newer version wrote it, upgrade dagster_ips."
        )


@dataclass(eq=False)
class StalePlanError(IpsError):
    """Tables or code have changed since the plan was made."""

    backfill: str
    asset: str
    moved: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"Plan {self.backfill} is out of date: {listed(self.moved)}. Its partitions and sizes may be wrong, so "
            f"nothing was launched. Plan again: dagster-ips backfill plan {quote(self.asset)}. If the tables change "
            f"all the time, launch it with --although-moved, which computes the partitions that the plan names."
        )


@dataclass(eq=False)
class BackfillError(IpsError):
    """The command isn't possible for this backfill, or not right now."""

    backfill: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"Backfill {self.backfill}: {self.problem} {self.remedy}"


@dataclass(eq=False)
class RevertError(IpsError):
    """Rows can't be restored to their state before a backfill without losing later changes by others."""

    backfill: str
    table: str
    problems: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.table} can't be reverted to its state before backfill {self.backfill}: {listed(self.problems)}. "
            f"Nothing was written and no state changed. {self.remedy}"
        )


@dataclass(eq=False)
class StagedBranchGoneError(IpsError):
    """The branch that a staged run publishes to is gone."""

    table: str
    branch: str

    def __str__(self) -> str:
        return (
            f"{self.table} no longer has the branch {self.branch}: the backfill staged on it was cancelled, released "
            f"or published, or the branch expired. Nothing was written, and main is unchanged. If you still need the "
            f"backfill, plan it again."
        )


def listed(items: Sequence[str]) -> str:
    """Several items as one text; only the first ones of a long list.

    Example:
        >>> listed(("a", "b"))
        'a; b'
    """
    more = f"; and {len(items) - _SHOWN:,} more" if len(items) > _SHOWN else ""
    return "; ".join(items[:_SHOWN]) + more
