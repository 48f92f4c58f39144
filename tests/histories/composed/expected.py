"""What each asset's table must hold, given the rows of its inputs, and what may be refused, computed in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from dagster_ips.errors import (
    DuplicateKeysError,
    FragmentOverwriteError,
    IpsError,
    RemovedRowsError,
    UnfollowedChangeError,
)
from tests.histories.composed.assets import KEY, ROW, TITLES
from tests.histories.composed.rows import Bag, Seen
from tests.histories.targets import counted_rows
from tests.histories.time_travel import Rows

Bags: TypeAlias = Mapping[str, Bag]
AllSeen: TypeAlias = Mapping[str, Seen]
Errors: TypeAlias = Iterable[type[IpsError]]
DATES = ("2026-01-01", "2026-01-02", "2026-01-03")


@dataclass(frozen=True)
class Expected:
    """What is expected of an asset: its table's ``columns``, and the rows after a full run.

    ``recomputed`` returns None if a full run would be refused. ``refuses`` returns the errors with which a run may be
    refused, given the rows that came and went. ``adds`` is set for an asset that follows only some of its inputs: it
    returns the rows that a run adds. For a partitioned asset, ``by`` is the partition column and ``partitions`` are all
    possible partitions. ``is_strict``: rows of no partition are refused. ``only_adds``: no run changes existing rows.
    ``folded`` computes the groups from a table of partials.
    """

    columns: tuple[str, ...]
    recomputed: Callable[[Bags], Rows | None]
    refuses: Callable[[AllSeen], Errors] = lambda _: ()
    adds: Callable[[AllSeen], Rows] | None = None
    by: str | None = None
    partitions: tuple[str, ...] = ()
    is_strict: bool = False
    only_adds: bool = False
    folded: Callable[[Bag], Rows] | None = None

    def held(self, table: Bag) -> Rows:
        """The result that the table's rows stand for."""
        return table.select(*self.columns) if self.folded is None else self.folded(table)

    def is_of(self, partition: str) -> Callable[[dict[str, Any]], bool]:
        """A function that says whether an input's row belongs to the partition."""
        by = self.by or ""
        return lambda row: str(row[by]) == partition


# What is computed


def _both(columns: tuple[str, ...]) -> Callable[[Bags], Rows]:
    return lambda inputs: inputs["fact"].select(*columns) + inputs["other"].select(*columns)


def _both_paid(inputs: Bags) -> Rows:
    return _paid_rows(inputs) + inputs["other"].select(*ROW)


def _once(inputs: Bags) -> Rows:
    return Counter(set(_both(KEY)(inputs)))


def _merged(inputs: Bags) -> Rows | None:
    rows = _both(ROW)(inputs)
    return None if _repeated(rows) else rows


def _repeated(rows: Rows) -> bool:
    return max(_first(rows, len(KEY)).values(), default=0) > 1


def _first(rows: Rows, columns: int) -> Rows:
    found: Rows = Counter()
    for row, count in rows.items():
        found[row[:columns]] += count
    return found


def _paid_rows(inputs: Bags) -> Rows:
    return inputs["fact"].where(lambda row: row["price"] is None or row["price"] > 0).select(*ROW)


def _running(inputs: Bags) -> Rows:
    days = {day: n for (day,), n in _both(("day",))(inputs).items() if day is not None}
    return Counter((day, sum(n for other, n in days.items() if other <= day)) for day in days)


def _genres(dimension: Bag) -> dict[Any, Rows]:
    found: dict[Any, Rows] = {}
    for (number, title), n in dimension.select("number", "title").items():
        if number is not None:
            found.setdefault(number, Counter())[title] += n
    return found


def _with_genre(fact: Bag, dimension: Bag, *more: str, left: bool = False) -> Rows:
    genres, found = _genres(dimension), Counter[Any]()
    for row, n in fact.select("number", *more).items():
        for genre, times in genres.get(row[0], Counter({None: 1}) if left else {}).items():
            found[*row, genre] += n * times
    return found


def _joined(inputs: Bags) -> Rows:
    return _with_genre(inputs["fact"], inputs["dimension"], "day", "title", left=True)


def _of_days(inputs: Bags) -> Rows:
    return _with_genre(inputs["fact"], inputs["dimension"], "day", "title")


def _counted(rows: Rows) -> Rows:
    return Counter((*key, n) for key, n in rows.items())


