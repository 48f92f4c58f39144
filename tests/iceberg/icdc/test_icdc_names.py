"""An ICDC table is located beside its source, in the same storage and never inside the source's folder."""

from __future__ import annotations

import pytest

from dagster_ips.errors import UnsupportedTableError
from dagster_ips.iceberg.icdc.icdc_names import location
from dagster_ips.iceberg.metadata import TableMetadata


def at(place: str) -> TableMetadata:
    return TableMetadata("media.playback", "v1.metadata.json", {"location": place})


@pytest.mark.parametrize("beside", ["s3://bucket", "s3://bucket/a b#1", "file://", "file:", ""])
def test_an_icdc_table_is_located_in_a_folder_beside_its_source(beside: str) -> None:
    for end in ("", "/"):
        assert location(at(f"{beside}/playback{end}"), "ips.t") == f"{beside}/_ips/t"


@pytest.mark.parametrize("root", ["s3://bucket", "s3://bucket/", "file:///", "/"])
def test_a_source_that_is_a_whole_bucket_is_refused(root: str) -> None:
    with pytest.raises(UnsupportedTableError, match="Move the table into a folder"):
        location(at(root), "ips.t")


@pytest.mark.parametrize(
    ("table", "under"),
    [
        ("s3://bucket/playback", "s3://bucket/playback/icdc/"),
        ("s3://bucket/playback", "s3a://bucket/playback"),
        ("s3n://bucket/playback/", "s3://bucket/playback/icdc"),
        ("file:///lake/playback", "/lake/playback/icdc"),
        ("file:/lake/playback", "file:///lake/playback/icdc"),
    ],
)
def test_a_location_inside_the_source_is_refused_however_it_is_spelled(table: str, under: str) -> None:
    with pytest.raises(UnsupportedTableError, match="isn't inside a table"):
        location(at(table), "ips.t", under=under)


@pytest.mark.parametrize(
    "under", ["s3://bucket/playback_icdc", "s3://other/playback", "gs://bucket/playback", "/playback"]
)
def test_a_location_outside_of_the_source_is_taken_as_it_is(under: str) -> None:
    assert location(at("s3://bucket/playback"), "ips.t", under=under) == f"{under}/_ips/t"
