"""The summary of a run says what the run read: less than a full read only if it read nothing beside the change."""

from __future__ import annotations

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.pipeline import materialize

PLAYBACK = {"playback": ips.incremental(ranges=["event_date"])}


@dg.asset(ins=PLAYBACK, metadata=ips.append(remove_on=["event_id"]) | ips.table("media.kept"))
def kept(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@dg.asset(ins=PLAYBACK, metadata=ips.replace() | ips.table("media.everything"))
def everything(playback: ips.IcdcView) -> DataFrame:
    return playback.source


@dg.asset(ins=PLAYBACK, metadata=ips.table("media.recomputed"))
def recomputed(playback: ips.IcdcView) -> ips.Overwrite:
    day = playback.range("event_date")
    where = "TRUE" if day.lowest is None else f"event_date >= DATE '{day.lowest}'"
    return ips.Overwrite(playback.source.where(where), where=where)


@dg.asset(ins=PLAYBACK, metadata=ips.merge(on=["account"]) | ips.table("media.sums"))
def sums(playback: ips.IcdcView) -> DataFrame:
    return playback.affected("account").groupBy("account").agg(F.sum("seconds").alias("seconds"))


long_plays = ips.sql_asset(
    "long_plays", "SELECT event_id, seconds FROM playback WHERE seconds > 10", metadata=ips.table("media.long_plays")
)
longest = ips.sql_asset(
    "longest",
    "SELECT account, max(seconds) AS most FROM playback GROUP BY account",
    metadata=ips.table("media.longest"),
    refresh="full",
)
READS = {
    "kept": None,
    "everything": "unchanged rows",
    "recomputed": "unchanged rows",
    "sums": "the unchanged rows of each account",
    "long_plays": None,
    "longest": "unchanged rows",
}


def test_the_summary_claims_less_than_a_full_read_only_for_the_change_alone(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    playback = ips.iceberg_asset("playback", table="media.playback")
    assets = [playback, kept, everything, recomputed, sums, long_plays, longest]
    definitions = definitions_on(lake.folder, lake.spark_folder, *assets)

    def summary(asset: str) -> str:
        (made,) = materialize(definitions, instance, asset).asset_materializations_for_node(asset)
        return str(made.metadata["summary"].value)

    lake.create_playback(events(range(40)))
    materialize(definitions, instance, *READS)
    lake.append(events(range(40, 42), day=1))
    for asset, beside in READS.items():
        said = summary(asset)
        assert ("less than a full read" in said) == (beside is None), said
        assert beside is None or beside in said, said
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    assert "**0.0% less than a full read**" in summary("kept"), "the file was rewritten, and is read in both versions"
