"""Models of a dbt project follow their sources and equal the result of dbt's full refresh."""

from __future__ import annotations

import dagster as dg

import dagster_ips as ips
from dagster_ips.orchestration.declare.maintained_rows import REFRESH
from tests.support.dbt_manifest import manifest, model, seed, source
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.pipeline import materialize

STAGED = "select event_id, event_date, account, seconds from media.playback where seconds <> 5 -- not these"
DAILY = """
with genres as ( select account, genre from media.genres ), plays as (select * from media.stg_plays)
select event_date, genre, count(*) as plays, sum(seconds) as seconds
from plays join genres using (account) group by event_date, genre
"""
TOTALS = "select genre, sum(seconds) as seconds from media.daily_by_genre group by genre"


def test_a_project_with_a_view_follows_late_updated_and_deleted_rows(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(12)))
    lake.sql("CREATE TABLE lake.media.genres AS SELECT 'a0' AS account, 'news' AS genre UNION ALL SELECT 'a1', 'film'")
    models = ips.dbt_models(
        manifest(
            source("landing", "playback", "media.playback"),
            seed("genres"),
            model("stg_plays", STAGED, materialized="view"),
            model("daily_by_genre", DAILY, partition_by=["event_date"], tblproperties={"team": "viewing"}),
            model("totals", TOTALS, materialized="table"),
        ),
        refresh="incremental",  # for tables this small, a full run costs less
    )
    definitions = definitions_on(lake.folder, lake.spark_folder, *models.assets, *models.tables)
    daily = DAILY.replace("media.stg_plays", f"({STAGED}\n)").replace("media.", "lake.media.")

    def follow() -> str:
        result = materialize(definitions, instance, "daily_by_genre", "totals")
        made = "SELECT event_date, genre, plays, seconds FROM lake.media.daily_by_genre"
        assert sorted(lake.sql(made).collect()) == sorted(lake.sql(daily).collect())
        totals = TOTALS.replace("media.", "lake.media.")
        assert sorted(lake.sql("SELECT genre, seconds FROM lake.media.totals").collect()) == sorted(
            lake.sql(totals).collect()
        )
        (one,) = result.asset_materializations_for_node("daily_by_genre")
        return str(one.metadata[REFRESH].value)

    assert follow() == "full"
    assert lake.catalog.load("media.daily_by_genre", asset="test").properties["team"] == "viewing"
    lake.append(events(range(12, 20)))
    lake.append(events(range(20, 23), day=1))
    assert follow() == "combine"
    lake.sql("DELETE FROM lake.media.playback WHERE event_id < 4")
    lake.sql("UPDATE lake.media.genres SET genre = 'music' WHERE account = 'a1'")
    assert follow() == "combine"
