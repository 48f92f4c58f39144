"""Queries over decimals of up to 38 digits are maintained to the last digit."""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Context, Decimal

import dagster as dg
import pytest

import dagster_ips as ips
from tests.support.lake import Lake
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow

EXACT = Context(prec=100)
QUERIES = {
    "sums": """
        SELECT k, sum(a) AS a, sum(b) AS b, sum(e) AS e, sum(c * d) AS products, sum(b * 0.5) AS halves, avg(d) AS mean,
            sum(b) - sum(c) AS difference, count(*) AS rows
        FROM amounts GROUP BY k""",
    "joined": """
        SELECT r.name, sum(m.d * r.rate) AS d, sum(m.b) AS b, sum(m.a) AS a, sum(r.rate) AS rates
        FROM amounts m JOIN rates r ON m.k = r.k GROUP BY r.name""",
    "all_rows": "SELECT sum(a) AS a, sum(b) AS b, sum(e) AS e, count(d) AS known FROM amounts",
}
STEPS = (
    "DELETE FROM lake.media.amounts WHERE id IN (1, 5)",
    "UPDATE lake.media.amounts SET a = -a, b = CAST(b / 7 AS DECIMAL(38, 18)), d = d + 0.0001 WHERE id IN (2, 4)",
    "UPDATE lake.media.rates SET rate = rate + 0.001 WHERE k = 1",
    "INSERT INTO lake.media.amounts SELECT id + 10, k, a, b, c, d, e FROM lake.media.amounts WHERE id <> 3",
    "DELETE FROM lake.media.amounts WHERE k = 2",
)


@pytest.mark.everywhere
@pytest.mark.parametrize("loses_places", mostly_slow(["true", "false"]))
def test_sums_of_decimals_and_of_their_products_follow_every_change_of_a_query(
    lake: Lake, instance: dg.DagsterInstance, loses_places: str
) -> None:
    lake.catalog.create_namespace("media")
    lake.sql(
        "CREATE TABLE lake.media.amounts (id INT, k INT, a DECIMAL(38, 0), b DECIMAL(38, 18), c DECIMAL(20, 10), "
        "d DECIMAL(18, 4), e DECIMAL(38, 38)) USING iceberg TBLPROPERTIES ('format-version' = '2')"
    )
    lake.sql("CREATE TABLE lake.media.rates (k INT, name STRING, rate DECIMAL(12, 6)) USING iceberg")
    lake.sql("INSERT INTO lake.media.rates VALUES (1, 'x', 1.000001), (2, 'x', 123456.654321), (3, 'y', -0.5)")
    lake.sql("""INSERT INTO lake.media.amounts VALUES
        (1, 1, 12345678901234567890123456789012345, 12345678901234567890.123456789012345678, 1234567890.0123456789,
            99999999999999.9999, 0.12345678901234567890123456789012345678),
        (2, 1, 1, 0.000000000000000001, 0.0000000001, 0.0001, 0.00000000000000000000000000000000000001),
        (3, 2, 76543210987654321098765432109876543210, -9999999999999999999.999999999999999999, 5, -7.5, -0.5),
        (4, 3, 98765432109876543210987654321, 7777777777777777.777777777777777777, -1.5, 3.3333, 0.4),
        (5, 3, -1, 1, 2, NULL, -0.00000000000000000000000000000000000009)""")
    sources = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("amounts", "rates")]
    made = [ips.sql_asset(name, text, table=f"media.{name}") for name, text in QUERIES.items()]
    conf = {"spark.sql.decimalOperations.allowPrecisionLoss": loses_places}
    definitions = pipeline(lake.folder, lake.spark_folder, *sources, *made, spark_config=conf)
    lake.session.conf.set(*conf.popitem())
    for statement in ("SELECT 1", *STEPS):
        lake.sql(statement)
        materialize(definitions, instance, *QUERIES)
        for source in ("amounts", "rates"):
            lake.sql(f"SELECT * FROM lake.media.{source}").createOrReplaceTempView(source)
        for name, text in QUERIES.items():
            wanted = lake.sql(text)
            found = lake.sql(f"SELECT {', '.join(wanted.columns)} FROM lake.media.{name}")
            assert Counter(map(tuple, found.collect())) == Counter(map(tuple, wanted.collect())), (name, statement)
        assert {row.k: row.a for row in lake.sql("SELECT k, a FROM lake.media.sums").collect()} == added_up(lake)


def added_up(lake: Lake) -> dict[int, Decimal]:
    """The sums of ``a`` by ``k``, by Python."""
    found: dict[int, Decimal] = defaultdict(Decimal)
    for row in lake.sql("SELECT k, a FROM lake.media.amounts").collect():
        found[row.k] = EXACT.add(found[row.k], row.a)
    return dict(found)