def _per_genre(inputs: Bags) -> Rows:
    rows = _with_genre(inputs["fact"], inputs["dimension"], "day", "price")
    moved: Rows = Counter()
    for (_, day, price, genre), n in rows.items():
        moved[day, genre, price] += n
    return counted_rows(moved)


def _summed(inputs: Bags) -> Rows:
    """The groups of ``counted_rows`` for both facts, with the highest number of each key."""
    last: dict[Any, int] = {}
    for *key, number in _both(("day", "title", "number"))(inputs):
        if number is not None:
            last[tuple(key)] = max(number, last.get(tuple(key), number))
    groups = counted_rows(_both(("day", "title", "price"))(inputs))
    return Counter((day, title, n, paid, last.get((day, title))) for day, title, n, paid in groups)


def _folded(table: Bag) -> Rows:
    """The groups, computed from their partials."""
    parts: dict[Any, list[tuple[Any, ...]]] = {}
    columns = ("day", "title", "_ips_rows", "_ips_count_paid", "_ips_sum_paid", "_ips_max_last")
    for row, times in table.select(*columns).items():
        parts.setdefault(row[:2], []).extend([row[2:]] * times)
    found: Rows = Counter()
    for key, rows in parts.items():
        n, priced = (sum(row[i] for row in rows) for i in (0, 1))
        paid = sum((row[2] for row in rows if row[2] is not None), Decimal(0)) if priced else None
        last = max((row[3] for row in rows if row[3] is not None), default=None)
        found.update({(*key, n, paid, last): 1} if n else {})
    return found


def _by_genre(inputs: Bags) -> Rows:
    moved: Rows = Counter()
    for (_, price, genre), n in _with_genre(inputs["fact"], inputs["dimension"], "price").items():
        moved[genre, price] += n
    return counted_rows(moved)


def _of_genres(inputs: Bags) -> Rows:
    found: Rows = Counter()
    numbers = inputs["dimension"].select("title", "number")
    for (genre, day, n), count in inputs["per_genre"].select("genre", "day", "n").items():
        for (title, number), times in numbers.items():
            if genre is not None and title == genre:
                found[genre, day, n, number] += count * times
    return found


def _queried(inputs: Bags) -> Rows:
    """The groups of ``_per_genre``, with the highest number of each key."""
    last: dict[Any, int] = {}
    for number, day, genre in _with_genre(inputs["fact"], inputs["dimension"], "day"):
        last[genre, day] = max(number, last.get((genre, day), number))
    return Counter((genre, day, n, paid, last[genre, day]) for day, genre, n, paid in _per_genre(inputs))


def _ranks(inputs: Bags) -> Rows:
    """The ranks; Spark sorts null first."""
    rows = inputs["fact"].select("day", "number", "title")
    places = {row: tuple((value is not None, value) for value in row[1:]) for row in rows}
    found: Rows = Counter()
    for row, n in rows.items():
        before = sum(m for other, m in rows.items() if other[0] == row[0] and places[other] < places[row])
        found[*row, 1 + before] = n
    return found


_LATEST = ("number", "at", "title", "amount")


def _latest(inputs: Bags) -> Rows | None:
    best: dict[Any, set[Any]] = {}
    for row in inputs["fact"].select(*_LATEST):
        rows = best.setdefault(row[0], {row})
        newest = next(iter(rows))[1]
        if row[1] == newest:
            rows.add(row)
        elif row[1] > newest:
            best[row[0]] = {row}
    return None if any(len(rows) > 1 for rows in best.values()) else Counter(row for (row,) in best.values())


def _of_one(
    name: str, columns: tuple[str, ...], of: Callable[[Rows], Rows] = lambda rows: rows
) -> Callable[[Bags], Rows]:
    return lambda inputs: of(inputs[name].select(*columns))


# What may be refused


def _removed(*names: str) -> Callable[[AllSeen], Errors]:
    return lambda seen: (RemovedRowsError,) if any(seen[name].removed.rows for name in names) else ()


def _shared(columns: tuple[str, ...], *names: str) -> Callable[[AllSeen], Errors]:
    """Refuses a removed row whose key also belongs to a row, of any input, that was there before and stays."""

    def refuses(seen: AllSeen) -> Errors:
        gone = {row for name in names for row in seen[name].removed.select(*columns)}
        stays = (seen[name].after.select(*columns) - seen[name].added.select(*columns) for name in names)
        return (RemovedRowsError,) if any(gone & rows.keys() for rows in stays) else ()

    return refuses


