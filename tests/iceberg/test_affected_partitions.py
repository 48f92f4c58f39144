"""Partitions that a change touches, by the names that Iceberg gives partition fields in manifests."""

from __future__ import annotations

import json

import pytest

from dagster_ips.core.change_set import ChangeSet, DataFile
from dagster_ips.iceberg.affected_partitions import affected_partitions
from dagster_ips.iceberg.metadata import TableMetadata


def table(column: str) -> TableMetadata:
    """A table partitioned by the bucket of a column of this name."""
    field = {"id": 1, "name": column, "type": "long", "required": False}
    partition = {"name": f"{column}_bucket", "transform": "bucket[8]", "source-id": 1, "field-id": 1000}
    raw = {
        "format-version": 2,
        "table-uuid": "u",
        "location": "file:///lake",
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [field]}],
        "partition-specs": [{"spec-id": 0, "fields": [partition]}],
        "default-spec-id": 0,
    }
    return TableMetadata.parse("media.plays", "file:///lake", json.dumps(raw).encode())


def file(partition: dict[str, int]) -> DataFile:
    return DataFile("file:///lake/1.parquet", 0, 1, 1, partition)


@pytest.mark.parametrize(
    ("column", "written"),
    [
        ("at", "at_bucket"),
        ("a-b", "a_x2Db_bucket"),
        ("2nd", "_2nd_bucket"),
        ("tag😀", "tag_xD83D_xDE00_bucket"),
        ("m²", "m_xB2_bucket"),
        ("größe", "größe_bucket"),
    ],
)
def test_a_partition_is_known_by_the_name_that_java_writes(column: str, written: str) -> None:
    found = affected_partitions(ChangeSet((file({written: 3}),)), table(column))
    assert found
    assert found.values == {(3,)}


def test_a_partition_under_an_unknown_name_is_unknown_and_not_null() -> None:
    assert affected_partitions(ChangeSet((file({"other": 3}),)), table("at")) is None
