"""The life of several tables and of the assets that follow them: a list of steps, with checks after each one."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from dagster_ips.core.capture import Mode
from dagster_ips.core.ownership import ATTEMPT
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import (
    BrokenHistoryError,
    FilesGoneError,
    ForeignWriteError,
    FragmentOverwriteError,
    FrameColumnsError,
    IpsError,
    PublishError,
    SourceColumnsChangedError,
    TargetChangedError,
    TargetColumnsChangedError,
    UnfitFrameError,
    UnknownPublicationError,
    UnmappedRowsError,
)
from dagster_ips.exactly_once import effects
from dagster_ips.progress.table_progress import PROGRESS
from dagster_ips.spark.writes import combine
from tests.histories.checks import WrongCaptureError
from tests.histories.composed.assets import SOURCES
from tests.histories.composed.expected import EXPECTED, Expected
from tests.histories.composed.rows import Bag, Reader, Seen, plain
from tests.histories.composed.runs import Assets, Begun
from tests.histories.composed.values import ASKED_FOR, COLUMNS
from tests.histories.operations import OPERATIONS, apply
from tests.histories.table import HistoryTable, NotNow, Shape, path_of
from tests.histories.time_travel import Rows

UNKNOWN = "unknown"
Parts = dict[str, Rows]
"""What a table must hold, by partition. Without partitions, everything is under an empty key."""
OTHERS = "others"
"""The key for rows that others wrote or deleted and that a run was told to accept."""
PENDING = ("pending",)
"""Stands for the partitions that the sensor would request."""
RENAMES = ("rename_column", "swap_names")
"""Operations that make names mean other columns, while every name that assets use still exists."""
TAKES_NAMES = (*RENAMES, "drop_column")
SWAPPED = "swap names"
_LOSING = ("expire", "replace")
"""Families of operations after which a run that captured earlier may no longer find what it captured."""


class KilledError(BaseException):
    """Stands for a kill. Not an Exception, so that no handler does what a killed process wouldn't do."""


@dataclass
class Coverage:
    """How the runs of each asset ended, and how many checked runs each kind of step preceded."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    captures: int = 0

    @property
    def runs(self) -> int:
        return sum(self.ends.values())


@dataclass
class Follower:
    """What is known about an asset's table. ``parts`` is what it must hold; None if that is unknown.

    ``problems`` are changes by others that a run may refuse, and ``own`` is what the table held before them.
    ``is_rolled_back``: nothing was published since a rollback. ``ended`` counts the asset's runs, and ``since`` has the
    kinds of steps since the last run. ``removed`` are the partitions that were deleted; their rows stay.
    """

    name: str
    expected: Expected
    parts: Parts | None = None
    at: dict[int, Parts | None] = field(default_factory=dict)
    problems: set[str] = field(default_factory=set)
    own: Parts | None = None
    is_rolled_back: bool = False
    ended: int = 0
    since: set[str] = field(default_factory=set)
    partitions: list[str] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)

    def is_whole(self, keys: Sequence[str]) -> bool:
        """Whether a run of these partitions computes every row that the table may hold."""
        return set(keys) >= {*self.partitions, *self.removed}


@dataclass
class Held:
    """A run between capture and publication. ``lost``: the files that it captured may be gone by now."""

    begun: Begun
    seen: Mapping[str, Mapping[str, Seen] | None]
    ended: int
    is_disturbed: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a life."""

    method: str
    arguments: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, method: str, **arguments: Any) -> Step:  # noqa: ANN401  # a step's own
        return cls(method, tuple(arguments.items()))

    def take(self, life: Life) -> None:
        """Take the step."""
        getattr(life, self.method)(**dict(self.arguments))

    def __str__(self) -> str:
        return f"life.{self.method}({', '.join(f'{k}={v!r}' for k, v in self.arguments)})"


