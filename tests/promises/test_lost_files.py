"""A data file that can't be read is named, with its table and the way on; nothing is lost by it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import FilesGoneError
from tests.support.lake import Lake, events
from tests.support.pipeline import expected_agg, materialize, pipeline


def newest_data_file(lake: Lake, table: str) -> Path:
    query = f"SELECT data_file.file_path FROM lake.{table}.entries ORDER BY sequence_number DESC LIMIT 1"
    (row,) = lake.sql(query).collect()
    return Path(urlsplit(row[0]).path)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut short"])
def test_a_data_file_that_cannot_be_read_is_named_and_the_run_can_be_repeated_once_it_is_back(
    lake: Lake, instance: dg.DagsterInstance, damage: str
) -> None:
    rows = events(range(40))
    lake.create_playback(rows)
    definitions = pipeline(lake.folder, lake.spark_folder)
    materialize(definitions, instance, "daily", "agg")
    lake.append(more := events(range(40, 60)))
    path = newest_data_file(lake, "media.playback")
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(b"" if damage == "empty" else content[:-40])
    with pytest.raises(FilesGoneError) as raised:
        materialize(definitions, instance, "daily")
    assert path.name in str(raised.value)
    assert raised.value.table == "media.playback"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    materialize(definitions, instance, "daily", "agg")
    assert lake.rows("media.agg") == expected_agg(rows + more)


def test_what_a_run_does_not_read_may_expire_while_it_works(lake: Lake, instance: dg.DagsterInstance) -> None:
    """The captured snapshot goes and none of its files: only ``source``, which nobody asks for, would need it."""
    lake.create_playback(rows := events(range(6)))
    later = events(range(9, 12))

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.copied"))
    def copied(playback: ips.IcdcView) -> DataFrame:
        added = playback.added
        if playback.stats.rows == 3 and later[0] not in lake.rows("media.playback"):
            lake.append(later)
            lake.sql(
                "CALL lake.system.expire_snapshots(table => 'media.playback', older_than => now(), retain_last => 1)"
            ).collect()
        return added

    definitions = pipeline(lake.folder, lake.spark_folder, copied)
    materialize(definitions, instance, "copied")
    lake.append(more := events(range(6, 9)))
    materialize(definitions, instance, "copied")
    assert lake.rows("media.copied") == Counter(rows + more)
    materialize(definitions, instance, "copied")
    assert lake.rows("media.copied") == Counter(rows + more + later)
