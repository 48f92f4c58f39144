"""Rows removed from an upstream, and no others, are removed from every target, however the target is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.errors import RemovedRowsError, UnfitFrameError
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline

PER_ACCOUNT = ["event_date", "account"]


def per_account(rows: DataFrame) -> DataFrame:
    return rows.groupBy(*PER_ACCOUNT).agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


def long_days(rows: DataFrame) -> DataFrame:
    """Groups with 2 or 3 plays: a group can drop out by growing as well as by shrinking."""
    return per_account(rows).where("plays BETWEEN 2 AND 3")


def in_minutes(rows: DataFrame) -> DataFrame:
    return rows.withColumn("minutes", F.floor(F.col("seconds") / 60))


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.append(remove_on=["event_date", "event_id"])
    | ips.table("media.appended", partition_by=["event_date"]),
)
def appended(playback: ips.IcdcView) -> DataFrame:
    return in_minutes(playback.added)


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.merge(on=["event_date", "event_id"]) | ips.table("media.merged", partition_by=["event_date"]),
)
def merged(playback: ips.IcdcView) -> DataFrame:
    return in_minutes(playback.added)


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.merge(on=PER_ACCOUNT) | ips.table("media.grouped", partition_by=["event_date"]),
)
def grouped(playback: ips.IcdcView) -> DataFrame:
    return per_account(playback.affected(*PER_ACCOUNT))


@dg.asset(ins={"playback": ips.incremental()}, metadata=ips.merge(on=PER_ACCOUNT) | ips.table("media.filtered"))
def filtered(playback: ips.IcdcView) -> DataFrame:
    return long_days(playback.affected("account"))


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.overwrite_partitions() | ips.table("media.by_scope", partition_by=["event_date"]),
)
def by_scope(playback: ips.IcdcView) -> DataFrame:
    return per_account(playback.scope)


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.overwrite_partitions() | ips.table("media.by_date", partition_by=["event_date"]),
)
def by_date(playback: ips.IcdcView) -> DataFrame:
    return per_account(playback.affected("event_date"))


@dg.asset(ins={"grouped": ips.incremental()}, metadata=ips.merge(on=["event_date"]) | ips.table("media.second"))
def second(grouped: ips.IcdcView) -> DataFrame:
    return grouped.affected("event_date").groupBy("event_date").agg(F.sum("plays").alias("plays"))


ASSETS = (appended, merged, grouped, filtered, by_scope, by_date, second)
STEPS = {
    "a deleted row": "DELETE FROM {t} WHERE event_id = 4",
    "a deleted day": "DELETE FROM {t} WHERE event_date = DATE '2026-01-02'",
    "an update": "UPDATE {t} SET seconds = seconds + 100 WHERE account = 'a1'",
    "a row that moves to another day": "UPDATE {t} SET event_date = DATE '2026-01-03' WHERE event_id = 3",
    "a row that moves to another account": "UPDATE {t} SET account = 'b' WHERE event_id IN (6, 7)",
    "an account that is null": "UPDATE {t} SET account = NULL WHERE event_id = 8",
    "a merge": """MERGE INTO {t} t USING (SELECT * FROM VALUES (1, 50), (99, 60) AS s(id, s)) s ON t.event_id = s.id
        WHEN MATCHED THEN UPDATE SET seconds = s.s
        WHEN NOT MATCHED THEN INSERT (event_id, event_date, account, seconds)
            VALUES (s.id, DATE '2026-01-01', 'new', s.s)""",
    "an overwritten day": "INSERT OVERWRITE {t} SELECT 70 + id, DATE '2026-01-01', 'a0', 7 FROM range(3)",
    "a compaction": """CALL lake.system.rewrite_data_files(
        table => 'media.playback', options => map('rewrite-all', 'true'))""",
    "everything gone": "DELETE FROM {t}",
    "something again": "INSERT INTO {t} VALUES (200, DATE '2026-01-05', 'a9', 9), (201, DATE '2026-01-05', 'a9', 9)",
}
ROUNDS = (
    (
        *("a deleted row", "an update", "a row that moves to another day"),
        *("a row that moves to another account", "an account that is null", "a merge"),
    ),
    ("an overwritten day", "a compaction", "a deleted day"),
    ("everything gone",),
    ("something again",),
)


@pytest.fixture
def mode() -> str:
    """The write mode of the upstream's deletes, updates and merges."""
    return "merge-on-read"


@pytest.fixture
def changing(lake: Lake, mode: str) -> Lake:
    """Two days of events in a table that is changed in ``mode``."""
    lake.create_playback(events(range(10)) + events(range(20, 30), day=1))
    modes = ", ".join(f"'write.{change}.mode'='{mode}'" for change in ("delete", "update", "merge"))
    lake.sql(f"ALTER TABLE lake.media.playback SET TBLPROPERTIES ({modes})")
    lake.session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    return lake


