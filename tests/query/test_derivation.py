"""A plan leaves in a table what its query gives, for random queries and for the smallest ones."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest

from dagster_ips.query.affected_keys import SourceChange, tables_of
from dagster_ips.query.maintenance_plan import MaintenancePlan, QueryColumn, Strategy
from dagster_ips.query.near_rows import near_rows
from dagster_ips.query.query_text import Query, RefusedQueryError, read
from dagster_ips.query.spark_dialect import in_spark
from dagster_ips.query.top_grouping import Grouping
from tests.query.differential import Case, Machine, in_duckdb, run
from tests.query.random_queries import TABLES, Row

ADDED, REMOVED = SourceChange(adds=True, removes=False), SourceChange(adds=True, removes=True)


@pytest.mark.parametrize("seed", [101, 102])
def test_random_queries_are_maintained_correctly(seed: int) -> None:
    found = run(seed, queries=40, changes=5)
    assert found.wrong == []
    assert all(found.figures[each] for each in (Strategy.APPEND, Strategy.COMBINE, Strategy.KEYS))


CASES: list[tuple[str, dict[str, list[Row]], dict[str, list[Row]], dict[str, list[Row]]]] = [
    (
        "SELECT x.s AS k, y.s AS l, count(*) AS n FROM t0 x JOIN t1 y ON x.a = y.a GROUP BY x.s, y.s",
        {"t0": [(1, 1, 1, "a")], "t1": [(1, 1, 1, "b")]},
        {},
        {"t0": [(1, 1, 1, "a")], "t1": [(1, 1, 1, "b")]},
    ),
    (
        "SELECT x.s AS k, count(*) AS n FROM t0 x LEFT JOIN t3 y ON x.b = y.b WHERE y.f IS NULL GROUP BY x.s",
        {"t0": [(1, 1, 1, "a")]},
        {"t3": [(1, 2, "u")]},
        {},
    ),
    (
        "SELECT a, b, rank() OVER (PARTITION BY a ORDER BY c) AS r, max(c) OVER (PARTITION BY a, b) AS q FROM t0",
        {"t0": [(1, 1, 2, "a")]},
        {"t0": [(1, 2, 1, "a")]},
        {},
    ),
    (
        "SELECT l.a, max(m.b) FROM t0 l JOIN t1 m ON l.b = m.b LEFT JOIN t3 r ON l.a = r.b AND m.a = r.b GROUP BY 1",
        {"t0": [(1, 1, 1, "a"), (1, 1, 2, "a")], "t1": [(3, 1, 1, "a")]},
        {},
        {"t0": [(1, 1, 1, "a")]},
    ),
    (
        "SELECT x.a AS k, y.b AS j, count(DISTINCT x.s) AS n FROM t0 x JOIN t0 y ON x.c = y.b GROUP BY x.a, y.b",
        {"t0": [(3, 1, 7, "a")]},
        {"t0": [(5, 9, 1, "a")]},
        {},
    ),
    (
        "SELECT s AS k, count(*) AS n FROM t0 GROUP BY s HAVING count(*) > 0",
        {"t0": [(1, 1, 1, None), (2, 1, 1, None)]},
        {},
        {"t0": [(1, 1, 1, None)]},
    ),
    ("SELECT s AS k FROM t0 WHERE a NOT IN (SELECT b FROM t3)", {"t0": [(1, 1, 1, "a")]}, {"t3": [(None, 1, "u")]}, {}),
    (
        "SELECT s AS k, a FROM t0 WHERE a IN (SELECT b FROM t3 ORDER BY b LIMIT 1)",
        {"t0": [(2, 1, 1, "a")], "t3": [(2, 1, "u")]},
        {"t3": [(1, 1, "u")]},
        {},
    ),
    (
        "SELECT s AS k, a FROM t0 WHERE EXISTS (SELECT 1 FROM t3 WHERE t3.b = t0.a LIMIT 1)",
        {"t0": [(1, 1, 1, "a"), (2, 1, 1, "b")], "t3": [(2, 1, "u")]},
        {"t3": [(1, 1, "u")]},
        {"t3": [(2, 1, "u")]},
    ),
    (
        "SELECT a, s, c FROM t0 WHERE (a, c) IN (SELECT a, max(c) FROM t0 GROUP BY a)",
        {"t0": [(1, 1, 1, "a"), (2, 1, 1, "b"), (None, 1, 1, "c")]},
        {"t0": [(1, 1, 2, "d")]},
        {"t0": [(2, 1, 1, "b")]},
    ),
    (
        "SELECT s, count(*) AS n FROM t0 WHERE (a, b) IN (SELECT b, f FROM t3) OR s = 'c' GROUP BY s",
        {"t0": [(1, 1, 1, "a"), (1, 2, 1, "b"), (1, None, 1, "c")], "t3": [(1, 2, "u")]},
        {"t3": [(1, 1, "u"), (1, None, "v")]},
        {"t3": [(1, 2, "u")]},
    ),
    (
        "SELECT a FROM t0 UNION ALL SELECT b FROM t3 ORDER BY a LIMIT 2",
        {"t0": [(2, 1, 1, "a")], "t3": [(3, 1, "u")]},
        {"t3": [(1, 1, "u")]},
        {},
    ),
    (
        "SELECT x.s AS k, count(*) AS n FROM t0 x JOIN t0 y ON x.a = y.b GROUP BY x.s",
        {"t0": [(1, 2, 1, "a")]},
        {"t0": [(3, 1, 1, "b")]},
        {},
    ),
    (
        "SELECT m.s, min(l.b) FROM t0 l CROSS JOIN t1 m LEFT JOIN t3 r ON l.a = r.b AND m.a = r.b GROUP BY m.s",
        {"t1": [(1, 1, 1, "b")]},
        {"t0": [(1, 1, 1, "a")]},
        {},
    ),
    (
        "SELECT a, count(DISTINCT b) AS n FROM t0 GROUP BY a",
        {"t0": [(1, 1, 1, "a")]},
        {"t0": [(2, 1, 1, "a")]},
        {"t0": [(1, 1, 1, "a")]},
    ),
    (
        "SELECT y.s, count(*) AS n FROM t0 x LEFT JOIN t1 y ON x.a = y.a GROUP BY y.s",
        {"t0": [(1, 1, 1, "a")]},
        {"t1": [(1, 1, 1, "b")]},
        {},
    ),
    ("SELECT a, s FROM t0 ORDER BY a, s LIMIT 1", {"t0": [(2, 1, 1, "b")]}, {"t0": [(1, 1, 1, "a")]}, {}),
    (
        "SELECT x.s AS k, y.s AS l FROM t0 x RIGHT JOIN t1 y ON x.a = y.a",
        {"t1": [(1, 1, 1, "b")]},
        {"t0": [(1, 1, 1, "a")]},
        {},
    ),
    ("SELECT a FROM t0 EXCEPT ALL SELECT b FROM t3", {"t0": [(1, 1, 1, "a")]}, {"t3": [(1, 1, "u")]}, {}),
    ("SELECT DISTINCT a FROM t0", {"t0": [(1, 1, 1, "a")]}, {"t0": [(1, 2, 1, "a")]}, {}),
    (
        "SELECT x.a AS k, y.s AS l FROM t0 x FULL JOIN t1 y ON x.a = y.a",
        {"t1": [(1, 1, 1, "b")]},
        {"t0": [(2, 1, 1, "a")]},
        {},
    ),
    (
        "SELECT x.s AS k, z.s AS l FROM t0 x JOIN t1 y ON x.a = y.a RIGHT JOIN t3 z ON x.b = z.b",
        {"t3": [(1, 1, "u")]},
        {"t0": [(2, 2, 2, "a")]},
        {},
    ),
    (
        "SELECT s, (SELECT max(y.d) FROM t1 y WHERE y.a = x.a) AS m FROM t0 x",
        {"t0": [(1, 1, 1, "a")]},
        {"t1": [(1, 1, 1, "b")]},
        {},
    ),
    ("SELECT a AS k, y.s AS l FROM t0 x RIGHT JOIN t1 y USING (a)", {}, {"t1": [(1, 1, 1, "b")]}, {}),
    (
        "SELECT q.a, q.n FROM (SELECT a, count(*) AS n FROM t0 GROUP BY a) q",
        {"t0": [(1, 1, 1, "a")]},
        {"t0": [(1, 2, 1, "a")]},
        {},
    ),
    ("SELECT a, sum(b) FILTER (WHERE a > 1) AS n FROM t0 GROUP BY a", {}, {"t0": [(1, 1, 1, "a")]}, {}),
    (
        "SELECT a, sum(b) AS s, count(DISTINCT b) AS n FROM t0 GROUP BY a",
        {"t0": [(1, 1, 1, "a")]},
        {"t0": [(1, 1, 2, "a")]},
        {},
    ),
    ("SELECT count(*) AS n FROM t0 GROUP BY a", {"t0": [(1, 1, 1, "a")]}, {"t0": [(2, 1, 1, "a")]}, {}),
    ("SELECT count(*) AS n, max(b) AS m FROM t0", {"t0": [(1, 1, 1, "a")]}, {}, {"t0": [(1, 1, 1, "a")]}),
    ("SELECT sum(b) AS n FROM t0", {}, {"t0": [(1, None, 1, "a")]}, {}),
    (
        "SELECT x.s, 100 * sum(x.b) / count(y.d) - min(y.d) AS p FROM t0 x JOIN t1 y ON x.a = y.a GROUP BY x.s",
        {"t0": [(1, 1, 1, "a"), (1, 2, 1, "a")], "t1": [(1, 1, 1, "b"), (1, 1, 2, "b")]},
        {"t0": [(1, 5, 1, "b")]},
        {"t1": [(1, 1, 1, "b")]},
    ),
    *(
        # A row that one place adds and another one removes is no extreme, and hides no lesser one.
        (
            f"SELECT y.s, {function}(x.b * {sign}) AS m FROM t0 x JOIN t1 y ON x.a = y.a GROUP BY y.s",
            {"t0": [(1, 5, 1, "a")], "t1": [(1, 1, 1, "d"), (2, 1, 1, "d")]},
            {"t0": [(2, 9, 1, "a"), (1, least, 1, "a")], "t1": [(2, 1, 1, "c")]},
            {"t1": [(2, 1, 1, "d")]},
        )
        for function, sign in (("max", 1), ("min", -1))
        for least in (1, 7)
    ),
    (
        "SELECT x.s, max(x.b - y.b) AS m FROM t0 x JOIN t0 y ON x.s = y.s GROUP BY x.s",
        {"t0": [(1, 10, 1, "a"), (1, 20, 1, "a")]},
        {"t0": [(1, 100, 1, "a")]},
        {"t0": [(1, 10, 1, "a")]},
    ),
    (
        """
        SELECT q.n, count(*) AS m FROM (
            SELECT x.a, count(y.d) AS n FROM t0 x LEFT JOIN t1 y ON x.a = y.a GROUP BY x.a
        ) q GROUP BY q.n
        """,
        {"t0": [(1, 1, 1, "a"), (2, 1, 1, "a")], "t1": [(1, 1, 1, "b")]},
        {"t0": [(3, 1, 1, "a")], "t1": [(1, 1, 1, "b"), (2, 1, 1, "b")]},
        {},
    ),
    (
        "SELECT x.s, sum(x.b) AS n FROM t0 x LEFT JOIN t1 y ON x.a = y.a GROUP BY x.s",
        {"t0": [(1, 1, 1, "a"), (2, 1, 1, "a")], "t1": [(1, 1, 1, "b")]},
        {"t1": [(2, 1, 1, "b"), (2, 2, 1, "b")]},
        {"t1": [(1, 1, 1, "b")]},
    ),
    (
        "SELECT sum(x.b) / count(*) AS n FROM t0 x WHERE x.b >= (SELECT max(y.b) FROM t0 y WHERE y.a = x.a)",
        {"t0": [(1, 1, 1, "a"), (1, 3, 1, "a"), (2, 5, 1, "b")]},
        {"t0": [(1, 2, 1, "a"), (3, 1, 1, "c")]},
        {"t0": [(1, 3, 1, "a")]},
    ),
    ("SELECT s AS k FROM t0 UNION ALL SELECT s AS k FROM t3", {"t3": [(1, 0, "u")]}, {"t0": [(1, 1, 1, "a")]}, {}),
    (
        "SELECT coalesce(y.a, x.a) AS k, x.b FROM t0 x LEFT JOIN t1 y ON y.a = x.a",
        {"t0": [(1, 1, 1, "a")]},
        {"t0": [(2, 1, 1, "a")]},
        {},
    ),
    (
        "SELECT coalesce(x.a, y.a) AS k, f FROM t0 x JOIN t1 y ON x.b = y.b LEFT JOIN t3 z ON x.a = y.a AND z.b = y.b",
        {"t1": [(1, 1, 1, "b")]},
        {"t0": [(None, 1, 1, "a")]},
        {},
    ),
    (
        "WITH q AS (SELECT * FROM t0) SELECT q.b AS k FROM (q JOIN t1 y ON q.a = y.a)",
        {"t1": [(1, 1, 1, "b")]},
        {"t0": [(2, 1, 1, "a")]},
        {},
    ),
    (
        "WITH q AS (SELECT * FROM t0), r AS (SELECT * FROM t1) SELECT q.b AS k FROM (q JOIN r ON q.a = r.a)",
        {"t0": [(1, 1, 1, "a")]},
        {"t1": [(1, 1, 1, "b")]},
        {},
    ),
    (
        "SELECT 'x' AS k, x.b FROM t0 x WHERE x.a IN (SELECT y.a FROM t1 y UNION SELECT z.b FROM t3 z)",
        {"t0": [(1, 1, 1, "a")]},
        {"t1": [(1, 1, 1, "b")]},
        {},
    ),
    *(
        (text, {"t0": [(1, 1, 1, "a"), (1, 2, 1, "a")]}, {"t0": [(1, 3, 1, "a")]}, {"t0": [(1, 1, 1, "a")]})
        for text in (
            "SELECT a, concat_ws('|', *) AS k FROM t0",
            "SELECT a, concat_ws('|', x.*) AS k, b FROM t0 x",
            "SELECT k, count(DISTINCT b) AS n FROM (SELECT a, b, concat_ws('|', *) AS k FROM t0) GROUP BY k",
        )
    ),
    (
        "SELECT x.p, count(DISTINCT y.d) AS n FROM t0 AS x(p, q, r, s) JOIN t1 y(p, b, d, s) ON x.p = y.p GROUP BY x.p",
        {"t0": [(1, 1, 1, "a")], "t1": [(1, 1, 1, "b")]},
        {"t0": [(2, 1, 1, "a")]},
        {"t1": [(1, 1, 1, "b")]},
    ),
    *(
        # k depends on the type of n.
        (text, {"t0": [(1, 1, 1, "a")], "t1": [(1, 1, 1, "b")]}, {}, {"t0": [(1, 1, 1, "a")]})
        for text in (
            "SELECT typeof(y.n) AS k FROM t0 x JOIN (SELECT CAST(a AS BIGINT) AS n FROM t1) y ON x.a = y.n",
            "SELECT typeof(n) AS k FROM (SELECT a AS n FROM t0 UNION ALL SELECT CAST(a AS BIGINT) FROM t1)",
            "SELECT CAST(n AS string) AS k FROM (SELECT a AS n FROM t0 UNION ALL SELECT CAST(a AS double) FROM t1)",
        )
    ),
    (
        "SELECT typeof(coalesce(x.a, y.n)) AS k FROM t0 x JOIN (SELECT CAST(a AS BIGINT) AS n FROM t1) y ON x.a = y.n",
        {"t1": [(1, 1, 1, "b")]},
        {"t0": [(1, 1, 1, "a")]},
        {},
    ),
    *(
        # Only rows of t0 that the query selects have numbers in s.
        (
            text,
            {"t0": [(1, 1, 1, "5"), (2, 1, 1, "x"), (1, 2, 1, "7")], "t1": [(1, 1, 1, "n"), (2, 1, 1, "t")]},
            {"t0": [(2, 2, 1, "y"), (1, 3, 1, "9")]},
            {"t0": [(2, 1, 1, "x"), (1, 1, 1, "5")]},
        )
        for text in (
            "SELECT x.b, CAST(x.s AS INT) AS v FROM t0 x JOIN t1 y ON x.a = y.a WHERE y.s = 'n'",
            "SELECT x.b, CAST(x.s AS INT) AS v FROM t0 x WHERE x.a IN (SELECT a FROM t1 WHERE s = 'n')",
            "SELECT x.b, x.s IN (5, 7) AS v FROM t0 x JOIN t1 y ON x.a = y.a WHERE y.s = 'n'",
            "SELECT x.b FROM t0 x JOIN t1 y ON x.a = y.a WHERE y.s = 'n' AND CAST(x.s AS INT) > 5",
            "SELECT q.v FROM (SELECT x.b, CAST(x.s AS INT) AS v FROM t0 x JOIN t1 y USING (a) WHERE y.s = 'n') q",
            "SELECT CAST(x.s AS INT) v, count(DISTINCT x.b) FROM t0 x JOIN t1 y USING (a) WHERE y.s = 'n' GROUP BY 1",
        )
    ),
    ("SELECT 1 AS k FROM t0 HAVING 1 = 1", {"t0": [(1, 1, 1, "a")]}, {"t0": [(2, 1, 1, "a")]}, {}),
    (
        # A constant that is grouped by is null in the subtotals without it.
        """
        SELECT q.k, q.n, y.d FROM (SELECT 'x' AS k, a, count(*) AS n FROM t0 GROUP BY CUBE ('x', a)) q
        JOIN t1 y ON y.a = q.a
        """,
        {"t0": [(1, 1, 1, "a")], "t1": [(1, 1, 1, "b")]},
        {"t0": [(1, 2, 1, "a")]},
        {},
    ),
    *(
        # The row of q is there even if t3 is empty.
        (
            f"SELECT q.two AS k, count(DISTINCT x.b) AS n FROM t0 x JOIN ({q}) q ON x.a = q.one GROUP BY q.two",
            {"t0": [(1, 1, 1, "a")]},
            {"t0": [(1, 2, 1, "a")]},
            {},
        )
        for q in (
            "SELECT 1 AS one, 2 AS two, count(*) AS m FROM t3",
            "SELECT 1 AS one, 2 AS two, m FROM (SELECT count(*) AS m FROM t3)",
        )
    ),
    *(
        # v has more digits than in its left side.
        (
            f"SELECT CAST(v AS string) AS k, count(DISTINCT c) AS n FROM ({left} UNION ALL {right}) GROUP BY 1",
            {"t0": [(1, 1, 1, "a")], "t1": [(1, 1, 1, "b")]},
            {"t0": [(1, 1, 2, "a")]},
            {},
        )
        for left in ("SELECT c, CAST(a AS decimal(4, 1)) AS v FROM t0", "SELECT c, 1.0 AS v FROM t0")
        for right in (
            "SELECT d, CAST(a AS decimal(4, 1)) * CAST(b AS decimal(4, 1)) FROM t1",
            "SELECT d, 1.000 FROM t1",
            "SELECT d, CAST(a AS double) FROM t1",
        )
    ),
    *(
        # v is 0.0 in one row and -0.0 in the other, and CAST shows the difference.
        (
            f"WITH q AS (SELECT c, CAST(a AS double) * b AS v FROM t0) {text}",
            {"t0": [(1, 0, 1, "a")]},
            {"t0": [(-1, 0, 1, "a")]},
            {},
        )
        for text in (
            "SELECT CAST(v AS string) AS k, count(*) AS n FROM q GROUP BY v",
            "SELECT CAST(v AS string) AS k FROM (SELECT DISTINCT v FROM q)",
            "SELECT CAST(v AS string) AS k, n FROM (SELECT v, count(*) AS n FROM q GROUP BY v)",
            "SELECT c, n FROM (SELECT c, v, count(*) AS n FROM q GROUP BY c, v) WHERE CAST(v AS string) = '0.0'",
            "SELECT CAST(v AS string) AS k, count(*) OVER (PARTITION BY v) AS n FROM q",
            "SELECT CAST(v AS string) AS k, n FROM (SELECT v, count(*) OVER (PARTITION BY v) AS n FROM q)",
            "SELECT CAST(w AS string) AS k, count(*) AS n FROM (SELECT array(v) || array(v) AS w FROM q) GROUP BY w",
        )
    ),
]


@pytest.mark.parametrize(("text", "before", "came", "went"), CASES, ids=[case[0][:100] for case in CASES])
def test_the_smallest_change_that_needs_a_rule(
    text: str, before: dict[str, list[Row]], came: dict[str, list[Row]], went: dict[str, list[Row]]
) -> None:
    rows = {table: Counter(before.get(table, [])) for table in TABLES}
    changes = {table: (Counter(came.get(table, [])), Counter(went.get(table, []))) for table in TABLES}
    for no_grouping in (None, "left out by the test"):
        case = Case(read(text), rows, no_grouping=no_grouping)
        assert Machine().mismatch(case, changes) is None


PLANS = [
    ("SELECT a, s FROM t0 WHERE b > 1", ADDED, Strategy.APPEND, ""),
    ("SELECT a, s FROM t0 WHERE b > 1", REMOVED, Strategy.KEYS, "no append: rows were removed"),
    ("SELECT a, sum(b) AS n FROM t0 GROUP BY a", REMOVED, Strategy.COMBINE, ""),
    (
        "SELECT a, count(DISTINCT b) AS n FROM t0 GROUP BY a",
        ADDED,
        Strategy.KEYS,
        "n isn't computed only from keys and from sum",
    ),
    ("SELECT count(*) AS n FROM t0", REMOVED, Strategy.COMBINE, ""),
    (
        "SELECT a, any(b > 1) FILTER (WHERE s LIKE ANY ('x', 'y')) = true AS n FROM t0 GROUP BY a",
        REMOVED,
        Strategy.COMBINE,
        "",
    ),
    ("SELECT 100 * sum(b) / sum(c) AS p, max(c) AS m FROM t0", ADDED, Strategy.COMBINE, ""),
    ("SELECT a, a + 1 AS b, sum(b) + a AS n FROM t0 GROUP BY a", REMOVED, Strategy.COMBINE, ""),
    ("SELECT count(DISTINCT a) AS n FROM t0", ADDED, Strategy.FULL, "an aggregate without GROUP BY is a single row"),
    ("SELECT count(*) AS n FROM t0 HAVING count(*) > 1", ADDED, Strategy.FULL, "HAVING looks at whole groups"),
    ("SELECT 'x' AS k, count(*) AS n FROM t0 GROUP BY ALL", ADDED, Strategy.FULL, "GROUP BY ALL"),
    ("SELECT count(*) AS n FROM t0 ORDER BY n LIMIT 1", ADDED, Strategy.FULL, "LIMIT: the rows it takes"),
    (
        "SELECT a, explode(array(1, 2)) AS e, sum(b) AS n FROM t0 GROUP BY a",
        ADDED,
        Strategy.KEYS,
        "e isn't computed only from",
    ),
    (
        "SELECT a, percentile_disc(0.5) WITHIN GROUP (ORDER BY b DESC) AS m FROM t0 GROUP BY a",
        REMOVED,
        Strategy.KEYS,
        "m isn't computed only from keys",
    ),
    (
        "SELECT a, array_size(collect_set(s)) AS n, array_max(collect_list(b)) AS m FROM t0 GROUP BY a",
        REMOVED,
        Strategy.KEYS,
        "n isn't computed only from keys",
    ),
    (
        "SELECT a, try_sum(DISTINCT b) AS n FROM t0 GROUP BY a",
        REMOVED,
        Strategy.KEYS,
        "n isn't computed only from keys",
    ),
    (
        "SELECT m, count(*) AS n FROM (SELECT a, INT(try_avg(b)) AS m FROM t0 GROUP BY a) GROUP BY m",
        REMOVED,
        Strategy.FULL,
        "TRY_AVG(`t0`.`b`) depends on the order of rows",
    ),
    ("SELECT a, max_by(b, c) AS m FROM t0 GROUP BY a", REMOVED, Strategy.KEYS, "m isn't computed only from keys"),
    (
        "SELECT m, count(*) AS n FROM (SELECT a, CAST(max_by(s, c) AS STRING) AS m FROM t0 GROUP BY a) GROUP BY m",
        REMOVED,
        Strategy.FULL,
        "MAX_BY(`t0`.`s`, `t0`.`c`) depends on the order of rows",
    ),
    (
        "SELECT m, count(*) AS n FROM (SELECT a, CAST(regr_slope(b, c) AS INT) AS m FROM t0 GROUP BY a) GROUP BY m",
        REMOVED,
        Strategy.FULL,
        "REGR_SLOPE(`t0`.`b`, `t0`.`c`) depends on the order of rows",
    ),
    ("SELECT a, e FROM t0 LATERAL VIEW explode(array(b, c)) x AS e WHERE e > c", ADDED, Strategy.APPEND, ""),
    ("SELECT a, e FROM t0 LATERAL VIEW explode(array(b, c)) x AS e", REMOVED, Strategy.KEYS, "rows were removed"),
    (
        "SELECT b, max(e) AS m FROM t0 LATERAL VIEW OUTER posexplode(array(b, c)) x AS i, e GROUP BY b",
        REMOVED,
        Strategy.COMBINE,
        "",
    ),
    (
        "SELECT length(e) AS l, count(DISTINCT a) AS n FROM t0 LATERAL VIEW explode(array(s)) AS e GROUP BY length(e)",
        ADDED,
        Strategy.FULL,
        "l is computed from a LATERAL VIEW",
    ),
    ("SELECT a, explode_outer(array(b, c)) AS e FROM t0", REMOVED, Strategy.KEYS, "no append: rows were removed"),
    (
        "SELECT a, sum(DISTINCT b) FILTER (WHERE a > 1) AS n FROM t0 GROUP BY a",
        ADDED,
        Strategy.KEYS,
        "n isn't computed only from keys",
    ),
    ("SELECT a, sum(b) FILTER (WHERE a > 1) / count(*) AS n FROM t0 GROUP BY a", ADDED, Strategy.COMBINE, ""),
    ("SELECT a, lower(s) AS l, sum(b) AS n FROM t0 GROUP BY ALL", ADDED, Strategy.COMBINE, ""),
    ("SELECT a, count(DISTINCT b) AS n FROM t0 GROUP BY ALL HAVING count(*) > 1", ADDED, Strategy.KEYS, "HAVING"),
    (
        "SELECT a, listagg(DISTINCT s, ',') WITHIN GROUP (ORDER BY s DESC) AS l FROM t0 GROUP BY a",
        ADDED,
        Strategy.KEYS,
        "l isn't computed only from keys",
    ),
    ("SELECT bigint(a) AS a, tinyint(b) AS b, decimal(s) AS d FROM t0", ADDED, Strategy.APPEND, ""),
    (
        "SELECT n, count(*) AS m FROM (SELECT a, count(*) AS n FROM t0 GROUP BY a) GROUP BY n",
        ADDED,
        Strategy.COMBINE,
        "",
    ),
    (
        "SELECT s, count(*) AS n FROM t0 x WHERE EXISTS (SELECT 1 FROM t0 y WHERE y.a = x.b) GROUP BY s",
        REMOVED,
        Strategy.COMBINE,
        "",
    ),
    (
        "SELECT n, max(a) AS m FROM (SELECT a, count(*) AS n FROM t0 GROUP BY a) GROUP BY n",
        ADDED,
        Strategy.FULL,
        "n isn't what the rows are grouped by",
    ),
    (
        "SELECT a, s FROM t0 WHERE (a, c) IN (SELECT a, max(c) FROM t0 GROUP BY a)",
        ADDED,
        Strategy.KEYS,
        "a subquery or semi join decides",
    ),
    ("SELECT x.a, y.s FROM t0 x FULL JOIN t1 y ON x.a = y.a", ADDED, Strategy.FULL, "FULL JOIN"),
    ("SELECT DISTINCT a, s FROM t0", ADDED, Strategy.KEYS, "DISTINCT compares rows"),
    ("SELECT a, d FROM t0 NATURAL JOIN t1", ADDED, Strategy.FULL, "NATURAL JOIN"),
    ("SELECT a, f FROM t0 RIGHT JOIN t1 USING (a) JOIN t3 USING (b)", ADDED, Strategy.FULL, "USING after a RIGHT JOIN"),
    (
        "SELECT x.* FROM t0 x JOIN t3 USING (b) UNION ALL SELECT a, b, c, s FROM t0",
        ADDED,
        Strategy.FULL,
        "another order",
    ),
    ("SELECT k FROM (SELECT x.* FROM t0 x JOIN t3 USING (b)) AS q (k, l, m, n)", ADDED, Strategy.FULL, "another order"),
    ("SELECT q.a FROM (SELECT x.* FROM t0 x JOIN t3 USING (b)) q", ADDED, Strategy.APPEND, ""),
    ("SELECT a FROM t0 ORDER BY a LIMIT 3", ADDED, Strategy.FULL, "LIMIT: the rows it takes"),
    ("SELECT a, sum(s) AS n FROM t0 GROUP BY a", ADDED, Strategy.KEYS, "sum(s) can't be maintained incrementally"),
    ("SELECT * FROM t0 x, t1 y WHERE x.a < y.a", ADDED, Strategy.FULL, "two columns with the same name"),
    ("SELECT a, sum(b) AS n FROM t0 GROUP BY ROLLUP (a)", ADDED, Strategy.FULL, "ROLLUP"),
    ("SELECT a, sum(b) AS n FROM t0 GROUP BY a WITH ROLLUP", ADDED, Strategy.FULL, "ROLLUP"),
    (
        "WITH o AS (SELECT * FROM t0), f AS (SELECT a, sum(b) AS n FROM o GROUP BY a) SELECT * FROM f ORDER BY a",
        REMOVED,
        Strategy.COMBINE,
        "",
    ),
    (
        "SELECT * FROM (SELECT * FROM (SELECT a, sum(b) AS n FROM t0 GROUP BY a ORDER BY n))",
        REMOVED,
        Strategy.COMBINE,
        "",
    ),
    (
        "SELECT * FROM (SELECT a, sum(b) FROM t0 GROUP BY a) AS final (k, n)",
        ADDED,
        Strategy.KEYS,
        "in a form that changes can be added to",
    ),
    (
        "SELECT * FROM (SELECT a, sum(b) AS n FROM t0 GROUP BY a) WHERE n > 1",
        ADDED,
        Strategy.KEYS,
        "in a form that changes can be added to",
    ),
    (
        "SELECT *, 1 AS o FROM (SELECT a, sum(b) AS n FROM t0 GROUP BY a)",
        ADDED,
        Strategy.KEYS,
        "in a form that changes can be added to",
    ),
]


@pytest.mark.parametrize(("text", "change", "strategy", "why"), PLANS)
def test_a_plan_names_its_strategy_and_why_no_better_one_is_possible(
    text: str, change: SourceChange, strategy: Strategy, why: str
) -> None:
    query = read(text)
    columns = [[QueryColumn(*each) for each in TABLES[table].items()] for (table,) in query.sources]
    step = MaintenancePlan(query, columns).step({0: change}, known_before=frozenset({0}))
    assert step.strategy is strategy
    assert why in step.reason


def test_earlier_rows_are_needed_if_several_places_change_and_are_not_guessed() -> None:
    query = read("SELECT x.s AS k, sum(y.d) AS n FROM t0 x JOIN t1 y ON x.a = y.a GROUP BY x.s")
    plan = MaintenancePlan(query, [[QueryColumn(*each) for each in TABLES[table].items()] for table in ("t0", "t1")])
    both = {0: ADDED, 1: ADDED}
    assert plan.step(both, known_before=frozenset({0, 1})).strategy is Strategy.COMBINE
    step = plan.step(both, known_before=frozenset({0}))
    assert step.strategy is Strategy.KEYS
    assert not any("before" in table for table in step.reads)
    query = read(
        "SELECT x.s AS k, count(*) AS n FROM t0 x WHERE EXISTS (SELECT 1 FROM t1 y WHERE y.a = x.a) GROUP BY 1"
    )
    plan = MaintenancePlan(query, [[QueryColumn(*each) for each in TABLES[table].items()] for table in ("t0", "t1")])
    assert plan.step({1: ADDED}, known_before=frozenset({1})).strategy is Strategy.COMBINE
    assert plan.step({1: ADDED}, known_before=frozenset({0})).strategy is Strategy.KEYS


RANKED = "SELECT s, count(*) AS n FROM (SELECT a, s, row_number() OVER ({}) AS r FROM t0) WHERE r = 1 GROUP BY s"
ABOVE_MEAN = """
    SELECT x.s, count(*) AS n FROM t0 x JOIN (SELECT a, {} AS m FROM t0 GROUP BY a) y ON x.a = y.a
    WHERE x.b >= y.m GROUP BY x.s
