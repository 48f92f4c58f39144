"""The README's code runs as it stands."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run_block(text: str) -> dict[str, Any]:
    """What the block defines."""
    defined: dict[str, Any] = {"__name__": "readme"}
    exec(compile(text, str(README), "exec", dont_inherit=True), defined)  # noqa: S102  # that is the test
    return defined


def run_pipeline_block(lake: Lake) -> dict[str, Any]:
    (block,) = [text for text in BLOCKS if "with_incremental" in text]
    here = block.replace('"/data/lake"', repr(str(lake.folder)))
    here = here.replace("LocalSparkConnect()", f"LocalSparkConnect(server_folder={str(lake.spark_folder)!r})")
    assert here.count(str(lake.folder)) == 1
    return run_block(here)


def test_the_pipeline_of_the_readme_works(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = run_pipeline_block(lake)["defs"]
    rows = events(range(10))
    lake.create_playback(rows)
    for late in ([], events(range(10, 15))):
        if late:
            lake.append(late)
        rows = rows + late
        materialize(definitions, instance, "playback_daily", "playback_daily_agg", "report")
        total = lake.sql("SELECT sum(seconds) FROM lake.media.report").collect()[0][0]
        assert total == sum(row[3] for row in rows)


def test_the_patterns_of_the_readme_equal_a_full_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    (block,) = [text for text in BLOCKS if "ips.Overwrite" in text]
    first, more = run_pipeline_block(lake), run_block(block)
    names = ("playback_daily", "account_running_total", "daily_median")
    both = first | more
    definitions = ips.with_incremental(
        dg.Definitions(
            assets=[both[name] for name in ("playback", "account_plan", *names)],
            resources={"io_manager": first["io_manager"]},
        )
    )
    lake.create_playback(events(range(10)) + events(range(10, 16), day=2))
    lake.sql("CREATE TABLE lake.media.account_plan (account string, plan string, valid_on date) USING iceberg")
    for statement in (
        "INSERT INTO lake.media.account_plan VALUES ('a0', 'small', DATE '2026-01-01')",
        "DELETE FROM lake.media.playback WHERE event_id IN (4, 11)",
        "INSERT INTO lake.media.account_plan VALUES ('a1', 'big', DATE '2026-01-02')",
    ):
        lake.sql(statement)
        materialize(definitions, instance, *names)
        plays, plans = lake.session.table("lake.media.playback_daily"), lake.session.table("lake.media.account_plan")
        totals = more["running_totals"](plays, plans)
        assert lake.rows("media.account_running_total") == Counter(tuple(row) for row in totals.collect())
        medians = lake.sql("SELECT event_date, median(seconds) FROM lake.media.playback_daily GROUP BY event_date")
        assert lake.rows("media.daily_median") == Counter(tuple(row) for row in medians.collect())


def test_the_aggregates_of_the_readme_equal_a_full_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    (block,) = [text for text in BLOCKS if "ips.combine" in text]
    both = run_pipeline_block(lake) | run_block(block)
    names = ("playback_daily", "playback_per_account")
    definitions = ips.with_incremental(
        dg.Definitions(
            assets=[both[name] for name in ("playback", *names)], resources={"io_manager": both["io_manager"]}
        )
    )
    lake.create_playback(events(range(10)))
    materialize(definitions, instance, *names)
    lake.append(events(range(10, 16)))
    materialize(definitions, instance, *names)
    expected = lake.sql("""
        SELECT event_date, account, count(*), sum(seconds), avg(seconds), max(seconds), count(*), count(seconds)
        FROM lake.media.playback WHERE seconds > 0 GROUP BY event_date, account
    """)
    columns = "event_date, account, plays, seconds, mean, longest, plays, _ips_count_seconds"
    found = lake.sql(f"SELECT {columns} FROM lake.media.playback_per_account")
    assert sorted(found.collect()) == sorted(expected.collect())


def test_the_assets_of_the_readme_that_wait_for_a_complete_day_run_when_it_is(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    (block,) = [text for text in BLOCKS if "ips.valid_through" in text]
    first, more = run_pipeline_block(lake), run_block(block)
    definitions = ips.with_incremental(
        dg.Definitions(
            assets=[more["playback"], first["playback_daily"], more["mailed_report"], more["best_day"]],
            resources={"io_manager": first["io_manager"]},
        )
    )
    lake.create_playback(events(range(4), day=4) + events(range(4, 8), day=5))
    materialize(definitions, instance, "playback_daily")
    result = dg.evaluate_automation_conditions(definitions, instance)
    assert result.get_requested_partitions(dg.AssetKey("mailed_report")) == {"2026-01-04"}  # the sixth less six hours
    assert result.get_num_requested(dg.AssetKey("best_day")) == 1
    materialize(definitions, instance, "best_day")
    assert sum(lake.rows("media.best_day").values()) == 1


def test_the_statements_of_the_readme_equal_a_full_recompute_and_are_audited(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    (block,) = [text for text in BLOCKS if "ips.capture" in text]
    first, more = run_pipeline_block(lake), run_block(block)
    definitions = ips.with_incremental(
        dg.Definitions(
            assets=[first["playback"], more["by_account"]],
            asset_checks=[more["no_account_has_less_than_no_plays"]],
            resources={"io_manager": first["io_manager"]},
        )
    )
    lake.create_playback(events(range(10)))
    for statement in (
        "INSERT INTO lake.media.playback VALUES (10, DATE '2026-01-02', 'late', 1)",
        "DELETE FROM lake.media.playback WHERE account = 'a1'",
        "UPDATE lake.media.playback SET account = 'a0' WHERE event_id IN (2, 10)",
    ):
        result = materialize(definitions, instance, "by_account")
        audits = [each for each in result.get_asset_check_evaluations() if each.check_name != "pending"]
        assert [each.passed for each in audits] == [True]
        counted = lake.sql("SELECT account, count(*) FROM lake.media.playback GROUP BY account")
        assert lake.rows("media.by_account") == Counter(tuple(row) for row in counted.collect())
        lake.sql(statement)


def test_the_tables_of_one_step_of_the_readme_equal_a_full_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    (block,) = [text for text in BLOCKS if "dg.multi_asset" in text]
    first, more = run_pipeline_block(lake), run_block(block)
    definitions = ips.with_incremental(
        dg.Definitions(assets=[first["playback"], more["sorted_out"]], resources={"io_manager": first["io_manager"]})
    )
    lake.create_playback(events(range(10)))
    for late in range(10, 30, 10):
        materialize(definitions, instance, "plays", "rejected")
        lake.append(events(range(late, late + 10)))
    materialize(definitions, instance, "plays", "rejected")
    assert lake.rows("media.plays") == Counter(row for row in events(range(30)) if row[3] > 0)
    assert lake.rows("media.rejected") == Counter(row for row in events(range(30)) if row[3] == 0)


def test_the_other_catalogs_of_the_readme_can_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "secret-token")
    (block,) = [text for text in BLOCKS if "EnvVar" in text]
    defined = run_block(block)
    resolved = defined["catalog"].process_config_and_initialize()
    spark = resolved.open().spark_configuration()
    assert spark["spark.sql.catalog.prod.type"] == "rest"
    assert spark["spark.sql.catalog.prod.token"] == "secret-token"  # a made-up one
    assert "secret-token" not in repr(resolved)


def test_both_commands_of_the_first_screen_exist() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_proofs_of_the_readme_can_be_declared() -> None:
    (block,) = [text for text in BLOCKS if "ips.proof" in text]
    keys = [key.to_user_string() for check in run_block(block)["checks"] for key in check.check_keys]
    assert keys == ["playback_daily:proof", "playback_daily_agg:proof"]


def test_the_ways_on_for_inputs_that_both_change_work(lake: Lake, instance: dg.DagsterInstance) -> None:
    (block,) = [text for text in BLOCKS if "ips.lookup()" in text and "ips.affected" in text]
    made = run_block(block)
    lake.catalog.create_namespace("media")
    lake.sql(
        "CREATE TABLE lake.media.playback (event_date date, title_id int) USING iceberg PARTITIONED BY (event_date)"
    )
    lake.sql("CREATE TABLE lake.media.title (title_id int, genre string) USING iceberg")
    lake.sql(
        "INSERT INTO lake.media.playback VALUES (DATE'2026-01-01', 1), (DATE'2026-01-01', 2), (DATE'2026-01-02', 1)"
    )
    lake.sql("INSERT INTO lake.media.title VALUES (1, 'news'), (2, 'film')")
    outside = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("playback", "title")]
    manager = run_pipeline_block(lake)["io_manager"]
    assets = [*outside, made["plays_with_genre"], made["plays_per_genre"]]
    definitions = ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))
    for step in ("", "INSERT INTO lake.media.playback VALUES (DATE'2026-01-02', 2)", "DELETE FROM lake.media.title"):
        if step:
            lake.sql(step)
        materialize(definitions, instance, "plays_with_genre", "plays_per_genre")
        joined = "lake.media.playback JOIN lake.media.title USING (title_id)"
        expected = lake.sql(f"SELECT event_date, genre, count(*) FROM {joined} GROUP BY 1, 2").collect()
        assert lake.rows("media.plays_per_genre") == Counter(tuple(row) for row in expected)
    assert sum(lake.rows("media.plays_with_genre").values()) == 4
