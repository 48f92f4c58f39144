"""Whether a frame's columns fit its table's, and how the table can follow the frame.

Columns are matched by name, as Spark writes them; types are Iceberg's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

VOID = "void"
"""The type of a column that is always NULL: any table column can hold it, but none can be created from it."""

UNSTORABLE = "unstorable "
"""The prefix of the name of a type that no Iceberg table can have; the rest is Spark's name of the type."""

_WIDER = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_ELEMENT, _KEY, _VALUE = "element", "key", "value"


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of a nested one."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Struct:
    """The fields of a nested column, and the columns of a table."""

    fields: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list, whatever its length."""

    element: Kind


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map from ``key`` to ``value``."""

    key: Kind
    value: Kind


Kind: TypeAlias = str | Struct | ListOf | MapOf
Path: TypeAlias = tuple[str, ...]
Fold: TypeAlias = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Added:
    """A column of the frame that is to be added to the table."""

    path: Path
    kind: Kind


@dataclass(frozen=True, slots=True)
class Widened:
    """A column whose type in the table is to become its type in the frame, which holds every value of the old one."""

    path: Path
    kind: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A column of the table that the frame lacks."""

    path: Path


@dataclass(frozen=True, slots=True)
class Misfit:
    """A column that can't be stored; ``problem`` continues a sentence after its name, ``remedy`` says what to do."""

    path: Path
    problem: str
    remedy: str


Difference: TypeAlias = Added | Widened | Gone | Misfit


@dataclass(frozen=True, slots=True)
class Fit:
    """How the columns of a frame differ from its table's; if only by ``added`` and ``widened``, the table can follow.

    Example:
        >>> table, frame = Struct((Column("plays", "int"),)), Struct((Column("Plays", "long"), Column("day", "date")))
        >>> fit(table, frame)
        Fit(added=(Added(path=('day',), kind='date'),), widened=(Widened(path=('plays',), kind='long'),), ...)
    """

    added: tuple[Added, ...] = ()
    widened: tuple[Widened, ...] = ()
    gone: tuple[Gone, ...] = ()
    misfits: tuple[Misfit, ...] = ()


def fit(table: Struct, frame: Struct, *, is_case_sensitive: bool = False) -> Fit:
    """How ``frame`` differs from ``table``; an empty ``table`` is one that is still to be created."""
    found = list(_between_structs((), table, frame, str if is_case_sensitive else str.lower))
    return Fit(
        tuple(each for each in found if isinstance(each, Added)),
        tuple(each for each in found if isinstance(each, Widened)),
        tuple(each for each in found if isinstance(each, Gone)),
        tuple(each for each in found if isinstance(each, Misfit)),
    )


def _between_structs(path: Path, table: Struct, frame: Struct, fold: Fold) -> Iterator[Difference]:
    yield from _repeated(path, frame, fold)
    there = {fold(column.name): column for column in table.fields}
    returned = {fold(column.name): column for column in frame.fields}
    for name, column in returned.items():
        if name in there:
            # The name in the table, by which the column is altered.
            own = (*path, there[name].name)
            yield from _between(own, there[name].kind, column.kind, fold)
        else:
            new = (*path, column.name)
            unstorable = list(_unstorable(new, column.kind, fold))
            yield from unstorable
            if not unstorable:
                yield Added(new, column.kind)
    for name, column in there.items():
        if name not in returned:
            yield Gone((*path, column.name))


def _between(path: Path, table: Kind, frame: Kind, fold: Fold) -> Iterator[Difference]:
    match table, frame:
        case _, str(kind) if kind == VOID:
            return
        case Struct(), Struct():
            yield from _between_structs(path, table, frame, fold)
        case ListOf(of), ListOf(returned):
            yield from _between((*path, _ELEMENT), of, returned, fold)
        case MapOf(key, value), MapOf(returned_key, returned_value):
            # A key's type can't change, because entries are found by their keys.
            if any(_between((), key, returned_key, fold)):
                yield _retyped((*path, _KEY), key, returned_key)
            yield from _between((*path, _VALUE), value, returned_value, fold)
        case str(old), str(new) if _holds(old, new):
            return
        case str(old), str(new) if _is_wider(old, new):
            yield Widened(path, new)
        case _:
            yield next(_unstorable(path, frame, fold), None) or _retyped(path, table, frame)


