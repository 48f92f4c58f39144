"""The version of an asset's code that its plan shows: what the frame that it returned computes, as normalized text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from dagster_ips.core.size_text import listed

_CODE = re.compile(r"(?P<declared>.*)\+plan:(?P<kind>[\w.-]+):(?P<digests>[0-9a-f.]+)(?P<unknown>[?*]?)", re.DOTALL)
_COMBINED = re.compile(r"\+combine:[0-9a-f]{8}")
_UNKNOWN = (
    "the plan doesn't show all that the asset computes{what}, so it is unknown whether the same code produced its "
    "rows; declare a code_version, which then decides"
)
_MOST_BYTES = 2000
_LENGTHS = (400, 160, 60, 20)
_MOST_SHOWN = 3


@dataclass(frozen=True)
class PlanVersion:
    """What a frame computes: a line for each operator, parents first, indented by its depth.

    The lines are the same in every process, for every run and mode of the same code. ``kind`` says from what they were
    read; versions of different kinds can't be compared. ``unknown`` is what the lines don't show. ``as_written`` is the
    plan with the values that a run gave to the function, if there are any in it: the code may have the same by chance.
    If it ``varies``, the function may have put values into it that it computed from the change.
    """

    kind: str
    lines: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    as_written: PlanVersion | None = None
    varies: bool = False

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ if a line does."""
        return _digest("\n".join(self.lines), 12)

    def __str__(self) -> str:
        written = f".{self.as_written.digest}" if self.as_written and self.as_written.lines != self.lines else ""
        return f"{self.kind}:{self.digest}{written}{'*' if self.varies else '?' if self.unknown else ''}"

    @property
    def summary(self) -> str:
        """The lines in at most 2 kB, each after a digest of it; long ones are cut."""
        text = ""
        for length in _LENGTHS:
            text = "\n".join(f"{_digest(line.strip(), 8)} {_shortened(line, length)}" for line in self.lines)
            if len(text.encode()) <= _MOST_BYTES:
                return text
        return text.encode()[:_MOST_BYTES].decode(errors="ignore").rpartition("\n")[0]


def with_plan(declared: str | None, plan: PlanVersion | None) -> str | None:
    """The code of a run: what is ``declared``, and the plan of what it returned; ``declared`` alone without one.

    Example:
        >>> with_plan("1", PlanVersion("connect", ("filter(a)",)))
        '1+plan:connect:...'
        >>> with_plan("1", None)
        '1'
    """
    if plan is None:
        return declared
    return f"{declared or ''}+plan:{plan}"


def declared_in(code: str | None) -> str | None:
    """What is declared in a run's code, without the plan; None if nothing is.

    Example:
        >>> declared_in("1+combine:ac174f41+plan:connect:0123456789ab"), declared_in("+plan:connect:0123456789ab")
        ('1+combine:ac174f41', None)
    """
    found = _CODE.fullmatch(code or "")
    return (found["declared"] if found else code) or None


def has_plan(code: str | None) -> bool:
    """Whether a run's code has a plan."""
    return _CODE.fullmatch(code or "") is not None


def is_other_code(one: str, now: str | None) -> bool:
    """Whether rows made by the code ``one`` are known to be made by another than the code ``now``.

    If ``now`` has no plan, only what is declared is compared, and if nothing is declared, nothing.

    Example:
        >>> [is_other_code("1+plan:connect:0123456789ab", now) for now in ("1", "2", None)]
        [False, True, False]
        >>> [is_other_code("+plan:connect:0123456789ab", f"+plan:{now}") for now in ("connect:0123456789ab?",
        ...     "connect:ba9876543210", "connect-3.11:ba9876543210", "classic:ba9876543210")]
        [False, True, True, False]
    """
    if now is None:
        return False
    if declared_in(one) != declared_in(now) and declared_in(now) is not None:
        return True
    first, second = _CODE.fullmatch(one), _CODE.fullmatch(now)
    return first is not None and second is not None and _are_comparable(first, second) and not _are_equal(first, second)


def hides_code(code: str) -> str | None:
    """Why rows made by ``code`` aren't known to be of any other run's code, as a clause; None if they may be."""
    found = _CODE.fullmatch(code)
    is_hidden = found is not None and found["unknown"] and not _is_vouched_for(found["declared"])
    return _UNKNOWN.format(what="") if is_hidden else None


