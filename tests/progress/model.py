"""A model of publication: what a published snapshot says of itself is all that is known, and it is right.

Upstreams change, roll back and expire. Runs of one step publish to its tables, interleaved and killed between any two
durable effects. Others compact, expire and append; persons deploy, reset, rewind, stage, revert and roll back. After
each effect, main holds what its Progress says; in the end, everything equals the upstreams.

``python -m tests.progress.model LIVES [FIRST_SEED]`` lives many random lives.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from tests.progress.rules import (
    NEVER,
    Change,
    Control,
    Held,
    Key,
    Meaning,
    Present,
    Progress,
    Request,
    adopted,
    changed_inputs,
    is_in_full,
    is_readable,
    is_redefined,
    sealed,
    still_holds,
    with_keys_of,
)
from tests.progress.targets import FOREIGN, Content, Decision, Reading, Steps, Table, answered
from tests.progress.upstreams import SLOTS, Upstream


class WrongRowsError(AssertionError):
    """Main doesn't hold what its Progress says, or not what the upstreams hold, or a write doubles or misses rows."""


@dataclass(frozen=True)
class Capture:
    """What a run has decided before it writes."""

    owner: str
    present: Present
    request: Request | None
    keys: frozenset[Key]
    changes: Mapping[tuple[Key, str], Change]
    is_exact: bool = True  # Not so in a rewind, which reads again what may be there.


