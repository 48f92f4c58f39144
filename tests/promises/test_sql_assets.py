"""A table that is declared by its query contains, after each run, what the query gives."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from sqlglot.parsers.spark import SparkParser

import dagster_ips as ips
from dagster_ips.errors import CombineError, DeclarationError, QueryNotDerivedError, UnresolvedQueryError
from dagster_ips.orchestration.declare.declarations import code_of
from dagster_ips.orchestration.declare.maintained_rows import REFRESH
from dagster_ips.orchestration.declare.past_refreshes import CODE_VERSION_TAG, ROWS, SHARE
from dagster_ips.orchestration.declare.query_run import QueryRun
from dagster_ips.orchestration.declare.run_numbers import PUBLISHED, WRITE_SECONDS
from dagster_ips.query.spark_dialect import SparkSql
from tests.support.lake import FIRST_DAY, Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow

DAILY = """
    SELECT event_date, account, count(*) AS plays, sum(seconds) AS seconds, max(seconds) AS longest
    FROM playback WHERE seconds <> 5 GROUP BY 1, 2
"""
BY_GENRE = """
    SELECT event_date, genre, count(*) AS plays, avg(seconds) AS `mean of seconds`
    FROM playback JOIN {title} USING (account) GROUP BY event_date, genre
"""
LONG = "SELECT event_id, account, upper(account) AS name, seconds FROM playback WHERE seconds > 2"
WITH_GENRE = "SELECT p.event_id, p.seconds, t.genre FROM playback p LEFT JOIN title t ON p.account = t.account"
KNOWN = """
    SELECT account, count(DISTINCT event_date) AS days FROM playback p
    WHERE EXISTS (SELECT 1 FROM title t WHERE t.account = p.account AND t.genre <> 'b') GROUP BY account
"""
RANKED = """
    SELECT event_date, event_id, place FROM (
        SELECT event_date, event_id, rank() OVER (PARTITION BY event_date ORDER BY seconds DESC, event_id) AS place
        FROM playback
    ) WHERE place <= 3
"""
TOTAL = "SELECT count(*) AS plays, sum(seconds) AS seconds, max(seconds) AS longest FROM playback WHERE seconds <> 5"
RATIO = """
    SELECT sum(CASE WHEN genre = 'a' THEN seconds END) / sum(seconds) AS `share`, 'all' AS days, count(*) AS plays
    FROM playback JOIN title USING (account)
"""
ALL_ROWS = {"total": TOTAL, "share": RATIO}
QUERIES = {
    "per_day": DAILY,
    "by_genre": BY_GENRE,
    "long": LONG,
    "with_genre": WITH_GENRE,
    "known": KNOWN,
    "ranked": RANKED,
}
ONE_PER_STRATEGY = {name: QUERIES[name] for name in ("per_day", "with_genre", "known")}
OTHERS = {name: QUERIES[name] for name in ("by_genre", "long", "ranked")}
STEPS = [
    (
        "INSERT INTO lake.media.playback VALUES (100, DATE'2026-01-02', 'a1', 6), (101, DATE'2026-01-03', NULL, 4)",
        {"per_day": "combine", "by_genre": "combine", "long": "append", "with_genre": "append"}
        | {"known": "keys", "ranked": "keys"},
    ),
    (
        "UPDATE lake.media.title SET genre = 'z' WHERE account = 'a1'",
        {"by_genre": "combine", "with_genre": "keys", "known": "keys"},
    ),
    (
        "DELETE FROM lake.media.playback WHERE event_id IN (2, 6, 100)",
        {"per_day": "combine", "by_genre": "combine", "long": "keys", "with_genre": "keys", "ranked": "keys"},
    ),
]
STEPS_OF_ALL_ROWS = [
    (f"{STEPS[0][0]}, (102, DATE'2026-01-02', 'a2', 7)", dict.fromkeys(ALL_ROWS, "combine")),
    ("DELETE FROM lake.media.playback", dict.fromkeys(ALL_ROWS, "combine")),
]


def assets(queries: dict[str, str]) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    made = [
        ips.sql_asset(
            name, text, table=f"media.{name}", refresh="incremental", partition_by=["event_date"] * (name == "ranked")
        )
        for name, text in queries.items()
    ]
    return [*made, ips.iceberg_asset("title", table="media.title")]


def whole(lake: Lake, text: str) -> DataFrame:
    """The whole query, over its sources as they are now."""
    for table in ("playback", "title"):
        lake.sql(f"SELECT * FROM lake.media.{table}").createOrReplaceTempView(table)
    return lake.sql(text.replace("{title}", "title"))


def shown(lake: Lake, name: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
    """The rows of the table, with these columns, which are all that aren't hidden."""
    found = lake.sql(f"SELECT * FROM lake.media.{name}")
    assert sorted(columns) == sorted(column for column in found.columns if not column.startswith("_ips_"))
    return Counter(map(tuple, found.select(*[f"`{column}`" for column in columns]).collect()))


def check(lake: Lake, name: str, text: str, *after: object) -> None:
    """The table has the rows that the whole query gives now."""
    wanted = whole(lake, text)
    assert shown(lake, name, wanted.columns) == Counter(map(tuple, wanted.collect())), (name, *after)


def said(result: dg.ExecuteInProcessResult, name: str) -> dict[str, Any]:
    (event,) = [e for e in result.get_asset_materialization_events() if e.asset_key == dg.AssetKey(name)]
    return {key: value.value for key, value in event.materialization.metadata.items()}


