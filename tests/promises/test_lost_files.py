"""A data file that can't be read is named in the error, with its table and what to do; no row is lost."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import FilesGoneError, IcdcTableGoneError, SnapshotGoneError
from tests.support.lake import Lake, events
from tests.support.pipeline import expected_agg, materialize, pipeline
from tests.support.variants import mostly_slow


def newest_data_file(lake: Lake, table: str) -> str:
    query = f"SELECT data_file.file_path FROM lake.{table}.entries ORDER BY sequence_number DESC LIMIT 1"
    (row,) = lake.sql(query).collect()
    location: str = row[0]
    return location


@pytest.mark.parametrize("damage", mostly_slow(["missing", "empty", "cut short"]))
def test_a_data_file_that_cannot_be_read_is_named_and_the_run_can_be_repeated_once_it_is_back(
    lake: Lake, instance: dg.DagsterInstance, damage: str
) -> None:
    rows = events(range(40))
    lake.create_playback(rows)
    definitions = pipeline(lake.folder, lake.spark_folder)
    materialize(definitions, instance, "daily", "agg")
    lake.append(more := events(range(40, 60)))
    storage, file = lake.catalog.storage, newest_data_file(lake, "media.playback")
    content = storage.read(file, table="media.playback")
    storage.delete(file, table="media.playback")
    if damage != "missing":
        storage.write(file, b"" if damage == "empty" else content[:-40], table="media.playback")
    with pytest.raises(FilesGoneError) as raised:
        materialize(definitions, instance, "daily")
    assert file.rpartition("/")[2] in str(raised.value)
    assert raised.value.table == "media.playback"
    storage.delete(file, table="media.playback")
    storage.write(file, content, table="media.playback")
    materialize(definitions, instance, "daily", "agg")
    assert lake.rows("media.agg") == expected_agg(rows + more)


def written(copied: Callable[[ips.IcdcView], DataFrame]) -> dg.AssetsDefinition:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.copied"))
    def asset(playback: ips.IcdcView) -> DataFrame:
        return copied(playback)

    return asset


def yielded(copied: Callable[[ips.IcdcView], DataFrame]) -> dg.AssetsDefinition:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.copied"))
    def asset(playback: ips.IcdcView):  # noqa: ANN202  # a generator of Dagster's results
        yield dg.Output(copied(playback))

    return asset


@pytest.mark.parametrize("kind", [written, yielded])
def test_a_missing_data_file_is_named_if_the_assets_own_function_reads_it(
    lake: Lake, instance: dg.DagsterInstance, kind: Callable[..., dg.AssetsDefinition]
) -> None:
    def copied(playback: ips.IcdcView) -> DataFrame:
        rows = playback.added
        assert rows.count() == rows.where("seconds >= 0").count()
        return rows

    lake.create_playback(events(range(6)))
    file = newest_data_file(lake, "media.playback")
    lake.catalog.storage.delete(file, table="media.playback")
    definitions = pipeline(lake.folder, lake.spark_folder, kind(copied))
    with pytest.raises(FilesGoneError) as raised:
        materialize(definitions, instance, "asset")
    head = lake.catalog.load("media.playback", asset="test").head_snapshot_id()
    assert f"media.playback, captured at snapshot {head}: its data file" in str(raised.value)
    assert file.rpartition("/")[2] in str(raised.value)


@pytest.mark.everywhere
@pytest.mark.parametrize("where", mostly_slow(["in the function", "as it is written"]))
def test_a_run_whose_icdc_table_was_dropped_names_it_and_says_what_to_do(
    lake: Lake, instance: dg.DagsterInstance, where: str
) -> None:
    dropped = []

    def copied(playback: ips.IcdcView) -> DataFrame:
        if not dropped:
            dropped.append(playback.icdc_table)
            lake.catalog.client.drop_table(playback.icdc_table)
        rows = playback.added
        assert where == "as it is written" or rows.count() > 0
        return rows

    lake.create_playback(rows := events(range(6)))
    definitions = pipeline(lake.folder, lake.spark_folder, written(copied))
    with pytest.raises(IcdcTableGoneError, match=r"of asset captured from playback.*Run asset again") as raised:
        materialize(definitions, instance, "asset")
    assert str(raised.value).startswith(f"{dropped[0]}, which holds what run {raised.value.run_id}")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    materialize(definitions, instance, "asset")
    assert lake.rows("media.copied") == Counter(rows)


def test_a_snapshot_that_a_run_does_not_read_may_expire_while_the_run_works(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    """The captured snapshot expires but its files stay: only ``source``, which the asset doesn't use, would need it."""
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


@pytest.mark.parametrize("read", mostly_slow(["source", "affected", "source in the function", "a lookup"], quick=2))
def test_a_snapshot_that_expires_while_a_run_reads_it_is_named_and_the_next_run_captures_anew(
    lake: Lake, instance: dg.DagsterInstance, read: str
) -> None:
    def expire() -> None:
        if not expired:
            expired.append(lake.catalog.load("media.playback", asset="test").head_snapshot_id())
            lake.append(more)
            retained = "older_than => now(), retain_last => 1"
            lake.sql(f"CALL lake.system.expire_snapshots(table => 'media.playback', {retained})").collect()

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.merge(on=["event_id"]) | ips.table("media.copied"))
    def affected(playback: ips.IcdcView) -> DataFrame:
        rows = playback.affected("event_id")
        expire()
        return rows

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.replace() | ips.table("media.copied"))
    def source(playback: ips.IcdcView) -> DataFrame:
        expire()
        assert not read.endswith("function") or playback.source.count()
        return playback.source

    @dg.asset(metadata=ips.table("media.copied"))
    def looked_up(playback: DataFrame) -> DataFrame:
        expire()
        return playback

    lake.create_playback(rows := events(range(6)))
    more, expired = events(range(6, 9)), []
    asset = {"affected": affected, "a lookup": looked_up}.get(read, source)
    definitions = pipeline(lake.folder, lake.spark_folder, asset)
    name = asset.key.to_user_string()
    with pytest.raises(SnapshotGoneError, match=r"media\.playback: its snapshot \d+.*Run it again") as raised:
        materialize(definitions, instance, name)
    assert [raised.value.snapshot_id] == expired
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    materialize(definitions, instance, name)
    assert lake.rows("media.copied") == Counter(rows + more)
