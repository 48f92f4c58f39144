"""Dagster's partitions definitions as conditions on the columns that determine a row's partition key."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import chain, product
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
from dagster import DagsterInstance, TimeWindow

from dagster_ips.core.partition_keys import NULL, ColumnKind, KeysFound, PartitionKeys, Span
from dagster_ips.core.ranges import Bound, Predicate, equals, literal, quoted
from dagster_ips.errors import DeclarationError

_MOST_WINDOWS = 5_000
_DELIMITER = "|"
"""Dagster puts it between the dimensions of a key, and rejects keys that contain it."""


def partition_keys(
    definition: dg.PartitionsDefinition[str], expression: object, instance: DagsterInstance, *, asset: str
) -> PartitionKeys:
    """Divide rows among the keys of ``definition`` by the column or columns that ``expression`` names.

    Raises:
        DeclarationError: ``expression`` is None or doesn't fit the definition.
    """
    columns = columns_of(definition, expression, asset=asset)
    if isinstance(definition, dg.MultiPartitionsDefinition):
        parts = {
            each.name: partition_keys(each.partitions_def, columns[each.name], instance, asset=asset)
            for each in definition.partitions_defs
        }
        return _MultiKeys(definition, parts, instance)
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return _TimeKeys(definition, columns[""])
    return _NamedKeys(definition, columns[""], instance)


def columns_of(definition: dg.PartitionsDefinition[str], expression: object, *, asset: str) -> Mapping[str, str]:
    """The column of each dimension of ``definition``; the name of a single dimension is empty.

    Raises:
        DeclarationError: ``expression`` is None or doesn't fit the definition.
    """
    if expression is None:
        raise DeclarationError(
            asset=asset,
            problem="it is partitioned in Dagster, but nothing says which column of its table holds the partitions.",
            remedy='Add metadata={"partition_expr": "event_date"}.',
        )
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        if not isinstance(expression, str):
            raise _unfit(asset, "one column", expression)
        return {"": expression}
    names = {each.name for each in definition.partitions_defs}
    named = expression if isinstance(expression, Mapping) else {}
    if set(named) != names or not all(isinstance(column, str) for column in named.values()):
        raise _unfit(asset, f"one column for each of its dimensions {sorted(names)}", expression)
    return named


def _unfit(asset: str, wanted: str, found: object) -> DeclarationError:
    return DeclarationError(
        asset=asset,
        problem=f"it is partitioned, so its metadata partition_expr must name {wanted}, but it is {found!r}.",
        remedy='Name the column of its table: metadata={"partition_expr": "event_date"}; for several dimensions '
        '{"partition_expr": {"date": "event_date", "country": "country"}}.',
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """A time window. A column's values are in it from ``lower`` (inclusive) to ``upper`` (exclusive)."""

    key: str
    start: dt.datetime
    end: dt.datetime
    lower: dt.datetime
    upper: dt.datetime