"""
LATEST = """
    SELECT x.s, count(*) AS n FROM t0 x
    JOIN (SELECT a, d, lag(d) OVER (PARTITION BY a ORDER BY b) AS r FROM t1) y ON x.a = y.a WHERE y.r > 1 GROUP BY x.s
"""


@pytest.mark.parametrize(
    ("text", "change", "strategy", "why"),
    [
        (RANKED.format("PARTITION BY a ORDER BY b"), ADDED, Strategy.FULL, "rows that tie"),
        (RANKED.format("PARTITION BY a ORDER BY b, s"), ADDED, Strategy.COMBINE, ""),
        (
            RANKED.format("PARTITION BY a ORDER BY b, s").replace("t0)", "(SELECT * FROM t0))"),
            ADDED,
            Strategy.COMBINE,
            "",
        ),
        (ABOVE_MEAN.format("avg(b / 2)"), ADDED, Strategy.KEYS, "AVG(`t0`.`b` / 2) depends on the order"),
        (ABOVE_MEAN.format("stddev(b)"), ADDED, Strategy.KEYS, "depends on the order"),
        (ABOVE_MEAN.format("avg(b)"), ADDED, Strategy.COMBINE, ""),
        (ABOVE_MEAN.format("avg(CAST(b AS BIGINT))"), ADDED, Strategy.KEYS, "depends on the order"),
        (ABOVE_MEAN.format("sum(CAST(b AS BIGINT))"), ADDED, Strategy.COMBINE, ""),
        (ABOVE_MEAN.format("sum(DISTINCT b)"), ADDED, Strategy.COMBINE, ""),
        (
            RANKED.format("PARTITION BY a ROWS 1 PRECEDING").replace("row_number()", "sum(b)"),
            ADDED,
            Strategy.FULL,
            "rows that tie",
        ),
        (LATEST, ADDED, Strategy.COMBINE, ""),
        (LATEST, REMOVED, Strategy.KEYS, "rows that tie"),
    ],
)
def test_what_may_count_differently_when_it_is_computed_again_is_not_subtracted(
    text: str, change: SourceChange, strategy: Strategy, why: str
) -> None:
    query = read(text)
    columns = [[QueryColumn(*each) for each in TABLES[table].items()] for (table,) in query.sources]
    step = MaintenancePlan(query, columns).step({0: change}, known_before=frozenset({0}))
    assert (step.strategy, why in step.reason) == (strategy, True)


@pytest.mark.parametrize(
    ("value", "is_key"),
    [
        ("x.s > 5", False),
        ("x.s BETWEEN x.a AND 9", False),
        ("ceil(x.s)", False),
        ("date_format(x.s, 'yyyy-MM')", False),
        ("CAST(date_trunc('MONTH', x.s) AS string)", False),
        ("extract(YEAR FROM x.s)", False),
        ("hour(x.s)", False),
        ("quarter(x.s)", False),
        ("x.s % 16", False),
        ("16 % x.b", False),
        ("x.b % 0", False),
        ("x.b % 16", True),
        ("floor(x.b / -1.5)", True),
        ("x.b div 10", True),
        ("CASE x.s WHEN 1 THEN 'a' END", False),
        ("CASE WHEN x.a > 1 THEN x.s ELSE 0 END", False),
        ("if(x.a > 1, x.s, 0)", False),
        ("nvl2(x.a, x.s, 0)", False),
        ("array_max(array(x.s, 0))", False),
        ("parse_url(x.s, 'HOST')", False),
        ("hex(to_binary(x.s))", False),
        ("mod(x.b, x.a)", False),
        ("size(sequence(1, x.b, 1))", False),
        ("split_part(x.s, '-', x.b)", False),
        ("to_json(str_to_map(x.s))", False),
        ("to_json(map(x.s, 1, 'a', 2))", False),
        ("x.s RLIKE concat('^', x.s)", False),
        ("regexp_extract(x.s, '(a)', x.b)", False),
        ("hex(encode(x.s, 'US-ASCII'))", False),
        ("bin(x.s)", False),
        ("x.s + INTERVAL 1 DAY", False),
        ("INTERVAL '1' HOUR + x.s", False),
        ("sin(x.s)", False),
        ("cbrt(x.s)", False),
        ("isnan(x.s)", False),
        ("from_unixtime(x.s)", False),
        ("sin(x.b)", True),
        ("mod(x.b, 3)", True),
        ("split(x.s, '-')", True),
        ("x.s RLIKE '^a'", True),
        ("CASE x.s WHEN 'a' THEN 1 ELSE 0 END", True),
        ("CASE WHEN x.a > 1 THEN x.s ELSE '0' END", True),
        ("if(x.s = 'a', 1, 0)", True),
        ("x.s > '5'", True),
        ("x.b > '5'", True),
        ("regexp_extract(x.s, '[0-9]', 0)", True),
        ("x.s || x.b", True),
        ("length(x.s) > 5", True),
    ],
)
def test_what_may_fail_is_not_computed_in_rows_that_the_query_leaves_out(value: str, is_key: bool) -> None:  # noqa: FBT001  # a parameter
    query = read(f"SELECT x.b, {value} AS v FROM t0 x WHERE x.a IN (SELECT a FROM t1 WHERE s = 'n')")
    result = [QueryColumn("b", "int"), QueryColumn("v", "string")]
    columns = [[QueryColumn(*each) for each in TABLES[table].items()] for table in ("t0", "t1")]
    step = MaintenancePlan(query, columns, result).step({0: REMOVED}, known_before=frozenset())
    assert step.keys == ((0, 1) if is_key else (0,))


@pytest.mark.parametrize(
    ("selected", "strategy"),
    [
        ("x.s AS k, sum(x.b * CAST(y.s AS INT)) AS n FROM t0 x JOIN t1 y ON x.a = y.a GROUP BY x.s", Strategy.COMBINE),
        ("x.s AS k, CAST(y.s AS INT) AS n FROM t0 x JOIN t1 y ON x.a = y.a", Strategy.KEYS),
        ("CAST(y.s AS INT) AS k, count(DISTINCT x.b) AS n FROM t0 x JOIN t1 y ON x.a = y.a GROUP BY 1", Strategy.FULL),
        (
            """
            y.i AS k, count(DISTINCT x.b) AS n FROM t0 x
            JOIN (SELECT a, CAST(s AS INT) AS i FROM t1 WHERE s <> 'x') y ON x.a = y.a GROUP BY y.i
            """,
            Strategy.KEYS,
        ),
    ],
)
def test_a_row_that_came_is_not_computed_with_one_that_was_mended_meanwhile(selected: str, strategy: Strategy) -> None:
    case = Case(read(f"SELECT {selected}"), {"t0": Counter(), "t1": Counter([(1, 1, 1, "x")])})
    came, mended = Counter[Row]([(1, 2, 1, "a")]), Counter[Row]([(1, 1, 1, "5")])
    assert Machine().mismatch(case, {"t0": (came, Counter()), "t1": (mended, case.rows["t1"])}) is None
    assert case.figures[strategy] == 1


def test_of_several_places_one_that_loses_rows_changes_first_unless_the_others_are_unknown() -> None:
    query = read("SELECT x.s AS k, max(y.d) AS n FROM t0 x JOIN t1 y ON x.a = y.a GROUP BY x.s")
    plan = MaintenancePlan(query, [[QueryColumn(*each) for each in TABLES[table].items()] for table in ("t0", "t1")])
    for known, may_cancel in (({0, 1}, False), ({0}, False), ({1}, True)):
        step = plan.step({0: ADDED, 1: REMOVED}, known_before=frozenset(known))
        assert (step.strategy, step.may_cancel) == (Strategy.COMBINE, may_cancel)
    assert plan.step({0: REMOVED, 1: REMOVED}, known_before=frozenset({0, 1})).may_cancel


@pytest.mark.parametrize(
    ("value", "loses_rows", "parts"),
    [
        ("sum(b)", {}, {"ips_near_1_of_ips_after_1", "ips_near_1_of_ips_before_1"}),
        ("sum(b)", {1: False}, {"ips_near_1_of_ips_kept_1", "ips_added_1"}),
        ("sum(b)", {1: True}, {"ips_near_1_of_ips_kept_1", "ips_added_1", "ips_removed_1"}),
        ("10 / sum(b)", {1: True}, {f"ips_near_1_of_ips_{each}_1" for each in ("kept", "added", "removed")}),
    ],
)
def test_rows_that_were_kept_are_read_once_and_no_group_that_may_fail_is_incomplete(
    value: str, loses_rows: dict[int, bool], parts: set[str]
) -> None:
    inner = f"SELECT a, CAST({value} AS INT) AS v FROM t0 GROUP BY a"
    query = read(f"SELECT x.v, count(*) AS n FROM t1 y JOIN ({inner}) x ON x.a = y.a GROUP BY x.v")
    plan = MaintenancePlan(query, [[QueryColumn(*each) for each in TABLES[table].items()] for table in ("t1", "t0")])
    step = plan.step({1: REMOVED}, known_before=frozenset({1}))
    assert step.rows is not None
    rows, near = near_rows(step.rows, loses_rows)
    assert tables_of(rows) - {"ips_affected", "ips_near_0_of_ips_after_0"} == parts
    assert {name: each.places for name, each in near.items() if "kept" in name} == dict.fromkeys(
        (name for name in parts if "kept" in name), 2
    )


@pytest.mark.parametrize("name", ["_weight", "ips_weight"])
def test_a_term_reads_added_and_removed_rows_together_and_sources_may_have_a_column_weight(name: str) -> None:
    inner = f"(SELECT a, {name} AS w FROM t UNION ALL SELECT a, b FROM u)"
    query = read(f"SELECT y.b, sum(x.w) AS n FROM {inner} x JOIN u y ON x.a = y.a GROUP BY y.b")
    columns = [[QueryColumn(each, "int") for each in names] for names in (("a", name, "c"), ("a", "b"))]
    step = MaintenancePlan(query, columns).step({0: REMOVED}, known_before=frozenset())
    assert step.rows is not None
    assert in_spark(step.rows).count("ips_after_1") == 2  # the side that is empty, and what is joined
    db = duckdb.connect()
    db.execute(f"CREATE TABLE ips_added_0 AS SELECT 1 AS a, 7 AS {name}")  # without what isn't read
    db.execute(f"CREATE TABLE ips_removed_0 AS SELECT 1 AS a, 5 AS {name}")
    db.execute("CREATE TABLE ips_after_1 AS SELECT * FROM (VALUES (1, 10), (1, 20)) AS u (a, b)")
    found = db.execute(in_duckdb(step.rows)).fetchall()
    assert sorted(found) == [(10, 5, -1), (10, 7, 1), (20, 5, -1), (20, 7, 1)]


NESTED = {
    "t": "a int; b int; lines array<struct<p: int, a: int>>; u struct<a: int, c: int>",
    "u": "a int; k int; c int",
}


@pytest.mark.parametrize(
    ("text", "understood"),
    [
        ("SELECT k FROM u x WHERE k IN (SELECT b FROM t x WHERE x.a = c)", "`x_2`.`a` = `x_1`.`c`"),
        ("SELECT c FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.a = c)", "`t`.`a` = `u_1`.`c`"),
        ("SELECT c FROM u WHERE EXISTS (SELECT 1 FROM t WHERE u.a = t.a)", "`u_1`.`a` = `t`.`a`"),
        ("SELECT transform(lines, t -> t.p + a) AS v FROM t", "`t`.`p` + `t_1`.`a`"),
        ("SELECT x.c FROM u x WHERE EXISTS (SELECT 1 FROM t y WHERE y.a = x.a)", "`y`.`a` = `x`.`a`"),
        ("SELECT a FROM (SELECT a FROM t x) UNION ALL SELECT a FROM (SELECT a FROM u x)", "`x`.`a`"),
    ],
)
def test_an_alias_that_spark_may_take_for_something_else_is_replaced(text: str, understood: str) -> None:
    query = read(text)
    columns = [[QueryColumn(*each.split(" ", 1)) for each in NESTED[name].split("; ")] for (name,) in query.sources]
    plan = MaintenancePlan(query, columns)
    assert plan.refused is None
    assert understood in plan.text
    for source in range(len(columns)):
        plan.step({source: REMOVED}, known_before=frozenset())


def test_an_interval_is_no_key_and_may_be_computed_on_the_way() -> None:
    query = read("SELECT a, b FROM (SELECT a, b, CAST(s AS INTERVAL DAY) AS g FROM t0) WHERE g > INTERVAL '1' DAY")
    plan = MaintenancePlan(query, [[QueryColumn(*each) for each in TABLES["t0"].items()]])
    assert plan.step({0: REMOVED}, known_before=frozenset()).keys == (0, 1)
    query = read("SELECT a, g FROM x")
    plan = MaintenancePlan(query, [[QueryColumn("a", "int"), QueryColumn("g", "interval day to second")]])
    assert plan.step({0: REMOVED}, known_before=frozenset()).keys == (0,)


def test_a_column_that_moves_changes_what_the_sides_of_a_union_have_in_common() -> None:
    def is_the_same(text: str, now: str, before: str) -> bool:
        columns = [[QueryColumn(name, "int") for name in names] for names in (now, "ab")]
        was = [[QueryColumn(name, "int") for name in names] for names in (before, "ab")]
        return MaintenancePlan(read(text), columns).means_the_same_over(was, same_columns=False)

    every = "SELECT * FROM x UNION ALL SELECT * FROM y"
    named = "SELECT a, b FROM x UNION ALL SELECT * FROM y"
    assert is_the_same(every, "ab", "ab")
    assert not is_the_same(every, "ba", "ab")
    assert is_the_same(named, "ba", "ab")
    assert is_the_same(named, "cab", "ab")
    assert not is_the_same(f"SELECT * FROM ({every.replace('y', '(SELECT *, 1 AS c FROM y)')})", "cab", "ab")


def test_a_number_that_the_joined_integer_type_cannot_hold_affects_no_key_and_is_no_error() -> None:
    query = read("SELECT y.i + 1 AS k, count(DISTINCT y.b) AS n FROM x JOIN y ON x.i = y.i GROUP BY y.i + 1")
    columns = [[QueryColumn("i", "bigint")], [QueryColumn("i", "int"), QueryColumn("b", "int")]]
    assert affected_keys(query, columns, [1, 3000000000]) == {(2,), (None,)}
    query = read("SELECT y.i AS k, count(DISTINCT y.b) AS n FROM x JOIN y ON x.i = y.i GROUP BY y.i")
    assert affected_keys(query, columns, [1, 3000000000]) == {(1,), (3000000000,)}


def affected_keys(query: Query, columns: list[list[QueryColumn]], numbers: list[int]) -> set[tuple[object, ...]]:
    """The keys that are affected when ``numbers`` are added to the only column of the first source."""
    affected = MaintenancePlan(query, columns).step({0: ADDED}, known_before=frozenset()).affected
    assert affected is not None
    db = duckdb.connect()
    db.execute(f"CREATE TABLE ips_added_0 AS SELECT unnest({numbers}) AS {columns[0][0].name}")
    return set(db.execute(in_duckdb(affected)).fetchall())


JOINED = "SELECT {} AS k, count(DISTINCT p.b) AS n FROM x JOIN (SELECT {} AS i, b FROM y) p ON x.i = p.i GROUP BY 1"
OF_Y = (("d", "date"), ("b", "int"), ("t", "timestamp"), ("s", "string"))


@pytest.mark.parametrize("computed", ["year(d)", "day(d)", "weekofyear(d)", "extract(YEAR FROM d)", "b + 3000000000"])
def test_a_joined_integer_is_the_key_whatever_type_the_other_one_is_computed_in(computed: str) -> None:
    columns = [[QueryColumn("i", "int")], [QueryColumn(*each) for each in OF_Y]]
    assert affected_keys(read(JOINED.format("p.i", computed)), columns, [2026]) == {(2026,)}
    step = MaintenancePlan(read(JOINED.format("p.i + 1", computed)), columns).step({0: ADDED}, known_before=frozenset())
    assert "it is unknown which type of integer" in step.reason


@pytest.mark.parametrize(
    ("computed", "kind"),
    [
        ("date_format(t, 'yyyy-MM')", "string"),
        ("get_json_object(s, '$.month')", "string"),
        ("from_unixtime(b)", "string"),
        ("hex(b)", "string"),
        ("date_trunc('HOUR', t)", "timestamp"),
    ],
)
def test_a_computed_text_or_time_equals_a_column_of_that_type(computed: str, kind: str) -> None:
    columns = [[QueryColumn("i", kind)], [QueryColumn(*each) for each in OF_Y]]
    step = MaintenancePlan(read(JOINED.format("p.i", computed)), columns).step({0: ADDED}, known_before=frozenset())
    assert step.strategy is Strategy.KEYS


@pytest.mark.parametrize(
    ("computed", "kind"),
    [
        ("CAST(t AS TIMESTAMP_NTZ)", "timestamp"),
        ("extract(SECOND FROM t)", "int"),
        ("d - d", "date"),
        ("t - t", "timestamp"),
        ("d + INTERVAL '1 2' DAY TO HOUR", "date"),
        ("nullif(b, '5')", "string"),
        ("coalesce(d, '2026-01-01')", "string"),
        ("b / '2'", "string"),
        ("reverse(b)", "int"),
        ("map('a', d, 'b', t)['a']", "date"),
        ("date_add(HOUR, 1, CAST(t AS TIMESTAMP_NTZ))", "timestamp"),
    ],
)
def test_an_expression_that_spark_may_give_another_type_leads_to_no_key(computed: str, kind: str) -> None:
    columns = [[QueryColumn("i", kind)], [QueryColumn(*each) for each in OF_Y]]
    step = MaintenancePlan(read(JOINED.format("p.i", computed)), columns).step({0: ADDED}, known_before=frozenset())
    assert step.strategy is Strategy.FULL


@pytest.mark.parametrize(
    ("aggregate", "kind"),
    [("sum", "double"), ("avg", "float"), ("avg", "decimal(20,2)"), ("sum", "string"), ("max", "array<int>")],
)
def test_an_aggregate_of_a_type_that_no_change_can_be_added_to_is_not_combined(aggregate: str, kind: str) -> None:
    columns = [[QueryColumn("a", "int"), QueryColumn("v", kind), QueryColumn("i", "int")]]
    texts = [f"SELECT a, {each} AS n FROM t GROUP BY a" for each in (f"{aggregate}(v)", f"{aggregate}(i)")]
    steps = [MaintenancePlan(read(text), columns).step({0: ADDED}, known_before=frozenset()) for text in texts]
    assert [step.strategy for step in steps] == [Strategy.KEYS, Strategy.COMBINE]
    assert f"{aggregate}(v) can't be maintained incrementally: its values are {kind[:5]}" in steps[0].reason


@pytest.mark.parametrize("value", ["struct(b, s)", "(b, s)"])
def test_the_latest_row_by_a_struct_is_foreseen_to_be_found_by_keys(value: str) -> None:
    columns = [[QueryColumn(*each) for each in TABLES["t0"].items()]]
    plan = MaintenancePlan(read(f"SELECT a, max({value}).s AS last FROM t0 GROUP BY a"), columns)
    assert plan.step({0: ADDED}, known_before=frozenset()).strategy is Strategy.KEYS
    assert "its values are struct" in str(plan.grouping)


def test_floats_are_no_keys_and_equal_values_of_two_types_are_not_interchangeable() -> None:
    query = read("SELECT x.f AS k, count(DISTINCT y.b) AS n FROM x JOIN y ON x.i = y.t GROUP BY x.f")
    columns = [
        [QueryColumn("f", "double"), QueryColumn("i", "int")],
        [QueryColumn("t", "string"), QueryColumn("b", "int")],
    ]
    step = MaintenancePlan(query, columns).step({0: ADDED}, known_before=frozenset())
    assert (step.strategy, "has a type that keys can't have" in step.reason) == (Strategy.FULL, True)
    query = read("SELECT q.n, count(*) AS m FROM (SELECT f, count(*) AS n FROM x GROUP BY f) q GROUP BY q.n")
    step = MaintenancePlan(query, columns[:1]).step({0: ADDED}, known_before=frozenset({0}))
    assert step.strategy is Strategy.FULL
    query = read("SELECT x.i AS k, count(DISTINCT y.b) AS n FROM x JOIN y ON x.i = y.t GROUP BY x.i")
    step = MaintenancePlan(query, columns).step({1: ADDED}, known_before=frozenset())
    assert (step.strategy, "no chain of equalities leads" in step.reason) == (Strategy.FULL, True)


@pytest.mark.parametrize(
    ("left", "right", "keys"),
    [
        ("i", "s", (1,)),
        ("d", "s", (1,)),
        ("d", "t", (1,)),
        ("i", "nvl(s, 'x')", (1,)),
        ("nvl(i, s)", "nvl(i, s)", (1,)),
        ("i", "b", (0, 1)),
        ("s", "NULL", (0, 1)),
        ("upper(s)", "s", (0, 1)),
    ],
)
@pytest.mark.parametrize("around", ["{}", "SELECT q.k, q.n FROM ({}) q JOIN x USING (n)"])
def test_a_column_that_combines_several_types_is_no_key_as_other_values_may_become_the_same(
    left: str, right: str, keys: tuple[int, ...], around: str
) -> None:
    kinds = {"i": "int", "b": "bigint", "s": "string", "d": "date", "t": "timestamp_ntz", "n": "int"}
    query = read(around.format(f"SELECT {left} AS k, n FROM x UNION ALL SELECT {right}, n FROM y"))
    columns = [[QueryColumn(*each) for each in kinds.items()]] * len(query.sources)
    # As Spark has it: a text beside a number becomes a number, so that 1 and 01 are the same.
    result = [QueryColumn("k", {"i": "bigint", "d": "timestamp"}.get(left, "string")), QueryColumn("n", "int")]
    step = MaintenancePlan(query, columns, result).step({1: REMOVED}, known_before=frozenset())
    assert (step.strategy, step.keys) == (Strategy.KEYS, keys)
    alone = read(f"SELECT {left} AS k FROM x UNION ALL SELECT {right} FROM y")
    step = MaintenancePlan(alone, columns[:2], result[:1]).step({1: REMOVED}, known_before=frozenset())
    assert ("combines columns whose types differ" in step.reason) is (0 not in keys)


def test_names_that_occur_in_other_words_or_texts_stay_as_they_are() -> None:
    query = read(
        "WITH q AS (SELECT * FROM {media/my-plays} WHERE s = '{no}') SELECT a FROM q JOIN media.Title USING (a)"
    )
    assert query.sources == (("media", "my-plays"), ("media", "Title"))
    found = query.over({0: "x", 1: "y"})
    assert (
        found
        == "WITH q AS (SELECT * FROM x AS `my-plays` WHERE s = '{no}') SELECT a FROM q JOIN y AS `Title` USING (a)"
    )
    raw = r"""SELECT a FROM t WHERE s = r'\' AND a <> '{no}' AND b <> R"\" AND c <> "{no}" """.strip()
    assert read(raw).text == raw


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("max_by(b, c)", ("MAX_BY(b, c): it takes any of the rows that tie in c",)),
        ("lag(b) OVER (ORDER BY c)", ("LAG(b) OVER (ORDER BY c): rows that tie in its ORDER BY come in any order",)),
        ("max(b)", ()),
    ],
)
def test_a_value_that_depends_on_ties_is_accepted_with_a_note(value: str, said: tuple[str, ...]) -> None:
    assert read(f"SELECT {value} AS v FROM t0").notes == said


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("SELECT to_json(struct(a AS PlayId, `S`)) AS j FROM t0", ("`PlayId`", "`S`")),
        ("SELECT to_json(CAST(struct(a) AS struct<PlayId: int>)) AS j FROM t0", ("`PlayId`",)),
        (
            "SELECT to_json((A, x.S, b + 1)) AS j FROM t0 AS x",
            ("`x`.`a` AS `A`, `x`.`s` AS `S`, `x`.`b` + 1 AS `col3`",),
        ),
        ("SELECT to_json(arrays_zip(Tags)) AS j FROM (SELECT array(a) AS Tags FROM t0) AS q", ("(`q`.`Tags`)",)),
        ("SELECT str_to_map(s).Country AS c, count(*) AS n FROM t0 GROUP BY 1", (").`Country`",)),
        ("SELECT q.m.Country FROM (SELECT from_json(s, 'map<string, string>') AS M FROM t0) q", ("`q`.`m`.`Country`",)),
    ],
)
def test_a_name_that_is_part_of_a_value_keeps_its_case(text: str, kept: tuple[str, ...]) -> None:
    plan = MaintenancePlan(read(text), [[QueryColumn(*each) for each in TABLES["t0"].items()]])
    assert plan.refused is None
    assert all(each in plan.text for each in kept)


