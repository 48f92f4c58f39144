"""What a new text of a query does differently is said clause by clause."""

from __future__ import annotations

import pytest

from dagster_ips.query.query_difference import query_differences
from dagster_ips.query.query_text import RefusedQueryError

BEFORE = (
    "SELECT event_date, account, sum(seconds) AS seconds FROM playback JOIN title USING (title_id) "
    "WHERE genre <> 'trailer' GROUP BY event_date, account"
)
WITH = "WITH long AS (SELECT a, b FROM t WHERE b > 1) SELECT a, sum(b) AS s FROM long GROUP BY a"
TWICE = "SELECT a FROM t UNION ALL SELECT a FROM u"
UNNAMED = "SELECT a, c FROM (SELECT a FROM t WHERE b > 1) JOIN (SELECT c FROM u)"


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (BEFORE, BEFORE.lower().replace(" where", "\n-- a comment\nwhere"), []),
        (BEFORE, f"{BEFORE} ORDER BY 1", []),
        (BEFORE, BEFORE.replace("sum(", "max(seconds) AS longest, sum("), ["column longest is new: MAX(seconds)"]),
        (BEFORE, BEFORE.replace("account, sum", "sum"), ["column account is gone"]),
        (
            BEFORE,
            BEFORE.replace("event_date, account, sum", "account, event_date, sum"),
            ["its columns are in another order"],
        ),
        (
            BEFORE,
            BEFORE.replace("sum(seconds)", "sum(seconds + 1)"),
            ["column seconds is SUM(seconds + 1), and was SUM(seconds)"],
        ),
        (BEFORE, BEFORE.replace("GROUP", "AND seconds > 9 GROUP"), ["only rows with seconds > 9 are left"]),
        (
            BEFORE,
            BEFORE.replace("WHERE genre <> 'trailer' ", ""),
            ["rows without genre <> 'trailer' are no longer left out"],
        ),
        (BEFORE, f"{BEFORE} HAVING count(*) > 1", ["only groups with COUNT(*) > 1 are left"]),
        (
            BEFORE,
            BEFORE.replace("GROUP BY event_date, account", "GROUP BY account, event_date, genre"),
            ["it is grouped by account, event_date, genre, and was by event_date, account"],
        ),
        (
            BEFORE,
            BEFORE.replace("JOIN title", "LEFT JOIN title"),
            ["LEFT JOIN title USING (title_id) is read instead of JOIN title USING (title_id)"],
        ),
        (
            BEFORE,
            BEFORE.replace("WHERE", "JOIN media.plans AS p ON p.account = playback.account WHERE"),
            ["JOIN media.plans AS p ON p.account = playback.account is new"],
        ),
        (BEFORE, BEFORE.replace("playback", "{media/play}"), ["FROM media.play is new", "FROM playback is gone"]),
        (BEFORE, BEFORE.replace("SELECT", "SELECT DISTINCT", 1), ["its DISTINCT is new"]),
        (WITH, WITH.replace("b > 1", "b > 1 AND a IS NOT NULL"), ["in long, only rows with a IS NOT NULL are left"]),
        (TWICE, f"{TWICE} WHERE a > 1", ["it is another query as a whole"]),
        (UNNAMED, UNNAMED.replace("b > 1", "b > 1 AND a > 1"), ["in relation 1, only rows with a > 1 are left"]),
        ("SELECT a FROM p.q.r.t", "SELECT a FROM o.q.r.t", ["FROM o.q.r.t is read instead of FROM p.q.r.t"]),
        ("SELECT rand() AS r FROM t", "SELECT a FROM t", ["the earlier query is one that would be refused now: …"]),
    ],
)
def test_the_differences_of_two_queries_are_named(before: str, now: str, said: list[str]) -> None:
    found = query_differences(before, now)
    assert len(found) == len(said), found
    for each, expected in zip(found, said, strict=True):
        assert each.startswith(expected.removesuffix("…")), each


def test_a_new_query_that_no_table_can_be_declared_by_is_refused() -> None:
    with pytest.raises(RefusedQueryError):
        query_differences("SELECT a FROM t", "SELECT rand() AS a FROM t")
