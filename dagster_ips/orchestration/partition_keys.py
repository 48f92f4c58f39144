"""Dagster's partitions definitions as conditions on the columns that partition keys are made of."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from zoneinfo import ZoneInfo

import dagster as dg
from dagster import DagsterInstance, TimeWindow

from dagster_ips.core.partition_keys import ColumnKind, KeysFound, PartitionKeys, Span
from dagster_ips.core.ranges import Bound, Predicate, equals, literal, quoted
from dagster_ips.errors import DeclarationError

_MOST_WINDOWS = 5_000


def partition_keys(
    definition: dg.PartitionsDefinition[str], expression: object, instance: DagsterInstance, *, asset: str
) -> PartitionKeys:
    """How rows are divided among the keys of ``definition`` by the column, or columns, that ``expression`` names.

    Raises:
        DeclarationError: ``expression`` doesn't fit the definition.
    """
    if isinstance(definition, dg.MultiPartitionsDefinition):
        dimensions = {each.name: each.partitions_def for each in definition.partitions_defs}
        if not isinstance(expression, Mapping) or set(expression) != set(dimensions):
            raise _unfit(asset, f"one column for each of its dimensions {sorted(dimensions)}", expression)
        parts = {n: partition_keys(d, expression[n], instance, asset=asset) for n, d in dimensions.items()}
        return _MultiKeys(definition, parts, instance)
    if not isinstance(expression, str):
        raise _unfit(asset, "one column", expression)
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return _TimeKeys(definition, expression)
    return _NamedKeys(definition, expression, instance)


def _unfit(asset: str, wanted: str, found: object) -> DeclarationError:
    return DeclarationError(
        asset=asset,
        problem=f"it is partitioned, so its rows are told apart by {wanted}, but its metadata partition_expr is "
        f"{found!r}.",
        remedy='Name the column of its table: metadata={"partition_expr": "event_date"}; for several dimensions '
        '{"partition_expr": {"date": "event_date", "country": "country"}}.',
    )


@dataclass(frozen=True)
class _TimeKeys:
    """A row's key is the time window that its value lies in; of a text column, the value itself."""

    definition: dg.TimeWindowPartitionsDefinition
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        (span,) = spans
        nothing = span.nulls
        if span.holds_only_nulls:
            return KeysFound(frozenset(), nothing)
        if isinstance(span.lower, str) or isinstance(span.upper, str):
            return self._of_text(span, nothing)
        if not isinstance(span.lower, dt.date) or not isinstance(span.upper, dt.date):
            return KeysFound(None, nothing)
        first, last = self._instant(span.lower), self._instant(span.upper)
        if first < self.definition.start:
            # A time's bound is a value of some row, unless that was deleted since.
            nothing = (str(span.lower), *nothing)
            if last < self.definition.start:
                return KeysFound(frozenset(), nothing)
            first = self.definition.start
        keys: list[str] = []
        for key in self._keys_between(first, last):
            if len(keys) > _MOST_WINDOWS:
                return KeysFound(None, nothing)
            keys.append(key)
        return KeysFound(frozenset(keys), nothing)

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:
        kind, name = kinds[self.column], quoted(self.column)
        if kind in (ColumnKind.STRING, ColumnKind.OTHER):
            return _any_of(_equals(name, kind, key) for key in sorted(keys))
        windows = sorted((self.definition.time_window_for_partition_key(key) for key in keys), key=lambda w: w.start)
        return _any_of(
            f"({name} >= {self._literal(start, kind)} AND {name} < {self._literal(end, kind)})"
            for start, end in _joined(windows)
        )

    def known(self) -> frozenset[str]:
        return frozenset(self.definition.get_partition_keys())

    def _of_text(self, span: Span, unmapped: tuple[str, ...]) -> KeysFound:
        if span.lower != span.upper or not isinstance(span.lower, str):
            return KeysFound(None, unmapped)
        try:
            start = self.definition.start_time_for_partition_key(span.lower)
        except ValueError:
            return KeysFound(frozenset(), (span.lower, *unmapped))
        if start < self.definition.start:
            return KeysFound(frozenset(), (span.lower, *unmapped))
        return KeysFound(frozenset([span.lower]), unmapped)

    def _keys_between(self, first: dt.datetime, last: dt.datetime) -> Iterator[str]:
        key = self.definition.get_partition_key_for_timestamp(first.timestamp())
        while True:
            yield key
            end = self.definition.time_window_for_partition_key(key).end
            if end > last:
                return
            key = self.definition.get_partition_key_for_timestamp(end.timestamp())

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.definition.timezone)

    def _instant(self, value: dt.date) -> dt.datetime:
        if not isinstance(value, dt.datetime):
            value = dt.datetime.combine(value, dt.time())
        return value if value.tzinfo else value.replace(tzinfo=self._zone)

    def _literal(self, instant: dt.datetime, kind: ColumnKind) -> str:
        local = instant.astimezone(self._zone)
        if kind is ColumnKind.TIMESTAMPTZ:
            return literal(local)
        if kind is ColumnKind.TIMESTAMP:
            return literal(local.replace(tzinfo=None))
        if local.time() != dt.time():
            raise DeclarationError(
                asset=self.column,
                problem=f"a partition begins at {local}, which a date can't tell from the rest of its day.",
                remedy="Partition by a timestamp column, or by whole days.",
            )
        return literal(local.date())