def test_the_fields_of_a_pair_keep_their_names_where_other_columns_replace_them() -> None:
    plan = MaintenancePlan(
        read("SELECT a AS k, to_json((a, max(b))) AS j FROM t0 GROUP BY a"),
        [[QueryColumn(*each) for each in TABLES["t0"].items()]],
    )
    assert isinstance(plan.grouping, Grouping)
    assert in_spark(plan.grouping.computed["j"]) == "TO_JSON(STRUCT(`k` AS `a`, `_ips_aggregate_0` AS `col2`))"
    query = read("SELECT to_json((x.a, x.b)) AS j FROM t0 x JOIN t1 y ON x.a = y.d WHERE (x.b, y.s) IN ((1, 'a'))")
    columns = [[QueryColumn(*each) for each in TABLES[table].items()] for (table,) in query.sources]
    step = MaintenancePlan(query, columns).step({1: REMOVED}, known_before=frozenset())
    assert step.affected is not None
    assert "STRUCT(TRY_CAST(`y`.`d` AS INT) AS `a`, `x`.`b` AS `b`)" in in_spark(step.affected)


def test_table_names_in_sql_ignore_case_and_asset_keys_do_not() -> None:
    query = read("SELECT x.a FROM media.Plays x JOIN MEDIA.plays y ON x.a = y.a JOIN {media/PLAYS} z ON x.a = z.a")
    assert query.sources == (("media", "Plays"), ("media", "PLAYS"))
    assert [span.source for span in query.spans] == [0, 0, 1]
    assert query.over({0: "p", 1: "q"}).count("FROM p x JOIN p y") == 1


