"""Mistakes in definitions and commands: the asset's author, or whoever ran the command, fixes them."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.errors.base_error import IpsError
from dagster_ips.errors.remedies import full_run


@dataclass(eq=False)
class DeclarationError(IpsError):
    """An asset declares its inputs or its table in a way that can't work.

    Raised when definitions load; in a run, if only the run shows it.
    """

    asset: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.asset}: {self.problem} {self.remedy}"


@dataclass(eq=False)
class RetentionError(IpsError):
    """The setting for how long ICDC tables are kept can't work."""

    setting: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.setting} = {self.found} isn't a valid retention for ICDC tables, so nothing was captured. "
            f"{self.remedy} The settings of IcdcIOManager are icdc_keep_last and icdc_max_age_days."
        )


@dataclass(eq=False)
class UnknownConsumerError(IpsError):
    """A command names an asset that reads nothing incrementally, or an upstream it doesn't read that way."""

    asset: str
    problem: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.asset} {self.problem}. Nothing was done. Choose one of: {', '.join(self.known) or 'none'}."


@dataclass(eq=False)
class InstanceError(IpsError):
    """The command isn't possible with this Dagster instance or these definitions, or not right now."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} No state changed. {self.remedy}"


@dataclass(eq=False)
class SparkVersionsDifferError(IpsError):
    """The Spark session and the installed PySpark have different minor versions."""

    server: str
    installed: str

    def __str__(self) -> str:
        minor = ".".join(self.server.split(".")[:2])
        return (
            f"The session runs Spark {self.server}, but PySpark {self.installed} is installed here. They parse some "
            f"SQL differently (Spark 4.0 reads 'it''s' as its), so a table could get rows that its query doesn't "
            f"return. Nothing was run. Install the matching version: pip install 'pyspark[connect]=={minor}.*'; or "
            f"connect to another server."
        )


@dataclass(eq=False)
class UnknownRefError(IpsError):
    """An input follows a branch that its table doesn't have; ``known`` lists the branches it has."""

    table: str
    ref: str
    known: tuple[str, ...]
    asset: str

    def __str__(self) -> str:
        return (
            f"{self.table} has no branch {self.ref!r}, which {self.asset} follows through incremental(ref=...). Its "
            f"branches: {', '.join(self.known) or 'none'}. Another branch would give different rows, so nothing was "
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
            f"{self.table}: {self.tag!r}, which {self.asset} follows through incremental(ref=...), is a tag. It stays "
            f"at snapshot {self.snapshot_id}, so later rows would never be read. Nothing was captured and no state "
            f"changed. Follow a branch ({', '.join(self.branches) or 'main'}), or read the tag through an input "
            f"without incremental()."
        )


@dataclass(eq=False)
class UnknownPlaceError(IpsError):
    """A snapshot or time isn't in a table's history; ``history`` says how far that reaches."""

    table: str
    place: str
    why: str
    asked_by: str
    history: str

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.place}, given by {self.asked_by}, {self.why}. What came after it is unknown, so no "
            f"state changed. Give a snapshot or a time from the table's history, which has {self.history}."
        )


@dataclass(eq=False)
class UnknownColumnError(IpsError):
    """The table or frame has no such column."""

    where: str
    column: str
    known: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        return f"{self.where} has no column {self.column!r}; it has {', '.join(self.known) or 'none'}. {self.remedy}"


@dataclass(eq=False)
class UnorderedColumnError(IpsError):
    """A range was requested for a column whose values have no minimum and maximum."""

    table: str
    column: str
    type: str

    def __str__(self) -> str:
        return (
            f"{self.table}: column {self.column!r} ({self.type}) has no minimum and maximum, so no range can show "
            f"what changed in it. Nothing was written and nothing was consumed. In incremental(ranges=...) and "
            f"range(...), name top-level columns of plain values such as dates, numbers or strings."
        )


@dataclass(eq=False)
class UnprovableError(IpsError):
    """The expected rows of a table can't be recomputed, so it can't be proved right or wrong."""

    consumer: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.consumer} can't be proved: {self.problem}. Its rows may be right or wrong. {self.remedy}"


@dataclass(eq=False)
class RewindError(IpsError):
    """Consumed changes can't be made pending again from the requested place."""

    consumer: str
    upstream: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.consumer} can't be rewound on {self.upstream}: {self.problem}. No state changed. To recompute "
            f"everything instead: {full_run(self.consumer)}."
        )


@dataclass(eq=False)
class UnknownRunError(IpsError):
    """No run has the given id, or several have ids that start with it; ``known`` lists those."""

    run: str
    known: tuple[str, ...]
    looked_at: int

    def __str__(self) -> str:
        if self.known:
            ids = ", ".join(self.known)
            return f"Several runs have an id that starts with {self.run!r}: {ids}. Give more characters."
        return (
            f"This Dagster instance has no run {self.run!r}, and none of its newest {self.looked_at:,} runs has an id "
            f"that starts with it. Copy the id from the run's page or the runs list, and check DAGSTER_HOME. If it is "
            f"meant to be a SQL asset, give its key as the definitions have it."
        )


@dataclass(eq=False)
class UnknownCascadeError(IpsError):
    """No retained run or commit belongs to the given cascade."""

    cascade: str

    def __str__(self) -> str:
        return (
            f"No run and no retained commit belongs to a cascade {self.cascade!r}: it never existed, or its runs were "
            f"deleted and its snapshots expired. Give the id of a backfill, of a run that a person launched, or of a "
            f"snapshot that an outside job committed. Without an id, the command lists the newest cascades."
        )


@dataclass(eq=False)
class IntervalError(IpsError):
    """The given interval isn't part of the table's history, or can't be read."""

    table: str
    problem: str
    remedy: str = "Give --from and --to as snapshots or times of the same history, the earlier one first."

    def __str__(self) -> str:
        return f"No table was created for this interval of {self.table}: {self.problem}. {self.remedy}"


@dataclass(eq=False)
class UnknownIcdcTableError(IpsError):
    """The command can only drop tables that it created; ``consumer`` owns this ICDC table, if anyone does."""

    name: str
    consumer: str | None

    def __str__(self) -> str:
        if self.consumer is not None:
            return (
                f"{self.name} is an ICDC table of {self.consumer}, whose runs may still read it, so it was not "
                f"dropped. Those runs drop it themselves once its retention is over: see icdc_keep_last."
            )
        return (
            f"{self.name} wasn't created by this command, or is already gone, so nothing was dropped. To list the "
            f"tables that exist, run the command with the source's name and --list."
        )