@dataclass(frozen=True)
class _TimeKeys(PartitionKeys):
    """A row's key is the time window that contains its value; if the column isn't a date or time, the value as text.

    A time without zone is in the definition's time zone, and a date counts as its midnight. When clocks are set back, a
    local time that occurs twice counts as the second one. When they are set forward, a local time that doesn't occur
    belongs to the window before.
    """

    definition: dg.TimeWindowPartitionsDefinition
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def by_minute(self) -> tuple[str, ...]:
        return (self.column,)  # cron has no seconds

    @property
    def division(self) -> str:
        windows = self.definition
        left_out = f" without {', '.join(sorted(map(str, windows.exclusions)))}" if windows.exclusions else ""
        return f"{self.column} by {windows.cron_schedule} in {windows.timezone} as {windows.fmt}{left_out}"

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        (span,) = spans
        if span.values is not None:
            return self.of_values([(value,) for value in span.values])
        lower, upper = span.lower, span.upper
        if span.has_null is None or not isinstance(lower, dt.date) or not isinstance(upper, dt.date):
            return KeysFound.unknown()
        nothing = (NULL,) if span.has_null else ()
        first, last = self._window_of(lower), self._window_of(upper)
        if first is None or last is None or last.start - first.start > self._longest:
            return KeysFound.unknown()
        if self.definition.exclusions and first != last:
            return KeysFound.unknown()  # a value between them may have no key
        return KeysFound(frozenset(self._keys_between(first, last)), nothing, is_exact=first == last)

    def of_values(self, rows: Collection[tuple[Bound | None, ...]]) -> KeysFound:
        keys, unmapped, window = set[str](), set[str](), None
        for value in sorted((value for (value,) in rows if value is not None), key=_order):
            if not isinstance(value, dt.date):
                text = text_of(value)
                if text is None:
                    return KeysFound.unknown()
                (keys if self._is_key(text) else unmapped).add(text)
                continue
            moment = _as_moment(value)
            if window is None or not window.lower <= moment < window.upper:
                window = self._window_of(value)
            if window is None:
                unmapped.add(str(value))
            else:
                keys.add(window.key)
        if (None,) in rows:
            unmapped.add(NULL)
        return KeysFound(frozenset(keys), tuple(sorted(unmapped)))

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:
        kind, name = kinds[self.column], quoted(self.column)
        if kind in (ColumnKind.STRING, ColumnKind.OTHER):
            return _any_of(_equals(name, kind, key) for key in sorted(keys))
        windows = [self.definition.time_window_for_partition_key(key) for key in keys]
        return _any_of(
            f"({name} >= {self._literal(start, kind)} AND {name} < {self._literal(end, kind)})"
            for start, end in _joined(sorted(windows, key=lambda each: each.start.timestamp()))
        )

    def extent(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> tuple[Span, ...]:
        kind = kinds[self.column]
        if kind in (ColumnKind.STRING, ColumnKind.OTHER) or not keys:
            return (_extent_of_texts(keys, kind),)
        windows = [self.definition.time_window_for_partition_key(key) for key in keys]
        start = min((each.start for each in windows), key=dt.datetime.timestamp)
        end = max((each.end for each in windows), key=dt.datetime.timestamp)
        return (Span(self._bound(start, kind), self._bound(end, kind)),)

    def known(self) -> frozenset[str]:
        return frozenset(self.definition.get_partition_keys())

    def outside(self, keys: Collection[str]) -> frozenset[str]:
        # Most keys have a partition, so only the others are checked one by one.
        return frozenset(key for key in frozenset(keys) - self._there if self._is_outside(key))

    def landmarks(self) -> frozenset[str]:
        ends = (self.definition.get_first_partition_key(), self.definition.get_last_partition_key())
        return frozenset(key for key in ends if key is not None)

    def lacks_any(self, landmarks: Collection[str]) -> bool:
        return not self._there.issuperset(landmarks)

    @cached_property
    def _there(self) -> frozenset[str]:
        return self.known()

    def _is_outside(self, key: str) -> bool:
        if not self._is_key(key):
            return True
        window, end = self.definition.time_window_for_partition_key(key), self.definition.end_timestamp
        is_late = end is not None and window.end.timestamp() > end
        return is_late or window.start.timestamp() < self.definition.start_timestamp

    def _is_key(self, text: str) -> bool:
        """Whether some window, at any time, has exactly this key as the definition formats it."""
        try:
            window = self.definition.time_window_for_partition_key(text)
            return self.definition.get_partition_key_for_timestamp(window.start.timestamp()) == text
        except (ValueError, OverflowError, OSError):
            return False

    def _keys_between(self, first: _Window, last: _Window) -> Iterator[str]:
        window: _Window | None = first
        while window is not None:
            yield window.key
            window = self._next(window) if window.start < last.start else None

    @cached_property
    def _longest(self) -> dt.timedelta:
        """The length of ``_MOST_WINDOWS`` windows: the keys of a file that spans more aren't listed."""
        start = self.definition.start.astimezone(dt.UTC)
        window = self._at(start)
        return (window.end - window.start) * _MOST_WINDOWS

    def _window_of(self, value: dt.date) -> _Window | None:
        """The window that contains the value; None if the definition excludes that window."""
        moment = _as_moment(value)
        is_local = moment.tzinfo is None
        # For a time without zone, the window may be a later one because of clock changes.
        instant = moment.replace(tzinfo=self._zone, fold=1) if is_local else moment
        try:
            window = self._at(instant.astimezone(dt.UTC), is_local=is_local)
            while window.upper <= moment and (later := self._next(window)).lower <= moment:
                window = later
        except (OverflowError, ValueError):  # beyond Python's calendar
            return None
        return window if window.lower <= moment < window.upper else None

    def _next(self, window: _Window) -> _Window:
        """The first window that begins when ``window`` ends or later."""
        is_local, instant = window.lower.tzinfo is None, window.end
        while True:
            found = self._at(instant, is_local=is_local)
            if found.start >= window.end:
                return found
            instant += window.end - window.start  # The definition excludes this window.

    def _at(self, instant: dt.datetime, *, is_local: bool = False) -> _Window:
        """The last window that begins at ``instant`` or before it."""
        # Half a second later: where midnight occurs twice, Dagster 1.13 fails for exactly the second midnight.
        asked = instant.replace(microsecond=500_000)
        key = self.definition.get_partition_key_for_timestamp(asked.timestamp())
        window = self.definition.time_window_for_partition_key(key)
        start, end = window.start.astimezone(dt.UTC), window.end.astimezone(dt.UTC)
        lower, upper = (self._local(window.start), self._local(window.end)) if is_local else (start, end)
        return _Window(key, start, end, lower, upper)

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.definition.timezone)

    def _local(self, instant: dt.datetime) -> dt.datetime:
        """The local time, without zone, of a window boundary at ``instant``.

        When clocks are set back, an hour occurs twice. A local time in it counts as its second occurrence, so a
        boundary within the first occurrence moves to the beginning of the second.
        """
        local = instant.astimezone(self._zone)
        first, second = (local.replace(fold=fold).utcoffset() for fold in (0, 1))
        assert first is not None  # noqa: S101  # it has a zone
        assert second is not None  # noqa: S101  # as above
        if local.fold == 0 and first > second:
            return self._beginning_of_second_pass(local.astimezone(dt.UTC), first - second)
        return local.replace(tzinfo=None, fold=0)

    def _beginning_of_second_pass(self, before: dt.datetime, at_most: dt.timedelta) -> dt.datetime:
        """The local time that clocks show right after they are set back, which happens after ``before``."""
        early, late = before, before + at_most
        offset = late.astimezone(self._zone).utcoffset()
        while late - early > dt.timedelta(seconds=1):
            middle = early + dt.timedelta(seconds=(late - early) // dt.timedelta(seconds=2))
            is_after = middle.astimezone(self._zone).utcoffset() == offset
            early, late = (early, middle) if is_after else (middle, late)
        return late.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def _literal(self, instant: dt.datetime, kind: ColumnKind) -> str:
        return literal(self._bound(instant, kind))

    def _bound(self, instant: dt.datetime, kind: ColumnKind) -> dt.date:
        """A window boundary as a value of the column."""
        local = instant.astimezone(self._zone)
        if kind is ColumnKind.TIMESTAMPTZ:
            return local
        if kind is ColumnKind.TIMESTAMP:
            return self._local(instant)
        if local.time() != dt.time():
            raise DeclarationError(
                asset=self.column,
                problem=f"a partition begins at {local}, within a day, which a date column can't represent.",
                remedy="Partition by a timestamp column, or by whole days.",
            )
        return local.date()


@dataclass(frozen=True)
class _NamedKeys(PartitionKeys):
    """Static and dynamic partitions: a row's key is its value as text."""

    definition: dg.PartitionsDefinition[str]
    column: str
    instance: DagsterInstance

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def division(self) -> str:
        return f"{self.column} by value"

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        (span,) = spans
        return KeysFound.unknown() if span.values is None else self.of_values([(value,) for value in span.values])

    def of_values(self, rows: Collection[tuple[Bound | None, ...]]) -> KeysFound:
        keys = {text_of(value) for (value,) in rows if value is not None}
        if None in keys:
            return KeysFound.unknown()
        return KeysFound(frozenset(key for key in keys if key is not None), (NULL,) if (None,) in rows else ())

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:
        return _any_of(_equals(quoted(self.column), kinds[self.column], key) for key in sorted(keys))

    def extent(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> tuple[Span, ...]:
        return (_extent_of_texts(keys, kinds[self.column]),)

    def known(self) -> frozenset[str]:
        return frozenset(self.definition.get_partition_keys(dynamic_partitions_store=self.instance))

    def outside(self, keys: Collection[str]) -> frozenset[str]:
        # A dynamic partition may be added after its rows are written.
        return frozenset() if self.is_dynamic else frozenset(keys) - self.known()

    def to_be_added(self, keys: Collection[str]) -> frozenset[str]:
        return frozenset(keys) - self.known() - self.outside(keys)

    def landmarks(self) -> frozenset[str]:
        return self.known()

    def lacks_any(self, landmarks: Collection[str]) -> bool:
        return not self.known().issuperset(landmarks)

    @property
    def is_dynamic(self) -> bool:
        return not isinstance(self.definition, dg.StaticPartitionsDefinition)

    def deleted(self, landmarks: Collection[str]) -> frozenset[str]:
        return frozenset(landmarks) - self.known()

    def added(self, keys: Collection[str], landmarks: Collection[str]) -> frozenset[str]:
        return frozenset(keys) - frozenset(landmarks)


@dataclass(frozen=True)
class _MultiKeys(PartitionKeys):
    """Keys with several dimensions, each with its own column."""

    definition: dg.MultiPartitionsDefinition
    dimensions: Mapping[str, PartitionKeys]
    instance: DagsterInstance

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for each in self.dimensions.values() for column in each.columns)

    @property
    def by_minute(self) -> tuple[str, ...]:
        return tuple(column for each in self.dimensions.values() for column in each.by_minute)

    @property
    def division(self) -> str:
        return _DELIMITER.join(self.dimensions[name].division for name in sorted(self.dimensions))  # as in its keys

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        found = [
            _of_dimension(each.of_file([span])) for each, span in zip(self.dimensions.values(), spans, strict=True)
        ]
        unmapped = tuple(sorted({value for each in found for value in each.unmapped}))
        parts = [each.keys for each in found]
        most = math.prod(len(keys) for keys in parts if keys is not None)
        if any(keys is None for keys in parts) or most > _MOST_WINDOWS:
            return KeysFound.unknown(tuple(found))
        chosen = product(*map(sorted, parts))  # type: ignore[arg-type]  # none is None
        keys = frozenset(dg.MultiPartitionKey(dict(zip(self.dimensions, each, strict=True))) for each in chosen)
        # If two dimensions vary in the file, not every combination needs to occur.
        is_exact = all(each.is_exact for each in found) and sum(len(s.values or ()) != 1 for s in spans) <= 1
        return KeysFound(keys, unmapped, is_exact=is_exact, dimensions=tuple(found))

    def of_values(self, rows: Collection[tuple[Bound | None, ...]]) -> KeysFound:
        of_each = [
            {value: _of_dimension(each.of_values([(value,)])) for value in {row[index] for row in rows}}
            for index, each in enumerate(self.dimensions.values())
        ]
        if any(found.keys is None for of_one in of_each for found in of_one.values()):
            return KeysFound.unknown()
        # A value has at most one key. Many rows share the same values, so each combination is joined only once.
        parts = [{value: next(iter(each.keys or ()), None) for value, each in of_one.items()} for of_one in of_each]
        combined = {tuple(of_one[value] for of_one, value in zip(parts, row, strict=True)) for row in rows}
        whole = [tuple(part for part in each if part is not None) for each in combined]
        keys = [dict(zip(self.dimensions, each, strict=True)) for each in whole if len(each) == len(self.dimensions)]
        unmapped = {value for of_one in of_each for each in of_one.values() for value in each.unmapped}
        return KeysFound(frozenset(map(dg.MultiPartitionKey, keys)), tuple(sorted(unmapped)))

    def possible(self, found: KeysFound, keys: Collection[str]) -> frozenset[str]:
        if found.keys is not None or not found.dimensions:
            return super().possible(found, keys)
        named = dict(zip(self.dimensions, found.dimensions, strict=True))

        def may_be(parts: Mapping[str, str]) -> bool:
            return all(each.possible(named[name], [parts[name]]) for name, each in self.dimensions.items())

        return frozenset(key for key, parts in self._parts_of(keys).items() if may_be(parts))

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:
        rows = {tuple(parts[name] for name in self.dimensions) for parts in self._parts_of(keys).values()}
        return _any_of(_of_dimensions(list(self.dimensions.values()), rows, kinds))

    def extent(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> tuple[Span, ...]:
        parts = list(self._parts_of(keys).values())
        of_each = (each.extent({of[name] for of in parts}, kinds) for name, each in self.dimensions.items())
        return tuple(chain.from_iterable(of_each))

    def known(self) -> frozenset[str]:
        return frozenset(self.definition.get_partition_keys(dynamic_partitions_store=self.instance))

    def outside(self, keys: Collection[str]) -> frozenset[str]:
        parts = self._parts_of(keys)
        outside = {name: each.outside({of[name] for of in parts.values()}) for name, each in self.dimensions.items()}
        inside = {key for key, of in parts.items() if all(of[name] not in outside[name] for name in of)}
        return frozenset(keys) - inside

    def landmarks(self) -> frozenset[str]:
        return frozenset(
            f"{name}{_DELIMITER}{mark}" for name, each in self.dimensions.items() for mark in each.landmarks()
        )

    def lacks_any(self, landmarks: Collection[str]) -> bool:
        parts = [mark.partition(_DELIMITER) for mark in landmarks]
        if any(name not in self.dimensions for name, _, _ in parts):
            return True
        return any(each.lacks_any({of for name, _, of in parts if name == n}) for n, each in self.dimensions.items())

    def deleted(self, landmarks: Collection[str]) -> frozenset[str]:
        parts = [mark.partition(_DELIMITER) for mark in landmarks]
        return frozenset(
            f"{n}{_DELIMITER}{gone}"
            for n, each in self.dimensions.items()
            for gone in each.deleted({of for name, _, of in parts if name == n})
        )

    def added(self, keys: Collection[str], landmarks: Collection[str]) -> frozenset[str]:
        parts = [mark.partition(_DELIMITER) for mark in landmarks]
        new = {
            name: each.added(each.known(), {of for n, _, of in parts if n == name})
            for name, each in self.dimensions.items()
        }
        return frozenset(key for key, of in self._parts_of(keys).items() if any(of[name] in new[name] for name in of))

    def to_be_added(self, keys: Collection[str]) -> frozenset[str]:
        # A key with a future time window isn't missing yet, even if another dimension's partition must be added first.
        parts = self._parts_of(frozenset(keys) - self.known())
        of_now = {
            name: each.known() | each.to_be_added({of[name] for of in parts.values()})
            for name, each in self.dimensions.items()
        }
        return frozenset(key for key, of in parts.items() if all(of[name] in of_now[name] for name in of))

    def _parts_of(self, keys: Iterable[str]) -> dict[str, Mapping[str, str]]:
        """The parts of each key, without keys from when there were other dimensions."""
        there = (key for key in keys if key.count(_DELIMITER) == len(self.dimensions) - 1)
        return {key: self.definition.get_partition_key_from_str(key).keys_by_dimension for key in there}


def _of_dimension(found: KeysFound) -> KeysFound:
    """The keys found for one dimension, without those that contain the delimiter, which Dagster can't combine."""
    strange = {key for key in found.keys or () if _DELIMITER in key}
    if found.keys is None or not strange:
        return found
    return replace(found, keys=found.keys - strange, unmapped=tuple(sorted({*found.unmapped, *strange})))


def _of_dimensions(
    dimensions: Sequence[PartitionKeys], rows: Collection[tuple[str, ...]], kinds: Mapping[str, ColumnKind]
) -> Iterator[str]:
    """Conditions that together select ``rows``, the keys by dimension; keys that share a part share a condition."""
    first, *others = dimensions
    if not others:
        yield first.predicate({row[0] for row in rows}, kinds)
        return
    rest_of: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        rest_of.setdefault(row[0], set()).add(row[1:])
    firsts_of: dict[frozenset[tuple[str, ...]], list[str]] = {}
    for key, rest in sorted(rest_of.items()):
        firsts_of.setdefault(frozenset(rest), []).append(key)
    for rest_rows, firsts in firsts_of.items():
        yield f"({first.predicate(firsts, kinds)} AND {_any_of(_of_dimensions(others, rest_rows, kinds))})"


def _extent_of_texts(keys: Collection[str], kind: ColumnKind) -> Span:
    """The extent of keys that are values as text; only texts have the same order as such keys."""
    is_known = keys and kind is ColumnKind.STRING
    return Span(min(keys), max(keys)) if is_known else Span(None, None, has_null=None)


def _any_of(conditions: Iterable[str]) -> Predicate:
    listed = list(conditions)
    return Predicate(f"({' OR '.join(listed)})" if listed else "FALSE")


def _equals(name: str, kind: ColumnKind, key: str) -> str:
    return equals(name if kind is ColumnKind.STRING else f"CAST({name} AS STRING)", key)


def _joined(windows: Sequence[TimeWindow]) -> list[tuple[dt.datetime, dt.datetime]]:
    """The start and end of each window, in order; windows that follow each other without a gap are merged."""
    joined: list[tuple[dt.datetime, dt.datetime]] = []
    for window in windows:
        # Compared as instants, because Python compares two times in the same zone by their local time.
        if joined and joined[-1][1].timestamp() == window.start.timestamp():
            joined[-1] = (joined[-1][0], window.end)
        else:
            joined.append((window.start, window.end))
    return joined


def _as_moment(value: dt.date) -> dt.datetime:
    """A date as its midnight, without zone; a datetime unchanged."""
    return value if isinstance(value, dt.datetime) else dt.datetime.combine(value, dt.time())


def _order(value: Bound) -> Any:  # noqa: ANN401  # what the values of one column are compared by
    return _as_moment(value) if isinstance(value, dt.date) else value


def text_of(value: Bound) -> str | None:
    """The value as Spark casts it to a string; None if that depends on Spark's version or settings.

    Example:
        >>> text_of(True), text_of(dt.datetime(2026, 1, 5, 3, 0, 0, 500_000)), text_of(0.1)
        ('true', '2026-01-05 03:00:00.5', None)
    """
    match value:
        case bool():
            return str(value).lower()
        case float():
            return None
        case Decimal():
            return f"{value:f}"
        case dt.datetime():
            text = str(value)
            return None if value.tzinfo else (text.rstrip("0") if value.microsecond else text)
        case _:
            return str(value)
