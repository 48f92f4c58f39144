"""Which code produced the rows of a table, and whether the current code would produce some of them differently."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dagster_ips.core.plan_version import PlanVersion, declared_in, hides_code, is_other_code, why_not_known_to_be
from dagster_ips.core.size_text import counted, listed
from dagster_ips.errors.remedies import full_run

_OF_AGGREGATES_OR_QUERY = re.compile(r"(?P<version>.*)\+(?P<kind>combine|query):[0-9a-f]{8}", re.DOTALL)
_MOST_CODES = 5
_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Making:
    """How the rows of a table, or of a partition, were produced since all of them were last computed.

    ``codes`` are the code versions that are known to have produced some, oldest first; of very many, the first ones and
    the last. ``schema_id`` is the table's schema when all rows were computed, ``declared`` the declaration of their
    asset, as in ``Maker``; None if unknown.
    """

    codes: tuple[str, ...] = ()
    schema_id: str | None = None
    declared: str | None = None

    def gone_on_by(self, code: str | None) -> Making:
        """With rows that ``code`` has produced since; None is an unknown version.

        Example:
            >>> Making(("1",)).gone_on_by("2").gone_on_by(None).gone_on_by("1").codes
            ('1', '2')
        """
        if code is None or code in self.codes:
            return self
        return replace(self, codes=(*self.codes[: _MOST_CODES - 1], code))


@dataclass(frozen=True, slots=True)
class Maker:
    """How an asset produces its rows, as far as that decides whether it can continue with the existing ones.

    ``declared`` is its write mode and the inputs that it follows. ``code`` is what is declared of the code that must
    have produced all rows if a change is to be added to them; None if that doesn't matter. ``keeps_more`` says that the
    table, by its declaration, doesn't equal a full recompute: it keeps rows that its inputs no longer have, or lacks
    rows from before it began.
    """

    declared: str | None = None
    code: str | None = None
    keeps_more: bool = False


OTHER_DECLARATION = "another declaration"
"""The ``declared`` of rows of which only this is known: the snapshots that had its text have expired."""
ALL_ROWS_EACH_TIME = "all rows in each run"
"""The ``declared`` of rows of an asset without incremental inputs: up to where they include a change is unknown."""
FROM_A_START = " from a start"
"""How the ``declared`` of rows ends that lack what the inputs had before ``start=``."""
UNDECLARED = Maker()
"""Continues with any rows."""


def not_made_by(makings: Mapping[str | None, Making], maker: Maker, partitions: Iterable[str | None]) -> str | None:
    """Why ``maker`` can't continue with the rows of ``partitions``, as a sentence; None if it can.

    If all rows must come from one code version, rows of an unknown version count as those of another one. The plan of
    the code is unknown before its function has run: see ``not_made_by_plan``.

    Example:
        >>> not_made_by({None: Making(("1",))}, Maker(code="2"), [None])
        "another code version produced its rows, so changes can't be added to them now"
        >>> not_made_by({None: Making(declared="append() of a")}, Maker("replace() of a"), [None])
        'its rows were written with append() of a, and it is declared with replace() of a now'
        >>> not_made_by({None: Making(("2",))}, Maker("append() of a", "2"), [None])
        >>> not_made_by({None: Making(declared="append() of a")}, UNDECLARED, [None])
    """
    for partition in partitions:
        making = makings.get(partition, makings.get(None, Making()))
        is_another = None not in (making.declared, maker.declared) and _differ(making.declared, maker.declared)
        if is_another and (making.declared == ALL_ROWS_EACH_TIME or not maker.keeps_more):
            return f"its rows were written with {making.declared}, and it is declared with {maker.declared} now"
        if maker.code is None:
            continue
        if not making.codes:
            return "it is unknown which code version produced its rows, so a change can't be added to them"
        if any(declared_in(code) != maker.code for code in making.codes):
            return "another code version produced its rows, so changes can't be added to them now"
        if hidden := next(filter(None, map(hides_code, making.codes)), None):
            return f"{hidden}, so changes can't be added to them now"
    return None


def not_made_by_plan(
    makings: Mapping[str | None, Making], code: str, plan: PlanVersion | None, summaries: Mapping[str, str]
) -> str | None:
    """Why a change can't be added to rows so made by a run of the code ``code``, as a sentence; None if it can.

    ``plan`` is that of the run, and ``summaries`` are those of the plans of earlier codes, as far as they are known.

    Example:
        >>> not_made_by_plan({None: Making(("+plan:connect:0123456789ab",))}, "+plan:connect:ba9876543210",
        ...     PlanVersion("connect", ("read(table lake.media.a)",)), {})
        "another plan produced its rows, so changes can't be added to them now"
    """
    for making in makings.values():
        for each in making.codes:
            if why := why_not_known_to_be(each, code, plan, summaries.get(each)):
                return f"{why}, so changes can't be added to them now"
    return None


def began_at_start(declared: str | None) -> bool:
    """Whether rows so ``declared`` lack what the inputs had before ``start=``."""
    return declared is not None and declared.endswith(FROM_A_START)


def going_on_with(declared: str | None, before: Making | None) -> str | None:
    """How rows are ``declared`` if they are added to those of ``before``; None if these are all recomputed.

    Rows from before a start are still left out when ``start=`` isn't declared any more.

    Example:
        >>> going_on_with("append() of a", Making(declared="append() of a from a start"))
        'append() of a from a start'
        >>> going_on_with("append() of a from a start", None)
        'append() of a'
    """
    if declared is None:
        return None
    every = declared.removesuffix(FROM_A_START)
    if before is None:
        return every
    is_unknown = before.declared in (None, OTHER_DECLARATION)
    began = began_at_start(before.declared) or (is_unknown and began_at_start(declared))
    return every + FROM_A_START if began else every


def _differ(one: str | None, other: str | None) -> bool:
    return (one or "").removesuffix(FROM_A_START) != (other or "").removesuffix(FROM_A_START)


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """How a table's columns changed since an earlier schema: which were added, and which have a wider type now."""

    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OlderRows:
    """The rows of a table that a full run would now produce differently; as text, also how to recompute them."""

    table: str
    code: str | None
    codes: tuple[str, ...]
    columns: ColumnChanges
    partitions: tuple[str, ...]
    declarations: tuple[str, ...]
    declared: str | None

    def __str__(self) -> str:
        parts = []
        if self.declarations:
            parts.append(
                f"it has rows written with {' and '.join(self.declarations)}, and is declared with {self.declared} now"
            )
        if self.codes:
            parts.append(_made_by(self.codes, self.code))
        if self.columns.added:
            parts.append(f"rows from before {', '.join(self.columns.added)} was added have NULL in it")
        if self.columns.widened:
            parts.append(
                f"rows from before {', '.join(self.columns.widened)} was widened hold only values that fit the old type"
            )
        said = "; ".join(parts)
        if not self.partitions:
            if self.codes and _is_of_aggregates_or_query(self.code):
                return f"{said}. The next run computes everything anew."
            return f"{said}. To recompute everything: {full_run(self.table)}."
        count, named = counted(len(self.partitions), "partition"), listed(self.partitions, _MOST_SHOWN)
        return f"{said}, in {count} ({named}). To recompute them, launch a backfill of these partitions."