def test_a_table_in_nested_namespaces_is_a_source_however_many_parts_its_name_has() -> None:
    query = read(
        "SELECT t.a FROM t JOIN lake.eu.sales.t2 ON t2.a = t.a WHERE t.b IN (SELECT sales.x.c FROM l.m.sales.`x`)"
    )
    assert query.sources == (("t",), ("lake", "eu", "sales", "t2"), ("l", "m", "sales", "x"))
    assert query.over({0: "q", 1: "r", 2: "s"}) == (
        "SELECT t.a FROM q AS `t` JOIN r AS `t2` ON t2.a = t.a WHERE t.b IN (SELECT x.c FROM s AS `x`)"
    )


def test_a_column_may_be_qualified_by_the_full_name_of_its_table() -> None:
    query = read("SELECT lake.m.t.a, `M`.t.s.x, t.b FROM lake.m.t JOIN u ON u.p.q.r = t.b WHERE lake.m.t.a > 1")
    assert query.over({0: "x", 1: "y"}) == (
        "SELECT t.a, t.s.x, t.b FROM x AS `t` JOIN y AS `u` ON u.p.q.r = t.b WHERE t.a > 1"
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT device, count(*) AS n FROM plays GROUP BY device ORDER BY 2 DESC, 1 LIMIT 3",
        "SELECT Device, seconds FROM plays ORDER BY SECONDS, device LIMIT 3",
        "SELECT p.a, b FROM plays AS P ORDER BY p.A, p.b LIMIT 3",
        "SELECT device FROM plays UNION SELECT title FROM plays ORDER BY DEVICE LIMIT 3",
        "SELECT device AS d, p.title FROM plays p ORDER BY p.device, title LIMIT 3",
        "SELECT a AS x, b AS y, sum(c) AS c FROM plays GROUP BY a, b ORDER BY a, y, sum(c) LIMIT 3",
        "SELECT x.a AS k, y.b FROM plays x JOIN plays y ON x.i = y.i ORDER BY x.a, y.b LIMIT 3",
        "SELECT device FROM plays LIMIT ALL",
        "SELECT device FROM plays p WHERE EXISTS (SELECT 1 FROM plays q WHERE q.title = p.device LIMIT 1)",
    ],
)
def test_a_limit_whose_rows_do_not_depend_on_chance_is_accepted(text: str) -> None:
    assert read(text).sources == (("plays",),)