@dataclass(frozen=True)
class _NamedKeys:
    """A row's key is its value as text: static and dynamic partitions."""

    definition: dg.PartitionsDefinition[str]
    column: str
    instance: DagsterInstance

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        (span,) = spans
        nothing = span.nulls
        if span.holds_only_nulls:
            return KeysFound(frozenset(), nothing)
        if span.lower is None or span.lower != span.upper:
            return KeysFound(None, nothing)
        key = _text(span.lower)
        # A dynamic partition may be added after its rows.
        if isinstance(self.definition, dg.StaticPartitionsDefinition) and key not in self.known():
            return KeysFound(frozenset(), (key, *nothing))
        return KeysFound(frozenset([key]), nothing)

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:
        return _any_of(_equals(quoted(self.column), kinds[self.column], key) for key in sorted(keys))

    def known(self) -> frozenset[str]:
        return frozenset(self.definition.get_partition_keys(dynamic_partitions_store=self.instance))


@dataclass(frozen=True)
class _MultiKeys:
    """A key of several dimensions, each with a column of its own."""

    definition: dg.MultiPartitionsDefinition
    dimensions: Mapping[str, PartitionKeys]
    instance: DagsterInstance

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for each in self.dimensions.values() for column in each.columns)

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        found = [each.of_file([span]) for each, span in zip(self.dimensions.values(), spans, strict=True)]
        unmapped = tuple(value for each in found for value in each.unmapped)
        parts = [each.keys for each in found]
        if any(keys is None for keys in parts):
            return KeysFound(None, unmapped)
        combined = product(*[sorted(keys or ()) for keys in parts])
        names = list(self.dimensions)
        return KeysFound(frozenset(dg.MultiPartitionKey(dict(zip(names, c, strict=True))) for c in combined), unmapped)

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:
        parts = [self.definition.get_partition_key_from_str(key).keys_by_dimension for key in sorted(keys)]
        return _any_of(
            "(" + " AND ".join(each.predicate([part[name]], kinds) for name, each in self.dimensions.items()) + ")"
            for part in parts
        )

    def known(self) -> frozenset[str]:
        return frozenset(self.definition.get_partition_keys(dynamic_partitions_store=self.instance))


def _any_of(conditions: Iterable[str]) -> Predicate:
    listed = list(conditions)
    return Predicate(f"({' OR '.join(listed)})" if listed else "FALSE")


def _equals(name: str, kind: ColumnKind, key: str) -> str:
    return equals(name if kind is ColumnKind.STRING else f"CAST({name} AS STRING)", key)


def _joined(windows: Sequence[TimeWindow]) -> Iterator[tuple[dt.datetime, dt.datetime]]:
    """Windows in order, those that follow each other without a gap as one."""
    joined: list[tuple[dt.datetime, dt.datetime]] = []
    for window in windows:
        if joined and joined[-1][1] == window.start:
            joined[-1] = (joined[-1][0], window.end)
        else:
            joined.append((window.start, window.end))
    return iter(joined)


def _text(value: Bound) -> str:
    """As Spark casts it to a string."""
    return str(value).lower() if isinstance(value, bool) else str(value)
