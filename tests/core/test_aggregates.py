"""Which aggregates can be maintained from the change alone, and what a table keeps for them."""

from __future__ import annotations

import pytest

from dagster_ips.core.aggregates import layout_of, parse_aggregate


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("count(*)", "count(*)"),
        (" COUNT ( * ) ", "count(*)"),
        ("Mean(price * 2)", "avg(price * 2)"),
        ("every(a AND b)", "bool_and(a AND b)"),
        ("sum(CASE WHEN note = ') --' THEN 1 ELSE 0 END)", "sum(CASE WHEN note = ') --' THEN 1 ELSE 0 END)"),
        ("max(`a)b`)", "max(`a)b`)"),
        ("min(coalesce(a, b, 'select'))", "min(coalesce(a, b, 'select'))"),
        (r"count_if(a = 'it\'s (')", r"count_if(a = 'it\'s (')"),
        ("sum(xs[0])", "sum(xs[0])"),
        ("count_if(state = 'today' AND cast('nowhere' AS STRING) = a)",) * 2,
    ],
)
def test_one_function_of_one_expression_is_accepted_as_an_aggregate(text: str, parsed: str) -> None:
    assert str(parse_aggregate("x", text)) == parsed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sum(a) + sum(b)", "a single function"),
        ("sum(a) FILTER (WHERE b > 0)", "a single function"),
        ("sum(a) OVER (PARTITION BY b)", "a single function"),
        ("sum(a, b)", "a single function"),
        ("sum(a -- )", "a single function"),
        ("sum(a /* ) */)", "a single function"),
        ("sum(a", "a single function"),
        ("a", "a single function"),
        ("", "a single function"),
        ("median(a)", "median can't be maintained"),
        ("collect_list(a)", "collect_list can't be maintained"),
        ("count(DISTINCT a)", "DISTINCT can't"),
        ("count_if(day < current_date)", "current_date may give removed rows a different value"),
        ("max(unix_timestamp( ) - seconds)", r"unix_timestamp\( \) may give removed rows a different value"),
        ("sum(a * rand())", "rand may give removed rows a different value"),
        ("count_if(day < DATE 'today')", "'today may give removed rows a different value"),
        ("count_if(at > cast('now UTC' AS timestamp))", "may give removed rows a different value"),
        ('max(datediff(to_date("Yesterday"), day))', "may give removed rows a different value"),
        ("count_if(day >= '${env:START}')", r"\$\{env:START\} may give removed rows a different value"),
        ("sum(all a)", "ALL can't"),
        ("sum(*)", "only count accepts"),
        ("count(t.*)", "only count accepts"),
        ("count()", "one expression"),
        ("sum((SELECT max(x) FROM t))", "a subquery in it"),
        ("count_if(a IN (TABLE blocked))", "a subquery in it"),
        ("sum(a * ( table `rates`))", "a subquery in it"),
        ("count_if(EXISTS (FROM t |> WHERE x > 1))", "a subquery in it"),
    ],
)
def test_expressions_that_cannot_be_maintained_from_a_change_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_aggregate("x", text)


def kept(**aggregates: str) -> list[str]:
    return list(layout_of([parse_aggregate(*each) for each in aggregates.items()]).hidden.values())


def test_hidden_columns_are_kept_only_for_removals_that_the_declared_columns_do_not_cover() -> None:
    assert kept(plays="count(*)") == []
    assert kept(most="max(x)") == ["_ips_rows"]
    assert kept(plays="count(*)", total="sum(x)") == ["_ips_count_total"]
    assert kept(plays="count(*)", total="sum(x)", known="count(x)") == []
    assert kept(plays="count(*)", mean="avg(x)") == ["_ips_sum_mean", "_ips_count_mean"]
    assert kept(plays="count(*)", mean="avg(x)", total="sum(x)", known="count(x)") == []
    assert kept(plays="count(*)", total="sum(x)", mean="avg(x)", other="avg(y)") == [
        "_ips_count_total",
        "_ips_sum_other",
        "_ips_count_other",
    ]
    assert kept(plays="count(*)", all_="bool_and(b)", one="bool_or(b)") == ["_ips_true_all_", "_ips_false_all_"]
    assert kept(plays="count(*)", yes="count_if(b)", one="bool_or(b)") == ["_ips_false_one"]


def test_a_hidden_count_tells_rows_that_something_else_wrote() -> None:
    """Their hidden columns are null, as those of a sum or an extreme may be."""
    assert kept(plays="count(*)", mean="avg(x)", known="count(x)") == ["_ips_rows", "_ips_sum_mean"]
    assert kept(plays="count(*)", _ips_aggregate_0="max(x)") == ["_ips_rows"]


def test_two_columns_of_the_same_aggregate_share_its_hidden_columns() -> None:
    layout = layout_of([parse_aggregate("a", "sum(x)"), parse_aggregate("b", "sum(x)")])
    assert set(layout.columns.values()) == {"a", "_ips_rows", "_ips_count_a"}
