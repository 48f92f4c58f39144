"""Tables that consumers maintain, one for each write mode, and what a recompute from scratch would give.

A target is written the way the IO manager writes it. The expected rows are computed in Python from what time travel
read of the source, without any frame of the library or query of Spark.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.core.aggregates import parse_aggregate
from dagster_ips.core.capture import Mode
from dagster_ips.core.write_mode import Append, Combine, Merge, OverwritePartitions, OverwriteWhere, Replace, WriteMode
from dagster_ips.errors import DuplicateKeysError, FragmentOverwriteError, IpsError, RemovedRowsError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.exactly_once.publish.result_publication import AssetTable, publish_result
from dagster_ips.exactly_once.publish.result_writer import Result
from dagster_ips.iceberg.stamps import owner_properties
from dagster_ips.progress.cursor import Cursors
from dagster_ips.run_view import RunView
from dagster_ips.spark.targets import TableDescription
from dagster_ips.view import IcdcView
from tests.histories.checks import Truth, WrongCaptureError
from tests.histories.table import Field, HistoryTable, NotNow, path_of
from tests.histories.time_travel import Row, Rows, Written, collect_json
from tests.histories.values import spark_type

Names: TypeAlias = Mapping[str, str]
"""The current names of the columns, by their first names."""
Written_: TypeAlias = tuple[DataFrame, WriteMode]
ROW = ("number", "day", "title", "amount", "price", "place", "marks")
KEY = ("number", "day", "title")
"""The columns that identify a row, unless the same row occurs twice."""
_COUNTED = (Field(-1, "number_of_rows", "long"), Field(-2, "paid", "decimal(38, 2)"))
_EXTREMES = (Field(-3, "known", "long"), Field(-4, "least", "decimal(38, 2)"), Field(-5, "most", "decimal(38, 2)"))
_COMBINED = (*_COUNTED, *_EXTREMES)
NOTHING = "nothing"
UNDEFINED = "undefined"
EQUAL = (Mode.FULL.value, Mode.INCREMENTAL.value, NOTHING)
ENDS = (*EQUAL, UNDEFINED)
"""How a run of a target ends that isn't refused.