@pytest.mark.everywhere
@pytest.mark.parametrize(
    ("queries", "steps"),
    mostly_slow([(ONE_PER_STRATEGY, STEPS), (OTHERS, STEPS), (ALL_ROWS, STEPS_OF_ALL_ROWS)]),
    ids=["keyed", "others", "all"],
)
def test_after_any_change_of_its_sources_the_table_is_what_the_query_gives(
    lake: Lake, instance: dg.DagsterInstance, queries: dict[str, str], steps: list[tuple[str, dict[str, str]]]
) -> None:
    lake.create_playback([(i, FIRST_DAY + dt.timedelta(days=i % 3), f"a{i % 3}", i % 7) for i in range(20)])
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    lake.sql("INSERT INTO lake.media.title VALUES ('a0', 'a'), ('a1', 'b'), ('a2', NULL)")
    definitions = pipeline(lake.folder, lake.spark_folder, *assets(queries))
    result = materialize(definitions, instance, *queries)
    for name, text in queries.items():
        check(lake, name, text)
        assert said(result, name)["refresh"] == "full"
    for statement, strategies in steps:
        lake.sql(statement)
        result = materialize(definitions, instance, *queries)
        for name, text in queries.items():
            check(lake, name, text, statement)
        wanted = {name: strategies[name] for name in queries if name in strategies}
        assert {name: said(result, name)["refresh"] for name in wanted} == wanted, statement


AS_SPARK_TAKES_THEM = {
    "magnitudes": "SELECT id, CAST(floor(log10(amount)) AS INT) AS magnitude, array_size(tags) AS tags FROM sale",
    "per_magnitude": "SELECT CAST(floor(log10(amount)) AS INT) AS magnitude, count(*) AS n FROM sale GROUP BY 1",
    "starts": "SELECT id, date_trunc(unit, at) AS start, trunc(at, unit) AS day, unix_date(date(at)) AS n FROM sale",
    "per_start": "SELECT unit, date_trunc(unit, at) AS start, count(*) AS n FROM sale GROUP BY 1, 2",
    "no_days": "SELECT id, regexp_like(unit, '^D') = false AS no_day, named_struct('A', id) AS s FROM sale",
    "dates": "SELECT id, to_date(day, 'yyyy-MM-dd') AS day FROM sale",
}
WHY = "refresh, why not better"
SALES = [
    "INSERT INTO lake.media.sale VALUES (3, 1000D, 'MONTH', TIMESTAMP'2026-04-05 01:00:00', '2026-1-2', null)",
    "UPDATE lake.media.sale SET amount = 1000D, unit = 'YEAR' WHERE id = 2",
]


def create_sales(lake: Lake) -> None:
    lake.catalog.create_namespace("media")
    columns = "id INT, amount DOUBLE, unit STRING, at TIMESTAMP, day STRING, tags ARRAY<INT>"
    lake.sql(f"CREATE TABLE lake.media.sale ({columns}) USING iceberg")
    lake.sql("INSERT INTO lake.media.sale VALUES (1, 1000D, 'DAY', TIMESTAMP'2026-03-04 05:06:07', '2026-01-02', null)")
    lake.sql("INSERT INTO lake.media.sale VALUES (2, 50D, 'MONTH', TIMESTAMP'2026-03-04 05:06:07', '2026-1-2', null)")


def rows_now(lake: Lake, name: str, text: str) -> tuple[Counter[str], Counter[str]]:
    """The rows of the table, and the rows that the query gives now."""
    lake.sql("SELECT * FROM lake.media.sale").createOrReplaceTempView("sale")
    wanted = lake.sql(text)
    found = lake.sql(f"SELECT {', '.join(wanted.columns)} FROM lake.media.{name}")
    return Counter(map(str, found.collect())), Counter(map(str, wanted.collect()))


def followed(
    lake: Lake, instance: dg.DagsterInstance, definitions: dg.Definitions, queries: dict[str, str]
) -> Iterator[tuple[str | None, dict[str, str]]]:
    """The first run and one after each change, with how each table was refreshed; all tables equal their queries."""
    for statement in (None, *SALES):
        if statement:
            lake.sql(statement)
        result = materialize(definitions, instance, *queries)
        for name, text in queries.items():
            found, wanted = rows_now(lake, name, text)
            assert found == wanted, (statement, name)
        yield statement, {name: f"{said(result, name)['refresh']}: {said(result, name)[WHY]}" for name in queries}


@pytest.mark.slow
def test_functions_that_other_engines_name_differently_mean_what_spark_says(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    create_sales(lake)
    lenient = {"spark.sql.ansi.enabled": "false"}  # else an unfit date is an error
    definitions = pipeline(lake.folder, lake.spark_folder, *assets_of(AS_SPARK_TAKES_THEM), spark_config=lenient)
    lake.session.conf.set("spark.sql.ansi.enabled", "false")
    try:
        for statement, refreshed in followed(lake, instance, definitions, AS_SPARK_TAKES_THEM):
            are_full = [how.startswith("full") for how in refreshed.values()]
            assert are_full == [statement is None] * len(refreshed), (statement, refreshed)
    finally:
        lake.session.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.slow
def test_a_query_that_is_parsed_differently_from_sparks_plan_runs_in_full(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SparkSql.Parser.FUNCTIONS, "LOG10", SparkParser.FUNCTIONS["LOG10"])
    create_sales(lake)
    queries = {name: AS_SPARK_TAKES_THEM[name] for name in ("magnitudes", "per_magnitude")}
    definitions = pipeline(lake.folder, lake.spark_folder, *assets_of(queries))
    for statement, refreshed in followed(lake, instance, definitions, queries):
        assert all(how.startswith("full") for how in refreshed.values())
        if statement:
            assert "Spark plans it differently in the form it is parsed here" in refreshed["magnitudes"]


def assets_of(queries: dict[str, str]) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    made = [ips.sql_asset(name, text, table=f"media.{name}", refresh="incremental") for name, text in queries.items()]
    return [*made, ips.iceberg_asset("sale", table="media.sale")]


@pytest.mark.slow
def test_a_replaced_source_causes_a_full_run_each_time_and_runs_in_between_are_incremental(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    built = "lake.media.title USING iceberg AS SELECT DISTINCT account, substring(account, 1, {}) AS genre"
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"by_genre": BY_GENRE}))
    for statements, strategy, why in (
        (["INSERT INTO lake.media.title VALUES ('a1', 'x')"], "full", "nothing has been consumed"),
        ([f"CREATE OR REPLACE TABLE {built.format(1)} FROM lake.media.playback"], "full", "title was replaced"),
        (["INSERT INTO lake.media.playback VALUES (100, DATE'2026-01-02', 'a1', 6)"], "combine", "continues"),
        (
            ["DROP TABLE lake.media.title", f"CREATE TABLE {built.format(2)} FROM lake.media.playback"],
            "full",
            "dropped",
        ),
    ):
        for statement in statements:
            lake.sql(statement)
        result = materialize(definitions, instance, "by_genre")
        check(lake, "by_genre", BY_GENRE, statements)
        found = said(result, "by_genre")
        assert found["refresh"] == strategy, statements
        assert why in found["summary"], statements


