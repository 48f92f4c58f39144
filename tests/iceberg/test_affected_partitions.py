"""Partitions that a change touches, by the names that Iceberg gives partition fields in manifests."""

from __future__ import annotations

import json

import pytest

from dagster_ips.core.change_set import ChangeSet, DataFile
from dagster_ips.iceberg.affected_partitions import affected_partitions
from dagster_ips.iceberg.metadata import TableMetadata


def table(column: str, kind: str = "long", transform: str = "bucket[8]") -> TableMetadata:
    """A table partitioned by the bucket of a column of this name."""
    field = {"id": 1, "name": column, "type": kind, "required": False}
    partition = {"name": f"{column}_bucket", "transform": transform, "source-id": 1, "field-id": 1000}
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


def file(partition: dict[str, object]) -> DataFile:
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


def test_buckets_of_a_uuid_are_unknown_as_spark_would_compute_those_of_its_text() -> None:
    assert affected_partitions(ChangeSet((file({"id_bucket": 3}),)), table("id", "uuid")) is None


def test_a_decimal_keeps_all_of_its_digits() -> None:
    digits = 1329227995784915872903807060280356921
    changed = ChangeSet((file({"d_bucket": digits.to_bytes(16, "big", signed=True)}),))
    found = affected_partitions(changed, table("d", "decimal(38, 0)", "identity"))
    assert found
    assert found.predicate("lake") == f"((`d` = {digits}BD))"
