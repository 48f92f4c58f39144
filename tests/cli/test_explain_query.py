"""Before anything runs, and without Spark, ``explain`` says what a run of an asset by query would do."""

from __future__ import annotations

import json

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from dagster_ips.query.maintenance_plan import Strategy
from tests.cli.idle_lake import DEFINITIONS, IdleLake
from tests.support.lake import events

BY_QUERY = DEFINITIONS.replace(
    "catalog = ips.",
    """per_account = ips.sql_asset(
    "per_account",
    "SELECT account, count(*) AS plays, max(playback.seconds) AS longest "
    "FROM playback JOIN title USING (account) GROUP BY 1",
    table="media.per_account",
)
longest = ips.sql_asset("longest", "SELECT account, seconds FROM playback WHERE seconds > 3", table="media.longest")
total = ips.sql_asset("total", "SELECT count(DISTINCT account) AS n FROM playback", table="media.total")
title = ips.iceberg_asset("title", table="media.title")
catalog = ips.""",
).replace("[playback, daily]", "[playback, daily, per_account, longest, total, title]")


def test_each_change_of_each_source_is_shown_with_its_strategy_and_the_reason(idle_lake: IdleLake) -> None:
    idle_lake.define(BY_QUERY)
    idle_lake.create_playback(events(range(2)), "media.title")
    told = json.loads(idle_lake.says("explain", "per_account", "--json"))["steps"]
    assert {each["upstream"] for each in told} == {"playback", "title"}
    assert {each["strategy"] for each in told} == {Strategy.COMBINE}
    told = json.loads(idle_lake.says("explain", "longest", "--json"))["steps"]
    assert [(each["change"], each["strategy"]) for each in told] == [
        ("rows are inserted", "append"),
        ("rows are updated or deleted", "keys"),
    ]
    text = idle_lake.says("explain", "total")
    assert "playback: rows are inserted\n  full, because: " in text
    assert "an aggregate without GROUP BY is a single row" in text


def test_each_source_has_its_own_columns_whatever_the_order_of_their_names(idle_lake: IdleLake) -> None:
    joined = "SELECT title.genre, playback.seconds FROM title JOIN playback ON title.account = playback.account"
    idle_lake.define(BY_QUERY.replace("SELECT account, seconds FROM playback WHERE seconds > 3", joined))
    columns = Schema(NestedField(1, "account", StringType()), NestedField(2, "genre", StringType()))
    idle_lake.catalog.client.create_table("media.title", columns)
    told = json.loads(idle_lake.says("explain", "longest", "--json"))["steps"]
    assert [(each["upstream"], each["strategy"]) for each in told] == [
        ("title", "append"),
        ("title", "keys"),
        ("playback", "append"),
        ("playback", "keys"),
    ]


def test_an_asset_that_is_not_by_query_is_refused(idle_lake: IdleLake) -> None:
    idle_lake.define(BY_QUERY)
    refused = idle_lake.run("explain", "daily")
    assert refused.exit_code == 1
    assert "daily isn't declared by a query" in refused.stderr
    assert "pass the run's id" in refused.stderr


def test_a_source_whose_table_does_not_exist_yet_is_named(idle_lake: IdleLake) -> None:
    idle_lake.define(BY_QUERY)
    refused = idle_lake.run("explain", "per_account")
    assert refused.exit_code == 1
    assert "whose table media.title doesn't exist yet" in refused.stderr
    assert "Materialize title first" in refused.stderr
