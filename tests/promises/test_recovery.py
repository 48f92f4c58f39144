"""Lost or old cursors, and targets that others changed, are recognized, and the advised remedies work."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.errors import ForeignWriteError, IpsError, TargetChangedError, UnknownRowsError
from dagster_ips.exactly_once.effects import Effect
from tests.support.kinds import run_killed
from tests.support.lake import Lake, events
from tests.support.pipeline import expected_agg, expected_daily, materialize, pipeline

Cursors = list[tuple[str, str]]
STATES = ["consumed", "in flight, not published", "in flight, published", "consumed, and then nothing twice"]


def cursors(instance: dg.DagsterInstance) -> Cursors:
    with sqlite3.connect(Path(instance.root_directory) / "history" / "runs.db") as database:
        return database.execute("SELECT key, value FROM kvs WHERE key LIKE 'dagster_ips:asset:%'").fetchall()


def set_cursors(instance: dg.DagsterInstance, values: Cursors) -> None:
    """Set the cursors as restoring a backup of Dagster's database does."""
    with sqlite3.connect(Path(instance.root_directory) / "history" / "runs.db") as database:
        database.execute("DELETE FROM kvs WHERE key LIKE 'dagster_ips:asset:%'")
        database.executemany("INSERT INTO kvs (key, value) VALUES (?, ?)", values)


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_deleted_cursors_are_rebuilt_and_no_row_is_duplicated_or_lost(
    lake: Lake, instance: dg.DagsterInstance, state: str
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    rows = events(range(12))
    lake.create_playback(rows)
    materialize(definitions, instance, "daily", "agg")
    commits = lake.commits("media.daily")
    if state.startswith("in flight"):
        late = events(range(12, 15), day=1)
        lake.append(late)
        rows = rows + late
        kill = f"{'before' if 'not' in state else 'after'}:{Effect.PUBLISH}"
        run_killed(instance.root_directory, lake, "daily", at=kill, of=pipeline)
        commits += 1
    elif "nothing twice" in state:
        materialize(definitions, instance, "daily", "agg")
        materialize(definitions, instance, "daily", "agg")
    assert cursors(instance)
    set_cursors(instance, [])

    materialize(definitions, instance, "daily", "agg")
    assert lake.rows("media.daily") == expected_daily(rows)
    assert lake.commits("media.daily") == commits
    late = events(range(20, 24), day=2)
    lake.append(late)
    result = materialize(definitions, instance, "daily", "agg")
    assert {e.materialization.metadata["mode"].value for e in result.get_asset_materialization_events()} == {
        "incremental"
    }
    assert lake.rows("media.daily") == expected_daily(rows + late)
    assert lake.rows("media.agg") == expected_agg(rows + late)


def test_cursors_from_a_backup_catch_up_with_what_was_published_since(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    rows = events(range(6))
    lake.create_playback(rows)
    materialize(definitions, instance, "daily", "agg")
    backup = cursors(instance)
    late = events(range(6, 9), day=1)
    lake.append(late)
    materialize(definitions, instance, "daily", "agg")
    set_cursors(instance, backup)
    later = events(range(9, 12), day=2)
    lake.append(later)
    result = materialize(definitions, instance, "daily", "agg")
    (daily, _) = result.get_asset_materialization_events()
    assert daily.materialization.metadata["rows captured"].value == 3
    assert lake.rows("media.daily") == expected_daily(rows + late + later)
    assert lake.rows("media.agg") == expected_agg(rows + late + later)


def roll_back(lake: Lake) -> None:
    first = lake.sql("SELECT snapshot_id FROM lake.media.daily.history ORDER BY made_current_at").first()
    assert first
    lake.sql(f"CALL lake.system.rollback_to_snapshot('media.daily', {first[0]})")


def create_again(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.media.kept AS SELECT * FROM lake.media.daily WHERE event_id < 5")
    lake.sql("DROP TABLE lake.media.daily")
    lake.sql("CREATE TABLE lake.media.daily PARTITIONED BY (event_date) AS SELECT * FROM lake.media.kept")


def replace(lake: Lake) -> None:
    lake.sql(
        "CREATE OR REPLACE TABLE lake.media.daily USING iceberg PARTITIONED BY (event_date) AS "
        "SELECT * FROM lake.media.playback JOIN (SELECT BIGINT(0) AS minutes) WHERE event_id < 5"
    )


def cherry_pick_after_rollback(lake: Lake) -> None:
    last = lake.catalog.load("media.daily", asset="test").head_snapshot_id()
    roll_back(lake)
    lake.sql("INSERT INTO lake.media.daily SELECT * FROM lake.media.daily LIMIT 1")
    lake.sql(f"CALL lake.system.cherrypick_snapshot('media.daily', {last})")


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        pytest.param(create_again, UnknownRowsError, marks=pytest.mark.slow),
        (replace, TargetChangedError),
        pytest.param(cherry_pick_after_rollback, ForeignWriteError, marks=pytest.mark.slow),
    ],
)
def test_a_target_that_others_replaced_or_wrote_is_refused_and_the_advice_repairs_it(
    lake: Lake, instance: dg.DagsterInstance, change: Callable[[Lake], None], refused: type[IpsError]
) -> None:
    definitions, rows = two_rounds(lake, instance)
    change(lake)
    late = events(range(12, 14), day=2)
    lake.append(late)
    before = cursors(instance)
    with pytest.raises(refused) as raised:
        materialize(definitions, instance, "daily")
    assert cursors(instance) == before

    told = re.findall(r"dagster-ips run (\S+) --full; or .*? with the run tag (\S+)=(\w+)", str(raised.value))
    asset, tag, value = told[0]
    materialize(definitions, instance, asset, tags={tag: value})
    assert lake.rows("media.daily") == expected_daily(rows + late)
    lake.append(events([14], day=2))
    materialize(definitions, instance, "daily")
    assert lake.rows("media.daily") == expected_daily(rows + late + events([14], day=2))


def compact(lake: Lake) -> None:
    lake.sql("CALL lake.system.rewrite_data_files('media.daily', options => map('rewrite-all', 'true'))")


def expire(lake: Lake) -> None:
    compact(lake)
    lake.sql("CALL lake.system.expire_snapshots(table => 'media.daily', older_than => now(), retain_last => 1)")


def expire_by_pyiceberg(lake: Lake) -> None:
    compact(lake)
    table = lake.catalog.client.load_table("media.daily")
    kept = {ref.snapshot_id for ref in table.refs().values()}
    gone = [entry.snapshot_id for entry in table.history() if entry.snapshot_id not in kept]
    table.maintenance.expire_snapshots().by_ids(gone).commit()


def cherry_pick_a_staged_append(lake: Lake) -> None:
    lake.sql("ALTER TABLE lake.media.daily SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    lake.session.conf.set("spark.wap.id", "staged")
    lake.sql("INSERT INTO lake.media.daily SELECT * FROM lake.media.daily WHERE FALSE")
    lake.session.conf.unset("spark.wap.id")
    lake.sql("ALTER TABLE lake.media.daily UNSET TBLPROPERTIES ('write.wap.enabled')")
    lake.sql("CALL lake.system.publish_changes('media.daily', 'staged')")


@pytest.mark.slow
@pytest.mark.parametrize("change", [compact, expire, expire_by_pyiceberg, cherry_pick_a_staged_append])
def test_runs_continue_on_a_target_that_others_maintain(
    lake: Lake, instance: dg.DagsterInstance, change: Callable[[Lake], None]
) -> None:
    definitions, rows = two_rounds(lake, instance)
    change(lake)
    late = events(range(12, 14), day=2)
    lake.append(late)
    result = materialize(definitions, instance, "daily")
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["mode"].value == "incremental"
    assert lake.rows("media.daily") == expected_daily(rows + late)


def two_rounds(lake: Lake, instance: dg.DagsterInstance) -> tuple[dg.Definitions, list[tuple]]:
    definitions = pipeline(lake.folder, lake.spark_folder)
    rows = events(range(6)) + events(range(6, 9), day=1)
    lake.create_playback(rows)
    materialize(definitions, instance, "daily")
    late = events(range(9, 12), day=1)
    lake.append(late)
    materialize(definitions, instance, "daily")
    return definitions, rows + late
