"""Spark's analyzed plan, from the text in which Spark explains it.

Every session gives this text, a classic one as well as Spark Connect, for SQL as well as for frames. It has one
operator per line; a line's indentation is its depth. A child is one level below its parent, the plan of a subquery in
one of the parent's expressions two levels. Checked on Spark 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LINE = re.compile(r"(?P<depth>(?:   |:  )*)(?::- |\+- )(?P<text>.*)", re.DOTALL)
_OPERATOR = re.compile(r"[A-Za-z0-9]+")
_OPENING, _CLOSING = "([", ")]"


class PlanUnreadableError(ValueError):
    """The text isn't a plan in the known format."""


@dataclass(slots=True)
class Node:
    """An operator: its name, its whole text, the plans below it, and the plans of subqueries in its expressions."""

    operator: str
    text: str
    children: list[Node] = field(default_factory=list)
    subqueries: list[Node] = field(default_factory=list)

    @property
    def lists(self) -> list[str]:
        """The content of each of the operator's own square brackets, in order; empty if brackets don't match."""
        return [inside for opening, inside in _enclosed(self.text) if opening == "["]

    @property
    def first_list(self) -> list[str]:
        """The elements of the first of ``lists``; empty without one, or if brackets in it don't match."""
        return elements("".join(self.lists[:1])) or []

    @property
    def last_list(self) -> list[str]:
        """The elements of the last of ``lists``, as for ``first_list``."""
        return elements("".join(self.lists[-1:])) or []


def parse_plan(text: str) -> Node:
    r"""The tree that ``text`` draws.

    A line without tree marks continues the line before it: a literal may contain line breaks.

    Raises:
        PlanUnreadableError: a line has no parent.

    Example:
        >>> parse_plan("Project [k#1]\n+- Filter (v#2 > 1)\n   +- Range (0, 5)").children[0].operator
        'Filter'
    """
    first, *lines = text.strip("\n").split("\n")
    root = _node(first)
    path = {0: root}
    last = root
    for line in lines:
        drawn = _LINE.fullmatch(line)
        if drawn is None:
            last.text += f"\n{line}"
            continue
        depth = len(drawn["depth"]) // 3 + 1
        path = {at: node for at, node in path.items() if at < depth}
        last = _node(drawn["text"])
        if depth - 1 in path:
            path[depth - 1].children.append(last)
        elif depth - 2 in path:
            path[depth - 2].subqueries.append(last)
        else:
            raise PlanUnreadableError(line)
        path[depth] = last
    return root


def elements(inside: str) -> list[str] | None:
    """The parts of a list, split at its own commas; None if brackets in it don't match, as may be in a literal.

    >>> elements("k#1, concat(a#2, b#3) AS c#4")
    ['k#1', 'concat(a#2, b#3) AS c#4']
    """
    parts: list[str] = []
    open_: list[str] = []
    start = 0
    for at, letter in enumerate(inside):
        if letter in _OPENING:
            open_.append(letter)
        elif letter in _CLOSING:
            if not open_ or _OPENING.index(open_.pop()) != _CLOSING.index(letter):
                return None
        elif not open_ and inside.startswith(", ", at):
            parts.append(inside[start:at])
            start = at + 2
    if open_:
        return None
    return [*parts, inside[start:]] if inside else []


def equalities(condition: str) -> Iterator[tuple[str, str]]:
    """The two sides of each equality that must hold for ``condition`` to hold.

    >>> list(equalities("((k#1 = k#2) AND ((v#3 > 1) AND (d#4 <=> d#5)))"))
    [('k#1', 'k#2'), ('d#4', 'd#5')]
    >>> list(equalities("((k#1 = k#2) OR (v#3 > 1))"))
    []
    """
    found = list(_enclosed(condition))
    if len(found) != 1 or condition != f"({found[0][1]})":
        return
    inside = found[0][1]
    if conjuncts := _split_once(inside, " AND "):
        for each in conjuncts:
            yield from equalities(each)
        return
    for sign in (" = ", " <=> "):
        if sides := _split_once(inside, sign):
            yield sides
            return


def _split_once(text: str, sign: str) -> tuple[str, str] | None:
    """The two sides of the only ``sign`` outside of brackets; None if there are none or several."""
    depth, places = 0, []
    for at, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if depth == 0 and text.startswith(sign, at):
            places.append(at)
    return (text[: places[0]], text[places[0] + len(sign) :]) if len(places) == 1 and depth == 0 else None


def _enclosed(text: str) -> Iterator[tuple[str, str]]:
    """The outermost brackets of ``text``: which kind, and what is inside; nothing if they don't match."""
    found: list[tuple[str, str]] = []
    open_: list[str] = []
    start = 0
    for at, letter in enumerate(text):
        if letter in _OPENING:
            if not open_:
                start = at + 1
            open_.append(letter)
        elif letter in _CLOSING:
            if not open_ or _OPENING.index(opening := open_.pop()) != _CLOSING.index(letter):
                return
            if not open_:
                found.append((opening, text[start:at]))
    if not open_:
        yield from found


def _node(text: str) -> Node:
    name = _OPERATOR.match(text)
    return Node(name.group() if name else "", text)