@pytest.mark.slow
@pytest.mark.everywhere
def test_inserted_rows_may_remove_rows_from_a_group(lake: Lake, instance: dg.DagsterInstance) -> None:
    text = """
        SELECT event_date, count(*) AS plays, sum(seconds) AS seconds FROM playback p
        WHERE NOT EXISTS (SELECT 1 FROM title t WHERE t.account = p.account) GROUP BY event_date
    """
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    lake.sql("INSERT INTO lake.media.title VALUES ('a0', 'x')")
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"by_genre": text}))
    materialize(definitions, instance, "by_genre")
    for account in ("a1", "a2"):  # the second one removes the group
        lake.sql(f"INSERT INTO lake.media.title VALUES ('{account}', 'x')")
        result = materialize(definitions, instance, "by_genre")
        check(lake, "by_genre", text)
        assert said(result, "by_genre")["refresh"] == "combine"


@pytest.mark.slow
def test_no_change_is_added_to_rows_whose_hidden_columns_were_not_written(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may fail to print a deep plan now and then. What that run computes has no groups to add to."""
    text = "SELECT account, count(*) AS plays, max(seconds) - 1 AS longest FROM playback GROUP BY account"
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"longest": text}))
    materialize(definitions, instance, "longest")
    with monkeypatch.context() as once:
        once.setattr(QueryRun, "_why_read_otherwise", lambda *_: "Spark failed to print it")
        lake.append([(10, FIRST_DAY, "a1", 9)])
        assert said(materialize(definitions, instance, "longest"), "longest")["refresh"] == "full"
    lake.append([(11, FIRST_DAY, "a1", 2)])
    with pytest.raises(CombineError, match="its _ips_rows is null"):
        materialize(definitions, instance, "longest")
    materialize(definitions, instance, "longest", tags={"dagster_ips/mode": "full"})
    check(lake, "longest", text)


@pytest.mark.slow
def test_a_new_group_may_lose_rows_in_the_change_that_creates_it(lake: Lake, instance: dg.DagsterInstance) -> None:
    text = """
        SELECT event_date, genre, count(*) AS plays, max(seconds) AS longest
        FROM playback JOIN title USING (account) GROUP BY event_date, genre
    """
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    lake.sql("INSERT INTO lake.media.title VALUES ('a0', 'a'), ('a1', 'b'), ('a2', 'b')")
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"x": text}))
    materialize(definitions, instance, "x")
    # The rows of the new group are added with the earlier titles and removed with the deleted title.
    lake.append([*events([7], day=1), *events([8], day=1), *events([10], day=2)])
    lake.sql("DELETE FROM lake.media.title WHERE account = 'a1'")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 0")  # else titles would change first
    assert said(materialize(definitions, instance, "x"), "x")["refresh"] == "combine"
    check(lake, "x", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("SELECT sum(seconds * CAST(genre AS INT)) AS n FROM playback JOIN title USING (account)", "combine"),
        ("SELECT event_id, CAST(genre AS INT) AS n FROM playback JOIN title USING (account)", "keys"),
    ],
)
def test_a_value_may_be_corrected_when_the_first_row_that_refers_to_it_came(
    lake: Lake, instance: dg.DagsterInstance, text: str, strategy: str
) -> None:
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    lake.sql("INSERT INTO lake.media.title VALUES ('a0', '1'), ('a1', '2'), ('new', 'no number')")
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"x": text}))
    materialize(definitions, instance, "x")
    lake.sql("INSERT INTO lake.media.playback VALUES (100, DATE'2026-01-02', 'new', 6)")
    lake.sql("UPDATE lake.media.title SET genre = '3' WHERE account = 'new'")
    assert said(materialize(definitions, instance, "x"), "x")["refresh"] == strategy
    check(lake, "x", text)


@pytest.mark.slow
def test_a_side_of_a_union_may_have_only_nulls_where_the_other_has_keys(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    text = "SELECT account, genre FROM title UNION ALL SELECT account, NULL FROM playback"
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    lake.sql("INSERT INTO lake.media.title VALUES ('a0', '1'), ('a1', NULL)")
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"x": text}))
    materialize(definitions, instance, "x")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 1")
    assert said(materialize(definitions, instance, "x"), "x")["refresh"] == "keys"
    check(lake, "x", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        # Spark reads the text as a number, so that rows of '1' and of '01' have the same key.
        ("SELECT event_id AS k FROM playback UNION ALL SELECT code FROM title", "full"),
        ("SELECT event_id AS k, 'same' AS n FROM playback UNION ALL SELECT code, n FROM title", "keys"),
        # An average of integers of 64 bits is rounded before it is compared.
        (
            """
            SELECT account, count(*) AS n FROM playback JOIN (
                SELECT account, avg(CAST(seconds AS BIGINT)) AS mean FROM playback GROUP BY account
            ) USING (account) WHERE seconds >= mean GROUP BY account
            """,
            "keys",
        ),
    ],
)
def test_values_that_spark_makes_equal_or_rounds_are_neither_keys_nor_subtracted(
    lake: Lake, instance: dg.DagsterInstance, text: str, strategy: str
) -> None:
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (code STRING, n STRING) USING iceberg")
    lake.sql("INSERT INTO lake.media.title VALUES ('1', 'same'), ('01', 'same'), ('001', 'other'), (NULL, 'other')")
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"x": text}))
    materialize(definitions, instance, "x")
    used = set()
    for change in (
        "DELETE FROM lake.media.title WHERE code = '01'",
        "UPDATE lake.media.playback SET seconds = seconds + 100 WHERE event_id = 1",
        "DELETE FROM lake.media.playback WHERE event_id IN (1, 2)",
    ):
        lake.sql(change)
        used.add(said(materialize(definitions, instance, "x"), "x")["refresh"])
        check(lake, "x", text, change)
    assert strategy in used


BY_ID = "SELECT id, count(DISTINCT account) AS n FROM visit GROUP BY id"
PER_ACCOUNT = """
    SELECT account, count(*) AS n FROM visit v WHERE EXISTS (SELECT 1 FROM visit w WHERE w.id = v.id) GROUP BY account
"""


@pytest.mark.parametrize(("text", "strategy"), [(BY_ID, "keys"), (PER_ACCOUNT, "combine")])
def test_a_run_by_keys_reads_no_file_that_has_none_of_them(
    lake: Lake, instance: dg.DagsterInstance, text: str, strategy: str
) -> None:
    lake.catalog.create_namespace("media")
    lake.sql(
        "CREATE TABLE lake.media.visit (id BIGINT, account STRING) USING iceberg "
        "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"
    )
    for first in (1, 11, 21):
        rows = f"VALUES ({first}, 'a'), ({first + 1}, 'b'), ({first + 1}, 'c')"
        lake.sql(f"INSERT INTO lake.media.visit SELECT /*+ COALESCE(1) */ * FROM {rows}")
    visit = ips.iceberg_asset("visit", table="media.visit")
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"x": text}), visit)
    materialize(definitions, instance, "x")
    lake.sql("INSERT INTO lake.media.visit VALUES (12, 'd'), (31, 'a')")
    lake.sql("DELETE FROM lake.media.visit WHERE id = 12 AND account = 'b'")
    lake.sql("SELECT * FROM lake.media.visit").createOrReplaceTempView("visit")
    wanted = lake.sql(text)
    rows = Counter(map(tuple, wanted.collect()))
    files = lake.sql("SELECT DISTINCT _file FROM lake.media.visit WHERE id IN (1, 2, 21, 22)").collect()
    assert len(files) == 2
    for (file,) in files:
        Path(urlsplit(file).path).unlink()
    assert said(materialize(definitions, instance, "x"), "x")["refresh"] == strategy
    assert Counter(map(tuple, lake.sql("SELECT * FROM lake.media.x").select(*wanted.columns).collect())) == rows


def test_keys_that_equal_a_column_of_changed_rows_are_looked_up_only_in_files_that_may_have_them(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    text = (
        "SELECT order.id, order.buyer, count(*) AS items FROM order JOIN item ON item.of = order.id "
        "GROUP BY order.id, order.buyer HAVING count(*) > 1"
    )
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.order (id BIGINT, buyer STRING) USING iceberg")
    lake.sql("CREATE TABLE lake.media.item (of BIGINT) USING iceberg")
    for first in (1, 11, 21):
        orders, items = (f"({first}, 'a'), ({first + 1}, 'b')", f"({first}), ({first + 1}), ({first + 1})")
        for table, rows in (("order", orders), ("item", items)):
            lake.sql(f"INSERT INTO lake.media.{table} SELECT /*+ COALESCE(1) */ * FROM VALUES {rows}")
    upstreams = [ips.iceberg_asset(each, table=f"media.{each}") for each in ("order", "item")]
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"x": text}), *upstreams)
    materialize(definitions, instance, "x")
    lake.sql("INSERT INTO lake.media.item VALUES (11)")
    for table, column in (("order", "id"), ("item", "of")):
        for (file,) in lake.sql(f"SELECT DISTINCT _file FROM lake.media.{table} WHERE {column} IN (1, 21)").collect():
            Path(urlsplit(file).path).unlink()
    assert said(materialize(definitions, instance, "x"), "x")["refresh"] == "keys"
    found = lake.sql("SELECT * FROM lake.media.x").collect()
    assert Counter(map(tuple, found)) == Counter({(each, "b", 2): 1 for each in (2, 12, 22)} | {(11, "a", 2): 1})


def test_everything_is_computed_if_few_changed_rows_affect_many_keys(lake: Lake, instance: dg.DagsterInstance) -> None:
    text = "SELECT genre, max(days) AS most FROM (SELECT account, count(DISTINCT event_date) AS days FROM playback "
    text += "GROUP BY account) JOIN title USING (account) GROUP BY genre"
    title = ips.iceberg_asset("title", table="media.title")
    definitions = pipeline(lake.folder, lake.spark_folder, ips.sql_asset("x", text, table="media.x"), title)
    lake.create_playback(events(range(40)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    lake.sql("INSERT INTO lake.media.title VALUES ('a0', 'a'), ('a1', 'b'), ('a2', 'c')")
    materialize(definitions, instance, "x")
    lake.append(events(range(40, 41)))
    result = said(materialize(definitions, instance, "x"), "x")
    assert result["refresh"] == "full"
    assert "at least 33% of the keys are affected, and the limit is 10%" in result["refresh, why not better"]
    check(lake, "x", text)


def defined(lake: Lake, text: str, refresh: str) -> dg.Definitions:
    return pipeline(lake.folder, lake.spark_folder, ips.sql_asset("x", text, table="media.x", refresh=refresh))


@pytest.mark.slow
@pytest.mark.everywhere
def test_a_new_query_text_runs_in_full_once_even_in_strict(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(10)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    texts = ["SELECT account, sum(seconds) AS s FROM playback WHERE account <> 'a1' GROUP BY account"]
    texts.append(texts[0].replace("a1", "a2"))
    as_before = texts[0].replace(" ", "  ").replace("sum", "/* all of it */ sum")
    materialize(defined(lake, texts[0], "strict"), instance, "x")
    lake.append(events(range(7, 9)))
    assert said(materialize(defined(lake, as_before, "strict"), instance, "x"), "x")["refresh"] == "combine"
    for text in reversed(texts):
        result = materialize(defined(lake, text, "strict"), instance, "x")
        assert said(result, "x")["refresh"] == "full"
        check(lake, "x", text)
        lake.append(events(range(10, 14)))
        result = materialize(defined(lake, text, "strict"), instance, "x")
        assert said(result, "x")["refresh"] == "combine"
        check(lake, "x", text)


def test_strict_refuses_every_full_run_but_the_first(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(10)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    total = "SELECT sum(seconds) AS s FROM playback HAVING count(*) > 1"
    materialize(defined(lake, total, "strict"), instance, "x")
    columns = whole(lake, total).columns
    before = shown(lake, "x", columns)
    lake.append(events(range(20, 24)))
    with pytest.raises(QueryNotDerivedError, match="an aggregate without GROUP BY is a single row"):
        materialize(defined(lake, total, "strict"), instance, "x")
    assert shown(lake, "x", columns) == before
    materialize(defined(lake, total, "auto"), instance, "x")
    check(lake, "x", total)


@pytest.mark.slow
def test_a_query_that_spark_accepts_only_as_it_was_given_runs_in_full(lake: Lake, instance: dg.DagsterInstance) -> None:
    inner = "SELECT account, seconds AS _ips_weight FROM playback"  # what the weights of changed rows are called, too
    text = f"SELECT account, sum(_ips_weight) AS s FROM ({inner}) GROUP BY account"
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    materialize(defined(lake, text, "strict"), instance, "x")
    for new in (range(20, 24), range(24, 26)):
        lake.append(events(new))
        with pytest.raises(QueryNotDerivedError, match="Spark doesn't accept it rewritten for what changed"):
            materialize(defined(lake, text, "strict"), instance, "x")
        found = said(materialize(defined(lake, text, "incremental"), instance, "x"), "x")
        assert found["refresh"] == "full"
        assert "Spark doesn't accept it rewritten for what changed" in found["refresh, why not better"]
        check(lake, "x", text)


def test_a_query_that_names_a_renamed_column_is_refused_and_its_new_text_computes_the_table(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    text = "SELECT account, sum(seconds) AS s FROM playback GROUP BY account"
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    materialize(pipeline(lake.folder, lake.spark_folder, ips.sql_asset("x", text, table="media.x")), instance, "x")
    before = lake.sql("SELECT account, s FROM lake.media.x").collect()
    lake.sql("ALTER TABLE lake.media.playback RENAME COLUMN seconds TO played")
    lake.sql("INSERT INTO lake.media.playback VALUES (100, DATE'2026-01-02', 'a1', 6)")
    with pytest.raises(UnresolvedQueryError, match=r"^x: Spark can't resolve its query: .*`seconds`.*was renamed"):
        materialize(pipeline(lake.folder, lake.spark_folder, ips.sql_asset("x", text, table="media.x")), instance, "x")
    assert sorted(lake.sql("SELECT account, s FROM lake.media.x").collect()) == sorted(before)
    text = text.replace("seconds", "played")
    materialize(pipeline(lake.folder, lake.spark_folder, ips.sql_asset("x", text, table="media.x")), instance, "x")
    check(lake, "x", text)


@pytest.mark.slow
@pytest.mark.everywhere
def test_refresh_full_computes_everything_in_every_run(lake: Lake, instance: dg.DagsterInstance) -> None:
    text = "SELECT account, sum(seconds) AS s FROM playback GROUP BY account"
    asset = ips.sql_asset("x", text, table="media.x", refresh="full")
    lake.create_playback(events(range(6)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    for _ in range(2):
        result = materialize(pipeline(lake.folder, lake.spark_folder, asset), instance, "x")
        assert said(result, "x")["refresh"] == "full"
        check(lake, "x", text)
        lake.append(events(range(6, 9)))


def test_everything_is_computed_if_an_incremental_refresh_took_longer_before(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    text = "SELECT account, count(DISTINCT event_date) AS days FROM playback GROUP BY account"
    definitions = pipeline(lake.folder, lake.spark_folder, ips.sql_asset("x", text, table="media.x"))
    lake.create_playback(events(range(40)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    first = said(materialize(definitions, instance, "x"), "x")
    assert (first[SHARE], first[ROWS]) == (1, 40)
    slow = {REFRESH: "keys", SHARE: 0.001, ROWS: 40, WRITE_SECONDS: 900.0, PUBLISHED: "7"}
    (code,) = {spec.code_version for spec in definitions.resolve_all_asset_specs() if spec.key == dg.AssetKey("x")}
    tags = {CODE_VERSION_TAG: str(code)}
    instance.report_runless_asset_event(dg.AssetMaterialization("x", metadata=slow, tags=tags))
    lake.append(events(range(40, 41)))
    result = said(materialize(definitions, instance, "x"), "x")
    assert result["refresh"] == "full"
    assert "no keys: it would take more than 9" in result["refresh, why not better"]
    foreseen = [record.data for record in result["refresh, by kind of change"].records]
    assert [(row["upstream"], row["change"], row["refresh"]) for row in foreseen] == [
        ("playback", "rows are inserted", "keys"),
        ("playback", "rows are updated or deleted", "keys"),
    ]
    assert "days isn't computed only from keys and from sum" in str(foreseen[0]["why not better"])
    check(lake, "x", text)


def test_the_query_may_be_a_file_and_a_missing_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "daily.sql"
    file.write_text("-- what was played, 'ü'\nSELECT account, count(*) AS plays FROM playback GROUP BY account;\n")
    of_file, of_text = ips.sql_asset("x", file), ips.sql_asset("x", file.read_text())
    assert of_file.metadata_by_key == of_text.metadata_by_key
    file.write_text(file.read_text("utf-8"), "utf-8-sig")
    assert ips.sql_asset("x", file).metadata_by_key == of_text.metadata_by_key
    with pytest.raises(DeclarationError, match=r"the file of its query can't be read: .*other\.sql"):
        ips.sql_asset("x", tmp_path / "other.sql")


def test_sources_that_trade_places_make_another_query() -> None:
    def code(**sources: str) -> str | None:
        asset = ips.sql_asset("x", "SELECT a FROM old EXCEPT SELECT a FROM new", sources=sources)
        return code_of(None, asset.metadata_by_key[dg.AssetKey("x")])

    assert code() == code(old="old") != code(old="new", new="old")
    assert code(old="y", new="z") != code(old="z", new="y")


def test_a_misspelled_name_in_sources_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"sources names media\.playbak, which its query doesn't read"):
        ips.sql_asset("x", "SELECT a FROM media.playback", sources={"media.playbak": "playback"})


@pytest.mark.slow
def test_a_new_column_that_takes_the_place_of_another_name_computes_everything(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    texts = {
        "within": "SELECT id FROM song WHERE EXISTS (SELECT 1 FROM place WHERE place.of = song.id AND region = 'x')",
        "alias": "SELECT id * 2 AS twice, twice + 1 AS more FROM song",
        "all": "SELECT * FROM song",
        "both": "SELECT id FROM song UNION ALL SELECT id FROM never",
    }
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.song (id INT, region STRING) USING iceberg")
    lake.sql("CREATE TABLE lake.media.place (of INT) USING iceberg")
    lake.sql("CREATE TABLE lake.media.never (id INT) USING iceberg")  # It never gets a snapshot.
    lake.sql("INSERT INTO lake.media.song VALUES (1, 'x'), (2, 'y'), (3, 'x')")
    lake.sql("INSERT INTO lake.media.place VALUES (1), (2)")
    made = [ips.sql_asset(name, text, table=f"media.{name}", refresh="incremental") for name, text in texts.items()]
    made.append(ips.sql_asset("picky", texts["alias"], table="media.picky", refresh="strict"))
    sources: Any = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("song", "place", "never")]
    definitions = pipeline(lake.folder, lake.spark_folder, *made, *sources)
    materialize(definitions, instance, *texts, "picky")
    lake.sql("ALTER TABLE lake.media.place ADD COLUMN region STRING")
    lake.sql("ALTER TABLE lake.media.song ADD COLUMN twice INT")
    lake.sql("INSERT INTO lake.media.place VALUES (3, 'x')")
    lake.sql("INSERT INTO lake.media.song VALUES (4, 'x', 7)")
    result = materialize(definitions, instance, *texts)
    for name in ("song", "place", "never"):
        lake.sql(f"SELECT * FROM lake.media.{name}").createOrReplaceTempView(name)
    for name, text in texts.items():
        rows = lake.sql(text)
        assert lake.rows(f"media.{name}") == Counter(map(tuple, rows.collect())), name
    assert {name: said(result, name)["refresh"] for name in texts} == {
        "within": "full",
        "alias": "full",
        "all": "append",
        "both": "append",
    }
    with pytest.raises(QueryNotDerivedError, match="other columns than before"):
        materialize(definitions, instance, "picky")


def test_columns_that_change_what_a_query_means_are_followed_even_if_no_row_changed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    """A run that then consumes nothing has seen the new columns: no later run would know that they are new."""
    texts = {
        "within": "SELECT id FROM song WHERE EXISTS (SELECT 1 FROM place WHERE place.of = song.id AND region = 'x')",
        "both": "SELECT * FROM one UNION ALL SELECT * FROM other",
        "shared": "SELECT a FROM one NATURAL JOIN other",
    }
    tables = {
        "song": ("id INT, region STRING", "(1, 'x'), (2, 'y'), (3, 'x')"),
        "place": ("of INT", "(1), (2)"),
        "one": ("a INT, b INT", "(1, 2), (3, 4)"),
        "other": ("b INT, c INT", "(2, 7), (4, 3)"),
    }
    lake.catalog.create_namespace("media")
    for name, (columns, rows) in tables.items():
        lake.sql(f"CREATE TABLE lake.media.{name} ({columns}) USING iceberg")
        lake.sql(f"INSERT INTO lake.media.{name} VALUES {rows}")
    made = [ips.sql_asset(name, text, table=f"media.{name}", refresh="incremental") for name, text in texts.items()]
    sources: Any = [ips.iceberg_asset(name, table=f"media.{name}") for name in tables]
    definitions = pipeline(lake.folder, lake.spark_folder, *made, *sources)

    def follow() -> dict[str, int]:
        """Materialize and compare; returns the number of each table's commits."""
        materialize(definitions, instance, *texts)
        for name in tables:
            lake.sql(f"SELECT * FROM lake.media.{name}").createOrReplaceTempView(name)
        for name, text in texts.items():
            assert lake.rows(f"media.{name}") == Counter(map(tuple, lake.sql(text).collect())), name
        return {name: lake.commits(f"media.{name}") for name in texts}

    follow()
    lake.sql("ALTER TABLE lake.media.place ADD COLUMN region STRING")
    lake.sql("ALTER TABLE lake.media.other RENAME COLUMN c TO a")
    lake.sql("ALTER TABLE lake.media.other ALTER COLUMN a FIRST")
    commits = follow()
    assert follow() == commits
    lake.sql("INSERT INTO lake.media.place VALUES (3, 'x')")
    lake.sql("INSERT INTO lake.media.one VALUES (7, 2)")
    follow()


@pytest.mark.slow
def test_a_wider_type_on_which_values_depend_computes_everything(lake: Lake, instance: dg.DagsterInstance) -> None:
    texts = {
        "hashed": "SELECT id, hash(n) AS h FROM song",
        "shown": "SELECT id, CAST(f AS STRING) AS f FROM song",
        "in_full": "SELECT id, CAST(f AS STRING) AS f FROM song FULL JOIN never USING (id)",
        "copied": "SELECT id, n, f FROM song",
        "counted": "SELECT n, count(*) AS c, max(id) AS m FROM song WHERE n > 0 GROUP BY n",
    }
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.song (id INT, n INT, f FLOAT) USING iceberg")
    lake.sql("CREATE TABLE lake.media.never (id INT) USING iceberg")
    lake.sql("INSERT INTO lake.media.song VALUES (1, 1, 0.1F), (2, 2, 1.1F)")
    made = [ips.sql_asset(name, text, table=f"media.{name}", refresh="incremental") for name, text in texts.items()]
    sources: Any = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("song", "never")]
    definitions = pipeline(lake.folder, lake.spark_folder, *made, *sources)

    def follow() -> dict[str, str]:
        result = materialize(definitions, instance, *texts)
        for name in ("song", "never"):
            lake.sql(f"SELECT * FROM lake.media.{name}").createOrReplaceTempView(name)
        for name, text in texts.items():
            wanted = lake.sql(text)
            found = lake.sql(f"SELECT {', '.join(wanted.columns)} FROM lake.media.{name}")
            assert Counter(map(tuple, found.collect())) == Counter(map(tuple, wanted.collect())), name
        return {name: said(result, name)["refresh"] for name in texts}

    follow()
    lake.sql("ALTER TABLE lake.media.song ALTER COLUMN n TYPE BIGINT")
    lake.sql("ALTER TABLE lake.media.song ALTER COLUMN f TYPE DOUBLE")
    follow()
    lake.sql("INSERT INTO lake.media.song VALUES (3, 1, 0.1D)")
    assert follow() == {
        "hashed": "append",
        "shown": "append",
        "in_full": "full",
        "copied": "append",
        "counted": "combine",
    }
    lake.sql("ALTER TABLE lake.media.song ALTER COLUMN id TYPE BIGINT")
    lake.sql("INSERT INTO lake.media.song VALUES (4, 1, 0.1D)")
    assert follow() == {"hashed": "full", "shown": "full", "in_full": "full", "copied": "append", "counted": "combine"}