def known_code(now: str | None, known: Iterable[str]) -> str | None:
    """The one of ``known`` codes that is the same as the code ``now``; ``now`` itself if none is.

    Example:
        >>> known_code("+plan:connect:aaaaaaaaaaaa.bbbbbbbbbbbb", ["1", "+plan:connect:bbbbbbbbbbbb"])
        '+plan:connect:bbbbbbbbbbbb'
    """
    return next((each for each in known if now is not None and _is_same(each, now)), now)


def _is_same(one: str, now: str) -> bool:
    first, second = _CODE.fullmatch(one), _CODE.fullmatch(now)
    if first is None or second is None:
        return one == now
    parts = [(each["declared"], each["kind"], each["unknown"]) for each in (first, second)]
    return parts[0] == parts[1] and _are_equal(first, second)


def _are_comparable(first: re.Match[str], second: re.Match[str]) -> bool:
    """Whether two plans that differ can only be of different code."""
    (session, _, python), (other, _, others) = (each["kind"].partition("-") for each in (first, second))
    is_same_python = python == others or "" in (python, others)
    return session == other and is_same_python and "*" not in (first["unknown"], second["unknown"])


def _are_equal(first: re.Match[str], second: re.Match[str]) -> bool:
    """Whether two plans are equal with, or without, the values that a run gave."""
    return not set(first["digests"].split(".")).isdisjoint(second["digests"].split("."))


def why_not_known_to_be(one: str, now: str, plan: PlanVersion | None, earlier: str | None) -> str | None:
    """Why rows of the code ``one`` aren't known to be what the code ``now`` would make, as a clause; None if they are.

    ``plan`` is that of ``now``, and ``earlier`` the summary of the plan of ``one``, if it is known. A declared code
    version vouches for what isn't comparable.
    """
    first, second = _CODE.fullmatch(one), _CODE.fullmatch(now)
    if first is None or second is None or plan is None:
        return None if one == now else "it is unknown which plan produced its rows"
    if first["declared"] != second["declared"]:
        return "another code version produced its rows"
    if _are_comparable(first, second) and not _are_equal(first, second):
        return f"another plan produced its rows{_differing(plan, earlier)}"
    if _is_vouched_for(second["declared"]):
        return None
    kinds = [_of_kind(each["kind"]) for each in (first, second)]
    if kinds[0] != kinds[1]:
        return f"the plan that produced its rows was read from {kinds[0]}, which can't be compared with {kinds[1]}"
    what = f" ({plan.unknown[0]})" if plan.unknown else ""
    is_known = not (first["unknown"] or second["unknown"])
    return None if is_known else _UNKNOWN.format(what=what)


def _differing(plan: PlanVersion, earlier: str | None) -> str:
    """The operators that only one of two plans has, in parentheses; empty if the ``earlier`` one is unknown."""
    if earlier is None:
        return ""
    before, now = _operators(earlier), _operators(plan.summary)
    gone, new = ([text for digest, text in one.items() if digest not in other] for one, other in _both(before, now))
    said = [f"{word}: {listed(texts, _MOST_SHOWN)}" for word, texts in (("gone", gone), ("new", new)) if texts]
    return f" ({'; '.join(said)})" if said else " (its operators in another order, or what is too long to be kept)"


def _operators(summary: str) -> dict[str, str]:
    """The operators of a summary, by their digests."""
    found = (line.partition(" ") for line in summary.split("\n"))
    return {digest: text.strip() for digest, _, text in found}


def _both(one: dict[str, str], other: dict[str, str]) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    yield one, other
    yield other, one


def _is_vouched_for(declared: str) -> bool:
    """Whether the asset declares a code version, beside its aggregates."""
    return bool(_COMBINED.sub("", declared))


def _of_kind(kind: str) -> str:
    session, _, python = kind.partition("-")
    name = "Spark Connect" if session == "connect" else "a classic Spark session"
    return f"{name} by Python {python}" if python else name


def _shortened(line: str, length: int) -> str:
    return line if len(line) <= length else f"{line[:length]}…"


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:digits]