class Life:
    """Takes steps on real tables and records them, so that they can be repeated."""

    def __init__(
        self,
        assets: Assets,
        names: Sequence[str],
        shapes: Mapping[str, Shape] | None = None,
        coverage: Coverage | None = None,
    ) -> None:
        self.assets, self.names, self.shapes = assets, tuple(names), dict(shapes or {})
        self.lake, self.coverage = assets.lake, coverage or Coverage()
        self.steps: list[Step] = []
        self.reader = Reader(self.lake)
        self.tables = {
            name: HistoryTable(
                self.lake,
                self.shapes.get(name, Shape()),
                watermarks=self._watermarks_of(name),
                name=f"media.{name}",
                made_of=COLUMNS,
            )
            for name in SOURCES
        }
        self.followers = {name: Follower(name, EXPECTED[name]) for name in names}
        for each in self.followers.values():
            each.partitions = [] if each.name == "by_number" else list(each.expected.partitions)
        self.held: dict[str, Held] = {}
        self._backup: Sequence[tuple[str, str]] = ()
        self._patches = contextlib.ExitStack()
        assets.restore(())
        for key in assets.instance.get_dynamic_partitions("numbers"):
            assets.instance.delete_dynamic_partition("numbers", key)

    def __str__(self) -> str:
        return "\n".join([f"life = Life(assets, {self.names}, {self.shapes})", *map(str, self.steps)])

    def take(self, step: Step) -> None:
        """Take a step, and record it unless it wasn't possible."""
        self.steps.append(step)
        try:
            step.take(self)
        except NotNow:
            if ("keys", PENDING) not in step.arguments:  # The sensor looked, whatever it found.
                self.steps.pop()

    def close(self) -> None:
        """Drop all tables. Local files are deleted; the bucket of an object store is deleted with its server."""
        self._patches.close()
        for name in [*SOURCES, *EXPECTED]:
            if (found := self.lake.catalog.find(f"media.{name}")) is not None:
                self.lake.catalog.client.drop_table(f"media.{name}")
                shutil.rmtree(path_of(found.raw["location"]), ignore_errors=True)
        catalog = self.lake.catalog.client
        for name in catalog.list_tables("ips") if catalog.namespace_exists("ips") else ():
            catalog.drop_table(name)

    # Steps

    def meet_large_tables(self) -> None:
        """From now on, ``combine`` treats every table as a large one."""
        self._patches.enter_context(patch.object(combine, "_MOST_IN_ONE_MERGE", 0))

    def change(self, *, table: str, operation: str, **arguments: Any) -> None:  # noqa: ANN401  # the operation's own
        """Change a source."""
        if operation in TAKES_NAMES:
            self._require_names_stay(self.tables[table], arguments)
        apply(self.tables[table], operation, arguments)
        self.reader.head(f"media.{table}")
        self._noted(f"{OPERATIONS[operation].family} of a source", table, lost=OPERATIONS[operation].family in _LOSING)
        if operation in RENAMES:
            self._noted(f"{operation} of a source", table, lost=False)

    def _require_names_stay(self, table: HistoryTable, roles: Mapping[str, Any]) -> None:
        """Require that each name that assets use stays, for a column of the same type; otherwise the assets fail."""
        fields = [table.field(role) for role in roles.values()]
        takes_asked = any(each.name in ASKED_FOR for each in fields)
        if takes_asked and (len(fields) == 1 or len({str(each.type) for each in fields}) > 1):
            raise NotNow

    def target(self, *, asset: str, what: str) -> None:
        """Change an asset's table from outside of the asset."""
        follower, table = self._follower(asset), HistoryTable.__new__(HistoryTable)
        table.lake, table.name = self.lake, f"media.{asset}"
        if not self._exists(asset) or table.head is None:
            raise NotNow
        if what == "expire" and follower.problems:
            raise NotNow  # Nobody could notice the problem then; that is a documented limit.
        if what == SWAPPED and follower.expected.by:
            raise NotNow  # The model can't tell which partitions still have the old names.
        before = table.head
        _ON_TARGETS[what](table)
        if what == "roll back":
            follower.parts = follower.at.get(table.head or 0)
            follower.is_rolled_back = True
        elif what == SWAPPED:
            follower.own, follower.parts = None, None
            follower.at.clear()
            follower.problems.add(what)
        elif what.startswith("foreign"):
            if table.head == before:
                raise NotNow
            follower.own, follower.parts = follower.parts or follower.own, None
            follower.problems.add(what)
        if table.head is not None:
            follower.at[table.head] = follower.parts
        self._noted(f"{what} of a target", asset, lost=what == "expire")
        follower.since.add(f"{what} of the target")
        for held in self.held.values():
            held.is_disturbed |= held.begun.asset == asset

    def run(
        self, *, asset: str, keys: Sequence[str] = (), by: str = "hand", full: bool = False, mended: bool = False
    ) -> None:
        """Run an asset and check everything that must hold afterwards. ``mended``: if it is refused, run it in full.

        Errors advise a full run, so it must help: it may be refused only where every full run must be.
        """
        follower = self._follower(asset)
        keys = tuple(follower.partitions) if full else self._keys(follower, keys)
        if follower.expected.by and not keys:
            raise NotNow
        follower.since.add("by Dagster" if by == "Dagster" else "by hand")
        if full:
            follower.since.add("full")
        if by == "Dagster":
            is_done = self._by_dagster(follower, keys, full=full)
        else:
            held = self._begun(follower, keys, full=full)
            is_done = held is not None and self._ended(follower, held, full=full)
        if mended and not is_done and not full:
            self.run(asset=asset, full=True)

    def run_together(self, *, assets: Sequence[str], at: str = "") -> None:
        """One run of the tables of one step. If ``at`` names an effect, the run is killed there."""
        followers = {name: self._follower(name) for name in assets}
        heads = {name: self._head(name) for name in assets}
        left: list[Held] = []
        with _killed(at) as killed:
            left = self._begun_together(followers)
            while left:
                name = left[0].begun.asset
                followers[name].since.add("together")
                self._ended(followers[name], left[0], full=False)
                left.pop(0)
        if killed:
            for each in followers.values():
                each.since.add(f"killed {at}")
            for held in left:
                if self._head(held.begun.asset) != heads[held.begun.asset]:
                    self._now_holds(followers[held.begun.asset], held.begun, held.seen)
        for each in followers.values():
            self._check(each)

    def _begun_together(self, followers: Mapping[str, Follower]) -> list[Held]:
        before = {name: self._standing(follower) for name, follower in followers.items()}
        try:
            begun = self.assets.begin_together(tuple(followers))
        except IpsError as error:
            why = next((f for f in followers.values() if self._explains(f, error, None, full=False)), None)
            for name, follower in followers.items():
                if why in (None, follower) or self._standing(follower)[0] != before[name][0]:
                    self._refused(follower, error, before[name], None, full=False)
            return []
        self.coverage.captures += sum(len(each.captures) for each in begun)
        found = [followers[each.asset] for each in begun]
        return [Held(each, self._seen(f, each), f.ended) for f, each in zip(found, begun, strict=True)]

    def accept(self, *, asset: str) -> None:
        """A run accepts what others wrote to or deleted from the asset's table."""
        follower, head = self._follower(asset), self._head(asset)
        problems, own = follower.problems, follower.own
        is_foreign = bool(problems) and all(each.startswith("foreign") for each in problems)
        if not (follower.expected.only_adds and is_foreign and own and head):
            raise NotNow
        others = Counter(self.reader.head(f"media.{asset}").select(*follower.expected.columns))
        for rows in (own[key] for key in own if key != OTHERS):
            others.subtract(rows)
        follower.since.add("accepted")
        follower.problems, follower.parts = set(), {**own, OTHERS: others}
        held = self._begun(follower, (), full=False, accept=head)
        if held is None or not self._ended(follower, held, full=False):
            follower.problems, follower.parts = problems, None

    def begin(self, *, asset: str, slot: str, keys: Sequence[str] = ()) -> None:
        """A run captures and then sleeps."""
        follower = self._follower(asset)
        if slot in self.held:
            raise NotNow
        if held := self._begun(follower, self._keys(follower, keys), full=False):
            self.held[slot] = held

    def end(self, *, slot: str) -> None:
        """A sleeping run wakes up, and publishes if it may."""
        if slot not in self.held:
            raise NotNow
        held = self.held.pop(slot)
        follower = self.followers[held.begun.asset]
        follower.since.add("slept" if follower.ended == held.ended else "overlapping")
        self._ended(follower, held, full=False)

    def kill(self, *, asset: str, at: str, keys: Sequence[str] = ()) -> None:
        """A run is killed at the effect ``at``."""
        follower = self._follower(asset)
        keys, before, held = self._keys(follower, keys), self._head(asset), None
        with _killed(at) as killed:
            held = self._begun(follower, keys, full=False)
            if held:
                self._ended(follower, held, full=False)
        if killed:
            follower.since.add(f"killed {at}")
            if held and self._head(asset) != before:
                self._now_holds(follower, held.begun, held.seen)
        self._check(follower)

    def backup(self) -> None:
        """Make a backup of Dagster's database."""
        self._backup = self.assets.cursors()

    def restore(self) -> None:
        """Restore the backup."""
        self.assets.restore(self._backup)
        for follower in self.followers.values():
            follower.since.add("restored")
        if "by_number" in self.followers:
            self.followers["by_number"].partitions = list(self.assets.instance.get_dynamic_partitions("numbers"))
        for held in self.held.values():
            held.is_disturbed = True

    def add_partition(self, *, key: str) -> None:
        """Add a dynamic partition."""
        follower = self._follower("by_number")
        if key in follower.partitions:
            raise NotNow
        self.assets.instance.add_dynamic_partitions("numbers", [key])
        follower.partitions.append(key)
        follower.since.add("a partition that comes back" if key in follower.removed else "a partition that comes later")
        follower.removed.discard(key)

    def remove_partition(self, *, key: str) -> None:
        """Delete a dynamic partition. The rows that the asset's table holds of it stay."""
        follower = self._follower("by_number")
        if key not in follower.partitions:
            raise NotNow
        self.assets.instance.delete_dynamic_partition("numbers", key)
        follower.partitions.remove(key)
        follower.removed.add(key)
        follower.since.add("a partition that is deleted")

    def catch_up(self) -> None:
        """Every sleeping run ends, every asset consumes everything, stage after stage, and all tables are equal."""
        for slot in sorted(self.held):
            self.end(slot=slot)
        for follower in self.followers.values():
            self._catch_up(follower)

    # Runs

    def _catch_up(self, follower: Follower) -> None:
        if not all(self._exists(name) for name in self._inputs(follower)):
            return
        if not follower.expected.by:
            self.run(asset=follower.name, mended=True)
            return
        for _ in range(3):
            keys = sorted(self.assets.pending(follower.name) & set(follower.partitions))
            if keys:
                self.run(asset=follower.name, keys=keys, mended=True)
        self._require_nothing_left(follower)

    def _require_nothing_left(self, follower: Follower) -> None:
        """Check that partitions that aren't pending equal a recompute from the sources' current rows."""
        if follower.problems or follower.parts is None or not self._exists(follower.name):
            return
        if follower.expected.is_strict and self._unmapped(follower):
            return
        heads = {name: self.reader.head(f"media.{name}") for name in self._inputs(follower)}
        for key in set(follower.partitions) - self.assets.pending(follower.name):
            of_key = {name: bag.where(follower.expected.is_of(key)) for name, bag in heads.items()}
            _equal(
                f"{follower.name}: what isn't pending is up to date",
                follower.parts.get(key, Counter()),
                follower.expected.recomputed(of_key),
            )

    def _begun(
        self, follower: Follower, keys: tuple[str, ...], *, full: bool, accept: int | None = None
    ) -> Held | None:
        before = self._standing(follower)
        try:
            begun = self.assets.begin(follower.name, keys, full=full, accept=accept)
        except IpsError as error:
            self._refused(follower, error, before, None, full=full)
            return None
        self.coverage.captures += len(begun.captures)
        if begun.mode is Mode.FULL and not full:
            self._require_reason_to_start_over(follower, before)
        return Held(begun, self._seen(follower, begun), follower.ended)

    def _ended(self, follower: Follower, held: Held, *, full: bool) -> bool:
        """End the run; returns whether it succeeded."""
        before, was_consumed = self._standing(follower), self._is_consumed(held.begun)
        try:
            self.assets.end(held.begun)
        except IpsError as error:
            self._refused(follower, error, before, held, full=full)
            return False
        except Exception as error:
            # Another run may have dropped the captured ICDC table since, as one of the older ones.
            is_dropped = held.ended != follower.ended and "TABLE_OR_VIEW_NOT_FOUND" in str(error)
            if not (held.lost or is_dropped) or self._head(follower.name) != before[0]:
                raise
            self._counted(follower, type(error).__name__)
            return False
        is_others = was_consumed and (held.begun.mode is Mode.INCREMENTAL or self._head(follower.name) == before[0])
        self._succeeded(follower, held.begun, held.seen, is_others=is_others)
        return True

    def _by_dagster(self, follower: Follower, keys: tuple[str, ...], *, full: bool) -> bool:
        before = self._standing(follower)
        seen = self._seen_by_progress(follower, keys)
        begun = Begun(follower.name, {}, {}, {}, "", keys)
        try:
            self.assets.run_by_dagster(follower.name, keys, full=full)
        except IpsError as error:
            self._refused(follower, error, before, Held(begun, seen, follower.ended), full=full)
            return False
        self.coverage.captures += len(self._inputs(follower)) * max(1, len(keys))
        self._succeeded(follower, begun, seen, is_full=full or None in before[1])
        return True

    def _succeeded(
        self,
        follower: Follower,
        begun: Begun,
        seen: Mapping[str, Mapping[str, Seen] | None],
        *,
        is_full: bool | None = None,
        is_others: bool = False,
    ) -> None:
        is_full = begun.mode is Mode.FULL if is_full is None else is_full
        if SWAPPED in follower.problems and not (is_full or is_others):
            raise WrongCaptureError(f"{follower.name}: a table whose columns were renamed isn't added to")
        if self._is_consumed(begun) and not (is_others and follower.expected.adds):
            self._now_holds(follower, begun, seen, is_full=is_full)
        is_whole = follower.is_whole(begun.keys)
        follower.ended += 1
        self._check(follower)
        if is_full and is_whole:
            follower.problems.clear()
        self._counted(follower, "full" if is_full else "incremental")

    def _is_consumed(self, begun: Begun) -> bool:
        """Whether the run's captures are consumed; otherwise another run's capture was."""
        return all(
            self.assets.consumed(begun.asset, name, begun.keys)[each.edge.key] == each.to_inclusive
            for name, captured in begun.captured.items()
            for each in captured.captures
        )

    def _now_holds(
        self,
        follower: Follower,
        begun: Begun,
        seen: Mapping[str, Mapping[str, Seen] | None],
        *,
        is_full: bool | None = None,
    ) -> None:
        is_full = begun.mode is Mode.FULL if is_full is None else is_full
        parts = dict(follower.parts or {})
        is_known = follower.parts is not None or not follower.at or follower.is_whole(begun.keys)
        is_known |= not follower.problems and not follower.expected.by  # It was rolled back to the middle of a run.
        for key, inputs in seen.items():
            assert inputs is not None or is_full or not follower.expected.adds
            if follower.expected.adds and not is_full and inputs:
                parts[key] = parts.get(key, Counter()) + follower.expected.adds(inputs)
                is_known = follower.parts is not None
                continue
            after = {name: each.after for name, each in self._after(follower, begun, key, inputs).items()}
            found = follower.expected.recomputed(after)
            if found is None:
                raise WrongCaptureError("what a full run would refuse is refused", follower.name, after)
            parts[key] = found
        if is_full:
            parts.pop(OTHERS, None)
        follower.parts = parts if is_known else None
        if (head := self._head(follower.name)) is not None:
            follower.is_rolled_back &= head in follower.at
            follower.at[head] = follower.parts

    def _after(
        self, follower: Follower, begun: Begun, key: str, inputs: Mapping[str, Seen] | None
    ) -> Mapping[str, Seen]:
        if inputs is not None:
            return inputs
        found = {}
        for name, each in begun.captured.items():
            to = each.capture.to_inclusive
            after = self.reader.at(f"media.{name}", to.snapshot_id if to else None)
            found[name] = _of(Seen(Bag(after.names), after), follower.expected, key)
        return found

    def _check(self, follower: Follower) -> None:
        """Check that the table holds what it must."""
        if follower.parts is None or not self._exists(follower.name):
            return
        expected: Rows = Counter()
        for rows in follower.parts.values():
            expected.update(rows)
        found = self.reader.head(f"media.{follower.name}")
        _equal(f"{follower.name}: a target equals a recompute", follower.expected.held(found), +expected)

    # What may be refused

    def _refused(
        self,
        follower: Follower,
        error: IpsError,
        before: tuple[Any, list[Watermark | None]],
        held: Held | None,
        *,
        full: bool,
    ) -> None:
        if not self._explains(follower, error, held, full=full):
            raise WrongCaptureError(f"{follower.name}: what can be followed is", repr(error), follower) from error
        head, consumed = self._standing(follower)
        if head != before[0]:
            raise WrongCaptureError(f"{follower.name}: a refusal publishes nothing", head, before[0]) from error
        if consumed != before[1]:
            raise WrongCaptureError(f"{follower.name}: a refusal consumes nothing", consumed, before[1]) from error
        self._counted(follower, type(error).__name__)

    def _explains(self, follower: Follower, error: IpsError, held: Held | None, *, full: bool) -> bool:  # noqa: C901, PLR0911, PLR0912  # one return per error
        match error:
            case SourceColumnsChangedError():
                return not full and any(self._names_moved(follower, name) for name in self._inputs(follower))
            case TargetColumnsChangedError():
                return not full and SWAPPED in follower.problems
            case BrokenHistoryError():
                return not full and any(self._is_broken(follower, name) for name in self._inputs(follower))
            case UnmappedRowsError():
                return follower.expected.is_strict and self._unmapped(follower)
            case TargetChangedError() | UnknownPublicationError():
                return not full and follower.is_rolled_back and not self._is_as_published(follower)
            case ForeignWriteError():
                return any(each.startswith("foreign") for each in follower.problems)
            case FrameColumnsError():
                return follower.name in ("copied", "of_groups")
            case FragmentOverwriteError() if follower.name == "whole":
                if full:
                    return self._is_partitioned_by_transforms("fact")
                return not self._is_partitioned_as("fact", {"day", "title"})
            case UnfitFrameError():
                return self._types_differ(follower)
            case PublishError():
                return held is not None and (held.is_disturbed or held.ended != follower.ended)
            case FilesGoneError():
                return held is not None and held.lost
        if held is None:
            return False
        for inputs in held.seen.values():
            if inputs is None or (full and issubclass(type(error), LookupError)):
                return True
            if isinstance(error, tuple(follower.expected.refuses(inputs))):
                return True
        return False

    def _require_reason_to_start_over(self, follower: Follower, before: tuple[Any, list[Watermark | None]]) -> None:
        if follower.expected.by or None in before[1]:
            return
        if not any(self._is_broken(follower, name) for name in self._inputs(follower)) and self._exists(follower.name):
            raise WrongCaptureError(f"{follower.name}: what can be followed isn't computed anew")

    def _names_moved(self, follower: Follower, name: str) -> bool:
        """Whether a name of the input means another column than when it was consumed."""
        raw = self._raw(name)
        ids = {str(s["schema-id"]): {f["name"]: f["id"] for f in s["fields"]} for s in raw["schemas"]}
        consumed = [str(mark.schema_id or 0) for mark in self.assets.marks(follower.name, name)]
        read = [ids.get(each.partition("-")[0], {}) for each in consumed]
        now = ids[str(raw["current-schema-id"])]
        return any(each[column] != now[column] for each in read for column in each.keys() & now.keys())

    def _types_differ(self, follower: Follower) -> bool:
        """Whether a column of one input was widened, so that Spark casts the column of another input in a union."""
        raws = [self._raw(name) for name in self._inputs(follower)]
        schemas = [next(s for s in raw["schemas"] if s["schema-id"] == raw["current-schema-id"]) for raw in raws]
        types = [{f["name"]: f["type"] for f in schema["fields"]} for schema in schemas]
        return any(one[name] != other[name] for one in types for other in types for name in one.keys() & other.keys())

    def _is_broken(self, follower: Follower, name: str) -> bool:
        """Whether a snapshot that was consumed is no longer in the input's history."""
        raw = self._raw(name)
        ancestry, known = _ancestry(raw), {s["snapshot-id"]: s for s in raw.get("snapshots", ())}
        for mark in self.assets.marks(follower.name, name):
            if mark.table_uuid == raw["table-uuid"] and mark.snapshot_id in ancestry:
                continue
            kinds = {known[found]["summary"]["operation"] for found in ancestry}
            is_child = bool(ancestry) and known[ancestry[-1]].get("parent-snapshot-id") == mark.snapshot_id
            if follower.expected.by or not (is_child and kinds <= {"append", "replace"}):
                return True
        return False

    def _unmapped(self, follower: Follower) -> bool:
        """Whether the input has, or ever had, a row that belongs to no partition."""
        name, by = "fact", follower.expected.by or ""
        ever = self.reader.ever(f"media.{name}", by)
        return any(str(value) not in follower.expected.partitions for value in ever)

    def _is_partitioned_as(self, name: str, columns: set[str]) -> bool:
        raw = self._raw(name)
        names = {f["id"]: f["name"] for s in raw["schemas"] for f in s["fields"]}
        fields = [f for s in raw["partition-specs"] for f in s["fields"] if f["transform"] != "void"]
        return all(f["transform"] == "identity" and names[f["source-id"]] in columns for f in fields)

    def _is_partitioned_by_transforms(self, name: str) -> bool:
        """Whether it has partitions, none of which are a column's values."""
        raw = self._raw(name)
        spec = next(each for each in raw["partition-specs"] if each["spec-id"] == raw["default-spec-id"])
        transforms = {field["transform"] for field in spec["fields"]} - {"void"}
        return bool(transforms) and "identity" not in transforms

    # The current state

    def _seen(self, follower: Follower, begun: Begun) -> dict[str, Mapping[str, Seen] | None]:
        found: dict[str, Mapping[str, Seen] | None] = {}
        for key in begun.keys or ("",):
            inputs: dict[str, Seen] | None = {}
            for name, each in begun.captured.items():
                capture = next(c for c in each.captures if c.edge.key == key)
                since, to = capture.from_exclusive, capture.to_inclusive
                try:
                    before = self.reader.at(f"media.{name}", since.snapshot_id if since else None)
                except LookupError:
                    self.reader.at(f"media.{name}", to.snapshot_id if to else None)
                    inputs = None
                    break
                after = self.reader.at(f"media.{name}", to.snapshot_id if to else None)
                inputs[name] = _of(Seen(before, after), follower.expected, key)
            if inputs is not None:
                for name, head in begun.looked_up.items():
                    bag = self.reader.at(f"media.{name}", head)
                    inputs[name] = Seen(bag, bag)
            found[key] = inputs
        return found

    def _seen_by_progress(self, follower: Follower, keys: tuple[str, ...]) -> dict[str, Mapping[str, Seen] | None]:
        found: dict[str, Mapping[str, Seen] | None] = {}
        consumed = {name: self.assets.consumed(follower.name, name, keys) for name in self._inputs(follower)}
        for key in keys or ("",):
            inputs: dict[str, Seen] = {}
            for name in self._inputs(follower):
                since, after = consumed[name][key], self.reader.head(f"media.{name}")
                try:
                    before = self.reader.at(f"media.{name}", since.snapshot_id if since else None)
                except LookupError:
                    before = Bag(after.names)
                inputs[name] = _of(Seen(before, after), follower.expected, key)
            for name in self.assets.lookups(follower.name):
                bag = self.reader.head(f"media.{name}")
                inputs[name] = Seen(bag, bag)
            found[key] = inputs
        return found

    def _standing(self, follower: Follower) -> tuple[Any, list[Watermark | None]]:
        """The head of the table, and up to where each input is consumed, by partition."""
        consumed = [
            self.assets.consumed(follower.name, name, follower.expected.partitions).values()
            for name in self._inputs(follower)
        ]
        return self._head(follower.name), [mark for marks in consumed for mark in marks]

    def _is_as_published(self, follower: Follower) -> bool:
        """Whether the newest commit of a run is the last one of its run, which says what the table contains."""
        raw = self._raw(follower.name)
        known = {each["snapshot-id"]: each["summary"] for each in raw.get("snapshots", ())}
        newest = next((found for found in _ancestry(raw) if ATTEMPT in known[found]), None)
        later = [each for each in raw.get("snapshots", ()) if each.get("parent-snapshot-id") == newest]
        is_last = not any(each["summary"].get(ATTEMPT) == known.get(newest, {}).get(ATTEMPT) for each in later)
        return newest is not None and PROGRESS in known[newest] and is_last

    def _inputs(self, follower: Follower) -> list[str]:
        return list(self.assets.inputs(follower.name))

    def _keys(self, follower: Follower, keys: Sequence[str]) -> tuple[str, ...]:
        if not follower.expected.by:
            return ()
        if keys == PENDING:
            keys = sorted(self.assets.pending(follower.name))
        there = tuple(key for key in follower.partitions if key in keys)
        if not there:
            raise NotNow
        return there

    def _follower(self, asset: str) -> Follower:
        """The follower of the asset.

        Raises:
            NotNow: the asset isn't part of the life, or one of its inputs doesn't exist.
        """
        if asset not in self.followers:
            raise NotNow
        follower = self.followers[asset]
        if not all(self._exists(name) for name in [*self._inputs(follower), *self.assets.lookups(asset)]):
            raise NotNow
        return follower

    def _exists(self, name: str) -> bool:
        return self.lake.catalog.find(f"media.{name}") is not None

    def _raw(self, name: str) -> dict[str, Any]:
        return self.lake.catalog.load(f"media.{name}", asset="test").raw

    def _head(self, name: str) -> int | None:
        found = self.lake.catalog.find(f"media.{name}")
        return found.head_snapshot_id() if found else None

    def _watermarks_of(self, name: str) -> Callable[[], Sequence[int]]:
        def watermarks() -> list[int]:
            reading = [each.name for each in self.followers.values() if name in self._inputs(each)]
            return [mark.snapshot_id for each in reading for mark in self.assets.marks(each, name)]

        return watermarks

    def _noted(self, kind: str, table: str, *, lost: bool) -> None:
        """Record that a step on a table precedes the next runs of the assets that read it."""
        for follower in self.followers.values():
            if table in self._inputs(follower):
                follower.since.add(kind)
            if table in self.assets.lookups(follower.name):
                follower.since.add(kind.replace("of a source", "of a lookup"))
        for held in self.held.values():
            held.lost |= lost and table in (*held.begun.captured, *held.begun.looked_up)

    def _counted(self, follower: Follower, end: str) -> None:
        self.coverage.ends[follower.name, end] += 1
        self.coverage.steps.update((follower.name, kind) for kind in follower.since)
        follower.since.clear()


