"""A target of the model: its snapshots and refs, how its Progress is read, and how a publication goes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from tests.progress.rules import Control, Key, Present, Progress, Request, born, with_request
from tests.progress.upstreams import Rows

FOREIGN = "foreign"
"""In place of an input: rows that somebody else appended."""


@dataclass(frozen=True)
class Content:
    rows: Mapping[tuple[Key, str], Rows]
    made_by: Mapping[Key, tuple[str, int]]  # Whose code computed a key in full: what a reset is to renew.

    def count(self) -> int:
        return sum(map(len, self.rows.values()))


@dataclass(frozen=True)
class Snapshot:
    parent: int | None
    content: Content
    progress: Progress | None = None
    only_moves_rows: bool = False  # Iceberg's operation `replace`.
    listed: frozenset[int] = frozenset()  # The snapshots whose manifests or files it still lists.


@dataclass(frozen=True)
class Reading:
    """Progress of a ref, the snapshot that has it, and why it can't be gone on from."""

    head: int
    progress: Progress | None = None
    snapshot: int | None = None
    problem: str | None = None


Decision = Callable[[Reading, Content], tuple[Content, Progress] | None]
"""What to write on a base, and the Progress that goes with it; None if this base won't do."""

Steps = Generator[None, None, None]
"""Each step is a durable effect. The process may be killed there, and others go on in between."""


def answered(reading: Reading) -> int:
    return reading.progress.answered if reading.progress else 0


