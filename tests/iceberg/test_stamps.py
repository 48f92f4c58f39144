"""The stamp that a run puts on its published snapshot is read back unchanged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.division import divided, with_losses
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg import stamps
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import last_divided_otherwise, partitions_read, stamp_properties, target_histories

LINE = Edge("weekly", "daily")
SOMEWHERE = Watermark("uuid", "main", 1, 1, 1)
DAYS = st.frozensets(st.sampled_from(["2026-01-01", "2026-01-02", "a|b", ""]))


@given(
    left_out=st.dictionaries(st.sampled_from(["2026-W01", "2026-W02", "x"]), DAYS | st.none(), min_size=1)
    | st.dictionaries(st.none(), DAYS | st.none(), min_size=1),
    is_much=st.booleans(),
)
def test_left_out_partitions_are_read_back_and_become_unknown_if_too_many_to_list(
    left_out: dict[str | None, frozenset[str] | None], *, is_much: bool
) -> None:
    much = frozenset(f"day-{n}" for n in range(201)) if is_much else frozenset[str]()
    written = {key: days if days is None else days | much for key, days in left_out.items()}
    captures = tuple(
        Capture(LINE.of(key) if key else LINE, 1, Mode.FULL, "", None, SOMEWHERE, "", "run", None, left_out=days)
        for key, days in written.items()
    )
    summary = stamp_properties(captures, attempt="attempt", run_id="run")
    found = target_histories(published(summary), [each.edge for each in captures])
    for each in captures:
        newest = found[each.edge].newest
        assert newest is not None
        assert newest.left_out == (None if is_much else each.left_out)


@pytest.mark.parametrize("key", ["2026-01-02", 'a"b', "a\\b\n", "Ü|日", "", None])
def test_only_the_stamps_that_may_name_a_partition_are_decoded(
    key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stamped(*keys: str | None) -> dict[str, str]:
        captures = tuple(
            Capture(LINE if each is None else LINE.of(each), 7, Mode.FULL, "", None, SOMEWHERE, "", "run", None)
            for each in keys
        )
        return stamp_properties(captures, attempt="attempt", run_id="run")

    others = stamped("2026-01-01", "other")
    with_key = stamped(key) if key is None else stamped("2026-01-03", key)
    table, edge = published(others, with_key, with_key, others, others), LINE if key is None else LINE.of(key)
    decoded: list[object] = []
    decode = stamps._stamps
    monkeypatch.setattr(stamps, "_stamps", lambda *of: decoded.append(of) or decode(*of))
    newest = target_histories(table, [edge])[edge].newest
    assert newest is not None
    assert (newest.number, newest.target.snapshot_id, len(decoded)) == (7, 3, 1)
    assert target_histories(published(*[others] * 3), [edge])[edge].newest is None
    assert len(decoded) == 1


def by(division: str | None, *keys: str) -> tuple[Capture, ...]:
    return tuple(
        Capture(LINE.of(key), 7, Mode.FULL, "", None, SOMEWHERE, "", "run", None, division=division) for key in keys
    )


@pytest.mark.parametrize("division", ["title by value", 'a "quoted" column by value', "Ü|日"])
def test_stamps_of_before_and_after_a_deletion_are_of_one_division(division: str) -> None:
    after = divided(division, with_losses("", ["b"]))
    table = published(*(stamp_properties(by(of, of), attempt="a", run_id="run") for of in (division, after)))
    assert last_divided_otherwise(table, LINE, division) is None
    assert partitions_read(table, LINE, division).keys() == {division, after}
    histories = target_histories(table, [LINE.of(division), LINE.of(after)])
    assert [each.newest.division for each in histories.values() if each.newest] == [division, after]
    assert last_divided_otherwise(table, LINE, f"{division} or more") is not None
    assert last_divided_otherwise(table, LINE, division[:-1]) is not None


def test_one_stamp_of_partitions_from_before_and_after_a_deletion_says_that_all_are_from_before() -> None:
    after = divided("title", with_losses("", ["b"]))
    table = published(stamp_properties((*by(after, "eu"), *by("title", "us")), attempt="a", run_id="run"))
    histories = target_histories(table, [LINE.of("eu"), LINE.of("us")])
    assert [each.newest.division for each in histories.values() if each.newest] == ["title", "title"]


def published(*summaries: dict[str, str]) -> TableMetadata:
    """A table with one snapshot for each of ``summaries``, the newest last."""
    raw = {
        "format-version": 2,
        "table-uuid": "u",
        "location": "l",
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "schemas": [{"schema-id": 0, "fields": []}],
        "current-schema-id": 0,
        "snapshots": [
            {
                "snapshot-id": number,
                "parent-snapshot-id": number - 1 or None,
                "timestamp-ms": number,
                "summary": {"operation": "append", **summary},
            }
            for number, summary in enumerate(summaries, start=1)
        ],
        "current-snapshot-id": len(summaries),
    }
    return TableMetadata.parse("media.weekly", "m", json.dumps(raw).encode())
