"""The stamp that a run puts on its published snapshot is read back unchanged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg import stamps
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import stamp_properties, target_histories

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