def test_a_window_may_be_defined_once_and_used_by_its_name() -> None:
    text = "SELECT a, b, rank() OVER {0} AS r, sum(b) OVER {0} AS s, max(b) OVER (PARTITION BY a, b) AS m FROM t0{1}"
    window = "(PARTITION BY a ORDER BY b RANGE UNBOUNDED PRECEDING)"
    assert read(text.format("W", f" WINDOW w AS {window}")).tree == read(text.format(window, "")).tree
    with pytest.raises(RefusedQueryError, match="has no ORDER BY"):
        read(text.format("w", " WINDOW w AS (PARTITION BY a)"))


def test_a_comment_may_follow_the_semicolon() -> None:
    query = read("SELECT ';' AS a FROM t -- all;\n;; -- done; really\n/* end */")
    assert query.text == "SELECT ';' AS a FROM t -- all;"
    assert query.over({0: "x"}) == "SELECT ';' AS a FROM x AS `t` -- all;"


@pytest.mark.parametrize("spine", ["range(10) AS x (d)", "explode(sequence(1, 10)) AS x (d)"])
def test_a_table_function_is_no_source_and_causes_full_runs(spine: str) -> None:
    query = read(f"SELECT x.d, count(y.b) AS n FROM {spine} LEFT JOIN t0 y ON y.a = x.d GROUP BY x.d")
    assert query.sources == (("t0",),)
    plan = MaintenancePlan(query, [[QueryColumn(*each) for each in TABLES["t0"].items()]])
    assert plan.step({0: ADDED}, known_before=frozenset()).reason == "no keys: a table function in FROM"


