"""A manifest list alone says that a row is not in a table only if that is certain."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ips.core.held_rows import HeldRows
from dagster_ips.iceberg import partition_presence
from dagster_ips.iceberg.partition_presence import partitions_held
from tests.iceberg.sources import TABLE, Source

DAY = dt.date(2026, 1, 1)
VALUES: dict[str, tuple[int, list[Any]]] = {
    "day": (2, [None, *(DAY + dt.timedelta(days=days) for days in (-800, 0, 1, 2, 40))]),
    "title": (3, [None, "", "a", "b", "ä", "Ω", "a longer one than sixteen characters", "a longer one than sixteen d"]),
    "amount": (4, [None, 0.0, -0.0, 1.5]),  # PyIceberg 0.12 fails to write a partition of NaN.
    "at": (6, [None, dt.datetime(1969, 12, 31, 23), dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)]),  # noqa: DTZ001
    "at_utc": (7, [None, *(dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1969, 2026, 2027))]),
    "is_new": (8, [None, True, False]),
}


@settings(max_examples=12, deadline=None)
@given(data=st.data(), spec=st.sampled_from(list(VALUES)))
def test_a_partition_that_holds_a_row_is_never_mistaken_for_a_new_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, spec: str
) -> None:
    field, values = VALUES[spec]
    source = Source(tmp_path_factory.mktemp("lake"), spec)
    for some in data.draw(st.lists(st.lists(st.sampled_from(values), min_size=1, max_size=3), max_size=3)):
        source.append([{1: 1, field: value} for value in some])
    table = source.lake.load(TABLE, asset="test")
    column = source.fields[field - 1].name
    for row in source.rows:
        assert partitions_held(source.lake.storage, table, [column], [(row[field],)]).partitions
        held = partitions_held(source.lake.storage, table, [], [()])
        assert held.partitions
        assert held.most is not None
        assert held.most >= len(source.rows)
        of_one = partitions_held(source.lake.storage, table, [column], [(row[field],)]).most
        assert of_one is not None
        assert sum(each[field] == row[field] for each in source.rows) <= of_one <= held.most
    if spec == "amount" and source.rows:  # Other engines do write NaN, and bounds never include it.
        assert partitions_held(source.lake.storage, table, [column], [(float("nan"),)]).partitions


def test_days_outside_the_ranges_of_all_manifests_are_new(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")

    def held(*days: int) -> list[int]:
        table = source.lake.load(TABLE, asset="test")
        values = {(DAY + dt.timedelta(days=day),): day for day in days}
        return [values[each] for each in partitions_held(source.lake.storage, table, ["day"], list(values)).partitions]

    assert held(0) == []
    source.append([{1: 1, 2: DAY}])
    source.append([{1: 2, 2: DAY + dt.timedelta(days=4)}])
    assert held(5) == []
    assert held(-1, 2, 9) == []  # each manifest has its own range
    assert held(5, 4, -1, 0) == [4, 0]
    assert not partitions_held(
        source.lake.storage, source.lake.load(TABLE, asset="test"), ["day"], [(None,)]
    ).partitions
    assert not partitions_held(source.lake.storage, source.lake.load(TABLE, asset="test"), ["day"], []).partitions


@settings(max_examples=20, deadline=None)
@given(data=st.data(), spec=st.sampled_from(list(VALUES)))
def test_many_values_are_held_exactly_as_each_by_itself(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, spec: str
) -> None:
    field, values = VALUES[spec]
    source = Source(tmp_path_factory.mktemp("lake"), spec)
    for some in data.draw(st.lists(st.lists(st.sampled_from(values), min_size=1, max_size=3), max_size=3)):
        source.append([{1: 1, field: value} for value in some])
    table, column = source.lake.load(TABLE, asset="test"), source.fields[field - 1].name

    def held(*of: object) -> HeldRows:
        return partitions_held(source.lake.storage, table, [column], [(each,) for each in of])

    asked = data.draw(st.lists(st.sampled_from([*values, 7]), max_size=9))
    assert held(*asked).partitions == [(each,) for each in asked if held(each).partitions]


def test_the_values_within_a_manifests_bounds_are_found_without_comparing_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, compared = Source(tmp_path, "day"), list[object]()
    for days in (0, 3):
        source.append([{1: 1, 2: DAY + dt.timedelta(days=days)}])
    original = partition_presence._Bounds.may_be
    monkeypatch.setattr(
        partition_presence._Bounds, "may_be", lambda own, value: compared.append(value) or original(own, value)
    )
    values = [None, *(DAY + dt.timedelta(days=days) for days in range(500, -500, -1))]
    found = partitions_held(
        source.lake.storage, source.lake.load(TABLE, asset="test"), ["day"], [(each,) for each in values]
    )
    assert found.partitions == [(DAY + dt.timedelta(days=3),), (DAY,)]
    assert (found.most, compared) == (2, [])


def test_values_of_a_column_that_is_not_a_partition_column_exclude_nothing(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append([{1: 1, 2: DAY, 3: "a"}])
    table = source.lake.load(TABLE, asset="test")
    assert partitions_held(source.lake.storage, table, ["the title"], [("z",)]).partitions
    assert not partitions_held(
        source.lake.storage, table, ["the title", "day"], [("z", DAY + dt.timedelta(days=1))]
    ).partitions


@pytest.mark.parametrize(
    ("evolutions", "alone"),
    [
        ([], {"day"}),
        ([lambda spec: spec.add_field("the title", "bucket[4]", "title_bucket")], set()),
        ([lambda spec: spec.add_identity("the title")], set()),
        ([lambda spec: spec.remove_field("day")], set()),
    ],
)
def test_columns_are_sole_partition_columns_only_if_every_spec_has_them_and_nothing_else(
    tmp_path: Path, evolutions: list[Any], alone: set[str]
) -> None:
    source = Source(tmp_path, "day")
    for evolve in evolutions:
        with source.lake.client.load_table(TABLE).update_spec() as spec:
            evolve(spec)
    assert source.lake.load(TABLE, asset="test").sole_partition_columns() == alone