@contextlib.contextmanager
def _killed(at: str) -> Iterator[list[str]]:
    """A block that ends when its run reaches the effect ``at``. The list then contains ``at``."""
    killed: list[str] = []

    def observer(now: effects.Effect, when: str) -> None:
        if f"{when}:{now}" == at:
            killed.append(at)
            raise KilledError

    effects.observers.append(observer)
    try:
        yield killed
    except KilledError:
        pass
    finally:
        effects.observers.remove(observer)


def _of(seen: Seen, expected: Expected, key: str) -> Seen:
    return seen.where(expected.is_of(key)) if key else seen


def _equal(promise: str, found: Rows, expected: Rows | None) -> None:
    if found != expected:
        many, few = plain(found - (expected or Counter())), plain((expected or Counter()) - found)
        raise WrongCaptureError(promise, f"too many {many}", f"too few {few}")


def _ancestry(raw: Mapping[str, Any]) -> list[int]:
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in raw.get("snapshots", ())}
    found, at = [], (raw.get("refs", {}).get("main") or {}).get("snapshot-id")
    while at in parents:
        found.append(at)
        at = parents[at]
    return found


# Changes of targets


def _compact(table: HistoryTable) -> None:
    table.sql(f"CALL lake.system.rewrite_data_files('{table.name}', options => map('rewrite-all', 'true'))")


