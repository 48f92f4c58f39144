"""What a backfill will do, decided before anything runs: plain data that can be printed, saved and reviewed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_BEFORE = "ips-backfill-"
_PROGRESS = "-progress"
_STAGED = "ips-staged-"


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """What a stage reads from an upstream: the files of its captures, which its runs report as well.

    If ``at_most`` is set, less may be read. This is so for a stage that follows: the numbers are for all that its
    upstream holds now, since all of it may be rewritten.
    """

    upstream: str
    table: str
    files: int
    rows: int
    size_bytes: int
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One asset that a backfill computes: the root, or an asset that follows by itself.

    ``partitions`` is None for an asset without partitions. ``seconds`` is the expected work time of its runs, one after
    the other, going by ``past_runs`` earlier runs; None if there are none to go by. ``unknown`` says what can't be
    known before it runs, ``code_changes`` what differs from the code that made the existing rows.
    """

    asset: str
    table: str
    upstreams: tuple[str, ...]
    partitions: tuple[str, ...] | None
    reads: tuple[PlannedRead, ...] = ()
    seconds: float | None = None
    past_runs: int = 0
    code_version: str | None = None
    unknown: tuple[str, ...] = ()
    code_changes: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Its partitions; for an asset without partitions a single ``""``, which stands for the whole of it."""
        return ("",) if self.partitions is None else self.partitions

    @property
    def size_bytes(self) -> int:
        """Size of all that it reads."""
        return sum(read.size_bytes for read in self.reads)

    @property
    def rows(self) -> int:
        """Rows of all that it reads."""
        return sum(read.rows for read in self.reads)

    @property
    def files(self) -> int:
        """Files of all that it reads."""
        return sum(read.files for read in self.reads)


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table's state when the plan was made: ``snapshot_id`` is the newest snapshot that may have changed rows.

    ``uuid`` and ``snapshot_id`` are None if the table didn't exist. ``code_version`` is that of the asset that writes
    the table, if there is one.
    """

    asset: str
    table: str
    uuid: str | None
    snapshot_id: int | None
    code_version: str | None = None

    def moved_to(self, now: PlannedTable) -> str | None:
        """What has changed since then, in words; None if nothing has.

        Example:
            >>> before = PlannedTable("daily", "media.daily", "1f3", 7, "1")
            >>> before.moved_to(PlannedTable("daily", "media.daily", "1f3", 8, "1"))
            'media.daily moved from snapshot 7 to 8'
            >>> before.moved_to(PlannedTable("daily", "media.daily", "1f3", 7, "2"))
            "daily's code version changed from 1 to 2"
        """
        if self.uuid is None and now.uuid is not None:
            return f"{self.table} has been created"
        if self.uuid != now.uuid:
            return f"{self.table} was dropped" + (" and created again" if now.uuid else "")
        if self.snapshot_id != now.snapshot_id:
            return f"{self.table} moved from snapshot {self.snapshot_id} to {now.snapshot_id}"
        if self.code_version != now.code_version:
            return f"{self.asset}'s code version changed from {self.code_version} to {now.code_version}"
        return None


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What a backfill of ``stages[0]``, the root, will do, stage after stage.

    ``id`` is also the id of Dagster's backfill and of the cascade, and is in the tags of the tables' states before it.
    ``tables`` are those that it writes and those that its root reads. ``not_started`` maps a stage to the assets that
    read all of it and aren't started by the backfill.
    """

    id: str
    made_at_ms: int
    stages: tuple[PlannedStage, ...]
    tables: tuple[PlannedTable, ...]
    not_started: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def root(self) -> PlannedStage:
        """The stage that a person wants recomputed."""
        return self.stages[0]

    @property
    def before_tag(self) -> str:
        """The tag of each table's state before the backfill."""
        return before_tag(self.id)

    @property
    def progress_tag(self) -> str:
        """The tag of the snapshot that says what that state contains, if that is an earlier one."""
        return self.before_tag + _PROGRESS

    @property
    def staged_branch(self) -> str:
        """The branch of each table on which it is staged, if it is."""
        return staged_branch(self.id)

    def stage(self, asset: str) -> PlannedStage | None:
        """The stage of an asset; None if it has none."""
        return next((each for each in self.stages if each.asset == asset), None)

    def moved(self, now: Mapping[str, PlannedTable]) -> Iterator[str]:
        """What has changed since the plan was made; ``now`` has the present state of each table, by its name."""
        for each in self.tables:
            if what := each.moved_to(now[each.table]):
                yield what


@dataclass(frozen=True, slots=True)
class LaunchedBackfill:
    """A backfill that was launched: its plan, and each table's snapshot before it.

    It ``is_staged`` if its stages are computed on branches, and published together once a person says so.
    """

    plan: BackfillPlan
    who: str
    launched_at_ms: int
    before: Mapping[str, int]
    is_staged: bool = False


def backfill_of_tag(tag: str) -> str | None:
    """The backfill that has tagged its tables' earlier states with ``tag``; None for any other tag.

    Example:
        >>> backfill_of_tag("ips-backfill-qwertyui"), backfill_of_tag("ips-backfill-qwertyui-progress")
        ('qwertyui', 'qwertyui')
        >>> backfill_of_tag("stable")
    """
    return tag.removeprefix(_BEFORE).removesuffix(_PROGRESS) if tag.startswith(_BEFORE) else None


def before_tag(backfill: str) -> str:
    """The Iceberg tag of a table's state before a backfill.

    Example:
        >>> before_tag("qwertyui")
        'ips-backfill-qwertyui'
    """
    return _BEFORE + backfill


def staged_branch(backfill: str) -> str:
    """The Iceberg branch of each table on which a backfill is staged.

    Example:
        >>> staged_branch("qwertyui")
        'ips-staged-qwertyui'
    """
    return _STAGED + backfill


def backfill_of_branch(branch: str) -> str | None:
    """The backfill that is staged on a branch of that name; None if it isn't such a name.

    Example:
        >>> backfill_of_branch("ips-staged-qwertyui"), backfill_of_branch("audit")
        ('qwertyui', None)
    """
    return branch.removeprefix(_STAGED) if branch.startswith(_STAGED) else None
