"""A table's history as a list of steps, the consumers that follow it, and the checks of every capture."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.policy import InputPolicies, OnExpired, OnRollback
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import (
    IpsError,
    SourceColumnsChangedError,
    SourceExpiredError,
    SourceRecreatedError,
    SourceReplacedError,
    SourceRolledBackError,
)
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.progress.cursor import Request, RequestKind, known_progress, state_of
from dagster_ips.progress.table_progress import table_progress
from dagster_ips.run_view import RunView
from tests.histories.checks import Truth, WrongCaptureError, check_frames, check_range, frames, narrow_frames, ranged
from tests.histories.handmade import manifests_of
from tests.histories.operations import apply
from tests.histories.table import PLAIN, HistoryTable, NotNow, Shape, path_of
from tests.histories.targets import ENDS, Target
from tests.histories.time_travel import TimeTravel, collect_json
from tests.support.lake import Lake
from tests.support.memory_store import MemoryCursors, consume

UPSTREAM = "history"
ICDC = "ips"
TARGET = "media.target"
CONSUMERS = {
    "strict": InputPolicies(),
    "continuing": InputPolicies(on_rollback=OnRollback.CONTINUE),
    "restarting": InputPolicies(on_rollback=OnRollback.FULL, on_expired=OnExpired.FULL),
}
_BROKEN = (SourceRecreatedError, SourceReplacedError, SourceRolledBackError, SourceExpiredError)


def quicken(lake: Lake) -> None:
    """Set up the lake's session for tables of a few rows: a shuffle has one partition."""
    lake.session.conf.set("spark.sql.shuffle.partitions", "1")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a history: an operation or a capture, with plain arguments."""

    method: str
    subject: tuple[str, ...] = ()
    arguments: tuple[tuple[str, Any], ...] = ()

    def take(self, history: History) -> None:
        """Take the step."""
        getattr(history, self.method)(*self.subject, **dict(self.arguments))

    def __str__(self) -> str:
        subject = self.subject if self.method == "do" else map(repr, self.subject)
        return f"history.{self.method}({', '.join([*subject, *(f'{k}={v!r}' for k, v in self.arguments)])})"


@dataclass
class Coverage:
    """How often each operation, by format version, was in the interval of a checked capture.

    Also how often each kind of target, by the format version of its source, was written and checked, by outcome.
    """

    operations: Counter[tuple[str, int]] = field(default_factory=Counter)
    targets: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def captures(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class Allowed:
    """The modes and errors with which a capture may end."""

    modes: frozenset[Mode] = frozenset()
    errors: tuple[type[IpsError], ...] = ()


class History:
    """Takes steps on a real table and records them, so that they can be repeated."""

    def __init__(self, lake: Lake, shape: Shape = PLAIN, coverage: Coverage | None = None) -> None:
        self.lake = lake
        self.shape = shape
        self.steps: list[Step] = []
        self.coverage = coverage or Coverage()
        self.table = HistoryTable(lake, shape, watermarks=self._watermarks)
        self.time_travel = TimeTravel(self.table)
        self.store = MemoryCursors()
        self._asked = 0
        self.capturer = Capturer(lake.catalog, self.store)
        self.has_failed = False
        self.targets: dict[str, Target] = {}
        self._names_read: dict[str, Mapping[str, int]] = {}
        self._since: dict[str, list[tuple[str, int]]] = {name: [] for name in CONSUMERS}
        if lake.catalog.find(TARGET) is None:
            lake.sql(f"CREATE TABLE lake.{TARGET} (number int) USING iceberg")

    def __str__(self) -> str:
        return "\n".join([f"history = History(lake, {self.shape})", *map(str, self.steps)])

    def write(self, consumer: str, kind: str) -> None:
        """From now on, ``consumer`` writes its captures to a target of ``kind``, which is checked."""
        self.steps.append(Step("write", (consumer, kind)))
        self.targets[consumer] = Target(self.table, consumer, kind)

    def do(self, operation: Callable[..., None] | str, **arguments: Any) -> None:  # noqa: ANN401  # an operation's own
        """Change the table. If the operation isn't possible now, nothing happens and no step is recorded."""
        name = operation if isinstance(operation, str) else operation.__name__
        self.steps.append(Step("do", (name,), tuple(arguments.items())))
        version = self.table.version
        try:
            with self._noticing_failure():
                apply(self.table, name, arguments)
        except NotNow:
            self.steps.pop()
            return
        for done in self._since.values():
            done.append((name, version))

    def capture(self, consumer: str, *, full: bool = False, consume: bool = True) -> Mode | None:
        """Capture what is new for ``consumer`` and check everything visible of it; None if it was rightly refused.

        Raises:
            WrongCaptureError: it differs from time travel, or ended in a way that the history and the policies forbid.
        """
        options = (("full", full), ("consume", consume))
        defaults = {"full": False, "consume": True}
        self.steps.append(Step("capture", (consumer,), tuple((k, v) for k, v in options if v != defaults[k])))
        started = time.monotonic()
        with self._noticing_failure():
            mode = self._capture(consumer, Mode.FULL if full else None, consume=consume)
        self.coverage.seconds += time.monotonic() - started
        self.coverage.outcomes[mode.value if mode else "refused"] += 1
        self.coverage.operations.update(self._since[consumer])
        if mode and consume:
            self._since[consumer].clear()
        return mode

    def capture_by_all(self) -> None:
        """Let every consumer consume everything. One capture serves all consumers except those that write a target."""
        # A consumer without a target comes first, because a target might refuse.
        first, *others = sorted(CONSUMERS, key=lambda consumer: consumer in self.targets)
        self.capture(first)
        self.steps[-1] = Step("capture_by_all")
        captured = self.store.get(first).copy
        assert captured is not None
        for consumer in others:
            if consumer in self.targets:
                self.capture(consumer)
                self.steps.pop()
                continue
            self.store.set_copy(consumer, captured)
            self._names_read[consumer] = self.table.field_ids()
            self._since[consumer].clear()

    def close(self) -> None:
        """Drop the table and its targets."""
        self.table.drop()
        for target in self.targets.values():
            target.drop()

    @contextlib.contextmanager
    def _noticing_failure(self) -> Iterator[None]:
        try:
            yield
        except NotNow:
            raise
        except Exception:
            self.has_failed = True
            raise

    # Capturing

    def _capture(self, consumer: str, asked_for: Mode | None, *, consume: bool) -> Mode | None:
        target = self._target(consumer)
        state, files, head = self._state(consumer), self.table.files(), self.table.raw
        allowed = self._allowed(state, CONSUMERS[consumer], asked_for)
        if Mode.INCREMENTAL in allowed.modes and self._reads_other_columns(consumer):
            allowed = Allowed(allowed.modes - {Mode.INCREMENTAL}, (*allowed.errors, SourceColumnsChangedError))
        if target and not target.exists:
            allowed = Allowed(frozenset({Mode.FULL}))
        registered = self._icdc_tables()
        try:
            captured = self._captured(consumer, asked_for, target)
        except IpsError as error:
            if not isinstance(error, allowed.errors):
                raise WrongCaptureError("a history that can be followed is", repr(error), allowed) from error
            _require("an error changes no state", self._state(consumer), state)
            _require("an error registers nothing", self._icdc_tables(), registered)
            return None
        mode: Mode | None = captured.capture.mode
        if mode not in allowed.modes:
            raise WrongCaptureError("a history that can't be followed isn't", mode, allowed)
        truth = self._check(captured, state)
        if consume and not self._consumed(captured, truth, target):
            mode = None
        elif consume:
            self._names_read[consumer] = self.table.field_ids()
        _require("a capture leaves the source as it was", (self.table.files(), self.table.raw), (files, head))
        self._drop_icdc_table(captured, self.table.files())
        if consume and mode is None and asked_for is not Mode.FULL:
            return self._capture(consumer, Mode.FULL, consume=True)
        return mode

    def _consumed(self, captured: CapturedInput, truth: Truth, target: Target | None) -> bool:
        """Write the consumer's target, if it has one, and commit; returns whether the capture was consumed."""
        if target is None:
            consume(self.store, self.lake.catalog, TARGET, [captured])
            return True
        ended = target.publish(captured, self.store, truth)
        self.coverage.targets[target.kind_name, self.table.version, ended] += 1
        now, to = self._state(captured.capture.edge.consumer), captured.capture.to_inclusive
        is_consumed = now.has_begun and _id(now.committed) == _id(to)
        if ended not in ENDS and captured.capture.mode is Mode.INCREMENTAL and captured.files.changes.is_empty:
            is_consumed = False  # It was consumed before.
        _require("what was published is consumed, and only that", is_consumed, ended in ENDS)
        return is_consumed

    def _target(self, consumer: str) -> Target | None:
        """The consumer's target. It starts over if its input columns have changed, and is None if they are gone."""
        target = self.targets.get(consumer)
        if target is None:
            return None
        try:
            if target.is_as_it_was():
                return target
        except NotNow:
            target.drop()
            del self.targets[consumer]
        self._asked += 1
        reset = Request(self._asked, RequestKind.RESET, UPSTREAM, "a test", "other columns", None, None)
        self.store.set_requests(consumer, (reset,))
        return self.targets.get(consumer)

    def _captured(self, consumer: str, asked_for: Mode | None, target: Target | None) -> CapturedInput:
        tracked = TrackedInput(UPSTREAM, self.table.name, policies=CONSUMERS[consumer])
        name = target.name if target else TARGET
        (captured,) = self.capturer.capture(
            CaptureRequest(consumer, [tracked], target=name, asked_for=asked_for), run_id="run"
        )
        return captured

    def _check(self, captured: CapturedInput, state: EdgeState) -> Truth:
        """Check every frame and range; returns what time travel shows."""
        view = RunView(captured, self.lake.session, "lake", storage=self.lake.catalog.storage)
        to = captured.capture.to_inclusive.snapshot_id if captured.capture.to_inclusive else None
        _require("captured up to the head", to, self.table.head)
        is_full = captured.capture.mode is Mode.FULL
        since = None if is_full else _snapshot(state)
        raw, schema = self.table.raw, self.table.fields
        names = [found.name for found in schema]
        keys = [self._names("number"), self._names("day", "title")]
        spec = next(s["fields"] for s in raw["partition-specs"] if s["spec-id"] == raw["default-spec-id"])
        ids = [found.id for found in schema]
        by = tuple((f["transform"], ids.index(f["source-id"])) for f in spec if f["transform"] != "void")
        shape = Truth(schema, None, Counter(), tuple(k for k in keys if k and set(k) <= set(names)), by)
        narrow = view.of_another_table(captured)
        try:
            of_keys = narrow_frames(narrow, shape.keys[-1]) if shape.keys else {}
            collected = collect_json({**self.time_travel.frames(since, to), **frames(view, shape), **of_keys})
        finally:
            narrow.release()
            view.release()
        self.time_travel.learn(collected)
        before = None if is_full else self.time_travel.rows(since, schema)
        truth = Truth(schema, before, self.time_travel.rows(to, schema), shape.keys, by)
        check_frames(collected, truth)
        for column in ranged(schema):
            check_range(view.range(column.name), column, truth)
        return truth

    def _names(self, *roles: str) -> tuple[str, ...]:
        """The columns' current names; empty if one of them was dropped."""
        try:
            return tuple(self.table.field(role).name for role in roles)
        except NotNow:
            return ()

    # What a capture may end with

    def _allowed(self, state: EdgeState, policies: InputPolicies, asked_for: Mode | None) -> Allowed:  # noqa: PLR0911  # one return per kind of history
        if asked_for is Mode.FULL:
            return Allowed(frozenset({Mode.FULL}))
        if state.committed is None:  # If the table had no snapshot yet, everything is consumed, and later rows are new.
            return Allowed(frozenset({Mode.INCREMENTAL if state.consumed_nothing else Mode.FULL}))
        raw = self.table.raw
        if state.committed.table_uuid != raw["table-uuid"]:
            if policies.on_expired is OnExpired.FULL:
                return Allowed(frozenset({Mode.FULL}))
            return Allowed(errors=(SourceRecreatedError,))
        consumed = state.committed.snapshot_id
        ancestry = self.table.ancestry()
        if consumed in ancestry or self._only_moved_since(consumed, ancestry):
            return Allowed(frozenset({Mode.INCREMENTAL}))
        behind = self._ancestors(consumed)
        continues = policies.on_rollback is OnRollback.CONTINUE
        if set(behind) & set(ancestry):  # rolled back, and all snapshots that show it are retained
            if policies.on_rollback is OnRollback.ERROR:
                return Allowed(errors=(SourceRolledBackError,))
            return Allowed(frozenset({Mode.INCREMENTAL if continues else Mode.FULL}))
        # Something was expired or replaced: the capture must be right, fail with an error, or start over.
        modes = {Mode.INCREMENTAL}
        if OnRollback.FULL is policies.on_rollback or OnExpired.FULL is policies.on_expired:
            modes.add(Mode.FULL)
        return Allowed(frozenset(modes), _BROKEN)

    def _reads_other_columns(self, consumer: str) -> bool:
        """Whether a name means another column than when the consumer last consumed."""
        before, now = self._names_read.get(consumer, {}), self.table.field_ids()
        return any(name in now and now[name] != number for name, number in before.items())

    def _only_moved_since(self, consumed: int, ancestry: Sequence[int]) -> bool:
        """Whether all later snapshots are retained and only added rows or moved them to other files."""
        known = {s["snapshot-id"]: s for s in self.table.raw.get("snapshots", ())}
        operations = {known[found]["summary"]["operation"] for found in ancestry}
        is_child = bool(ancestry) and known[ancestry[-1]].get("parent-snapshot-id") == consumed
        return consumed not in known and is_child and operations <= {"append", "replace"}

    def _ancestors(self, snapshot_id: int) -> list[int]:
        parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in self.table.raw.get("snapshots", ())}
        found, at = [], snapshot_id
        while at in parents:
            found.append(at)
            at = parents[at]
        return found

    # The consumers' state

    def _state(self, consumer: str) -> EdgeState:
        name = self.targets[consumer].name if consumer in self.targets else TARGET
        target, cursor = self.lake.catalog.find(name), self.store.get(consumer)
        found = table_progress(target, asset=consumer, storage=self.lake.catalog.storage)
        return state_of(Edge(consumer, UPSTREAM), known_progress(found, cursor, target), cursor)

    def _watermarks(self) -> Sequence[int]:
        found = (_snapshot(self._state(consumer)) for consumer in CONSUMERS)
        return [snapshot for snapshot in found if snapshot is not None]

    def _icdc_tables(self) -> set[str]:
        catalog = self.lake.catalog.client
        return {".".join(name) for name in catalog.list_tables(ICDC)} if catalog.namespace_exists(ICDC) else set()

    def _drop_icdc_table(self, captured: CapturedInput, sources: Collection[Path]) -> None:
        table = self.lake.catalog.load(captured.capture.icdc_table, asset="history")
        storage = self.lake.catalog.storage
        lists = [str(snapshot["manifest-list"]) for snapshot in table.raw["snapshots"]]
        own = {path_of(path) for path in lists} | {path for found in lists for path in manifests_of(storage, found)}
        _require("an ICDC table shares no metadata file with the source", own & set(sources), set())
        self.lake.catalog.client.drop_table(captured.capture.icdc_table)
        shutil.rmtree(path_of(table.location))


def _snapshot(state: EdgeState) -> int | None:
    return _id(state.committed)


def _id(mark: Watermark | None) -> int | None:
    return mark.snapshot_id if mark is not None else None


def _require(promise: str, found: object, expected: object) -> None:
    if found != expected:
        raise WrongCaptureError(promise, found, expected)
