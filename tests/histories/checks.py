"""A capture must show what time travel shows: one function for each promise of the view."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType
from pyspark.sql import DataFrame

from dagster_ips.core.ranges import ChangeRange, RangeKind
from dagster_ips.exactly_once.publish.input_change import Frame
from dagster_ips.run_view import RunView
from tests.histories.table import Field
from tests.histories.time_travel import Row, Rows, Schema, Written, difference

CHANGE_TYPE = "_how"
_WEIGHT = Field(-1, "_weight", "int")
_KIND = Field(-2, CHANGE_TYPE, "string")
_IN_SQL = (Frame.ADDED, Frame.REMOVED, Frame.SOURCE)
_RANGED = ("int", "long", "date", "string", "double", "float", "decimal(9, 2)", "decimal(12, 2)")


class WrongCaptureError(AssertionError):
    """A capture differs from time travel. ``promise`` is the promise that it broke."""

    def __init__(self, promise: str, found: object = "", expected: object = "") -> None:
        self.promise = promise
        super().__init__(f"{promise}\n     found: {found}\n  expected: {expected}")


@dataclass(frozen=True)
class Truth:
    """What time travel shows of an interval. ``before`` is None if the capture contains everything.

    ``partition_fields`` are those of the current spec: (transform, position of its column in the schema).
    """

    schema: Schema
    before: Rows | None
    after: Rows
    keys: tuple[tuple[str, ...], ...]
    partition_fields: tuple[tuple[str, int], ...]

    @cached_property
    def added(self) -> Rows:
        return difference(self.before or Counter(), self.after)[0]

    @cached_property
    def removed(self) -> Rows:
        return difference(self.before or Counter(), self.after)[1]

    @cached_property
    def changed(self) -> Rows:
        return self.added + self.removed

    def key(self, names: Sequence[str]) -> Callable[[Row], Row]:
        """A function that returns a row's values in the columns ``names``."""
        places = [next(i for i, found in enumerate(self.schema) if found.name == name) for name in names]
        return lambda row: tuple(row[place] for place in places)

    def narrow(self, names: Sequence[str]) -> Truth:
        """The same, if the table had only the columns ``names``, and no partitions."""
        key = self.key(names)
        before, after = (None if rows is None else _narrow(rows, key) for rows in (self.before, self.after))
        schema = tuple(field for name in names for field in self.schema if field.name == name)
        return Truth(schema, before, after or Counter(), (), ())

    def partition(self, row: Row) -> Row:
        """A row's partition under the current spec."""
        return tuple(_transformed(transform, row[place]) for transform, place in self.partition_fields)


def frames(view: RunView, truth: Truth) -> dict[str, DataFrame]:
    """Every frame of the view that the checks use."""
    found = {
        "changes": view.changes,
        "added": view.added,
        "removed": view.removed,
        "weighted": view.weighted,
        "changelog": view.changelog(change_type=CHANGE_TYPE),
        "scope": view.scope,
        "came": view.came,
        "went": view.went,
        **{f"{frame} in SQL": view.session.sql(f"SELECT * FROM {view.sql_of(frame)}") for frame in _IN_SQL},
    }
    if view.kept is not None:
        found["kept"] = view.kept
    for keys in truth.keys:
        found[f"affected by {', '.join(keys)}"] = view.affected(*keys)
    for keys in truth.keys[:1]:
        found["changelog by keys"] = view.changelog(keys, change_type=CHANGE_TYPE)
    return found


def narrow_frames(view: RunView, keys: Sequence[str]) -> dict[str, DataFrame]:
    """What came and what went, of a view whose reader needs only the columns ``keys``."""
    view.loses_rows(keys)
    names = [f"`{key}`" for key in keys]
    return {_in_keys("came", keys): view.came.select(*names), _in_keys("went", keys): view.went.select(*names)}


def check_frames(collected: Mapping[str, Sequence[str]], truth: Truth) -> None:
    """Check that every frame matches its definition.

    Raises:
        WrongCaptureError: one doesn't.
    """
    plain = {name: _rows(collected, name, truth.schema) for name in collected if name in _PLAIN}
    _same("added", plain["added"], truth.added)
    _same("removed", plain["removed"], truth.removed)
    for frame, rows in zip(_IN_SQL, (truth.added, truth.removed, truth.after), strict=True):
        _same(f"{frame} in SQL", plain[f"{frame} in SQL"], rows)
    _check_changes(plain["changes"], truth)
    _check_apart(plain["came"], plain["went"], truth)
    if "kept" in plain:
        _same("kept, with what came", plain["kept"] + plain["came"], truth.after)
        _same("kept, with what went", plain["kept"] + plain["went"], truth.before or Counter())
    for keys in truth.keys:
        if _in_keys("came", keys) in collected:
            narrow = truth.narrow(keys)
            _check_apart(*(_rows(collected, _in_keys(name, keys), narrow.schema) for name in ("came", "went")), narrow)
    _check_scope(plain["scope"], truth)
    weighted = _rows(collected, "weighted", (*truth.schema, _WEIGHT))
    _same("weighted", weighted, _tagged(truth.added, 1) + _tagged(truth.removed, -1))
    changelog = _rows(collected, "changelog", (*truth.schema, _KIND))
    _same("changelog", changelog, _tagged(truth.added, "insert") + _tagged(truth.removed, "delete"))
    for keys in truth.keys:
        name = f"affected by {', '.join(keys)}"
        _check_affected(name, _rows(collected, name, truth.schema), truth, keys)
    for keys in truth.keys[:1]:
        _check_changelog_by_keys(_rows(collected, "changelog by keys", (*truth.schema, _KIND)), truth, keys)