def _holds(table: str, frame: str) -> bool:
    """Whether a column of the table's type can store every value of the frame's type unchanged."""
    return table == frame or (table, frame) == ("uuid", "string") or (table.startswith("fixed[") and frame == "binary")


def _is_wider(table: str, frame: str) -> bool:
    """Whether Iceberg lets the table's type become the frame's: every value and its partition stay the same.

    Source: Iceberg table spec, "Schema Evolution".
    """
    old, new = _DECIMAL.fullmatch(table), _DECIMAL.fullmatch(frame)
    if old and new:
        return old[2] == new[2] and int(old[1]) < int(new[1])
    return (table, frame) in _WIDER


def _retyped(path: Path, table: Kind, frame: Kind) -> Misfit:
    wanted, found = type_text(table), type_text(frame)
    return Misfit(path, f"is {found} in the frame and {wanted} in the table", f"cast it to {wanted}")


def _repeated(path: Path, frame: Struct, fold: Fold) -> Iterator[Misfit]:
    counted = Counter(fold(column.name) for column in frame.fields)
    for name in (name for name, count in counted.items() if count > 1):
        yield Misfit((*path, name), "is in the frame more than once", "drop or rename all but one")


def _unstorable(path: Path, kind: Kind, fold: Fold) -> Iterator[Misfit]:
    """The parts of a new column that no table can have."""
    match kind:
        case Struct(()):
            yield Misfit(path, "is a struct without fields, which no file can hold", "give it a field, or leave it out")
        case Struct(fields):
            yield from _repeated(path, kind, fold)
            for column in fields:
                yield from _unstorable((*path, column.name), column.kind, fold)
        case ListOf(element):
            yield from _unstorable((*path, _ELEMENT), element, fold)
        case MapOf(key, value):
            yield from _unstorable((*path, _KEY), key, fold)
            yield from _unstorable((*path, _VALUE), value, fold)
        case _ if kind == VOID:
            yield Misfit(path, "is only NULL, which has no type", "cast it to a type")
        case _ if kind.startswith(UNSTORABLE):
            name = kind.removeprefix(UNSTORABLE)
            yield Misfit(path, f"is of type {name}, which Iceberg doesn't have", "cast it to another")


def kinds_within(kind: Kind) -> Iterator[str]:
    """The plain types that a column of this type is made of.

    Example:
        >>> list(kinds_within(MapOf("string", ListOf("variant"))))
        ['string', 'variant']
    """
    match kind:
        case Struct(fields):
            for each in fields:
                yield from kinds_within(each.kind)
        case ListOf(element):
            yield from kinds_within(element)
        case MapOf(key, value):
            yield from kinds_within(key)
            yield from kinds_within(value)
        case _:
            yield kind


def type_text(kind: Kind, name: Fold = str) -> str:
    """A type as it is written in Spark SQL; ``name`` is applied to the name of each field.

    Example:
        >>> type_text(Struct((Column("a", ListOf("long")), Column("b", "timestamptz"))))
        'struct<a: array<bigint>, b: timestamp_ltz>'
    """
    match kind:
        case Struct(fields):
            return f"struct<{', '.join(f'{name(each.name)}: {type_text(each.kind, name)}' for each in fields)}>"
        case ListOf(element):
            return f"array<{type_text(element, name)}>"
        case MapOf(key, value):
            return f"map<{type_text(key, name)}, {type_text(value, name)}>"
        case _ if kind.startswith("fixed["):
            return "binary"
        case _:
            return _SQL.get(kind, kind.removeprefix(UNSTORABLE))


_SQL = {"long": "bigint", "timestamptz": "timestamp_ltz", "timestamp": "timestamp_ntz", "uuid": "string"}
