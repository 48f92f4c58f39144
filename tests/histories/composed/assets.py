"""Assets as users combine them: unions, joins, lookups, groups, partitions, and assets downstream of these."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.orchestration.run.own_sql import OwnSql
from tests.support.lake_catalog import catalog_resource
from tests.support.spark_resource import spark_resource

SOURCES = ("fact", "other", "dimension")
ROW = ("number", "day", "title", "price", "written")
KEY = ("number", "day", "title")
PAID = "price IS NULL OR price > 0"
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")
TITLES = dg.StaticPartitionsDefinition(["a", "b/ c='é'"])
NUMBERS = dg.DynamicPartitionsDefinition(name="numbers")


def _groups(rows: DataFrame, *keys: str) -> DataFrame:
    return rows.groupBy(*keys).agg(F.count("*").alias("n"), F.sum("price").alias("paid"))


def _genres(dimension: DataFrame) -> DataFrame:
    return dimension.select("number", F.col("title").alias("genre"))


# Of both facts


@dg.asset(
    ins={"fact": ips.incremental(), "other": ips.incremental()}, metadata=ips.append() | ips.table("media.united")
)
def united(fact: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    return fact.added.select(*ROW).unionAll(other.added.select(*ROW))


@dg.asset(
    ins={"fact": ips.incremental(), "other": ips.incremental()},
    metadata=ips.append(remove_on=KEY) | ips.table("media.kept", partition_by=["day"]),
)
def kept(fact: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    return fact.added.where(PAID).select(*ROW).unionAll(other.added.select(*ROW))


@dg.asset(
    ins={"fact": ips.incremental(), "other": ips.incremental()},
    metadata=ips.append(dedup_on=KEY) | ips.table("media.once", partition_by=["title"]),
)
def once(fact: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    return fact.added.select(*KEY).unionAll(other.added.select(*KEY))


@dg.asset(
    ins={"fact": ips.incremental(), "other": ips.incremental()},
    metadata=ips.merge(on=KEY) | ips.table("media.merged", partition_by=["title"]),
)
def merged(fact: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    return fact.added.select(*ROW).unionAll(other.added.select(*ROW))


@dg.asset(
    ins={"fact": ips.incremental(), "other": ips.incremental()},
    metadata=ips.table("media.running", partition_by=["day"]),
)
def running(fact: ips.IcdcView, other: ips.IcdcView) -> ips.Overwrite:
    scope = (fact.range("day") | other.range("day")).since("day")
    rows = fact.source.select("day").unionAll(other.source.select("day")).where("day IS NOT NULL")
    days = rows.groupBy("day").agg(F.count("*").alias("of_the_day"))
    so_far = days.select("day", F.sum("of_the_day").over(Window.orderBy("day")).alias("n"))
    return ips.Overwrite(so_far.where(scope), where=scope)


@dg.asset(
    ins={"fact": ips.incremental(), "other": ips.incremental()},
    metadata=ips.combine(on=["day", "title"], aggregates={"n": "count(*)", "paid": "sum(price)", "last": "max(number)"})
    | ips.table("media.summed", partition_by=["day"]),
)
def summed(fact: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    return fact.weighted.select(*ROW, "_weight").unionAll(other.weighted.select(*ROW, "_weight"))


@dg.asset(
    ins={"fact": ips.incremental(), "other": ips.incremental()},
    metadata=ips.combine(
        on=["day", "title"],
        aggregates={"n": "count(*)", "paid": "sum(price)", "last": "max(number)"},
        storage="partials",
    )
    | ips.table("media.in_parts", partition_by=["day"]),
)
def in_parts(fact: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    return fact.weighted.select(*ROW, "_weight").unionAll(other.weighted.select(*ROW, "_weight"))


# Of a fact and a dimension


@dg.asset(
    ins={"fact": ips.incremental(), "dimension": ips.lookup()}, metadata=ips.append() | ips.table("media.looked_up")
)
def looked_up(fact: ips.IcdcView, dimension: DataFrame) -> DataFrame:
    return fact.added.join(_genres(dimension), "number").select(*KEY, "genre")


@dg.asset(
    ins={"fact": ips.incremental(), "dimension": ips.incremental()}, metadata=ips.append() | ips.table("media.joined")
)
def joined(fact: ips.IcdcView, dimension: ips.IcdcView) -> DataFrame:
    return fact.added.join(_genres(dimension.source), "number", "left").select(*KEY, "genre")


@dg.asset(
    ins={"fact": ips.incremental(), "dimension": ips.incremental()},
    metadata=ips.merge(on=["day", "genre"]) | ips.table("media.per_genre"),
)
def per_genre(fact: ips.IcdcView, dimension: ips.IcdcView) -> DataFrame:
    rows = ips.affected(fact, "day", by=dimension, on="number")
    return _groups(rows.join(_genres(dimension.source), "number"), "day", "genre")


@dg.asset(
    ins={"fact": ips.incremental(), "dimension": ips.incremental()},
    metadata=ips.overwrite_partitions() | ips.table("media.of_days", partition_by=["day"]),
)
def of_days(fact: ips.IcdcView, dimension: ips.IcdcView) -> DataFrame:
    rows = ips.affected(fact, "day", by=dimension, on="number")
    return rows.join(_genres(dimension.source), "number").select(*KEY, "genre")


@dg.asset(
    ins={"fact": ips.incremental(), "dimension": ips.incremental()},
    metadata=ips.combine(on=["genre"], aggregates={"n": "count(*)", "paid": "sum(price)"})
    | ips.table("media.by_genre"),
)
def by_genre(fact: ips.IcdcView, dimension: ips.IcdcView) -> DataFrame:
    return fact.weighted.join(_genres(dimension.source), "number").select("genre", "price", "_weight")


# Of one table


@dg.asset(
    ins={"fact": ips.incremental(on_rollback="continue")},
    metadata=ips.merge(on=["day", "title"]) | ips.table("media.grouped", partition_by=["day"]),
)
def grouped(fact: ips.IcdcView) -> DataFrame:
    return _groups(fact.affected("day", "title"), "day", "title")


@dg.asset(
    ins={"fact": ips.incremental(on_rollback="full", on_expired="full")},
    metadata=ips.overwrite_partitions() | ips.table("media.whole", partition_by=["day", "title"]),
)
def whole(fact: ips.IcdcView) -> DataFrame:
    return fact.scope.select(*ROW)


@dg.asset(
    ins={"fact": ips.incremental()}, metadata=ips.merge(on=["number"], latest_by="at") | ips.table("media.latest")
)
def latest(fact: ips.IcdcView) -> DataFrame:
    return fact.added.select("number", "at", "title", "amount")


@dg.asset(ins={"fact": ips.incremental()}, metadata=ips.append(remove_on=KEY) | ips.table("media.copied"))
def copied(fact: ips.IcdcView) -> DataFrame:
    return fact.added


# Partitioned


@dg.asset(
    partitions_def=DAYS,
    ins={"fact": ips.incremental()},
    metadata=ips.append() | ips.table("media.by_written", partition_by=["written"]) | {"partition_expr": "written"},
)
def by_written(fact: ips.IcdcView) -> DataFrame:
    return fact.added.select(*ROW)


@dg.asset(
    partitions_def=TITLES,
    ins={"fact": ips.incremental(on_unmapped="ignore")},
    metadata=ips.merge(on=["title", "day"]) | ips.table("media.by_title") | {"partition_expr": "title"},
)
def by_title(fact: ips.IcdcView) -> DataFrame:
    return _groups(fact.affected("title", "day"), "title", "day")


@dg.asset(
    partitions_def=NUMBERS,
    ins={"other": ips.incremental(on_unmapped="ignore")},
    metadata=ips.replace() | ips.table("media.by_number", partition_by=["number"]) | {"partition_expr": "number"},
)
def by_number(other: ips.IcdcView) -> DataFrame:
    return _groups(other.source, "number", "title")


@dg.asset(
    partitions_def=DAYS,
    ins={"fact": ips.incremental(on_unmapped="ignore"), "other": ips.incremental(on_unmapped="ignore")},
    metadata=ips.append(remove_on=KEY) | ips.table("media.by_day", partition_by=["day"]) | {"partition_expr": "day"},
)
def by_day(fact: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    return fact.added.where(PAID).select(*ROW).unionAll(other.added.select(*ROW))


# By SQL


@dg.asset(deps=[ips.incremental_dep("fact"), ips.incremental_dep("other")], metadata=ips.table("media.counted"))
def counted(context):  # noqa: ANN001, ANN201  # Dagster reads its annotation at run time, and annotations are strings here
    with ips.capture(context, columns=COUNTED) as icdc:
        count(icdc)


COUNTED = "day DATE, title STRING, n BIGINT"


def count(icdc: OwnSql) -> None:
    """The statements of ``counted``. They count twice if they run twice."""
    signed = [
        f"SELECT day, title, {sign} AS n FROM {{{name}.{frame}}}"
        for name in ("fact", "other")
        for frame, sign in (("added", 1), ("removed", -1))
    ]
    icdc.sql(f"""
        MERGE INTO {{target}} t
        USING (SELECT day, title, sum(n) AS n FROM ({" UNION ALL ".join(signed)}) GROUP BY day, title) c
        ON t.day <=> c.day AND t.title <=> c.title
        WHEN MATCHED THEN UPDATE SET n = t.n + c.n WHEN NOT MATCHED THEN INSERT *
    """)
    icdc.sql("DELETE FROM {target} WHERE n = 0")


queried = ips.sql_asset(
    "queried",
    """
    SELECT d.title AS genre, f.day, count(*) AS n, sum(f.price) AS paid, max(f.number) AS last
    FROM fact f JOIN dimension d ON f.number = d.number GROUP BY d.title, f.day
    """,
    table="media.queried",
    refresh="incremental",
)
queried_rows = ips.sql_asset(
    "queried_rows",
    f"SELECT {', '.join(ROW)} FROM fact WHERE {PAID} UNION ALL SELECT {', '.join(ROW)} FROM other",
    table="media.queried_rows",
    refresh="incremental",
    partition_by=["day"],
)
queried_joins = ips.sql_asset(
    "queried_joins",
    "SELECT f.number, f.day, f.title, d.title AS genre FROM fact f LEFT JOIN dimension d ON f.number = d.number",
    table="media.queried_joins",
    refresh="incremental",
    partition_by=["title"],
)
queried_ranks = ips.sql_asset(
    "queried_ranks",
    "SELECT day, number, title, rank() OVER (PARTITION BY day ORDER BY number, title) AS place FROM fact",
    table="media.queried_ranks",
    refresh="incremental",
)


# Together


def _paid_rows(fact: ips.IcdcView) -> DataFrame:
    return fact.added.where(PAID).select(*ROW)


def _day_totals(fact: ips.IcdcView) -> DataFrame:
    return _groups(fact.affected("day"), "day", "title")


TOGETHER = {"paid_rows": _paid_rows, "day_totals": _day_totals}
"""The functions that compute the tables of one step."""


@dg.multi_asset(
    ins={"fact": ips.incremental()},
    outs={
        "paid_rows": dg.AssetOut(
            metadata=ips.append(remove_on=KEY) | ips.table("media.paid_rows", partition_by=["day"]), is_required=False
        ),
        "day_totals": dg.AssetOut(
            metadata=ips.merge(on=["day", "title"]) | ips.table("media.day_totals"), is_required=False
        ),
    },
    can_subset=True,
)
def together(context, fact: ips.IcdcView):  # noqa: ANN001, ANN201  # as above
    for name in sorted(context.op_execution_context.selected_output_names):
        yield dg.Output(TOGETHER[name](fact), output_name=name)


# Downstream of the assets above


@dg.asset(ins={"kept": ips.incremental()}, metadata=ips.merge(on=["title"]) | ips.table("media.of_kept"))
def of_kept(kept: ips.IcdcView) -> DataFrame:
    return _groups(kept.affected("title"), "title")


@dg.asset(
    ins={"grouped": ips.incremental(on_rollback="continue")},
    metadata=ips.append(remove_on=["day", "title"]) | ips.table("media.of_groups"),
)
def of_groups(grouped: ips.IcdcView) -> DataFrame:
    return grouped.added


@dg.asset(
    ins={"per_genre": ips.incremental(), "dimension": ips.incremental()},
    metadata=ips.overwrite_partitions() | ips.table("media.of_genres", partition_by=["genre"]),
)
def of_genres(per_genre: ips.IcdcView, dimension: ips.IcdcView) -> DataFrame:
    rows = ips.affected(per_genre, "genre", by=dimension, on={"genre": "title"})
    titles = dimension.source.select("title", "number")
    return rows.join(titles, F.expr("genre = title")).select("genre", "day", "n", "number")


ASSETS = (
    united,
    kept,
    once,
    merged,
    running,
    summed,
    in_parts,
    looked_up,
    joined,
    per_genre,
    of_days,
    by_genre,
    grouped,
    whole,
    latest,
    copied,
    by_written,
    by_title,
    by_number,
    by_day,
    counted,
    queried,
    queried_rows,
    queried_joins,
    queried_ranks,
    together,
    of_kept,
    of_groups,
    of_genres,
)


def definitions(lake_folder: Path, spark_folder: Path) -> dg.Definitions:
    """All assets on the lake in ``lake_folder``. They keep as few ICDC tables as possible."""
    manager = ips.IcdcIOManager(
        catalog=catalog_resource(lake_folder),
        spark=spark_resource(spark_folder, {"spark.sql.shuffle.partitions": "1"}),
        icdc_keep_last=1,
    )
    sources = [ips.iceberg_asset(name, table=f"media.{name}") for name in SOURCES]
    return ips.with_incremental(dg.Definitions(assets=[*sources, *ASSETS], resources={"io_manager": manager}))