def _expire(table: HistoryTable) -> None:
    heads = {ref["snapshot-id"] for ref in table.raw.get("refs", {}).values()}  # a killed run leaves its branch behind
    if not (old := [each for each in table.ancestry() if each not in heads]):
        raise NotNow
    ids = ", ".join(map(str, old))
    table.sql(f"CALL lake.system.expire_snapshots(table => '{table.name}', snapshot_ids => ARRAY({ids}))")


def _roll_back(table: HistoryTable) -> None:
    ancestry = table.ancestry()
    if len(ancestry) < 2:
        raise NotNow
    table.sql(f"CALL lake.system.rollback_to_snapshot('{table.name}', {ancestry[1]})")


def _append(table: HistoryTable) -> None:
    table.sql(f"INSERT INTO {table.sql_name} SELECT * FROM {table.sql_name} LIMIT 1")


def _delete(table: HistoryTable) -> None:
    name = table.fields[0].name
    table.sql(f"DELETE FROM {table.sql_name} WHERE {name} <=> (SELECT first({name}) FROM {table.sql_name})")


def _swap_names(table: HistoryTable) -> None:
    used = {part["source-id"] for spec in table.raw["partition-specs"] for part in spec["fields"]}
    by_type: dict[str, list[str]] = {}
    for each in table.fields:
        if each.id not in used and not each.name.startswith("_ips_"):
            by_type.setdefault(str(each.type), []).append(each.name)
    one, other = next((names[:2] for names in by_type.values() if len(names) > 1), ("", ""))
    if not one:
        raise NotNow
    for before, after in ((one, "held"), (other, one), ("held", other)):
        table.sql(f"ALTER TABLE {table.sql_name} RENAME COLUMN `{before}` TO `{after}`")


_ON_TARGETS: Mapping[str, Callable[[HistoryTable], None]] = {
    "compact": _compact,
    "expire": _expire,
    "roll back": _roll_back,
    "foreign append": _append,
    "foreign delete": _delete,
    SWAPPED: _swap_names,
}
TARGET_STEPS = tuple(_ON_TARGETS)
