"""Which files deletes may apply to, and which manifests may list such files, as partition summaries and bounds tell."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ips.iceberg import delete_reach
from dagster_ips.iceberg.delete_reach import DeleteReach
from dagster_ips.iceberg.manifests import Content, ManifestEntry
from dagster_ips.iceberg.metadata import TableMetadata

DAYS = st.none() | st.integers(-3, 9)
TITLES = st.none() | st.sampled_from(["", "a", "b", "ä", "zz"]) | st.booleans()
PARTITIONS = st.tuples(st.integers(0, 1), st.tuples(DAYS, TITLES))


def bounds(lower: bytes | None, upper: bytes | None, *, contains_null: bool) -> dict[str, Any]:
    return {"lower_bound": lower, "upper_bound": upper, "contains_null": contains_null}


def manifest(*summaries: dict[str, Any], spec: int = 0) -> dict[str, Any]:
    return {"partition_spec_id": spec, "partitions": list(summaries)}


def of_days(first: int, last: int, *, contains_null: bool = False) -> dict[str, Any]:
    return bounds(struct.pack("<i", first), struct.pack("<i", last), contains_null=contains_null)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    first, title = draw(st.integers(-3, 9)), draw(st.sampled_from(["", "a", "b", "ä"]))
    day = of_days(first, draw(st.integers(first, 9)), contains_null=draw(st.booleans()))
    titles = bounds(title.encode(), draw(st.sampled_from(["ä", "zz"])).encode(), contains_null=draw(st.booleans()))
    unknown = bounds(None, None, contains_null=draw(st.booleans()))
    summaries = (draw(st.sampled_from([day, unknown])), draw(st.sampled_from([titles, unknown])))
    return draw(st.sampled_from([manifest(*summaries, spec=draw(st.integers(0, 2))), manifest(), manifest(day)]))


@given(st.sets(PARTITIONS, max_size=6), st.sets(PARTITIONS, max_size=3), manifests())
def test_deletes_of_many_partitions_reach_a_manifest_exactly_if_those_of_one_do(
    partitions: set[Any], scopes: set[Any], row: dict[str, Any]
) -> None:
    each = [DeleteReach(partitions=frozenset([partition])) for partition in partitions | scopes]
    assert DeleteReach(partitions=partitions, scopes=scopes).may_cover_files_of(row) is any(
        one.may_cover_files_of(row) for one in each
    )


@pytest.mark.parametrize("summaries", [[of_days(0, 4)], [of_days(600, 900)]], ids=["older", "newer"])
def test_no_partition_is_compared_with_a_manifest_beside_all_of_them(
    summaries: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []
    original = delete_reach._may_hold
    monkeypatch.setattr(delete_reach, "_may_hold", lambda *of: compared.append(of) or original(*of))
    reach = DeleteReach(partitions=frozenset((0, (day,)) for day in range(5, 505)))
    assert not reach.may_cover_files_of(manifest(*summaries))
    assert not reach.may_cover_files_of(manifest(of_days(5, 9), spec=1))
    assert compared == []
    assert reach.may_cover_files_of(manifest(of_days(504, 900)))


@pytest.mark.parametrize("value", [None, 0, 4, 9, True, 1.5, b"\x01"])
def test_a_manifest_may_hold_a_value_unless_its_summary_excludes_it(value: object) -> None:
    reach = DeleteReach(partitions=frozenset([(0, (value,))]))
    assert reach.may_cover_files_of(manifest(of_days(1, 5))) is (value not in (None, 0, 9))
    assert reach.may_cover_files_of(manifest(of_days(1, 5, contains_null=True))) is (value not in (0, 9))


KINDS = {1: "long", 2: "string", 3: "double"}
ROWS = st.tuples(
    st.none() | st.integers(-3, 9), st.none() | st.sampled_from(["", "a", "ä", "zz"]), st.sampled_from([0.0, 1.5])
)
KEYS = st.sets(st.sampled_from([1, 2, 3]), min_size=1).map(sorted)


def table() -> TableMetadata:
    fields = [{"id": i, "name": f"c{i}", "type": kind, "required": False} for i, kind in KINDS.items()]
    bucket = {"name": "b", "transform": "bucket[4]", "source-id": 1, "field-id": 1000}
    raw = {
        "format-version": 2,
        "table-uuid": "u",
        "location": "file:///t",
        "schemas": [{"schema-id": 0, "type": "struct", "fields": fields}],
        "partition-specs": [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": [bucket]}],
    }
    return TableMetadata.parse("media.plays", "file:///t/m.json", json.dumps(raw).encode())


def as_bound(value: object) -> bytes:
    match value:
        case int():
            return struct.pack("<q", value)
        case float():
            return struct.pack("<d", value)
        case _:
            return str(value).encode()


def file_of(
    rows: Sequence[tuple[Any, ...]],
    number: int,
    *,
    ids: Sequence[int] | None = None,
    bucket: int | None = None,
    unsaid: Sequence[tuple[str, int]] = (),
) -> ManifestEntry:
    """A data file, or with ``ids`` a file of deletes by these columns; ``unsaid`` are missing statistics of columns."""
    stats: dict[str, list[dict[str, Any]]] = {"lower_bounds": [], "upper_bounds": [], "null_value_counts": []}
    for column in KINDS:
        values = [row[column - 1] for row in rows if row[column - 1] is not None]
        found = {"null_value_counts": len(rows) - len(values)}
        found |= {"lower_bounds": as_bound(min(values)), "upper_bounds": as_bound(max(values))} if values else {}
        for name, value in found.items():
            if (name, column) not in unsaid:
                stats[name].append({"key": column, "value": value})
    raw = {
        "file_path": f"file:///t/{number}-{ids}.parquet",
        "content": 2 if ids else 0,
        "equality_ids": ids,
        "record_count": len(rows),
        "file_size_in_bytes": 1,
        "partition": {} if bucket is None else {"b": bucket},
        **stats,
    }
    spec = [{"transform": "bucket[4]"}] if bucket is not None else []
    return ManifestEntry(
        {"partition-spec": json.dumps(spec)},
        0 if bucket is None else 1,
        Content.DELETES if ids else Content.DATA,
        {"status": 1, "snapshot_id": number, "sequence_number": number, "data_file": raw},
    )


@st.composite
def files(draw: st.DrawFn, *, deletes: bool) -> tuple[ManifestEntry, list[tuple[Any, ...]]]:
    rows = draw(st.lists(ROWS, min_size=1, max_size=3))
    names = st.sampled_from(["lower_bounds", "upper_bounds", "null_value_counts"])
    entry = file_of(
        rows,
        draw(st.integers(1, 3)),
        ids=draw(KEYS) if deletes else None,
        bucket=draw(st.none() | st.integers(0, 1)),
        unsaid=draw(st.lists(st.tuples(names, st.sampled_from(list(KINDS))), max_size=2)),
    )
    return entry, rows


@settings(deadline=None)
@given(st.lists(files(deletes=True), max_size=4), files(deletes=False))
def test_deletes_by_equality_reach_every_file_that_has_a_row_of_theirs(
    deletes: list[tuple[ManifestEntry, list[Any]]], data: tuple[ManifestEntry, list[Any]]
) -> None:
    entry, rows = data
    reach = DeleteReach.of([delete for delete, _ in deletes], table())
    for delete, keys in deletes:
        ids = delete.raw["data_file"]["equality_ids"]
        meant = {tuple(key[i - 1] for i in ids) for key in keys}
        is_there = delete.spec_id == 0 or delete.raw["data_file"]["partition"] == entry.raw["data_file"]["partition"]
        if is_there and delete.sequence_number > entry.sequence_number:
            hides = any(tuple(row[i - 1] for i in ids) in meant for row in rows)
            assert reach.covers(entry) or not hides


@pytest.mark.parametrize(
    ("data", "number", "reaches"),
    [
        ([(5, "m", 0.0), (9, "m", 0.0)], 1, True),
        ([(1, "m", 0.0), (4, "m", 0.0)], 1, True),
        ([(6, "m", 0.0), (9, "m", 0.0)], 1, False),
        ([(1, "a", 0.0), (9, "c", 0.0)], 1, False),
        ([(None, "m", 0.0)], 1, False),
        ([(1, "m", 0.0), (9, "m", 0.0)], 2, False),
    ],
    ids=["end", "begin", "above", "another text", "nulls only", "as new as the deletes"],
)
def test_deletes_by_equality_reach_only_older_files_that_may_have_their_values(
    data: list[tuple[Any, ...]], number: int, *, reaches: bool
) -> None:
    reach = DeleteReach.of([file_of([(value, "m", 0.0)], 2, ids=[1, 2]) for value in (4, 5)], table())
    assert reach.covers(file_of(data, number)) is reaches
    everywhere = DeleteReach.of([file_of([(5, "m", 0.0)], 2, ids=[9])], table())
    assert everywhere.covers(file_of(data, 1)), "the column isn't in the table's schema"
    null = DeleteReach.of([file_of([(None, "m", 0.0)], 2, ids=[1])], table())
    assert null.covers(file_of(data, 1)) is any(row[0] is None for row in data)


def test_deletes_by_equality_without_a_sequence_number_reach_files_of_any() -> None:
    delete = file_of([(5, "m", 0.0)], 0, ids=[1])
    assert DeleteReach.of([delete], table()).covers(file_of([(5, "m", 0.0)], 7))


def test_a_path_that_is_cut_inside_a_character_is_no_path() -> None:
    """Then the delete file may be for every data file of its partition."""
    cut = [{"key": 2147483546, "value": "s3://lake/a\u00e9".encode()[:-1]}]
    described = {"content": 1, "lower_bounds": cut, "upper_bounds": cut}
    delete = ManifestEntry({}, 0, Content.DELETES, {"data_file": described})
    assert delete_reach.data_file_of(delete) is None