def test_spaces_and_comments_do_not_make_another_query_but_quoted_text_does() -> None:
    given = read("SELECT a, 'x  y' AS s FROM t WHERE a > 1")
    assert read("SELECT a,\n  'x  y' AS s -- as it is\nFROM t /* all */ WHERE a>1;").words == given.words
    for other in (
        "SELECT a, 'x y' AS s FROM t WHERE a > 1",
        "SELECT a, 'x  y' AS S FROM t WHERE a > 1",
        "SELECT a, `x  y` AS s FROM t WHERE a > 1",
        "SELECT a, 'x  y' AS s FROM t WHERE a > - 1",
        "SELECT a, 'x  y' AS s FROM {t} WHERE a > 1",
    ):
        assert read(other).words != given.words


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT rand() FROM t", "RAND"),
        ("SELECT a FROM t WHERE d < now()", "now"),
        ("SELECT CAST('now' AS timestamp) FROM t", "depends on the day of the run"),
        ("SELECT unix_timestamp() FROM t", "CURRENT_TIMESTAMP"),
        ("SELECT first(a) FROM t", "whichever row comes first"),
        ("SELECT collect_list(a) FROM t", "COLLECT_LIST"),
        ("SELECT array_contains(b, collect_list(a)), array_size(array_sort(a, collect_set(b))) FROM t", "COLLECT"),
        ("SELECT size(array_distinct(collect_list(a))), sort_array(b, collect_list(a)) FROM t", "COLLECT_LIST"),
        ("SELECT a FROM t WHERE a = any(SELECT b FROM u)", "Spark compares so only with LIKE"),
        ("SELECT try_sum(a, 2) FROM t", "try_sum"),
        ("SELECT input_file_name() FROM t", "input_file_name"),
        ("SELECT a FROM t WHERE hour(`Current_Time`) < 8", "the time of the run"),
        ("SELECT row_number() OVER (PARTITION BY a) FROM t", "depends on an order, but its OVER has no ORDER BY"),
        ("SELECT * FROM t LIMIT 3", "LIMIT"),
        ("SELECT a, b FROM t ORDER BY a LIMIT 3", "LIMIT"),
        ("SELECT max_by(a) FROM t", "lacks an argument"),
        ("SELECT x FROM t AS (x, y)", "lacks a name for the relation"),
        ("SELECT regexp_replace(a, 'x') FROM t", "it can't be parsed: a function may lack an argument"),
        ("SELECT a FROM t WHERE a IN (SELECT FROM u)", "names no columns"),
        ("SELECT x.a FROM t x JOIN u y ON x.i = y.i ORDER BY y.a LIMIT 3", "LIMIT"),
        ("SELECT a FROM t ORDER BY s.a LIMIT 3", "LIMIT"),
        ("SELECT a, b FROM t ORDER BY 1 LIMIT 3", "LIMIT"),
        ("SELECT b AS a FROM t ORDER BY t.a LIMIT 3", "LIMIT"),
        ("SELECT a AS x, b AS a FROM t ORDER BY a, b LIMIT 3", "LIMIT"),
        ("SELECT *, a + 1 AS b FROM t ORDER BY 1, 2 LIMIT 3", "LIMIT"),
        (f"SELECT a FROM t WHERE {' OR '.join(f'a = {i} AND b > {i}' for i in range(3000))}", "nested too deeply"),
        ("SELECT a FROM t ORDER BY a.all LIMIT 3", "LIMIT"),
        ("SELECT a, b FROM t UNION ALL SELECT a, b FROM u ORDER BY a LIMIT 3", "LIMIT"),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u LIMIT 1 OFFSET 3)", "LIMIT"),
        ("SELECT a FROM t QUALIFY rank() OVER (ORDER BY a) = 1", "Spark has no QUALIFY"),
        ("SELECT * FROM t TABLESAMPLE (10 PERCENT)", "SAMPLE"),
        ("SELECT * FROM t VERSION AS OF 3", "VERSION"),
        ("SELECT * FROM t PIVOT (sum(a) FOR b IN (1, 2))", r"^PIVOT\(.* isn't supported"),
        ("SELECT * FROM (SELECT a, b FROM t) UNPIVOT (v FOR n IN (a, b))", r"^UNPIVOT\(.* isn't supported"),
        ("SELECT * FROM a JOIN b ON a.x IN (SELECT y FROM c)", "subqueries in ON"),
        ("WITH RECURSIVE q AS (SELECT 1 AS a UNION ALL SELECT a FROM q) SELECT * FROM q", "recursive"),
        ("SELECT a.t.x FROM a.t JOIN b.t ON a.t.i = b.t.i", "several of its tables are called t"),
        ("TABLE u UNION ALL SELECT a FROM t", r"write SELECT \* FROM x instead of TABLE x"),
        ("SELECT a FROM t WHERE a > (TABLE u)", r"write SELECT \* FROM x instead of TABLE x"),
        ("FROM t |> AS x |> SELECT x.a", r"\|> AS x isn't supported"),
        ("SELECT {media/my-plays}.a FROM {media/my-plays}", "before a column, write `my-plays` or an alias"),
        ("SELECT a FROM t WHERE d >= '${env:START}'", r"Spark replaces \$\{env:START\} by one of its settings"),
        ("SELECT a FROM ${source} JOIN t USING (i)", r"Spark replaces \$\{source\} by one of its settings"),
        ("SELECT 1", "reads no table"),
        ("SELECT a FROM t; SELECT b FROM t", "isn't a single SELECT"),
        (
            "SELECT window(c, '1 hour') AS w, count(*) FROM t0 GROUP BY window(c, '1 hour')",
            r"Group by date_trunc\('HOUR'",
        ),
        ("SELECT a, window(c, '1 hour') AS w FROM t0", r"timestamp_seconds\(unix_seconds\(ts\) DIV 900"),
        ("SELECT count(*) FROM t0 GROUP BY session_window(c, '1 hour')", "any row may change all groups"),
    ],
)
def test_a_query_that_cannot_be_maintained_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(RefusedQueryError, match=why):
        read(text)