class World:
    """All of it, driven by one source of chance."""

    def __init__(self, random: Random, control: Control | None = None) -> None:
        self.random = random
        self.control = control or Control()
        self.upstreams = {name: Upstream(random, 1000 * n) for n, name in enumerate("uv"[: random.randint(1, 2)], 1)}
        self.meaning: Meaning = {"A": frozenset(SLOTS)}
        if random.random() < 0.7:
            self.meaning = {"A": frozenset("a"), "B": frozenset("b"), "C": frozenset("cd")}
        self.partitions = set(sorted(self.meaning)[: random.randint(1, 3)])  # The others have no partition yet.
        self.has_foreign_writes = random.random() < 0.3
        self.refuses_unreadable = random.random() < 0.3
        one_commit = random.random() < 0.5
        self.tables = [
            Table(self.control, one_commit=one_commit, owner=f"asset {n}") for n in range(random.choice((1, 1, 2)))
        ]
        self.code = self.clock = 1
        self.names = 0
        self.alive: set[str] = set()
        self.runs: list[Steps] = []
        self.counts: Counter[str] = Counter()

    # What a run does.

    def run(self, table: Table, ref: str = "main", owner: str | None = None) -> Steps:  # noqa: C901 — read top down.
        """Captures some keys of the step, and publishes to each table that holds the same for them."""
        self.names += 1
        name = f"run {self.names}"
        self.alive.add(name)
        try:
            if ref == "main":
                yield from table.heal(
                    self.alive - set(self.random.sample(sorted(self.alive), self.random.random() < 0.05))
                )
            if ref not in table.refs:
                return
            reading = table.read(table.refs[ref])
            request = self.answerable(table) if ref == "main" else None
            owner = owner or table.owner
            present = self.present()
            begin = table.effective(reading, request, owner, present)
            if begin is None:
                table.unseen.clear()
                self.counts[f"refused: {reading.problem or 'of another owner'}"] += 1
                return
            answers = request if request and begin.answered == request.number > answered(reading) else None
            capture = self.capture(begin, answers, owner, present)
            if capture is None:
                return
            if not capture.keys and answers is None and begin.is_at(present.heads):
                return
            group = [(table, reading, begin, capture)]
            if ref == "main" and owner == table.owner:
                group += self.others_that_hold_the_same(table, begin, capture)
            self.counts["captures" if capture.keys else "empty commits"] += 1
            self.counts["of several tables"] += len(group) > 1
            self.counts["went on from a pin"] += reading.snapshot not in {None, *table.history(reading.head)[0]}
            yield
            for one, read, held, what in group:
                for published in one.publish(
                    ref, name, self.decision(one, read, held, what), self.random.choice((1, 1, 3))
                ):
                    if published:
                        self.counts["published"] += 1
                        one.staged.setdefault(ref, set()).update(what.keys)
                        if not self.control.has("a request is closed by its number in Progress"):
                            one.requests.clear()
                    yield
        finally:
            self.alive.discard(name)

    def present(self) -> Present:
        heads = {name: upstream.head for name, upstream in self.upstreams.items()}
        return Present(self.upstreams, heads, self.meaning, self.code, self.control)

    def answerable(self, table: Table) -> Request | None:
        """The request, unless it's a rewind of keys that have no partition."""
        request = table.requests[-1] if table.requests else None
        return request if request and (request.again_from is None or request.keys <= self.partitions) else None

    def capture(self, begin: Progress, request: Request | None, owner: str, present: Present) -> Capture | None:
        """Chooses keys and what to do to each; None if a change can't be read, and a person is to decide."""
        rewind = request if request and request.again_from is not None else None
        pending = self.pending(begin, present)
        keys = set(self.random.sample(sorted(pending), self.random.randint(1, len(pending)))) if pending else set()
        named: set[Key] = set()
        if rewind:
            keys = set(rewind.keys)
        elif self.random.random() < 0.1:  # A person names partitions: these are done in full.
            named = set(self.random.sample(sorted(self.partitions), 1))
        changes = {}
        for key in sorted(keys | named):
            held = begin.held(key)
            readable = all(is_readable(held[one], self.upstreams[one], present.heads[one]) for one in held)
            if self.refuses_unreadable and not readable and NEVER not in held.values() and key not in named:
                self.counts["refused: unreadable"] += 1
                return None
            in_full = key in named or is_in_full(begin, key, present)
            for one in held:
                change = self.change(key, one, NEVER if in_full else held[one], in_bites=not rewind)
                change = replace(change, in_full=in_full)
                if rewind and not in_full:
                    change = self.read_again(change, key, one, held[one], rewind)
                changes[key, one] = change
        return Capture(owner, present, request, frozenset(keys | named), changes, not rewind)

    def pending(self, progress: Progress, present: Present) -> set[Key]:
        """The keys that have a partition and lack something, or mean something else than when they were done."""
        return {
            key
            for key in self.partitions
            if is_redefined(progress, key, present) or changed_inputs(progress, key, present)
        }

    def change(self, key: Key, name: str, held: Held, *, in_bites: bool) -> Change:
        """What a run does to one key of one input: in full, the rest of a bitten change, or the change to the head."""
        upstream, slots = self.upstreams[name], self.meaning[key]
        to = upstream.head if held.to is None else held.to
        had, now = held.rows(upstream, slots), upstream.rows(to, slots)
        # Only added rows are taken in bites: of a first read, or of a change that removes none.
        if in_bites and len(now - had) > 1 and had <= now and self.random.random() < 0.3:
            bite = frozenset(self.random.sample(sorted(now - had), self.random.randint(1, len(now - had) - 1)))
            self.counts["bites"] += 1
            after = Held(held.since, to, held.taken | bite)
            return Change(after if self.control.has("a bite is recorded") else Held(to), bite)
        return Change(Held(to), now - had, had - now)

    def read_again(self, change: Change, key: Key, name: str, held: Held, rewind: Request) -> Change:
        """A rewind widens what is read, idempotently. Where the key begins, it stays: what it holds must be known."""
        assert rewind.again_from is not None
        upstream, slots = self.upstreams[name], self.meaning[key]
        then, now = upstream.rows(rewind.again_from[name], slots), upstream.rows(change.held.since, slots)
        had = held.rows(upstream, slots)
        if not self.control.has("a rewind reads again, and begins where the key is"):
            had = then
        return replace(change, added=now - (then & had), removed=(then | had) - now)

    def others_that_hold_the_same(
        self, table: Table, begin: Progress, capture: Capture
    ) -> list[tuple[Table, Reading, Progress, Capture]]:
        """The step's other tables for which the captured change is right as well. The rest stay pending."""
        found = []
        for other in self.tables:
            reading = other.read(other.refs["main"])
            held = other.effective(reading, None, other.owner, capture.present)
            if other is table or held is None or not capture.keys:
                continue
            same = still_holds(replace(begin, answered=held.answered), held, capture.keys, capture.present)
            if capture.is_exact and (same or not self.control.has("each table of a step has its own Progress")):
                found.append((other, reading, held, replace(capture, owner=other.owner, request=None)))
        return found

    def decision(self, table: Table, reading: Reading, begin: Progress, capture: Capture) -> Decision:
        def decide(base: Reading, content: Content) -> tuple[Content, Progress] | None:
            now = table.effective(base, capture.request, capture.owner, capture.present)
            if now is None or not still_holds(begin, now, capture.keys, capture.present):
                self.counts["given up"] += 1
                return None
            rebased = base.snapshot != reading.snapshot
            self.counts["rebased"] += rebased
            return written(content, capture), sealed(now, capture.changes, capture.present, rebased=rebased)

        return decide

    # What persons do.

    def ask(self, table: Table, keys: set[Key], again_from: dict[str, int] | None = None) -> None:
        """A reset joins an open one; a rewind waits for none. Numbers come from a clock: none is used twice."""
        reading = table.look()
        gives_up = reading.head if keys == set(self.meaning) and again_from is None else None
        last = table.requests[-1] if table.requests else None
        if last and last.number > answered(reading):
            if again_from is not None or (last.again_from is not None and gives_up is None):
                return
            keys, gives_up = keys | last.keys, gives_up or last.gives_up
        self.clock += 1
        table.requests.append(Request(self.clock, frozenset(keys), again_from, gives_up))
        if again_from is None:
            table.renewed |= dict.fromkeys(keys, (self.clock, self.code))
        self.counts["rewinds" if again_from is not None else "resets"] += 1

    def stage(self, table: Table) -> Steps:
        """A branch with several publications, brought to main later, which may have moved."""
        reading = table.read(table.refs["main"])
        if reading.problem or reading.progress is None or reading.snapshot is None:
            return
        self.names += 1
        tag, branch, base = f"tag {self.names}", f"staged {self.names}", table.refs["main"]
        table.refs |= {tag: reading.snapshot, branch: base}
        yield
        for _ in range(self.random.randint(1, 3)):
            yield from self.run(table, branch)
        for published in table.fast_forward("main", base, branch):
            self.counts["staged and published"] += bool(published)
            yield
        if branch in table.refs:  # Main has moved.
            yield from self.restore(table, branch, before=reading.progress)
            del table.refs[branch]

    def restore(self, table: Table, ref: str, before: Progress | None = None) -> Steps:
        """Keys get another ref's rows and its Progress: a revert to a tag, or what was staged from ``before``."""
        source = table.read(table.refs[ref])
        content = table.snapshots[table.refs[ref]].content
        if source.progress is None or source.problem:
            return
        progress, keys = source.progress, set(self.random.sample(sorted(self.meaning), 1))
        if before:
            keys = table.staged.get(ref, set())
        present = self.present()

        def decide(base: Reading, onto: Content) -> tuple[Content, Progress] | None:
            now = table.effective(base, None, progress.owner, present)
            if now is None or base.progress is None:
                return None
            if before and not still_holds(before, now, keys, present):
                self.counts["staged in vain"] += 1
                return None
            rows = {place: held for place, held in onto.rows.items() if place[0] not in keys}
            rows |= {place: held for place, held in content.rows.items() if place[0] in keys}
            made_by = with_keys_of(onto.made_by, content.made_by, keys)
            return Content(rows, made_by), adopted(now, progress, keys, self.control)

        self.names += 1
        name = f"run {self.names}"
        self.alive.add(name)
        try:
            for published in table.publish("main", name, decide):
                if published:
                    self.counts["staged and published" if before else "reverts"] += 1
                    if before is None:  # A person wants the old rows back.
                        table.renewed = {key: asked for key, asked in table.renewed.items() if key not in keys}
                yield
        finally:
            self.alive.discard(name)

    def deploy(self) -> None:
        """New code; perhaps a key that means something else, or a partition for a key that had none."""
        self.code += 1
        if "C" in self.meaning:
            moved = {"B": "C", "C": "B"}["B" if "d" in self.meaning["B"] else "C"]
            if self.random.random() < 0.5:
                self.meaning = {**self.meaning, "B": frozenset("b"), "C": frozenset("c")}
                self.meaning = {**self.meaning, moved: self.meaning[moved] | {"d"}}
        self.partitions |= set(self.random.sample(sorted(self.meaning), 1))

    # Lives.

    def step(self) -> None:  # noqa: C901, PLR0912, PLR0915 — a table of what may happen.
        random, table = self.random, self.random.choice(self.tables)
        match random.choices(range(13), (14, 2, 2, 14, 60, 2, 4, 4, 1, 2, 3, 1, 1))[0]:
            case 0:
                random.choice(list(self.upstreams.values())).change()
            case 1:
                random.choice(list(self.upstreams.values())).roll_back()
            case 2:
                random.choice(list(self.upstreams.values())).expire()
            case 3 if len(self.runs) < 3:
                owner = "an intruder" if random.random() < 0.02 else None
                self.runs.append(self.run(table, owner=owner))
            case 4 if self.runs:
                run = random.choice(self.runs)
                if next(run, self) is self:
                    self.runs.remove(run)
            case 5 if self.runs:
                self.counts["killed"] += 1
                self.runs.pop(random.randrange(len(self.runs))).close()
            case 6 if table.snapshots[table.refs["main"]].content.count():
                table.compact(random)
            case 7:
                if random.random() < 0.5 and table.snapshots[table.refs["main"]].content.count():
                    table.compact(random)
                    table.compact(random)
                    table.expire(1)
                table.expire(random.randint(1, 3))
            case 8:
                self.deploy()
            case 9 if table.read(table.refs["main"]).problem:
                self.ask(table, set(self.meaning))
            case 9:
                again_from = {name: random.choice(sorted(one.retained)) for name, one in self.upstreams.items()}
                is_rewind, keys = random.random() < 0.4, set(random.sample(sorted(self.meaning), 1))
                self.ask(table, keys, again_from if is_rewind else None)
            case 10:
                head = table.read(table.refs["main"])
                tags = [ref for ref in table.refs if ref.startswith("tag")]
                if head.progress is None or head.problem or head.snapshot is None:
                    return
                if tags and random.random() < 0.6:
                    self.runs.append(self.restore(table, random.choice(tags)))
                elif random.random() < 0.5:
                    self.runs.append(self.stage(table))
                else:
                    table.refs[f"tag of {table.last}"] = head.snapshot
            case 11:
                self.counts["rolled back by a person"] += 1
                table.refs["main"] = random.choice(table.history(table.refs["main"])[0])
                table.renewed.clear()
                table.unseen.clear()
                if table.requests and random.random() < 0.3:  # Dagster's storage is restored from a backup.
                    table.requests.pop()
            case 12 if self.has_foreign_writes:
                table.append_by_another(random.choice(sorted(self.meaning)), 10_000 + table.last)
        self.check()

    def check(self) -> None:
        """Main holds what its Progress says, and what somebody else wrote until that is noticed."""
        for table in self.tables:
            rows = table.snapshots[table.refs["main"]].content.rows
            for key, row in table.unseen:
                if row not in rows.get((key, FOREIGN), ()):
                    raise WrongRowsError(f"{table.owner}, {key}: lost row {row} of somebody else unseen")
            reading = table.read(table.refs["main"])
            if reading.progress is None or reading.problem or reading == table.checked:
                continue
            table.checked = reading
            for key in self.meaning:
                self.check_key(table, reading.progress, key)

    def check_key(self, table: Table, progress: Progress, key: Key) -> None:
        content = table.snapshots[table.refs["main"]].content
        held, slots = progress.held(key), progress.meaning.get(key, frozenset())
        for name, upstream in self.upstreams.items():
            said, rows = held[name].rows(upstream, slots), content.rows.get((key, name), frozenset())
            if held[name] != NEVER and said != rows:
                message = f"{table.owner}, {key} of {name}: {held[name]} is {sorted(said)}, not {sorted(rows)}"
                raise WrongRowsError(message)
        if NEVER in held.values():
            return
        if content.rows.get((key, FOREIGN)):
            raise WrongRowsError(f"{table.owner}, {key}: rows of somebody else weren't noticed")
        owner, code = content.made_by.get(key, (progress.owner, self.code))
        if (owner, code) != (progress.owner, progress.origin.get(key, self.code)):
            raise WrongRowsError(f"{table.owner}, {key}: made by {owner}, {code}: not as {progress}")
        number, renewed_by = table.renewed.get(key, (0, 0))
        if number <= progress.answered and code < renewed_by:
            raise WrongRowsError(f"{table.owner}, {key}: wasn't done anew after a reset")

    def settle(self) -> None:
        """No one disturbs any more. Runs, and a person where they refuse, bring everything up to date."""
        for run in self.runs:
            run.close()
        for table in self.tables:
            for turn in range(200):
                if self.is_settled(table):
                    break
                reading = table.look()
                if reading.problem or turn % 20 == 19:  # Where runs are refused, a person starts over.
                    self.ask(table, set(self.meaning))
                progress = reading.progress
                for _ in self.run(table, owner=progress.owner if progress else None):
                    self.check()
            else:
                raise WrongRowsError(f"{table.owner} never comes to rest")

    def is_settled(self, table: Table) -> bool:
        """Whether nothing is pending; then the rows must be those of the upstreams."""
        reading = table.read(table.refs["main"])
        progress, request = reading.progress, self.answerable(table)
        if progress is None or reading.problem or self.pending(progress, self.present()):
            return False
        if request and request.number > progress.answered:
            return False
        content = table.snapshots[table.refs["main"]].content
        for key in self.partitions:
            for name, upstream in self.upstreams.items():
                rows, expected = (
                    content.rows.get((key, name), frozenset()),
                    upstream.rows(upstream.head, self.meaning[key]),
                )
                if rows != expected:
                    raise WrongRowsError(
                        f"{table.owner}, {key} of {name} ends as {sorted(rows)}, not {sorted(expected)}"
                    )
            if table.renewed.get(key, (0, 0))[1] > content.made_by.get(key, ("", self.code))[1]:
                raise WrongRowsError(f"{table.owner}, {key}: a reset was lost")
        return True


