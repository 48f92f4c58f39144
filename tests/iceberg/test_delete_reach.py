"""Which manifests may list files that deletes apply to, as their partition summaries tell."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.iceberg import delete_reach
from dagster_ips.iceberg.delete_reach import DeleteReach

DAYS = st.none() | st.integers(-3, 9)
TITLES = st.none() | st.sampled_from(["", "a", "b", "ä", "zz"]) | st.booleans()
PARTITIONS = st.tuples(st.integers(0, 1), st.tuples(DAYS, TITLES))


def bounds(lower: bytes | None, upper: bytes | None, *, contains_null: bool = False) -> dict[str, Any]:
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