In one of two modes, without a change to write, or undefined because a full run would be refused.
"""
_numbers = itertools.count()


@dataclass(frozen=True)
class Kind:
    """A table made of the columns ``roles`` of the source, as an asset would make it.

    ``write`` returns the asset's frame and its write mode. ``recomputed`` computes the same in Python from rows of
    ``roles``. It returns None if a full run would be refused, so that no rows are right. The result has the first
    ``kept`` columns of ``roles`` and the columns ``adds``. ``refuses`` returns the errors with which a run may be
    refused, besides those of the capture.
    """

    roles: tuple[str, ...]
    write: Callable[[IcdcView, Names], Written_]
    recomputed: Callable[[Rows], Rows | None]
    kept: int
    adds: tuple[Field, ...] = ()
    partition_by: tuple[str, ...] = ()
    refuses: Callable[[Change], tuple[type[IpsError], ...]] = lambda _: ()


@dataclass(frozen=True)
class Change:
    """What time travel shows of a capture, reduced to the kind's columns, and how both tables are partitioned.

    ``source_by`` are the source's partition fields as (transform, column); ``target_by`` are the target's partition
    columns.
    """

    after: Rows
    has_removed: bool
    removed: Rows
    added: Rows
    source_by: tuple[tuple[str, str], ...]
    target_by: tuple[str, ...]


def _same(rows: Rows) -> Rows:
    return rows


def _columns(names: Names, roles: Sequence[str]) -> list[str]:
    return [names[role] for role in roles]


def _counted(frame: DataFrame, names: Names, *keys: str) -> DataFrame:
    counts = F.count("*").alias("number_of_rows"), F.sum(names["price"]).alias("paid")
    return frame.groupBy(*_columns(names, keys)).agg(*counts)


def counted_rows(rows: Rows) -> Rows:
    """The row count and the sum of each key, for rows whose last value is the price and whose others are the key."""
    counts: Counter[Row] = Counter()
    paid: dict[Row, Any] = {}
    for (*key, price), count in rows.items():
        counts[tuple(key)] += count
        if price is not None:
            paid[tuple(key)] = paid.get(tuple(key), 0) + price * count
    return Counter((*key, count, paid.get(key)) for key, count in counts.items())


def _refuses_removed(change: Change) -> tuple[type[IpsError], ...]:
    return (RemovedRowsError,) if change.has_removed else ()


def _refuses_shared_keys(change: Change) -> tuple[type[IpsError], ...]:
    """Refuses a removed row whose key also belongs to a row that was there before and stays."""
    kept = _keys(change.after) - _keys(change.added)
    return (RemovedRowsError,) if set(_keys(change.removed)) & set(kept) else ()


def _keys(rows: Rows) -> Rows:
    found: Rows = Counter()
    for row, count in rows.items():
        found[row[: len(KEY)]] += count
    return found


# Appended


def _append(view: IcdcView, names: Names) -> Written_:
    return view.added.select(*_columns(names, ROW)), Append()


def _append_remove_on(view: IcdcView, names: Names) -> Written_:
    return view.added.select(*_columns(names, ROW)), Append(remove_on=tuple(_columns(names, KEY)))


def _append_once(view: IcdcView, names: Names) -> Written_:
    return view.added.select(*_columns(names, KEY)), Append(dedup_on=tuple(_columns(names, KEY)))


def _once(rows: Rows) -> Rows:
    return Counter(set(rows))


# Merged


def _merge_rows(view: IcdcView, names: Names) -> Written_:
    return view.added.select(*_columns(names, ROW)), Merge(tuple(_columns(names, KEY)))


def _rows_of_own_keys(rows: Rows) -> Rows | None:
    return None if max(_keys(rows).values(), default=0) > 1 else rows


def _refuses_repeated_keys(change: Change) -> tuple[type[IpsError], ...]:
    after = _keys(change.after)
    repeated = any(after[key] > 1 for key in _keys(change.added))
    return (*_refuses_shared_keys(change), *((DuplicateKeysError,) if repeated else ()))


def _merge_groups(view: IcdcView, names: Names) -> Written_:
    keys = _columns(names, ("day", "title"))
    return _counted(view.affected(*keys), names, "day", "title"), Merge(tuple(keys))


def _merge_some_groups(view: IcdcView, names: Names) -> Written_:
    """A group can leave the table by growing or by shrinking."""
    groups = _counted(view.affected(names["title"]), names, "day", "title")
    return groups.where("number_of_rows BETWEEN 2 AND 3"), Merge(tuple(_columns(names, ("day", "title"))))


def _some_groups(rows: Rows) -> Rows:
    return Counter({row: count for row, count in counted_rows(rows).items() if 2 <= row[-2] <= 3})


def _merge_by_floats(view: IcdcView, names: Names) -> Written_:
    return _counted(view.affected(names["amount"]), names, "amount"), Merge((names["amount"],))


# Combined


def _combine(view: IcdcView, names: Names) -> Written_:
    price = f"`{names['price'].replace('`', '``')}`"
    texts = {
        "number_of_rows": "count(*)",
        "paid": f"sum({price})",
        "known": f"count({price})",
        "least": f"min({price})",
        "most": f"max({price})",
    }
    aggregates = tuple(parse_aggregate(*each) for each in texts.items())
    return view.weighted, Combine(tuple(_columns(names, ("day", "title"))), aggregates)


def _combined_rows(rows: Rows) -> Rows:
    groups: dict[Row, list[Any]] = {}
    for (*key, price), count in rows.items():
        groups.setdefault(tuple(key), []).extend([price] * count)
    return Counter((*key, len(prices), *_of_prices(prices)) for key, prices in groups.items())


def _of_prices(prices: Sequence[Any]) -> tuple[Any, ...]:
    known = [price for price in prices if price is not None]
    return (sum(known), len(known), min(known), max(known)) if known else (None, 0, None, None)


# Overwritten


def _partitions(view: IcdcView, names: Names) -> Written_:
    return _counted(view.affected(names["day"]), names, "day", "title"), OverwritePartitions()


def _partitions_of_scope(view: IcdcView, names: Names) -> Written_:
    return view.scope.select(*_columns(names, ROW)), OverwritePartitions()


def _refuses_other_partitions(change: Change) -> tuple[type[IpsError], ...]:
    fits = all(transform == "identity" and column in change.target_by for transform, column in change.source_by)
    return () if fits else (FragmentOverwriteError,)


def _overwrite_since(view: IcdcView, names: Names) -> Written_:
    """For each day, the number of its rows and of all rows of earlier days."""
    day, scope = names["day"], view.range(names["day"]).since(names["day"])
    days = view.source.where(F.col(day).isNotNull()).groupBy(day).agg(F.count("*").alias("of_the_day"))
    running = days.select(day, F.sum("of_the_day").over(Window.orderBy(day)).alias("number_of_rows"))
    return running.where(scope), OverwriteWhere(scope)


def _running(rows: Rows) -> Rows:
    return Counter(
        (day, sum(count for (other,), count in rows.items() if other is not None and other <= day))
        for (day,) in rows
        if day is not None
    )


def _overwrite_between(view: IcdcView, names: Names) -> Written_:
    scope = view.range(names["number"]).between(names["number"])
    return view.source.select(*_columns(names, ROW)).where(scope), OverwriteWhere(scope)


def _replace(view: IcdcView, names: Names) -> Written_:
    return _counted(view.source, names, "title"), Replace()


KINDS: Mapping[str, Kind] = {
    "append": Kind(ROW, _append, _same, len(ROW), refuses=_refuses_removed),
    "append_remove_on": Kind(
        ROW, _append_remove_on, _same, len(ROW), partition_by=("day",), refuses=_refuses_shared_keys
    ),
    "append_once": Kind(KEY, _append_once, _once, len(KEY), partition_by=("title",), refuses=_refuses_removed),
    "merge_rows": Kind(
        ROW, _merge_rows, _rows_of_own_keys, len(ROW), partition_by=("title",), refuses=_refuses_repeated_keys
    ),
    "merge_groups": Kind(("day", "title", "price"), _merge_groups, counted_rows, 2, _COUNTED, ("day",)),
    "merge_some_groups": Kind(("day", "title", "price"), _merge_some_groups, _some_groups, 2, _COUNTED),
    "merge_by_floats": Kind(("amount", "price"), _merge_by_floats, counted_rows, 1, _COUNTED),
    "combine": Kind(("day", "title", "price"), _combine, _combined_rows, 2, _COMBINED, ("day",)),
    "overwrite_partitions": Kind(("day", "title", "price"), _partitions, counted_rows, 2, _COUNTED, ("day",)),
    "overwrite_partitions_of_scope": Kind(
        ROW, _partitions_of_scope, _same, len(ROW), partition_by=("day", "title"), refuses=_refuses_other_partitions
    ),
    "overwrite_since": Kind(("day",), _overwrite_since, _running, 1, _COUNTED[:1], ("day",)),
    "overwrite_between": Kind(ROW, _overwrite_between, _same, len(ROW)),
    "replace": Kind(("title", "price"), _replace, counted_rows, 1, _COUNTED),
}


def _kind_of(column: Field) -> str:
    """The column's type, with the same value for a type to which it can be widened."""
    kind = spark_type(column.type).partition("(")[0]
    return {"bigint": "int", "double": "float"}.get(kind, kind)