_PLAIN = (
    *("changes", "added", "removed", "scope", "came", "went", "kept"),
    *(f"{frame} in SQL" for frame in _IN_SQL),
)


def _check_changes(changes: Rows, truth: Truth) -> None:
    if truth.added - changes:
        raise WrongCaptureError("changes hold every added row", changes, truth.added)
    if changes - truth.after:
        raise WrongCaptureError("every row of changes is live", changes, truth.after)


def _check_apart(came: Rows, went: Rows, truth: Truth) -> None:
    _same("came less went", came + truth.removed, went + truth.added)
    if came - truth.after:
        raise WrongCaptureError("every row that came is live", came, truth.after)
    if went - (truth.before or Counter()):
        raise WrongCaptureError("every row that went was there", went, truth.before or Counter())


def _check_affected(name: str, affected: Rows, truth: Truth, keys: Sequence[str]) -> None:
    key = truth.key(keys)
    changed = {key(row) for row in truth.changed}
    live = truth.after if truth.before is None else _where(truth.after, lambda row: key(row) in changed)
    _same(name, affected, live)


def _check_scope(scope: Rows, truth: Truth) -> None:
    changed = {truth.partition(row) for row in truth.changed}
    if _where(truth.after, lambda row: truth.partition(row) in changed) - scope:
        raise WrongCaptureError("scope holds every row of the affected partitions", scope, truth.after)
    held = {truth.partition(row) for row in scope}
    _same("scope holds whole partitions", scope, _where(truth.after, lambda row: truth.partition(row) in held))


def _check_changelog_by_keys(changelog: Rows, truth: Truth, keys: Sequence[str]) -> None:
    key = truth.key(keys)
    added, removed = {key(row) for row in truth.added}, {key(row) for row in truth.removed}
    expected: Rows = Counter()
    for rows, alone, together in ((truth.added, "insert", "update_after"), (truth.removed, "delete", "update_before")):
        for row, count in rows.items():
            both = key(row) in added and key(row) in removed
            expected[(*row, together if both else alone)] += count
    _same("changelog by keys", changelog, expected)


def check_range(found: ChangeRange, column: Field, truth: Truth) -> None:
    """Check that the range includes every changed value, and that the bounds of an exact range occur.

    Raises:
        WrongCaptureError: one of these fails.
    """
    place = truth.schema.index(column)
    values = [row[place] for row in truth.changed]
    known = [value for value in values if value not in (None, "NaN")]
    lowest, highest = _comparable(found.lowest), _comparable(found.highest)
    says_everything = found.between("x") == "TRUE"
    if values and found.is_empty:
        raise WrongCaptureError(f"range of {column.name} isn't empty", found, values)
    if None in values and not (found.has_null or says_everything):
        raise WrongCaptureError(f"range of {column.name} has null", found, values)
    if "NaN" in values and highest is not None:  # greater than every number in Spark
        raise WrongCaptureError(f"range of {column.name} is open above, for NaN", found, values)
    if any(lowest is not None and value < lowest for value in known):
        raise WrongCaptureError(f"range of {column.name} begins below every changed value", found, values)
    if any(highest is not None and value > highest for value in known):
        raise WrongCaptureError(f"range of {column.name} ends above every changed value", found, values)
    if found.kind is RangeKind.EXACT and not {lowest, highest} <= set(known):
        raise WrongCaptureError(f"exact bounds of {column.name} occur", found, values)


def ranged(schema: Schema) -> list[Field]:
    """The columns that have an order and therefore a range."""
    return [found for found in schema if found.type in _RANGED]


def _rows(collected: Mapping[str, Sequence[str]], name: str, schema: Schema) -> Rows:
    rows = tuple(collected[name])
    expected = [found.name for found in schema]
    if rows and list(json.loads(rows[0])) != expected:
        raise WrongCaptureError(f"columns of {name}", list(json.loads(rows[0])), expected)
    try:
        return Written(schema, rows).through(schema)
    except KeyError as error:
        raise WrongCaptureError(f"nested columns of {name}", rows[0], schema) from error


def _same(promise: str, found: Rows, expected: Rows) -> None:
    if found != expected:
        raise WrongCaptureError(promise, f"too many {dict(found - expected)}", f"too few {dict(expected - found)}")


def _tagged(rows: Rows, tag: object) -> Rows:
    return Counter({(*row, tag): count for row, count in rows.items()})


def _in_keys(name: str, keys: Sequence[str]) -> str:
    return f"{name} in {', '.join(keys)}"


def _narrow(rows: Rows, key: Callable[[Row], Row]) -> Rows:
    found: Rows = Counter()
    for row, count in rows.items():
        found[key(row)] += count
    return found


def _where(rows: Rows, keep: Callable[[Row], bool]) -> Rows:
    return Counter({row: count for row, count in rows.items() if keep(row)})


def _transformed(transform: str, value: Any) -> Any:  # noqa: ANN401  # a value of any column
    """Apply the transform to a value. Dates are strings here, because JSON has no dates."""
    kind, _, width = transform.rstrip("]").partition("[")
    if value is None or kind in ("identity", "day"):
        return value
    if kind == "month":
        return value[:7]
    if kind == "truncate":
        return value[: int(width)]
    assert kind == "bucket"
    return BucketTransform(int(width)).transform(LongType())(value)


def _comparable(bound: Any) -> Any:  # noqa: ANN401  # a value of any column
    return bound.isoformat() if isinstance(bound, dt.date) else bound