def _made_by(codes: Sequence[str], code: str | None) -> str:
    now, versions = declared_in(code), list(dict.fromkeys(declared_in(each) for each in codes))
    if versions == [now]:
        return "it has rows that another version of its function made, whose plan was another than now"
    version, kind = _parts_of(now)
    if kind and all(_parts_of(each)[0] == version for each in versions):
        other = "other aggregates or keys" if kind == "combine" else "another query"
        return f"it has rows computed with {other} than the asset has now"
    shown = ", ".join(each or "none" for each in versions if each != now)
    return f"it has rows from code version {shown}, and the current version is {now}"


def _is_of_aggregates_or_query(code: str | None) -> bool:
    """Whether the rows must all come from one version of the code: those of combine() or of a query do."""
    return bool(_parts_of(declared_in(code))[1])


def _parts_of(code: str | None) -> tuple[str, str]:
    """The version that the asset declares, and whether combine() or a query follows, as ``code_of`` puts them together.

    Example:
        >>> _parts_of("1.2+g3f2a+query:0d5e7a12"), _parts_of("1.2+g3f2a")
        (('1.2+g3f2a', 'query'), ('1.2+g3f2a', ''))
    """
    found = _OF_AGGREGATES_OR_QUERY.fullmatch(code or "")
    return (found["version"], found["kind"]) if found else (code or "", "")


def older_rows(
    table: str,
    makings: Mapping[str | None, Making],
    code: str | None,
    changes: Mapping[str | None, ColumnChanges],
    declared: str | None = None,
) -> OlderRows | None:
    """The rows that are older than ``code``, or than columns; None if none are known to be.

    ``makings`` are keyed by partition, None for an asset without partitions; ``changes`` by the id of the schema since
    which the columns changed. With ``declared``, rows that were written with another declaration are older, too.

    Example:
        >>> str(older_rows("media.daily", {None: Making(("1",))}, "2", {}))
        "it has rows from code version 1, and the current version is 2. To recompute everything: ..."
        >>> str(older_rows("media.daily", {None: Making(("1.0+g1",))}, "1.0+g2", {}))
        "it has rows from code version 1.0+g1, and the current version is 1.0+g2. To recompute everything: ..."
    """
    codes: dict[str, None] = {}
    declarations: dict[str, None] = {}
    added: dict[str, None] = {}
    widened: dict[str, None] = {}
    partitions = set()
    for partition, making in makings.items():
        others = [each for each in making.codes if is_other_code(each, code)]
        since = changes.get(making.schema_id, ColumnChanges())
        is_known = declared is not None and making.declared is not None
        is_other = is_known and making.declared not in (declared, (declared or "").removesuffix(FROM_A_START))
        if others or is_other or since != ColumnChanges():
            codes |= dict.fromkeys(others)
            declarations |= dict.fromkeys([making.declared] if making.declared and is_other else [])
            added |= dict.fromkeys(since.added)
            widened |= dict.fromkeys(since.widened)
            partitions.add(partition)
    if not partitions:
        return None
    named = tuple(sorted(each for each in partitions if each is not None))
    columns = ColumnChanges(tuple(added), tuple(widened))
    return OlderRows(table, code, tuple(codes), columns, named, tuple(declarations), declared)