@dataclass
class Target:
    """A consumer's table of one of the KINDS. ``names`` and ``made_of`` describe its input columns at the start."""

    source: HistoryTable
    consumer: str
    kind_name: str
    name: str = field(default_factory=lambda: f"media.target_{next(_numbers)}")
    names: Names = field(default_factory=dict)
    made_of: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """How the table is made."""
        return KINDS[self.kind_name]

    @property
    def exists(self) -> bool:
        """Whether the table exists."""
        return self.source.lake.catalog.find(self.name) is not None

    def is_as_it_was(self) -> bool:
        """Whether the source's input columns have the same names and types as at the last call; true at the first call.

        If not, the asset would have to be rewritten with the new names, so its table is dropped and starts over.

        Raises:
            NotNow: the source no longer has all of these columns.
        """
        try:
            if self.names and self._made_of() == self.made_of:
                return True
        except NotNow:
            pass
        is_new = not self.names
        self.names = {role: self.source.field(role).name for role in self.kind.roles}
        self.made_of = self._made_of()
        if not is_new:
            self.drop()
        return is_new

    def _made_of(self) -> tuple[str, ...]:
        return tuple(f"{name} {_kind_of(self._field(name))}" for name in self.names.values())

    def _field(self, name: str) -> Field:
        for found in self.source.fields:
            if found.name == name:
                return found
        raise NotNow

    def drop(self) -> None:
        """Drop the table and its files, if it exists."""
        if (found := self.source.lake.catalog.find(self.name)) is not None:
            folder = found.raw["location"]
            self.source.lake.catalog.client.drop_table(self.name)
            shutil.rmtree(path_of(folder))

    def publish(self, captured: CapturedInput, store: Cursors, truth: Truth) -> str:
        """Run the asset and check its table; returns how that ended: one of ENDS, or an error's name.

        Raises:
            WrongCaptureError: the table differs from a recompute, or a run was refused wrongly or left traces.
        """
        before, state = self._refs(), store.get(self.consumer)
        lake = self.source.lake
        view = RunView(captured, lake.session, "lake", storage=lake.catalog.storage, weighs_live_rows=True)
        try:
            wrote = self._write(view, captured, store)
        except IpsError as error:
            change = self._change(truth)
            if not isinstance(error, self.kind.refuses(change)):
                raise WrongCaptureError("a target that can follow does", repr(error), change) from error
            if self._refs() != before or store.get(self.consumer) != state:
                raise WrongCaptureError(
                    "a refusal publishes nothing and consumes nothing", self._refs(), before
                ) from error
            return type(error).__name__
        finally:
            view.release()
        expected = self.kind.recomputed(self._reduced(truth, truth.after))
        if expected is None:
            return UNDEFINED
        self._check(expected)
        return captured.capture.mode.value if wrote else NOTHING

    def _write(self, view: RunView, captured: CapturedInput, store: Cursors) -> bool:
        """Write as ``IcdcIOManager`` does; returns whether something was published."""
        lake = self.source.lake
        frame, write_mode = self.kind.write(view, self.names)
        columns = tuple(_columns(self.names, self.kind.partition_by))
        layout = TableDescription(columns, properties={"format-version": str(max(2, self.source.version))})
        table = AssetTable(self.consumer, self.name, layout, write_mode, code=None, declared=None)
        result = Result(frame, write_mode, view.mode, [view.change])
        owner = owner_properties(self.consumer, None)
        run, advance = captured.capture.run_id, captured.advance
        publisher = Publisher(lake.catalog, store, lake.session, run, owner, advance=advance)
        return bool(publish_result(publisher, table, result, [captured.capture], looked_up={}).snapshots)

    def _check(self, expected: Rows) -> None:
        kept = tuple(self._field(self.names[role]) for role in self.kind.roles[: self.kind.kept])
        schema = (*kept, *self.kind.adds)
        rows = collect_json({"target": self.source.lake.sql(f"SELECT * FROM lake.{self.name}")})["target"]
        found = Written(schema, rows).through(schema)
        if found != expected:
            many, few = dict(found - expected), dict(expected - found)
            raise WrongCaptureError("a target equals a recompute", f"too many {many}", f"too few {few}")

    def _change(self, truth: Truth) -> Change:
        fields = [(transform, truth.schema[place].name) for transform, place in truth.partition_fields]
        existing = self.source.lake.catalog.find(self.name)
        is_full = truth.before is None
        return Change(
            after=self._reduced(truth, truth.after),
            has_removed=bool(truth.removed),
            removed=self._reduced(truth, truth.removed),
            added=self._reduced(truth, truth.added),
            source_by=() if is_full else tuple(fields),
            target_by=tuple(existing.identity_partition_columns()) if existing else (),
        )

    def _reduced(self, truth: Truth, rows: Rows) -> Rows:
        part = truth.key(_columns(self.names, self.kind.roles))
        found: Rows = Counter()
        for row, count in rows.items():
            found[part(row)] += count
        return found

    def _refs(self) -> object:
        """Every branch and its snapshot; empty for a table without a snapshot, which a first try may have created."""
        found = self.source.lake.catalog.find(self.name)
        return found.raw.get("refs", {}) if found else {}