def written(content: Content, capture: Capture) -> Content:
    """The rows after a run's changes. A write that adds what is there, or removes what isn't, is wrong by itself."""
    rows, made_by = dict(content.rows), dict(content.made_by)
    for key in {key for (key, _), change in capture.changes.items() if change.in_full}:
        rows = {place: held for place, held in rows.items() if place[0] != key}
        made_by[key] = capture.owner, capture.present.code
    for place, change in capture.changes.items():
        held = rows.get(place, frozenset())
        if capture.is_exact and (held & change.added or change.removed - held):
            raise WrongRowsError(
                f"{place}: {sorted(held & change.added)} doubled, {sorted(change.removed - held)} missed"
            )
        rows[place] = (held - change.removed) | change.added
    return Content(rows, made_by)


def life(random: Random, control: Control | None = None) -> World:
    """One life, from an empty table to rest. Raises WrongRowsError where it goes wrong."""
    world = World(random, control)
    for _ in range(random.randint(20, 150)):
        world.step()
    world.settle()
    return world


def main(lives: int, first_seed: int = 0) -> None:
    counts: Counter[str] = Counter()
    wrong = 0
    for seed in range(first_seed, first_seed + lives):
        try:
            counts += life(Random(seed)).counts
        except WrongRowsError as error:
            wrong += 1
            print(f"seed {seed}: {error}")
        if seed % 5_000 == 4_999:
            print(f"up to seed {seed}: {wrong} wrong", flush=True)
    print(f"{lives} lives from seed {first_seed}, {wrong} wrong. {dict(counts)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