@pytest.mark.parametrize(
    ("text", "widened", "depends"),
    [
        ("SELECT n, f FROM t", "n f", False),
        ("SELECT * FROM t", "n f", False),
        ("SELECT n, hash(i) AS h FROM t", "i", True),
        ("SELECT n, hash(i) AS h FROM t", "f", False),
        ("SELECT n, CAST(f AS STRING) AS s FROM t", "f", True),
        ("SELECT n FROM t WHERE f > 1.1", "f", True),
        (
            "SELECT i, sum(n) AS n, max(i) AS m FROM t WHERE n > 1 AND s LIKE 'a' GROUP BY i HAVING count(*) > 1",
            "n i",
            False,
        ),
        (
            "SELECT x.i FROM t x LEFT JOIN t y USING (n) WHERE x.i IN (SELECT n FROM t) UNION ALL SELECT n FROM t",
            "n",
            False,
        ),
        ("SELECT i, rank() OVER (PARTITION BY i ORDER BY n DESC) AS r FROM t", "n i", False),
        ("SELECT n + 1 AS m FROM t", "n", True),
        ("SELECT x.n FROM t x FULL JOIN t y ON x.n = y.n", "n", True),
        ("SELECT x.n FROM t x FULL JOIN t y ON x.n = y.n", "", False),
    ],
)
def test_a_wider_type_matters_unless_it_gives_the_same_values(text: str, widened: str, *, depends: bool) -> None:
    columns = [
        QueryColumn(name, kind) for name, kind in zip("nifs", ("bigint", "int", "double", "string"), strict=True)
    ]
    assert MaintenancePlan(read(text), [columns]).depends_on_types(0, widened.split()) is depends