def differences(lake: Lake) -> dict[str, int]:
    """By target, the number of rows that differ from a full recompute; targets without any are left out."""
    playback = lake.sql("SELECT * FROM lake.media.playback")
    groups = per_account(playback)
    expected = {
        "appended": in_minutes(playback),
        "merged": in_minutes(playback),
        "grouped": groups,
        "filtered": long_days(playback),
        "by_scope": groups,
        "by_date": groups,
        "second": groups.groupBy("event_date").agg(F.sum("plays").alias("plays")),
    }
    found = {}
    for name, frame in expected.items():
        table = lake.sql(f"SELECT * FROM lake.media.{name}").select(*frame.columns)
        found[name] = frame.exceptAll(table).unionAll(table.exceptAll(frame)).count()
    return {name: count for name, count in found.items() if count}


def check_rounds(lake: Lake, instance: dg.DagsterInstance, rounds: Iterable[Sequence[str]]) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, *ASSETS)
    names = [asset.key.to_user_string() for asset in ASSETS]
    materialize(definitions, instance, *names)
    for steps in rounds:
        for step in steps:
            lake.sql(STEPS[step].format(t="lake.media.playback")).collect()
        materialize(definitions, instance, *names)
        assert not differences(lake), steps


@pytest.mark.slow
def test_every_target_equals_a_full_recompute_whatever_changed_upstream(
    changing: Lake, instance: dg.DagsterInstance
) -> None:
    check_rounds(changing, instance, ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_every_target_equals_a_full_recompute_after_every_single_change(
    changing: Lake, instance: dg.DagsterInstance
) -> None:
    check_rounds(changing, instance, [[step] for step in STEPS])


def test_rounds_have_every_step() -> None:
    assert sorted(step for steps in ROUNDS for step in steps) == sorted(STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["UPDATE {t} SET seconds = seconds WHERE event_id = 3", STEPS["a compaction"]])
def test_a_change_without_effect_publishes_nothing(
    changing: Lake, instance: dg.DagsterInstance, statement: str
) -> None:
    definitions = pipeline(changing.folder, changing.spark_folder, *ASSETS)
    names = [asset.key.to_user_string() for asset in ASSETS]
    materialize(definitions, instance, *names)
    before = {name: changing.commits(f"media.{name}") for name in names}
    changing.sql(statement.format(t="lake.media.playback")).collect()
    materialize(definitions, instance, *names)
    assert {name: changing.commits(f"media.{name}") for name in names} == before


def test_an_append_without_a_key_refuses_removed_rows_but_not_rows_that_were_only_rewritten(
    changing: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.plain"))
    def plain(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    definitions = pipeline(changing.folder, changing.spark_folder, plain)
    materialize(definitions, instance, "plain")
    changing.sql("UPDATE lake.media.playback SET seconds = seconds WHERE event_id = 3")
    changing.append(events(range(40, 44)))
    materialize(definitions, instance, "plain")
    assert changing.rows("media.plain") == changing.rows("media.playback")
    before = changing.rows("media.plain")
    changing.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    with pytest.raises(RemovedRowsError, match=r"append\(remove_on=\[\.\.\.\]\)"):
        materialize(definitions, instance, "plain")
    assert changing.rows("media.plain") == before
    materialize(definitions, instance, "plain", tags={"dagster_ips/on_removed": "ignore"})
    changing.append(events(range(50, 52)))
    materialize(definitions, instance, "plain")
    assert changing.rows("media.plain") - changing.rows("media.playback") == before - changing.rows("media.playback")
    assert not changing.rows("media.playback") - changing.rows("media.plain")


def test_a_key_that_does_not_identify_a_row_is_found_before_anything_is_removed(
    changing: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()}, metadata=ips.append(remove_on=["account"]) | ips.table("media.by_account")
    )
    def by_account(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    definitions = pipeline(changing.folder, changing.spark_folder, by_account)
    materialize(definitions, instance, "by_account")
    before = changing.rows("media.by_account")
    changing.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    with pytest.raises(RemovedRowsError, match="unclear which of them to remove"):
        materialize(definitions, instance, "by_account")
    assert changing.rows("media.by_account") == before


def test_a_merge_by_keys_that_the_asset_changed_is_refused(changing: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.merge(on=["event_id"]) | ips.table("media.shifted"))
    def shifted(playback: ips.IcdcView) -> DataFrame:
        return playback.added.withColumn("event_id", F.col("event_id") + 1000)

    definitions = pipeline(changing.folder, changing.spark_folder, shifted)
    materialize(definitions, instance, "shifted")
    changing.sql("UPDATE lake.media.playback SET seconds = 77 WHERE event_id = 3")
    with pytest.raises(UnfitFrameError, match="'event_id' of the result isn't playback's own column"):
        materialize(definitions, instance, "shifted")
