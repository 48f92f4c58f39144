"""A table's row count is shown where its metadata tells it, and never guessed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.platform.table_metadata import row_count
from tests.iceberg.sources import TABLE, Source, numbered


def with_deletes(tmp_path: Path, *, version: int, hidden: str, more: dict[str, Any], **summary: str) -> TableMetadata:
    """A table of five rows, as if delete files hid some: its only snapshot has ``more`` fields."""
    source = Source(tmp_path)
    source.append(numbered(1, 2, 3, 4, 5))
    found = source.lake.load(TABLE, asset="test")
    (snapshot,) = found.raw["snapshots"]
    counts = {"total-records": "5", "total-delete-files": "1", "total-position-deletes": hidden}
    said = snapshot["summary"] | counts | {"total-equality-deletes": "0"} | summary
    return replace(
        found, raw={**found.raw, "format-version": version, "snapshots": [snapshot | more | {"summary": said}]}
    )


@pytest.mark.parametrize(
    ("version", "more", "summary", "count"),
    [
        (3, {"first-row-id": 0}, {}, {"dagster/row_count": 3}),
        (3, {"first-row-id": 0}, {"total-equality-deletes": "1"}, {}),
        (3, {}, {}, {}),
        (2, {}, {}, {}),
        (2, {}, {"total-delete-files": "0"}, {"dagster/row_count": 5}),
    ],
    ids=["vectors", "equality deletes", "deletes from before version 3", "version 2", "no deletes"],
)
def test_the_row_count_leaves_out_hidden_rows_only_if_each_is_in_one_vector(
    tmp_path: Path, version: int, more: dict[str, Any], summary: dict[str, str], count: dict[str, int]
) -> None:
    table = with_deletes(tmp_path, version=version, hidden="2", more=more, **summary)
    head = table.ancestry().head
    assert head is not None
    assert row_count(table, head) == count