@pytest.mark.parametrize(
    ("text", "changed", "depends"),
    [
        ("SELECT i, st FROM t", "st", False),
        ("SELECT i, upper(s) AS u, st AS copied FROM t WHERE st IS NOT NULL", "st", False),
        ("SELECT i, upper(s) AS u, st.a AS a, l[0].b AS b FROM t", "st l", False),
        ("WITH u AS (SELECT * FROM t) SELECT s, sum(st.a) AS a, count(st) AS n FROM u GROUP BY s", "st", False),
        ("SELECT to_json(st) AS j FROM t", "st", True),
        ("SELECT to_json(st) AS j FROM t", "st.of", True),
        ("SELECT to_json(st.of) AS j FROM t", "st", False),
        ("SELECT to_json(st.of) AS j FROM t", "st.of", True),
        ("SELECT CAST(St AS STRING) AS j FROM t", "ST", True),
        ("SELECT to_json(l[0]) AS j FROM t", "l", True),
        ("SELECT x.b, n FROM t LATERAL VIEW posexplode(l) v AS n, x", "l", False),
        ("SELECT x.b, to_json(x) AS j FROM t LATERAL VIEW explode(l) AS x", "l", True),
        ("SELECT to_json(x) AS j FROM (SELECT x FROM t LATERAL VIEW explode(l) AS x) q", "l", True),
        ("SELECT to_json(q) AS j FROM (SELECT st AS q FROM t)", "st", True),
        ("SELECT to_json(q) AS j FROM (SELECT st FROM t) AS x(q)", "st", True),
        ("SELECT DISTINCT st FROM t", "st", True),
        ("SELECT i, count(DISTINCT st) AS n FROM t GROUP BY i", "st", True),
        ("SELECT st FROM t UNION ALL SELECT st FROM t", "st", True),
        ("SELECT i FROM t FULL JOIN t u USING (i)", "st", True),
        ("SELECT i, upper(s) AS u FROM t", "st", False),
    ],
)
def test_other_fields_matter_where_a_struct_is_more_than_copied(text: str, changed: str, *, depends: bool) -> None:
    kinds = {"i": "int", "s": "string", "st": "struct<a: int, of: struct<b: int>>", "l": "array<struct<b: int>>"}
    plan = MaintenancePlan(read(text), [[QueryColumn(*each) for each in kinds.items()]])
    assert plan.depends_on_fields(0, [tuple(each.split(".")) for each in changed.split()]) is depends


@pytest.mark.parametrize(
    ("condition", "strategy"),
    [
        ("day >= 'today'", Strategy.FULL),
        ("day >= to_date('today')", Strategy.FULL),
        ("ts < to_timestamp('now UTC')", Strategy.FULL),
        ("datediff('today', day) < 7", Strategy.FULL),
        ("ts BETWEEN '2026-01-01' AND ('tomorrow')", Strategy.FULL),
        ("CASE day WHEN 'today' THEN TRUE ELSE FALSE END", Strategy.FULL),
        ("ts > CASE WHEN s = 'a' THEN ('today') ELSE day END", Strategy.FULL),
        ("s IN ('now', 'later') AND instr(s, 'today') = 0", Strategy.APPEND),
        ("CASE day WHEN DATE '2026-01-01' THEN 'today' ELSE 'later' END = nvl2(day, 'now', 'never')", Strategy.APPEND),
    ],
)
def test_a_string_that_means_the_time_of_the_run_beside_a_time_is_not_taken_for_a_constant(
    condition: str, strategy: Strategy
) -> None:
    columns = [QueryColumn("day", "date"), QueryColumn("ts", "timestamp"), QueryColumn("s", "string")]
    plan = MaintenancePlan(read(f"SELECT * FROM x WHERE {condition}"), [columns])
    step = plan.step({0: ADDED}, known_before=frozenset({0}))
    assert (step.strategy, "the time of the run" in step.reason) == (strategy, strategy is Strategy.FULL)


@pytest.mark.parametrize(("column", "is_time"), [("day", True), ("s", False)])
def test_a_string_in_a_side_of_a_union_may_mean_the_time_of_the_run_beside_a_time(column: str, is_time: bool) -> None:  # noqa: FBT001  # a parameter
    text = f"SELECT 1 AS a, {column} FROM x UNION ALL SELECT 2, s FROM y UNION ALL (SELECT 3, ('now') FROM y)"
    columns = [[QueryColumn("day", "date"), QueryColumn("s", "string")], [QueryColumn("s", "string")]]
    refused = MaintenancePlan(read(text), columns).refused
    assert ("the time of the run" in (refused or "")) is is_time


@pytest.mark.parametrize(
    "text",
    [
        "SELECT parse_json(s) AS j, is_variant_null(try_parse_json(s)) AS n FROM t0",
        "SELECT variant_get(parse_json(s), '$.a', 'int') AS a, count(*) AS n FROM t0 GROUP BY 1",
        "SELECT date_trunc('HOUR', s) AS h, count(*) AS n FROM t0 GROUP BY 1",
        "SELECT timestamp_seconds(unix_seconds(s) DIV 900 * 900) AS h, count(*) AS n FROM t0 GROUP BY 1",
    ],
)
def test_what_is_advised_instead_of_a_window_of_time_and_the_functions_of_variants_are_accepted(text: str) -> None:
    assert read(text).sources == (("t0",),)