class Table:
    """A target. Snapshots are numbered in the order of commits, as Iceberg's sequence numbers are."""

    def __init__(self, control: Control, *, one_commit: bool, owner: str) -> None:
        self.control, self.one_commit, self.owner = control, one_commit, owner
        self.snapshots = {1: Snapshot(None, Content({}, {}), only_moves_rows=True)}
        self.last = 1
        self.refs = {"main": 1}
        self.pins: set[int] = set()
        self.requests: list[Request] = []
        self.staged: dict[str, set[Key]] = {}  # The keys that runs on a staged branch took.
        self.checked: Reading | None = None
        self.unseen: set[tuple[Key, int]] = set()  # Rows of somebody else that no reader has noticed yet.
        self.renewed: dict[Key, tuple[int, int]] = {}  # By which request, and the oldest code that will do.

    def commit(
        self,
        parent: int,
        content: Content,
        progress: Progress | None = None,
        *,
        only_moves_rows: bool = False,
        listed: frozenset[int] | None = None,
    ) -> int:
        self.last += 1
        listed = (self.snapshots[parent].listed if listed is None else listed) | {self.last}
        self.snapshots[self.last] = Snapshot(parent, content, progress, only_moves_rows, listed)
        return self.last

    def history(self, snapshot: int) -> tuple[list[int], bool]:
        """A snapshot and its ancestors up to where one has expired, and whether one has."""
        found: list[int] = []
        ancestor: int | None = snapshot
        while ancestor is not None and ancestor in self.snapshots:
            found.append(ancestor)
            ancestor = self.snapshots[ancestor].parent
        return found, ancestor is not None

    def read(self, head: int) -> Reading:
        """The newest Progress in a snapshot's history; else of the newest pin or branch, if proved to be in it."""
        history, is_cut = self.history(head)
        foreign = None
        for snapshot in history:
            if (progress := self.snapshots[snapshot].progress) is not None:
                return Reading(head, progress, snapshot, foreign)
            if not self.snapshots[snapshot].only_moves_rows and self.control.has("foreign commits are noticed"):
                foreign = FOREIGN
        if not is_cut:
            return Reading(head, problem=foreign)
        oldest = history[-1]
        rolled_back = any(pin > oldest and pin not in history for pin in self.pins)
        if rolled_back and self.control.has("a pin that main went back from makes it unknown"):
            return Reading(head, problem="unknown")
        branches = {held for ref, held in self.refs.items() if ref.startswith(("run", "staged"))}
        if not self.control.has("unproved ancestry is unknown"):
            branches = set()
        candidates = {one for one in self.pins | branches if one < oldest and self.snapshots[one].progress is not None}
        if not candidates:
            return Reading(head, problem="unknown")
        newest = max(candidates)
        if newest not in self.snapshots[oldest].listed and self.control.has("unproved ancestry is unknown"):
            return Reading(head, problem="unknown")
        if self.snapshots[newest].content.count() != self.snapshots[oldest].content.count():
            foreign = FOREIGN
        return Reading(head, self.snapshots[newest].progress, newest, foreign)

    def look(self) -> Reading:
        """A person looks at main, and is told if it isn't known, or what somebody else wrote."""
        reading = self.read(self.refs["main"])
        if reading.problem:
            self.unseen.clear()
        return reading

    def effective(self, reading: Reading, request: Request | None, owner: str, present: Present) -> Progress | None:
        """The Progress that a run goes on from, or None if it's refused."""
        progress = reading.progress
        if progress is not None and progress.owner != owner and self.control.has("one owner"):
            return None
        gives_up = request is not None and request.number > answered(reading) and self.gives_up(request, reading.head)
        if reading.problem and not gives_up:
            return None
        if progress is None or gives_up:
            return born(owner, present, request.number if request and gives_up else 0)
        return with_request(progress, request)

    def gives_up(self, request: Request, head: int) -> bool:
        """Whether a reset was asked of all that a snapshot holds: since then, rows were only moved."""
        history, _ = self.history(head)
        if request.gives_up not in history:
            return request.gives_up is not None and not self.control.has("a reset gives up only what was there")
        since = history[: history.index(request.gives_up)]
        return all(self.snapshots[one].only_moves_rows for one in since) or not self.control.has(
            "a reset gives up only what was there"
        )

    def publish(self, ref: str, name: str, decide: Decision, commits: int = 1) -> Iterator[bool | None]:
        """Branch, write, seal, fast-forward, pin, drop the branch and older pins. Yields True when it's published."""
        for _ in range(4):
            base = self.refs.get(ref)
            if base is None:  # The staged branch was dropped.
                return
            decided = decide(self.read(base), self.snapshots[base].content)
            if decided is None:
                return
            content, progress = decided
            self.refs[name] = base
            yield None
            for number in range(commits - 1):
                if name not in self.refs:
                    return
                early = (
                    progress if number == 0 and not self.control.has("Progress comes with the last commit") else None
                )
                self.refs[name] = self.commit(self.refs[name], self.half(content, self.refs[name]), early)
                yield None
            if name not in self.refs:  # Somebody took this run for dead.
                return
            self.refs[name] = self.commit(self.refs[name], content, progress)
            yield None
            if name not in self.refs or ref not in self.refs:
                return
            moved = yield from self.fast_forward(ref, base, name)
            if moved:
                return
            del self.refs[name]
            yield None

    def fast_forward(self, ref: str, base: int, branch: str) -> Generator[bool | None, None, bool]:
        """Moves a ref to a branch's head, pins it, drops the branch and older pins: in one commit, or one by one."""
        own = self.refs[branch]
        if not self.can_move(ref, base, own):
            return False
        self.refs[ref] = own
        if not self.one_commit or ref != "main":
            yield True
        if ref == "main" and own in self.snapshots:
            self.pin(own)
            if not self.one_commit:
                yield None
        self.refs.pop(branch, None)
        if not self.one_commit:
            yield None
        if ref == "main":
            self.drop_older_pins(own)
        if self.one_commit and ref == "main":
            yield True
        return True

    def half(self, content: Content, onto: int) -> Content:
        """What a block's first commit holds: some of what it writes."""
        before = self.snapshots[onto].content
        rows = dict(list(content.rows.items())[: len(content.rows) // 2])
        return Content({**before.rows, **rows}, before.made_by)

    def can_move(self, ref: str, base: int, own: int) -> bool:
        """One commit asserts where the ref is. Iceberg's fast-forward wants an ancestor: it passes over a roll-back."""
        if not self.control.has("compare and swap"):
            return True
        return self.refs[ref] == base if self.one_commit else self.refs[ref] in self.history(own)[0]

    def pin(self, snapshot: int) -> None:
        if not self.control.has("a numbered pin for each publication"):
            self.pins.clear()
        self.pins.add(snapshot)

    def drop_older_pins(self, snapshot: int) -> None:
        if self.control.has("a numbered pin for each publication"):
            self.pins = {pin for pin in self.pins if pin >= snapshot}

    def heal(self, alive: set[str]) -> Steps:
        """What any run does first: pin the newest Progress of main, drop what dead runs and roll-backs have left.

        Nothing is done where main's Progress isn't known, or somebody else wrote: then what is left is evidence.
        """
        history, _ = self.history(self.refs["main"])
        reading = self.read(self.refs["main"])
        newest = reading.snapshot
        if newest not in history or (reading.problem and self.control.has("evidence stays where main is in doubt")):
            return
        dead = [ref for ref in self.refs if ref.startswith("run") and ref not in alive]
        stray = {pin for pin in self.pins if pin not in history}
        if newest not in self.pins:
            self.pin(newest)
            yield
        for ref in dead:
            self.refs.pop(ref, None)
            yield
        if stray and self.control.has("a numbered pin for each publication"):
            self.pins -= stray
            yield

    def compact(self, random: Random) -> None:
        head = self.refs["main"]
        listed = frozenset(one for one in self.snapshots[head].listed if random.random() < 0.6)
        self.refs["main"] = self.commit(head, self.snapshots[head].content, only_moves_rows=True, listed=listed)

    def append_by_another(self, key: Key, row: int) -> None:
        head = self.refs["main"]
        content = self.snapshots[head].content
        rows = {**content.rows, (key, FOREIGN): content.rows.get((key, FOREIGN), frozenset()) | {row}}
        self.refs["main"] = self.commit(head, Content(rows, content.made_by))
        self.unseen.add((key, row))

    def expire(self, retained: int) -> None:
        kept = {*self.refs.values(), *self.pins, *self.history(self.refs["main"])[0][:retained]}
        self.snapshots = {number: snapshot for number, snapshot in self.snapshots.items() if number in kept}
