"""The README and the pages of docs/ are right: their code runs, and nothing is missing."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest
from dagster_shared.cli import dg_workspace_options
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.cli.main import main
from dagster_ips.exactly_once.capture.unread_history import needs_of_others
from dagster_ips.orchestration.automate.hygiene import HygieneConfig
from tests.iceberg.sources import TABLE, Source, numbered
from tests.support.dbt_manifest import manifest
from tests.support.lake import Lake, events
from tests.support.partitioned import SENSOR, key, run
from tests.support.pipeline import materialize

ROOT = Path(__file__).parents[1]
PAGES = {"README": ROOT / "README.md"} | {page.stem: page for page in sorted((ROOT / "docs").glob("*.md"))}


def blocks_of(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page].read_text(), re.DOTALL)


def afterwards(diff: str) -> str:
    """The new side of a diff."""
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-"))


def run_block(text: str, folder: Path | None = None, **known: object) -> dict[str, Any]:
    """The names that the block defines. ``folder`` replaces the folder in the block's text."""
    text = text if folder is None else text.replace("/data/lake", str(folder))
    defined: dict[str, Any] = {"__name__": "docs", "__file__": str((folder or ROOT) / "block.py"), **known}
    exec(compile(text, "docs", "exec", dont_inherit=True), defined)  # noqa: S102  # that is the test
    return defined


def run_pipeline_block(lake: Lake) -> dict[str, Any]:
    (block,) = [text for text in blocks_of("README") if "with_incremental" in text]
    return run_block(in_this_lake(block.replace('"/data/lake"', repr(str(lake.folder))), lake))


def in_this_lake(block: str, lake: Lake) -> str:
    assert "LocalSparkConnect()" in block
    return block.replace("LocalSparkConnect()", f"LocalSparkConnect(server_folder={str(lake.spark_folder)!r})")


