"""Rows purged from a source are gone from every ICDC table of it, and a purge can pass without reprocessing."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline

PERSON = "a1"


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.append(remove_on=["event_date", "event_id"]) | ips.table("media.watched", partition_by=["event_date"]),
)
def watched(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@pytest.fixture
def consumed(lake: Lake, instance: dg.DagsterInstance) -> dg.Definitions:
    """A person's rows were appended and changed, each change was captured, and the ICDC tables still exist."""
    lake.create_playback(events(range(10)))
    definitions = pipeline(lake.folder, lake.spark_folder, watched, icdc_keep_last=10)
    materialize(definitions, instance, "watched")
    lake.append(events(range(10, 20), day=1))
    materialize(definitions, instance, "watched")
    lake.sql(f"UPDATE lake.media.playback SET seconds = 100 WHERE account = '{PERSON}' AND event_id < 5").collect()
    materialize(definitions, instance, "watched")
    return definitions


def delete(lake: Lake) -> None:
    lake.sql(f"DELETE FROM lake.media.playback WHERE account = '{PERSON}'").collect()


def rewrite_and_expire(lake: Lake) -> None:
    """Makes a deletion final: rewrites all data files and expires the old snapshots."""
    rewrite = "CALL lake.system.rewrite_data_files(table => 'media.playback', options => map('rewrite-all', 'true'))"
    lake.sql(rewrite).collect()
    lake.sql("CALL lake.system.expire_snapshots('media.playback', TIMESTAMP '2100-01-01')").collect()


def data_files_with_the_person(lake: Lake) -> list[Path]:
    files = (lake.folder / "warehouse").rglob("*.parquet")
    return [path for path in files if PERSON in pq.read_table(path).column("account").to_pylist()]


def test_purged_rows_are_in_no_data_file_and_reading_their_capture_says_which_file_is_gone(
    lake: Lake, instance: dg.DagsterInstance, consumed: dg.Definitions
) -> None:
    captures = [".".join(name) for name in lake.catalog.client.list_tables("ips")]
    held = {path.name for path in data_files_with_the_person(lake) if "/playback/" in str(path)}
    assert len(captures) == 3
    assert held

    delete(lake)
    rewrite_and_expire(lake)

    assert not [path for path in data_files_with_the_person(lake) if "/playback/" in str(path)]
    for table in captures:
        with pytest.raises(Exception, match=r"\.parquet") as said:
            lake.rows(table)
        assert any(name in str(said.value) for name in held)
    # Downstream it takes a full run, like any other.
    with pytest.raises(ips.IpsError, match="expired"):
        materialize(consumed, instance, "watched")
    materialize(consumed, instance, "watched", tags={"dagster_ips/mode": "full"})
    assert lake.rows("media.watched") == lake.rows("media.playback")


@pytest.mark.slow
def test_a_purge_can_pass_without_reprocessing(
    lake: Lake, instance: dg.DagsterInstance, consumed: dg.Definitions
) -> None:
    before, commits = lake.rows("media.watched"), lake.commits("media.watched")
    delete(lake)
    materialize(consumed, instance, "watched", tags={"dagster_ips/on_removed": "ignore"})
    assert (lake.rows("media.watched"), lake.commits("media.watched")) == (before, commits)

    rewrite_and_expire(lake)
    lake.append(more := events(range(20, 26), day=2))
    materialize(consumed, instance, "watched")
    added = lake.rows("media.watched") - before
    assert added.total() == len(more)
    assert not lake.rows("media.playback") - lake.rows("media.watched")
