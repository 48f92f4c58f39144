"""What is wrong in definitions and commands: the author of an asset, or whoever typed the command, mends it."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError


@dataclass(eq=False)
class DeclarationError(IpsError):
    """An asset says something about its inputs or its table that can't work; found when definitions load."""

    asset: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.asset}: {self.problem} {self.remedy}"


@dataclass(eq=False)
class RetentionError(IpsError):
    """How long ICDC tables are kept is declared in a way that can't work."""

    setting: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"ICDC tables can't be kept by {self.setting} = {self.found}, so nothing was captured. {self.remedy} "
            f"The settings of IcdcIOManager are icdc_keep_last and icdc_max_age_days."
        )


@dataclass(eq=False)
class UnknownConsumerError(IpsError):
    """A command names an asset, or an upstream of it, that isn't read incrementally."""

    asset: str
    problem: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.asset} {self.problem}. Nothing was done. Known are: {', '.join(self.known) or 'none'}."


@dataclass(eq=False)
class InstanceError(IpsError):
    """The command can't be done with this Dagster instance or these definitions, or not now."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} No state changed. {self.remedy}"


@dataclass(eq=False)
class UnknownRefError(IpsError):
    """An input follows a branch that its table doesn't have; ``known`` are those that it has."""

    table: str
    ref: str
    known: tuple[str, ...]
    asset: str

    def __str__(self) -> str:
        return (
            f"{self.table} has no branch {self.ref!r}, which {self.asset} follows by incremental(ref=...); it "
            f"has {', '.join(self.known) or 'none'}. Following another instead would give other rows, so nothing was "
            f"captured and no state changed. Create {self.ref!r}, or correct the name."
        )


@dataclass(eq=False)
class TagFollowedError(IpsError):
    """An input follows a tag, which never moves."""

    table: str
    tag: str
    snapshot_id: int
    branches: tuple[str, ...]
    asset: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.tag!r}, which {self.asset} follows by incremental(ref=...), is a tag. It stays at "
            f"snapshot {self.snapshot_id}, so rows that come later would never be read; nothing was captured and no "
            f"state changed. Follow a branch ({', '.join(self.branches) or 'main'}), or read the tag as it is in an "
            f"input without incremental()."
        )


@dataclass(eq=False)
class UnknownPlaceError(IpsError):
    """A snapshot or a time that was named isn't in a table's history, which reaches as ``history`` says."""

    table: str
    place: str
    why: str
    asked_by: str
    history: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.place}, which {self.asked_by} names, {self.why}. What comes after it is unknown, "
            f"so no state changed. Name a snapshot or a time in its history, which has {self.history}."
        )


@dataclass(eq=False)
class UnknownColumnError(IpsError):
    """A column was named that the table or frame doesn't have."""

    where: str
    column: str
    known: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        return f"{self.where} has no column {self.column!r}; it has {', '.join(self.known) or 'none'}. {self.remedy}"


@dataclass(eq=False)
class UnorderedColumnError(IpsError):
    """A range was asked for of a column whose values have no lowest and highest."""

    table: str
    column: str
    type: str

    def __str__(self) -> str:
        return (
            f"{self.table}: column {self.column!r} ({self.type}) has no lowest and highest value, so no range tells "
            f"what changed in it. Nothing was written and nothing was consumed. Name top-level columns of plain "
            f"values, such as dates, numbers or texts, in incremental(ranges=...) and range(...)."
        )


@dataclass(eq=False)
class UnprovableError(IpsError):
    """What a table should hold can't be computed again, so whether it does isn't known."""

    consumer: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.consumer} can't be proved: {self.problem}. Whether its rows are right isn't known. {self.remedy}"


@dataclass(eq=False)
class RewindError(IpsError):
    """What was consumed can't be made pending again from where it was asked."""

    consumer: str
    upstream: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.consumer} can't be rewound on {self.upstream}: {self.problem}. No state changed. To compute "
            f"everything anew instead, materialize {self.consumer} with the run tag dagster_ips/mode=full."
        )
