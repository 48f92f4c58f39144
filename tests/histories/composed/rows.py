"""Rows of tables at a snapshot, read by PyIceberg, without any frame of the library."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.histories.table import Field, fields_of
from tests.histories.time_travel import Row, Rows
from tests.support.lake import Lake

_NOT_BY_PYICEBERG = (ValueError, NotImplementedError)
"""What PyIceberg raises for tables that it can't read, such as those with equality deletes."""


@dataclass(frozen=True)
class Bag:
    """Rows of the columns ``names``, with how often each one occurs."""

    names: tuple[str, ...] = ()
    rows: Rows = field(default_factory=Counter)

    def select(self, *names: str) -> Rows:
        """The rows' values in the columns ``names``."""
        places = [self.names.index(name) for name in names] if self.rows else []
        found: Rows = Counter()
        for row, count in self.rows.items():
            found[tuple(row[place] for place in places)] += count
        return found

    def where(self, keep: Callable[[dict[str, Any]], bool]) -> Bag:
        """The rows for which ``keep`` is true."""
        kept = {row: n for row, n in self.rows.items() if keep(dict(zip(self.names, row, strict=True)))}
        return Bag(self.names, Counter(kept))

    def without(self, other: Bag) -> Bag:
        """The rows that ``other`` doesn't have, as multisets."""
        return Bag(self.names, self.rows - other.rows)


@dataclass(frozen=True)
class Seen:
    """An input at two snapshots, seen through its current columns. ``before`` is empty if everything is captured."""

    before: Bag
    after: Bag

    @cached_property
    def added(self) -> Bag:
        return self.after.without(self.before)

    @cached_property
    def removed(self) -> Bag:
        return self.before.without(self.after)

    def where(self, keep: Callable[[dict[str, Any]], bool]) -> Seen:
        """The same for the rows for which ``keep`` is true."""
        return Seen(self.before.where(keep), self.after.where(keep))


@dataclass
class Reader:
    """Reads each snapshot once. Snapshots never change, so the rows stay right after the snapshot has expired."""

    lake: Lake
    _known: dict[tuple[str, int], tuple[tuple[int, ...], Rows]] = field(default_factory=dict)

    def at(self, table: str, snapshot_id: int | None, through: Sequence[Field] | None = None) -> Bag:
        """The rows at a snapshot, seen by a reader with the columns ``through``; by default, the current columns.

        Raises:
            LookupError: the snapshot is expired and wasn't read before.
        """
        raw = self.lake.catalog.load(table, asset="test").raw
        fields = through or fields_of(raw, raw["current-schema-id"])
        names = tuple(found.name for found in fields)
        if snapshot_id is None:
            return Bag(names)
        if (raw["table-uuid"], snapshot_id) not in self._known:
            self._known[raw["table-uuid"], snapshot_id] = self._read(table, raw, snapshot_id)
        ids, rows = self._known[raw["table-uuid"], snapshot_id]
        seen: Rows = Counter()
        for row, count in rows.items():
            held = dict(zip(ids, row, strict=True))
            seen[tuple(held.get(f.id, f.default) for f in fields)] += count
        return Bag(names, seen)

    def head(self, table: str) -> Bag:
        """The rows that the table has now."""
        found = self.lake.catalog.find(table)
        return self.at(table, found.head_snapshot_id()) if found else Bag()

    def ever(self, table: str, column: str) -> set[Any]:
        """Every value that the column is known to have had, in all snapshots read so far."""
        raw = self.lake.catalog.load(table, asset="test").raw
        ids = {f["id"] for schema in raw["schemas"] for f in schema["fields"] if f["name"] == column}
        found = [
            (i.index(each), rows)
            for (uuid, _), (i, rows) in self._known.items()
            if uuid == raw["table-uuid"]
            for each in ids & set(i)
        ]
        return {row[place] for place, rows in found for row in rows} | ({None} if len(ids) > 1 else set())

    def _read(self, table: str, raw: dict[str, Any], snapshot_id: int) -> tuple[tuple[int, ...], Rows]:
        known = {s["snapshot-id"]: s for s in raw.get("snapshots", ())}
        if snapshot_id not in known:
            raise LookupError(snapshot_id)
        schema = fields_of(raw, known[snapshot_id].get("schema-id", raw["current-schema-id"]))
        try:
            arrow = self.lake.catalog.client.load_table(table).scan(snapshot_id=snapshot_id).to_arrow()
            read = [tuple(row[f.name] for f in schema) for row in arrow.to_pylist()]
        except _NOT_BY_PYICEBERG:
            frame = self.lake.sql(f"SELECT * FROM lake.{table} VERSION AS OF {snapshot_id}")
            read = [tuple(row[f.name] for f in schema) for row in frame.collect()]
        return tuple(f.id for f in schema), Counter(tuple(map(comparable, row)) for row in read)


def comparable(value: Any) -> Any:  # noqa: ANN401  # a value of any column
    """A value that is equal to another one if Spark treats them as equal: NaN is NaN, and -0.0 is 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def plain(rows: Rows) -> Row:
    """A few of the rows, for messages."""
    return tuple(sorted(rows.items(), key=repr)[:6])
