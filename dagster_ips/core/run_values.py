"""What a run gave to an asset's function that differs from run to run, and what it stands for in the code."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dagster_ips.core.ranges import Bound
from dagster_ips.core.sql_tokens import sql_tokens


@dataclass(frozen=True)
class RunValues:
    """What changes from run to run although the code is the same, by what stands for it.

    ``leaves`` are frames, by the mark that they have in plans. ``names`` are parts of names and texts, such as that of
    an ICDC table. ``predicates`` are conditions on ranges of changed values, and ``bounds`` such values. ``ranges``
    says of which ranges the conditions are, as their texts don't tell where all rows count. ``own`` are the packages of
    the asset's project.
    """

    leaves: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    predicates: Mapping[str, str] = field(default_factory=dict)
    bounds: tuple[tuple[Bound, str], ...] = ()
    ranges: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()

    @classmethod
    def of_all(cls, parts: Sequence[RunValues]) -> RunValues:
        """Those of several inputs together."""
        leaves, names, predicates = dict[str, str](), dict[str, str](), dict[str, str]()
        bounds = list[tuple[Bound, str]]()
        for each in parts:
            leaves |= each.leaves
            names |= each.names
            predicates |= each.predicates
            bounds += each.bounds
        ranges, own = (frozenset[str]().union(*sets) for sets in ([p.ranges for p in parts], [p.own for p in parts]))
        return cls(leaves, names, predicates, tuple(bounds), ranges, own)

    def without_bounds(self) -> RunValues:
        """The same if no value of a change was used by itself."""
        return replace(self, bounds=())

    def in_text(self, text: str) -> str:
        """``text`` with names as what they stand for.

        Example:
            >>> RunValues(names={"out__plays__7": "changes of plays"}).in_text("lake.ips.out__plays__7")
            'lake.ips.«changes of plays»'
        """
        for name, meaning in self.names.items():
            text = text.replace(name, f"«{meaning}»")
        return text

    def in_sql(self, text: str) -> str:
        """The tokens of ``text``, with what differs from run to run as what it stands for.

        Example:
            >>> day = RunValues(predicates={"(`d` >= DATE '2026-01-03')": "since d", "TRUE": "since d"})
            >>> [day.in_sql(each) for each in ("(`d` >= DATE '2026-01-03')", "TRUE", "(TRUE) AND n > 1")]
            ['«since d»', '«since d»', '( «since d» ) AND n > 1']
        """
        shown = " ".join(sql_tokens(self.in_text(text)))
        known = {" ".join(sql_tokens(each)): f"«{of}»" for each, of in self.predicates.items()}
        if shown in known:
            return known[shown]
        for each in sorted(known, key=len, reverse=True):
            if each in ("TRUE", "FALSE"):  # Anyone may write them; in brackets, most likely only f"({condition})" did.
                shown = shown.replace(f"( {each} )", f"( {known[each]} )")
            else:
                shown = re.sub(rf"(?<!\S){re.escape(each)}(?!\S)", known[each].replace("\\", r"\\"), shown)
        return " ".join(self._by_token.get(each, each) for each in shown.split(" ")) if self.bounds else shown

    @cached_property
    def _by_token(self) -> Mapping[str, str]:
        return {spelled: f"«{meaning}»" for value, meaning in self.bounds for spelled in _spelled(value)}

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """What those bounds stand for that are texts."""
        return {value: meaning for value, meaning in self.bounds if isinstance(value, str)}

    @cached_property
    def others(self) -> Sequence[tuple[Bound, str]]:
        """The bounds that aren't texts."""
        return [(value, meaning) for value, meaning in self.bounds if not isinstance(value, str)]


def _spelled(value: Bound) -> list[str]:
    """How a value may be written as a token of SQL."""
    if isinstance(value, bool):
        return []
    texts = {str(value), value.isoformat()} if isinstance(value, dt.date) else {str(value)}
    is_number = not isinstance(value, str | dt.date) or str(value).isdecimal()
    return [*(f"'{text}'" for text in texts), *(f'"{text}"' for text in texts), *(texts if is_number else ())]
