"""The rules of Progress: pure functions, each of which the product has once.

A key that isn't in an input's ``behind`` holds the upstream as of ``at``; a key in ``behind`` holds what its ``Held``
says.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tests.progress.upstreams import Rows, Slot, Upstream

Key = str
Value = TypeVar("Value")
Meaning = Mapping[Key, frozenset[Slot]]
"""Which values of the upstream's partition column a partition's key covers."""


@dataclass(frozen=True)
class Held:
    """What a key holds of one input: all as of ``since`` (None: nothing), and ``taken`` of the change up to ``to``."""

    since: int | None
    to: int | None = None
    taken: Rows = frozenset()

    def rows(self, upstream: Upstream, slots: frozenset[Slot]) -> Rows:
        return upstream.rows(self.since, slots) | self.taken


NEVER = Held(None)


@dataclass(frozen=True)
class Position:
    """How far a consumer has come on one input."""

    at: int
    behind: Mapping[Key, Held]

    def held(self, key: Key) -> Held:
        return self.behind.get(key, Held(self.at))


@dataclass(frozen=True)
class Progress:
    """All that a published snapshot says about what the table holds."""

    owner: str
    inputs: Mapping[str, Position]
    meaning: Meaning
    origin: Mapping[Key, int] = field(default_factory=dict)  # The code that computed a key in full.
    answered: int = 0  # The newest request of a person that this has taken in.

    def is_at(self, heads: Mapping[str, int]) -> bool:
        return all(position.at == heads[name] for name, position in self.inputs.items())

    def held(self, key: Key) -> dict[str, Held]:
        return {name: position.held(key) for name, position in self.inputs.items()}


@dataclass(frozen=True)
class Request:
    """What a person asked for, kept where only persons write. The next number replaces it; no run deletes it."""

    number: int
    keys: frozenset[Key]
    again_from: Mapping[str, int] | None = None  # A rewind: what came since is read again. None: a reset.
    gives_up: int | None = None  # What main held at this snapshot, even if unknown or written by others.


@dataclass(frozen=True)
class Change:
    """What a run does to one key of one input, and what the key then holds."""

    held: Held
    added: Rows
    removed: Rows = frozenset()
    in_full: bool = False  # The key's rows are computed anew: what was there before is replaced.


@dataclass(frozen=True)
class Control:
    """Each field switches a rule off, to show that it's needed."""

    off: AbstractSet[str] = field(default_factory=frozenset)

    def has(self, rule: str) -> bool:
        assert rule in RULES, rule
        return rule not in self.off


@dataclass(frozen=True)
class Present:
    """What a run found when it began: it doesn't look again."""

    upstreams: Mapping[str, Upstream]
    heads: Mapping[str, int]
    meaning: Meaning
    code: int
    control: Control


RULES = {
    "a numbered pin for each publication": "one tag that each publication moves",
    "unproved ancestry is unknown": "the newest pin is taken for an ancestor of main",
    "a pin that main went back from makes it unknown": "an older pin is taken for the newest that main had",
    "evidence stays where main is in doubt": "a run tidies up although somebody else wrote",
    "compare and swap": "main is set to the branch's head, whatever it is by now",
    "rebase only if the keys hold what they held": "a change is written again on any main",
    "others stay behind": "keys that changed and weren't taken are not recorded",
    "a redefined key is done in full": "what a key means isn't compared",
    "an unreadable change is done in full": "what can't be read is taken for no change",
    "a rewind reads again, and begins where the key is": "a rewind says that the key holds the older snapshot",
    "a request is closed by its number in Progress": "a run deletes the request that it finds after it published",
    "a request stays with who didn't see it": "a run that began before a request doesn't heed that another answered it",
    "each table of a step has its own Progress": "all tables of a step get the change of the first",
    "foreign commits are noticed": "snapshots without Progress are passed over",
    "a reset gives up only what was there": "what others wrote after a person asked is replaced as well",
    "one owner": "whose Progress it is isn't compared",
    "a bite is recorded": "a bite counts as the whole change",
    "a revert brings its Progress": "main's own Progress stays when rows are restored",
    "Progress comes with the last commit": "the first commit of a block carries it",
}


def born(owner: str, present: Present, answered: int) -> Progress:
    """Progress of a table of which nothing is known: every key that exists, or has rows anywhere, is to be done."""
    behind = dict.fromkeys(present.meaning, NEVER)
    inputs = {name: Position(head, behind) for name, head in present.heads.items()}
    return Progress(owner, inputs, present.meaning, answered=answered)


def with_request(progress: Progress, request: Request | None) -> Progress:
    """A reset is part of the next Progress, whoever publishes it. A rewind is only of a run that reads it again."""
    if request is None or request.number <= progress.answered:
        return progress
    keys = request.keys if request.again_from is None else ()
    inputs = {
        name: replace(position, behind={**position.behind, **dict.fromkeys(keys, NEVER)})
        for name, position in progress.inputs.items()
    }
    return replace(progress, inputs=inputs, answered=request.number)


