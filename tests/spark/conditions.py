"""Random SQL conditions over nullable columns of every type that a condition can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

_T = TypeVar("_T")

VALUES: Mapping[str, Sequence[str]] = {
    "string": ["'x'", "'y'", "''", "'a$b'", "'😀'", "'\ufb00'"],
    "boolean": ["TRUE", "FALSE"],
    "int": ["0", "7", "-7"],
    "bigint": ["0L", "5000000000L"],
    "double": ["0.0D", "-0.0D", "1.5D", "DOUBLE('NaN')", "DOUBLE('-Infinity')"],
    "float": ["FLOAT('0.0')", "FLOAT('-0.0')", "FLOAT('0.1')", "FLOAT('NaN')"],
    "decimal(10, 2)": ["0.00BD", "1.50BD", "-3.25BD"],
    "date": ["DATE '2026-01-01'", "DATE '1969-12-31'"],
    "timestamp": ["TIMESTAMP_LTZ '2026-10-25 00:30:00Z'", "TIMESTAMP_LTZ '2026-10-25 01:30:00.123456Z'"],
    "timestamp_ntz": ["TIMESTAMP_NTZ '2026-01-01 00:00:00'", "TIMESTAMP_NTZ '1900-01-01 00:00:00.000001'"],
    "binary": ["X''", "X'00FF'"],
}
"""Some literals of each type, including the values that engines disagree on."""

PARTITIONS = {f"p{i}": kind for i, kind in enumerate(VALUES)}
OTHERS = {f"u{i}": kind for i, kind in enumerate(VALUES)}
NESTED = {"s.f": "double", "s.c": "string"}
COLUMNS = PARTITIONS | OTHERS | NESTED


def a_value(kind: str) -> st.SearchStrategy[str]:
    """A literal of the type, or a null of it."""
    return st.sampled_from([*VALUES[kind], "NULL"]).map(lambda value: f"CAST({value} AS {kind})")


@st.composite
def rows(draw: st.DrawFn) -> list[str]:
    """Rows of a table with ``COLUMNS``, for an INSERT; every column is often null."""
    some = []
    for number in range(draw(st.integers(6, 12))):
        values = [draw(a_value(kind)) for kind in (PARTITIONS | OTHERS).values()]
        inner = ", ".join(f"'{name[2:]}', {draw(a_value(kind))}" for name, kind in NESTED.items())
        struct = draw(st.sampled_from([f"named_struct({inner})"] * 3 + ["NULL"]))
        some.append(f"({number}, {', '.join(values)}, {struct})")
    return some


@st.composite
def _comparison(draw: st.DrawFn, columns: Mapping[str, str]) -> str:  # noqa: PLR0911  # one per form reads best
    column, kind = draw(st.sampled_from(sorted(columns.items())))
    forms = ["op"] * 4 + ["null", "in", "in", "between", "column", "function", "cast"]
    forms += {"string": ["like"] * 2, "boolean": ["itself"] * 2, "double": ["isnan"], "float": ["isnan"]}.get(kind, [])
    negated = draw(st.sampled_from(["", "NOT "]))
    one, two = draw(a_value(kind)), draw(a_value(kind))
    same = [name for name, other in columns.items() if other == kind]
    match draw(st.sampled_from(forms)):
        case "null":
            return f"{column} IS {negated}NULL"
        case "in":
            return f"{column} {negated}IN ({one}, {two})"
        case "between":
            return f"{column} {negated}BETWEEN {one} AND {two}"
        case "like":
            return f"{column} {negated}LIKE '{draw(st.sampled_from(['x%', '%', 'x', '%b']))}'"
        case "isnan":
            return f"{negated}isnan({column})"
        case "function":
            return f"{negated}{draw(st.sampled_from(['coalesce', 'nullif']))}({column}, {one}) = {two}"
        case "cast":
            return f"CAST({column} AS STRING) {draw(st.sampled_from(['=', '<>', '<']))} CAST({one} AS STRING)"
        case "itself":
            return f"{negated}{column}"
        case form:
            operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"]))
            other = draw(st.sampled_from(same)) if form == "column" else one
            return f"{column} {operator} {other}"


def conditions(columns: Mapping[str, str] = COLUMNS) -> st.SearchStrategy[str]:
    """Conditions that name only ``columns``."""
    constants = st.sampled_from(["TRUE", "FALSE", "NULL = 1"])
    return st.recursive(
        st.integers(0, 19).flatmap(lambda one_in: _comparison(columns) if one_in else constants),
        lambda inner: st.one_of(
            inner.map(lambda one: f"NOT ({one})"),
            st.tuples(inner, inner).map(lambda both: f"({both[0]}) AND ({both[1]})"),
            st.tuples(inner, inner).map(lambda both: f"({both[0]}) OR ({both[1]})"),
        ),
        max_leaves=4,
    )


def drawn(strategy: st.SearchStrategy[_T], count: int, *, seed: int) -> list[_T]:
    """``count`` values, the same for the same seed.

    Hypothesis begins with the simplest value that there is, which for a condition is TRUE: it is left out.
    """
    found: list[_T] = []

    @seeded(seed)
    @settings(
        max_examples=count + 1,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def keep(value: _T) -> None:
        found.append(value)

    keep()
    return found[1:]
