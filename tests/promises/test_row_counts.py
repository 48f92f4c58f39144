"""A materialization says how many rows its table has, also while deletion vectors hide some."""

from __future__ import annotations

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow

VERSIONS = mostly_slow(["3", "2"])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_row_count_is_that_of_a_reader_whatever_updates_deletes_and_compactions_leave(
    lake: Lake, instance: dg.DagsterInstance, version: str
) -> None:
    """In version 2, a position delete may be left of a file that is gone: then there is no count."""

    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.combine(on=["event_date", "account"], aggregates={"plays": "count(*)"})
        | ips.table("media.counted", partition_by=["event_date"], properties={"format-version": version}),
    )
    def counted(playback: ips.IcdcView) -> DataFrame:
        return playback.weighted

    def compare(*, is_known: bool = True) -> None:
        (made,) = materialize(definitions, instance, "counted").asset_materializations_for_node("counted")
        shown = made.metadata.get("dagster/row_count")
        assert (shown is not None) == is_known
        assert shown is None or shown.value == sum(lake.rows("media.counted").values())

    lake.create_playback(events(range(12)) + events(range(12, 20), day=1))
    definitions = pipeline(lake.folder, lake.spark_folder, counted)
    compare()
    hides = version == "3"
    for delete in ("event_id % 5 = 0", "account = 'a1'", "event_date = '2026-01-02'"):
        lake.append(events(range(30, 34)) + events(range(40, 43), day=2))
        lake.sql(f"DELETE FROM lake.media.playback WHERE {delete}")
        compare(is_known=hides)
        if "account" in delete:
            options = "options => map('rewrite-all', 'true')"
            lake.sql(f"CALL lake.system.rewrite_data_files(table => 'media.counted', {options})").collect()