def _merge_refuses(seen: AllSeen) -> Errors:
    repeated = _repeated(_both(ROW)({name: each.after for name, each in seen.items()}))
    return (*_shared(KEY, "fact", "other")(seen), *((DuplicateKeysError,) if repeated else ()))


def _unfollowed(seen: AllSeen) -> Errors:
    dimension = seen["dimension"]
    return (UnfollowedChangeError,) if dimension.added.rows or dimension.removed.rows else ()


def _join_refuses(seen: AllSeen) -> Errors:
    return (*_removed("fact")(seen), *_unfollowed(seen))


def _latest_refuses(seen: AllSeen) -> Errors:
    """Refuses two equally late rows, and any removed row, because an unchanged row may then be the latest one."""
    by_place: Counter[Any] = Counter(row[:2] for row in seen["fact"].after.select(*_LATEST))
    tied = max(by_place.values(), default=0) > 1
    return (*_removed("fact")(seen), *((DuplicateKeysError,) if tied else ()))


EXPECTED: Mapping[str, Expected] = {
    "united": Expected(ROW, _both(ROW), _removed("fact", "other"), only_adds=True),
    "kept": Expected(ROW, _both_paid, _shared(KEY, "fact", "other")),
    "once": Expected(KEY, _once, _removed("fact", "other")),
    "merged": Expected(ROW, _merged, _merge_refuses),
    "running": Expected(("day", "n"), _running),
    "summed": Expected(("day", "title", "n", "paid", "last"), _summed),
    "in_parts": Expected(("day", "title", "n", "paid", "last"), _summed, folded=_folded),
    "by_genre": Expected(("genre", "n", "paid"), _by_genre, _unfollowed),
    "looked_up": Expected(
        (*KEY, "genre"),
        _of_days,
        _removed("fact"),
        adds=lambda seen: _of_days({"fact": seen["fact"].added, "dimension": seen["dimension"].after}),
        only_adds=True,
    ),
    "joined": Expected((*KEY, "genre"), _joined, _join_refuses),
    "per_genre": Expected(("day", "genre", "n", "paid"), _per_genre),
    "of_days": Expected((*KEY, "genre"), _of_days),
    "grouped": Expected(("day", "title", "n", "paid"), _of_one("fact", ("day", "title", "price"), counted_rows)),
    "whole": Expected(ROW, _of_one("fact", ROW), lambda _: (FragmentOverwriteError,)),
    "latest": Expected(_LATEST, _latest, _latest_refuses),
    "copied": Expected(ROW, _of_one("fact", ROW), _shared(KEY, "fact")),
    "by_written": Expected(ROW, _of_one("fact", ROW), _removed("fact"), by="written", partitions=DATES, is_strict=True),
    "by_title": Expected(
        ("title", "day", "n", "paid"),
        _of_one("fact", ("title", "day", "price"), counted_rows),
        by="title",
        partitions=tuple(TITLES.get_partition_keys()),
    ),
    "by_number": Expected(
        ("number", "title", "n", "paid"),
        _of_one("other", ("number", "title", "price"), counted_rows),
        by="number",
        partitions=("0", "1", "2"),
    ),
    "by_day": Expected(ROW, _both_paid, _shared(KEY, "fact", "other"), by="day", partitions=DATES),
    "counted": Expected((*KEY[1:], "n"), lambda inputs: _counted(_both(KEY[1:])(inputs))),
    "queried": Expected(("genre", "day", "n", "paid", "last"), _queried),
    "queried_rows": Expected(ROW, _both_paid),
    "queried_joins": Expected((*KEY, "genre"), _joined),
    "queried_ranks": Expected(("day", "number", "title", "place"), _ranks),
    "paid_rows": Expected(ROW, _paid_rows, _shared(KEY, "fact")),
    "day_totals": Expected(("day", "title", "n", "paid"), _of_one("fact", ("day", "title", "price"), counted_rows)),
    "of_kept": Expected(("title", "n", "paid"), _of_one("kept", ("title", "price"), counted_rows)),
    "of_groups": Expected(
        ("day", "title", "n", "paid"),
        _of_one("grouped", ("day", "title", "n", "paid")),
        _shared(("day", "title"), "grouped"),
    ),
    "of_genres": Expected(("genre", "day", "n", "number"), _of_genres),
}