def is_readable(held: Held, upstream: Upstream, head: int) -> bool:
    """Whether what a key lacks can be read: its change to the head, or the rest of a change taken in bites."""
    if held.to is not None:
        return held.to in upstream.retained and (held.since is None or upstream.is_readable(held.since, held.to))
    return held.since is not None and upstream.is_readable(held.since, head)


def changed_inputs(progress: Progress, key: Key, present: Present) -> set[str]:
    """The inputs of which a key lacks something, or of which that isn't known."""
    slots = progress.meaning.get(key, frozenset())
    changed = set()
    for name, held in progress.held(key).items():
        upstream, head = present.upstreams[name], present.heads[name]
        if held == NEVER or held.to is not None:
            changed.add(name)
        elif not is_readable(held, upstream, head):
            if present.control.has("an unreadable change is done in full"):
                changed.add(name)
        elif upstream.rows(held.since, slots) != upstream.rows(head, slots):
            changed.add(name)
    return changed


def is_redefined(progress: Progress, key: Key, present: Present) -> bool:
    """Whether a key meant something else when its rows were computed, or nothing yet."""
    return progress.meaning.get(key) != present.meaning[key] and present.control.has("a redefined key is done in full")


def is_in_full(progress: Progress, key: Key, present: Present) -> bool:
    """Whether a key can't begin where it is: nothing done, another meaning, or a change that can't be read."""
    held = progress.held(key)
    if NEVER in held.values() or is_redefined(progress, key, present):
        return True
    readable = all(is_readable(held[name], present.upstreams[name], present.heads[name]) for name in held)
    return not readable and present.control.has("an unreadable change is done in full")


def sealed(
    progress: Progress, changes: Mapping[tuple[Key, str], Change], present: Present, *, rebased: bool
) -> Progress:
    """The whole Progress that a run publishes, from the one that main has and what the run did.

    ``at`` moves to the run's heads, and what changed up to there and wasn't taken stays behind, at what it holds. A run
    whose main has got another Progress since leaves ``at``: it knows of its own keys only.
    """
    taken = {key for key, _ in changes}
    inputs = {}
    for name, position in progress.inputs.items():
        at, behind = position.at, {key: held for key, held in position.behind.items() if key not in taken}
        if not rebased:
            at = present.heads[name]
            lacking = [
                key
                for key in progress.meaning.keys() | behind.keys()
                if key not in taken
                and name in changed_inputs(progress, key, present)
                and present.control.has("others stay behind")
            ]
            behind = {key: position.held(key) for key in lacking}
        behind |= {key: changes[key, name].held for key in taken if changes[key, name].held != Held(at)}
        inputs[name] = Position(at, behind)
    return replace(
        progress,
        inputs=inputs,
        meaning={**progress.meaning, **{key: present.meaning[key] for key in taken}},
        origin={**progress.origin, **{key: present.code for (key, _), change in changes.items() if change.in_full}},
    )


def still_holds(before: Progress, now: Progress, keys: AbstractSet[Key], present: Present) -> bool:
    """Whether keys hold what they held when a change was captured, so that it can be written on another main."""
    if not present.control.has("rebase only if the keys hold what they held"):
        return True
    if now.answered != before.answered and present.control.has("a request stays with who didn't see it"):
        return False
    return all(
        before.meaning.get(key) == now.meaning.get(key)
        and before.origin.get(key) == now.origin.get(key)
        and all(
            is_equal(held, now.held(key)[name], present.upstreams[name], before.meaning.get(key, frozenset()))
            for name, held in before.held(key).items()
        )
        for key in keys
    )


def is_equal(one: Held, other: Held, upstream: Upstream, slots: frozenset[Slot]) -> bool:
    """Whether two say the same of a key: they are the same, or nothing changed between them, as far as can be read."""
    if one == other:
        return True
    if one.since is None or other.since is None or one.to is not None or other.to is not None:
        return False
    return upstream.is_readable(one.since, other.since) and upstream.rows(one.since, slots) == upstream.rows(
        other.since, slots
    )


def adopted(progress: Progress, source: Progress, keys: AbstractSet[Key], control: Control) -> Progress:
    """Progress of a table whose keys got the rows of another ref: with them, what that ref's Progress says of them."""
    if not control.has("a revert brings its Progress"):
        return progress
    inputs = {
        name: replace(position, behind={**position.behind, **{key: source.inputs[name].held(key) for key in keys}})
        for name, position in progress.inputs.items()
    }
    return replace(
        progress,
        inputs=inputs,
        meaning=with_keys_of(progress.meaning, source.meaning, keys),
        origin=with_keys_of(progress.origin, source.origin, keys),
    )


def with_keys_of(values: Mapping[Key, Value], source: Mapping[Key, Value], keys: AbstractSet[Key]) -> dict[Key, Value]:
    """What a mapping says, but of these keys what another one says."""
    kept = {key: value for key, value in values.items() if key not in keys}
    return kept | {key: value for key, value in source.items() if key in keys}