@pytest.mark.slow
def test_other_fields_of_a_struct_on_which_values_depend_compute_everything(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    texts = {
        "shown": "SELECT id, to_json(st) AS j, CAST(st AS STRING) AS s FROM song",
        "read": "SELECT id, st.a + 1 AS a FROM song",
        "copied": "SELECT id, st FROM song",
    }
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.song (id INT, st STRUCT<a: INT>) USING iceberg")
    lake.sql("INSERT INTO lake.media.song VALUES (1, named_struct('a', 1)), (2, null)")
    made = [ips.sql_asset(name, text, table=f"media.{name}", refresh="incremental") for name, text in texts.items()]
    source: Any = ips.iceberg_asset("song", table="media.song")
    definitions = pipeline(lake.folder, lake.spark_folder, *made, source)

    def follow(*names: str) -> dict[str, str]:
        result = materialize(definitions, instance, *names)
        lake.sql("SELECT * FROM lake.media.song").createOrReplaceTempView("song")
        for name in names:
            wanted = lake.sql(texts[name]).collect()
            assert lake.rows(f"media.{name}") == Counter(map(tuple, wanted)), name
        return {name: said(result, name)["refresh"] for name in names}

    follow(*texts)
    lake.sql("ALTER TABLE lake.media.song ADD COLUMN st.b INT")
    lake.sql("INSERT INTO lake.media.song VALUES (3, named_struct('a', 5, 'b', 6))")
    assert follow(*texts) == {"shown": "full", "read": "append", "copied": "append"}
    lake.sql("ALTER TABLE lake.media.song RENAME COLUMN st.b TO c")
    follow("shown", "read")
    lake.sql("INSERT INTO lake.media.song VALUES (4, named_struct('a', 7, 'c', 8))")
    assert follow("shown", "read") == {"shown": "append", "read": "append"}


def test_a_star_in_a_query_means_the_columns_that_its_sources_have_now(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    texts = {
        "both": "SELECT * FROM song UNION ALL SELECT * FROM place",
        "line": "SELECT a, concat_ws('|', *) AS line FROM song",
    }
    lake.catalog.create_namespace("media")
    for name, row in (("song", "(1, 2), (3, 4)"), ("place", "(5, 6)")):
        lake.sql(f"CREATE TABLE lake.media.{name} (a INT, b INT) USING iceberg")
        lake.sql(f"INSERT INTO lake.media.{name} VALUES {row}")
    made = [ips.sql_asset(name, text, table=f"media.{name}", refresh="incremental") for name, text in texts.items()]
    sources: Any = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("song", "place")]
    definitions = pipeline(lake.folder, lake.spark_folder, *made, *sources)
    materialize(definitions, instance, *texts)
    lake.sql("DELETE FROM lake.media.song WHERE a = 1")
    lake.sql("ALTER TABLE lake.media.place ALTER COLUMN b FIRST")
    materialize(definitions, instance, *texts)
    for name in ("song", "place"):
        lake.sql(f"SELECT * FROM lake.media.{name}").createOrReplaceTempView(name)
    for name, text in texts.items():
        assert lake.rows(f"media.{name}") == Counter(map(tuple, lake.sql(text).collect())), name


def test_a_table_has_the_columns_of_its_query_in_order_and_star_leaves_hidden_ones_out(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    texts = {
        "plays": "SELECT count(*) AS n, event_date, 10 * sum(seconds) AS tenths FROM playback GROUP BY 2",
        "longest": "SELECT max(seconds) AS longest, event_date FROM playback GROUP BY event_date",
        "joined": "SELECT * FROM plays JOIN longest USING (event_date)",
        "both": "SELECT * FROM longest UNION ALL SELECT seconds, event_date FROM playback",
    }
    columns = {
        "plays": ["n", "event_date", "tenths"],
        "longest": ["longest", "event_date"],
        "joined": ["event_date", "n", "tenths", "longest"],
        "both": ["longest", "event_date"],
    }
    lake.create_playback(events(range(8)))
    made = [ips.sql_asset(name, text, table=f"media.{name}", refresh="incremental") for name, text in texts.items()]
    definitions = pipeline(lake.folder, lake.spark_folder, *made)
    for _ in range(2):
        materialize(definitions, instance, *texts)
        for name in texts:
            found = lake.sql(f"SELECT * FROM lake.media.{name}").columns
            assert found[: len(columns[name])] == columns[name]
            assert all(column.startswith("_ips_") for column in found[len(columns[name]) :])
        joined = lake.sql("SELECT event_date, n, tenths, longest FROM lake.media.joined").collect()
        per_day = lake.sql(
            "SELECT event_date, count(*), 10 * sum(seconds), max(seconds) FROM lake.media.playback GROUP BY 1"
        ).collect()
        assert Counter(map(tuple, joined)) == Counter(map(tuple, per_day))
        assert (
            lake.sql("SELECT * FROM lake.media.both").count()
            == len(per_day) + lake.sql("SELECT * FROM lake.media.playback").count()
        )
        lake.append(events(range(20, 24)))


def test_a_new_column_that_star_names_is_in_rows_that_are_replaced_by_keys(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    text = "SELECT p.*, t.genre FROM playback p LEFT JOIN title t ON p.account = t.account"
    lake.create_playback(events(range(8)))
    lake.sql("CREATE TABLE lake.media.title (account STRING, genre STRING) USING iceberg")
    lake.sql("INSERT INTO lake.media.title SELECT DISTINCT account, 'a' FROM lake.media.playback")
    definitions = pipeline(lake.folder, lake.spark_folder, *assets({"all": text}))
    materialize(definitions, instance, "all")
    lake.sql("ALTER TABLE lake.media.playback ADD COLUMN plan STRING")
    lake.sql("UPDATE lake.media.playback SET plan = 'free' WHERE event_id = 3")
    lake.sql("UPDATE lake.media.title SET genre = 'b' WHERE account IN (SELECT max(account) FROM lake.media.title)")
    assert said(materialize(definitions, instance, "all"), "all")[REFRESH] == "keys"
    check(lake, "all", text)


@pytest.mark.slow
def test_the_earlier_rows_of_a_source_are_read_with_its_current_columns(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    texts = {
        "both": "SELECT id, about FROM title UNION ALL SELECT of AS id, about FROM title",
        "joined": "SELECT a.of, count(*) AS n, sum(b.id) AS s FROM title a JOIN title b ON a.of = b.of GROUP BY a.of",
    }
    lake.create_playback()
    lake.sql("CREATE TABLE lake.media.title (id INT, of INT, odd INT, about STRUCT<a: INT>) USING iceberg")
    lake.sql("INSERT INTO lake.media.title VALUES (1, 2, 3, named_struct('a', 1)), (2, 2, 4, NULL)")
    made = [ips.sql_asset(name, text, table=f"media.{name}", refresh="incremental") for name, text in texts.items()]
    title: Any = ips.iceberg_asset("title", table="media.title")
    definitions = pipeline(lake.folder, lake.spark_folder, *made, title)
    materialize(definitions, instance, *texts)
    # Change columns after a commit, so that no snapshot has them, and before one, so that only the older lacks them.
    row = "INSERT INTO lake.media.title SELECT id + 10, of, 1 AS odd, about FROM lake.media.title WHERE id < 10"
    changes = ["ADD COLUMN about.b INT", "RENAME COLUMN odd TO even", "ALTER COLUMN of TYPE BIGINT", "DROP COLUMN even"]
    for change in changes:
        lake.sql(row)
        lake.sql(f"ALTER TABLE lake.media.title {change}")
        for more in ("", row.replace("1 AS odd, ", "" if change.startswith("DROP") else "1, ")):
            if more:
                lake.sql(more)
            result = materialize(definitions, instance, *texts)
            # The sides of a UNION match the fields of a struct by their places, so a new field may change earlier rows.
            both = "full" if change.startswith("ADD") and not more else "append"
            for name, text in texts.items():
                check(lake, name, text, change, more)
                assert said(result, name)["refresh"] == {"both": both, "joined": "combine"}[name], (change, more)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SELECT *, rand() AS r FROM playback", "RAND.. may give different results for the same"),
        ("SELECT * FROM playback ORDER BY seconds LIMIT 3", "LIMIT"),
        ("SELECT score(account) FROM playback", "the function score isn.t known to give the same"),
        ("SELECT * FROM playback WHERE event_date = current_date()", "CURRENT_DATE"),
        ("DELETE FROM playback", "isn't a single SELECT"),
    ],
)
def test_a_query_that_may_give_different_rows_each_time_is_refused_when_it_is_declared(text: str, match: str) -> None:
    with pytest.raises(DeclarationError, match=match):
        ips.sql_asset("x", text)