def definitions_of(first: dict[str, Any], *assets: object, checks: Sequence[object] = ()) -> dg.Definitions:
    """Definitions with assets from several pages and the IO manager of the README's pipeline."""
    return ips.with_incremental(
        dg.Definitions(assets=list(assets), asset_checks=list(checks), resources={"io_manager": first["io_manager"]})  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_python_runs_by_itself(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SECRET", "secret")
    monkeypatch.setattr(ips.LocalSparkConnect, "spark_session", None)  # It would start a server, and leave it running.
    monkeypatch.chdir(tmp_path)
    Path("target").mkdir()
    Path("target", "manifest.json").write_text(json.dumps(manifest()))
    for text in blocks_of(page):
        run_block(text, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_the_new_side_of_every_diff_runs(page: str, tmp_path: Path) -> None:
    for text in blocks_of(page, "diff"):
        run_block(afterwards(text), tmp_path, dg=dg, ips=ips, DataFrame=DataFrame)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)", PAGES[page].read_text()):
        if not link.startswith("http"):
            assert (PAGES[page].parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_heading_leads_to_one(page: str) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", PAGES[page].read_text()):
        leads_to = PAGES[page].parent / link if link else PAGES[page]
        prose = re.sub(r"^```.*?^```", "", leads_to.read_text(), flags=re.DOTALL | re.MULTILINE)
        headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w-]", "", each.lower().replace(" ", "-")) for each in headings}, (link, anchor)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert set(named) >= {page.name for name, page in PAGES.items() if name != "README"}


def errors_of(kind: type[ips.IpsError] = ips.IpsError) -> set[str]:
    kinds = {each for each in kind.__subclasses__() if each.__module__.startswith("dagster_ips")}
    return {each.__name__ for each in kinds}.union(*(errors_of(each) for each in kinds))


def test_every_error_is_on_its_page_with_what_to_do() -> None:
    rows = re.findall(r"^\| `(\w+Error)` \| (.+?) \| (.*?) ?\|$", PAGES["errors"].read_text(), re.MULTILINE)
    assert sorted(name for name, *_ in rows) == sorted(errors_of())
    assert [name for name, _, remedy in rows if not remedy] == ["BrokenHistoryError"]


SETTINGS: list[tuple[str, Iterable[str]]] = [
    *((kind.__name__, kind.model_fields) for kind in (ips.IcebergCatalog, ips.LocalSparkConnect, ips.IcdcIOManager)),
    ("HygieneConfig", HygieneConfig.model_fields),
    *(
        (function.__name__, inspect.signature(function).parameters)
        for name in ips.public.__all__
        if inspect.isfunction(function := getattr(ips, name)) and name not in ("affected", "capture")
    ),
]


@pytest.mark.parametrize(("of", "names"), SETTINGS, ids=[name for name, _ in SETTINGS])
def test_every_setting_is_on_its_page(of: str, names: Iterable[str]) -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", PAGES["settings"].read_text()))))
    assert {*names, *([of] if of != "HygieneConfig" else [])} - {"definitions"} <= words


ALL_PAGES = "\n".join(page.read_text() for page in PAGES.values())


def test_every_public_name_is_in_the_docs() -> None:
    assert set(ips.public.__all__) - set(re.findall(r"\w+", ALL_PAGES)) == set()


@pytest.mark.parametrize("group", [main, main.commands["backfill"]], ids=["dagster-ips", "backfill"])
def test_every_command_and_its_own_options_are_in_the_docs(group: click.Group) -> None:
    of_dagster = click.command()(dg_workspace_options(lambda: None)).params
    shared = {option for parameter in of_dagster for option in parameter.opts}
    name = "dagster-ips" if group is main else "dagster-ips backfill"
    for command in group.commands.values():
        assert f"{name} {command.name}" in ALL_PAGES
        options = {each for parameter in command.params for each in parameter.opts if each.startswith("--")}
        assert [each for each in options - shared if not re.search(rf"{each}\b", ALL_PAGES)] == []


def test_every_property_of_tables_and_snapshots_is_on_the_settings_page() -> None:
    code = "\n".join(each.read_text() for each in (ROOT / "dagster_ips").rglob("*.py"))
    properties = set(re.findall(r'"(dagster-ips\.[a-z-]+\.?)"', code))
    assert [each for each in properties if f"`{each}" not in PAGES["settings"].read_text()] == []


def test_the_quickstart_takes_a_late_row_through_both_tables(
    lake: Lake, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    definitions_py, ingest_py = blocks_of("quickstart")
    ingest = run_block(ingest_py, tmp_path)
    definitions = run_block(in_this_lake(definitions_py, lake), tmp_path)["defs"]
    ingest["land"]([(f"2026-01-0{day}", account, 60 * day) for day in (1, 2, 3) for account in ("ada", "bob")])
    for late in (None, ("2026-01-01", "ada", 600)):
        if late:
            ingest["land"]([late])
        materialize(definitions, instance, "playback_daily", "playback_daily_agg")
    found = ingest["open_catalog"]().load_table("media.playback_daily_agg").scan().to_arrow().to_pylist()
    totals = {(row["event_date"].day, row["account"]): (row["plays"], row["seconds"]) for row in found}
    assert totals == {(d, a): (1, 60 * d) for d in (1, 2, 3) for a in ("ada", "bob")} | {(1, "ada"): (2, 660)}


@pytest.mark.slow
def test_the_assets_of_the_moving_page_equal_a_full_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    first = run_pipeline_block(lake)
    lookback, _, dbt = (run_block(afterwards(text)) for text in blocks_of("moving", "diff"))
    lake.create_playback(events(range(10)))
    for made, late in ((lookback, 10), (lookback, 20), (dbt, 30)):
        names = ("playback_daily", "playback_daily_agg")
        assets = [first["playback"], lookback["playback_daily"], made["playback_daily_agg"]]
        materialize(definitions_of(first, *assets), instance, *names)
        expected = lake.sql("""
            SELECT event_date, account, sum(seconds) FROM lake.media.playback WHERE seconds > 0 GROUP BY 1, 2
        """)
        found = lake.sql("SELECT event_date, account, seconds FROM lake.media.playback_daily_agg")
        assert Counter(found.collect()) == Counter(expected.collect())
        lake.append(events(range(late, late + 10)))
        lake.sql(f"DELETE FROM lake.media.playback WHERE event_id = {late - 9}")


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


@pytest.mark.slow
def test_partitions_by_day_and_by_week_equal_a_full_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    first, more = run_pipeline_block(lake), run_block(blocks_of("partitions")[0])
    definitions = definitions_of(first, first["playback"], more["by_day"], more["by_week"])
    job = definitions.resolve_implicit_global_asset_job_def()
    lake.create_playback(events(range(4), day=3) + events(range(4, 8), day=4))
    for late in (events([8], day=3), []):
        for name, partition in (("by_day", "2026-01-04"), ("by_day", "2026-01-05"), ("by_week", "2026-01-04")):
            job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey(name)], partition_key=partition)
        expected = lake.sql("""
            SELECT DATE '2026-01-04', account, sum(seconds) FROM lake.media.playback GROUP BY account
        """)
        assert lake.rows("media.by_week") == Counter(tuple(row) for row in expected.collect())
        if late:
            lake.append(late)


@pytest.mark.slow
def test_the_patterns_equal_a_full_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    groups, others = [run_block(text) for text in blocks_of("patterns")[:2]]
    first, more = run_pipeline_block(lake), groups | others
    names = ("playback_daily", "playback_daily_agg", "account_median", "account_running_total", "daily_median")
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
        for table, shown in (("playback_daily_agg", "sum(seconds)"), ("account_median", "median(seconds)")):
            expected = lake.sql(f"SELECT event_date, account, {shown} FROM lake.media.playback_daily GROUP BY 1, 2")
            found = lake.sql(f"SELECT event_date, account, seconds FROM lake.media.{table}")
            assert Counter(found.collect()) == Counter(expected.collect())
        medians = lake.sql("SELECT event_date, median(seconds) FROM lake.media.playback_daily GROUP BY event_date")
        assert lake.rows("media.daily_median") == Counter(tuple(row) for row in medians.collect())


@pytest.mark.slow
def test_the_aggregates_equal_a_full_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    (block,) = [text for text in blocks_of("writing") if "ips.combine" in text]
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


def test_assets_that_wait_for_a_complete_day_run_once_it_is_complete(lake: Lake, instance: dg.DagsterInstance) -> None:
    (block,) = [text for text in blocks_of("completeness") if "ips.valid_through" in text]
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
    assert result.get_requested_partitions(dg.AssetKey("mailed_report")) == {"2026-01-04"}  # January 6th minus 6 hours
    assert result.get_num_requested(dg.AssetKey("best_day")) == 1
    materialize(definitions, instance, "best_day")
    assert sum(lake.rows("media.best_day").values()) == 1


@pytest.mark.slow
def test_an_asset_with_its_own_sql_equals_a_full_recompute_and_is_audited(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    whole, partitioned = (run_block(text) for text in blocks_of("own-sql") if "ips.capture" in text)
    first, more = run_pipeline_block(lake), whole
    definitions = ips.with_incremental(
        dg.Definitions(
            assets=[first["playback"], more["by_account"], partitioned["by_day"]],
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
        run(definitions, instance, "by_day", key(0), key(1), **SENSOR)
        by_day = lake.sql("SELECT event_date, account, count(*) FROM lake.media.playback GROUP BY ALL")
        assert lake.rows("media.by_day") == Counter(tuple(row) for row in by_day.collect())
        lake.sql(statement)


@pytest.mark.slow
def test_several_tables_written_by_one_step_equal_a_full_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    (block,) = [text for text in blocks_of("several-tables") if "def sorted_out" in text]
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


def test_the_other_catalogs_can_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "secret-token")
    (block,) = [text for text in blocks_of("catalogs") if "CATALOG_TOKEN" in text]
    defined = run_block(block)
    resolved = defined["catalog"].process_config_and_initialize()
    spark = resolved.open().spark_configuration()
    assert spark["spark.sql.catalog.prod.type"] == "rest"
    assert spark["spark.sql.catalog.prod.token"] == "secret-token"  # a made-up one
    assert "secret-token" not in repr(resolved)


def test_an_object_store_can_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_URI", "postgresql://user:secret-word@db/lake")
    monkeypatch.setenv("S3_KEY", "a-key")
    monkeypatch.setenv("S3_SECRET", "secret-key")
    (block,) = [text for text in blocks_of("catalogs") if "s3.endpoint" in text]
    defined = run_block(block)
    catalog = defined["catalog"].process_config_and_initialize()
    lake, prefix = catalog.open(), "spark.sql.catalog.lake."
    spark = {key.removeprefix(prefix): value for key, value in lake.spark_configuration().items()}
    assert (spark["jdbc.password"], spark["s3.secret-access-key"]) == ("secret-word", "secret-key")  # made-up ones
    assert (spark["client.region"], spark["s3.path-style-access"]) == ("eu-central-1", "true")
    assert tuple(defined["manager"].spark.extra_jars) == lake.spark_extras()
    assert "secret-" not in repr(catalog) + repr(lake)


def test_the_make_commands_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", PAGES["README"].read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_tests_of_an_asset_pass(lake: Lake, tmp_path: Path) -> None:
    (block,) = [text for text in blocks_of("checks") if "Mock" in text]
    defined = run_block(in_this_lake(block, lake))
    defined["test_plays_without_seconds_are_left_out"]()
    folder = tmp_path / "lake_of_a_test"
    folder.mkdir()
    defined["test_late_plays_give_the_same_table_as_a_full_run"](folder)


def test_snapshots_are_no_longer_kept_for_an_asset_whose_icdc_tables_are_dropped(tmp_path: Path) -> None:
    (block,) = [text for text in blocks_of("operating") if "drop_table" in text]
    source = Source(tmp_path)
    source.append(numbered(1))
    source.capture()

    def kept_for() -> list[str]:
        metadata = source.lake.load(TABLE, asset="test")
        needs = needs_of_others(
            source.lake, source.store, metadata, icdc_namespace="ips", but=[], is_at_work=lambda *_: False
        )
        return [need.consumer for need in needs]

    drop = run_block(block)["drop_icdc_tables"]
    drop(source.lake.client, "another")
    assert kept_for() == ["daily"]
    drop(source.lake.client, "daily")
    assert kept_for() == []


def test_the_proofs_can_be_declared() -> None:
    (block,) = [text for text in blocks_of("checks") if "ips.proof" in text]
    keys = [key.to_user_string() for check in run_block(block)["checks"] for key in check.check_keys]
    assert keys == ["playback_daily:proof", "playback_daily_agg:proof"]


@pytest.mark.slow
def test_the_solutions_for_two_changing_inputs_work(lake: Lake, instance: dg.DagsterInstance) -> None:
    (block,) = [text for text in blocks_of("writing") if "ips.lookup()" in text and "ips.affected" in text]
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
