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
class SparkVersionsDifferError(IpsError):
    """The Spark that a session is of, and the PySpark that is installed, are of two minor versions."""

    server: str
    installed: str

    def __str__(self) -> str:
        minor = ".".join(self.server.split(".")[:2])
        return (
            f"The session's Spark is {self.server}, and PySpark {self.installed} is installed here. They read some SQL "
            f"differently (to Spark 4.0, 'it''s' is the text its), so a table could get other rows than its query "
            f"gives; nothing was run. Install the same: pip install 'pyspark[connect]=={minor}.*'; or take another "
            f"server."
        )


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


@dataclass(eq=False)
class UnknownRunError(IpsError):
    """No run has the id that a command was given, or several have one that begins so; ``known`` are those."""

    run: str
    known: tuple[str, ...]
    looked_at: int

    def __str__(self) -> str:
        if self.known:
            ids = ", ".join(self.known)
            return f"Several runs have an id that begins with {self.run!r}: {ids}. Give more of it."
        return (
            f"There is no run {self.run!r} in this Dagster instance, nor one among the newest {self.looked_at:,} whose "
            f"id begins so. Copy the id from the run's page or from the runs list, and check DAGSTER_HOME."
        )


@dataclass(eq=False)
class UnknownCascadeError(IpsError):
    """Nothing that is retained follows from the cascade that a command was given."""

    cascade: str

    def __str__(self) -> str:
        return (
            f"No run and no retained commit belongs to a cascade {self.cascade!r}: it never was, or what belonged to "
            f"it was deleted and expired. Give the id of a backfill, of a run that a person launched, or of an outside "
            f"snapshot. Without an id the command lists those of the newest runs."
        )


@dataclass(eq=False)
class IntervalError(IpsError):
    """The interval that a command was given isn't one of the table's history."""

    table: str
    problem: str

    def __str__(self) -> str:
        return (
            f"No table was made of this interval of {self.table}: {self.problem}. Give --from and --to as snapshots or "
            f"times of one history, the earlier one first."
        )


@dataclass(eq=False)
class UnknownIcdcTableError(IpsError):
    """A table that a command is to drop isn't one that it made; ``consumer`` is whose ICDC table it is, if any's."""

    name: str
    consumer: str | None

    def __str__(self) -> str:
        if self.consumer is not None:
            return (
                f"{self.name} is an ICDC table of {self.consumer}, whose runs may still read it, so it was left alone. "
                f"They drop it by themselves once it is no longer kept: see icdc_keep_last."
            )
        return (
            f"{self.name} isn't a table that this command made, or is gone already, so nothing was dropped. With the "
            f"name of the source and --list the command shows those that there are."
        )
