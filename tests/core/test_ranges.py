"""A range never leaves out a changed row, and claims no more than is known."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dagster_ips.core.ranges import Bound, ChangeRange, Predicate, RangeKind, equals, literal, quoted
from dagster_ips.errors import RangeTypesError, UnboundedRangeError
from tests.support.lake import Lake

DOMAIN = [None, *range(-4, 5)]
FEW = settings(max_examples=80, deadline=None)
IN_SPARK = settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

bounds = st.integers(-3, 3)
kinds = st.sampled_from([RangeKind.EXACT, RangeKind.BOUNDED])


@st.composite
def file_bounds(draw: st.DrawFn) -> tuple[int | None, int | None]:
    """The bounds of a file's values; sometimes a side is unknown."""
    low, high = sorted((draw(bounds), draw(bounds)))
    return draw(st.sampled_from([(low, high)] * 4 + [(None, high), (low, None), (None, None)]))


ranges = st.builds(
    ChangeRange.of, st.just("x"), st.lists(file_bounds(), max_size=3), kind=kinds, has_null=st.booleans()
)


def matched(predicate: Predicate) -> set[int | None]:
    """The values of the domain that the predicate keeps. DuckDB evaluates it, so quotes are adapted."""
    rows = ", ".join(f"({'NULL' if value is None else value})" for value in DOMAIN)
    condition = predicate.replace("`", '"')
    return {row[0] for row in duckdb.sql(f"SELECT x FROM (VALUES {rows}) t(x) WHERE {condition}").fetchall()}


@FEW
@given(files=st.lists(file_bounds(), min_size=1, max_size=4), kind=kinds, has_null=st.booleans())
def test_a_range_matches_exactly_the_values_that_its_files_may_contain(
    *, files: list[tuple[int | None, int | None]], kind: RangeKind, has_null: bool
) -> None:
    found = ChangeRange.of("x", files, kind=kind, has_null=has_null)
    open_below = any(low is None for low, _ in files)
    open_above = any(high is None for _, high in files)
    lowest = min(low for low, _ in files if low is not None) if not open_below else -99
    highest = max(high for _, high in files if high is not None) if not open_above else 99
    values = {v for v in DOMAIN if v is not None}
    nulls = {None} if has_null else set()
    everything = open_below and open_above
    within = set(DOMAIN) if everything else {v for v in values if lowest <= v <= highest} | nulls
    after = set(DOMAIN) if open_below else {v for v in values if lowest <= v} | nulls
    assert matched(found.between("x")) == within
    assert matched(found.since("x")) == after
    assert found.kind is (RangeKind.UNBOUNDED if open_below or open_above else kind)


@FEW
@given(ranges, ranges)
def test_a_union_is_the_smallest_range_that_contains_both(left: ChangeRange, right: ChangeRange) -> None:
    both = left | right
    parts = [part for part in (left, right) if not part.is_empty]
    assert matched(both.between("x")) >= matched(left.between("x")) | matched(right.between("x"))
    assert matched(both.since("x")) >= matched(left.since("x")) | matched(right.since("x"))
    lows, highs = [part.lowest for part in parts], [part.highest for part in parts]
    assert both.lowest == (None if None in lows or not parts else min(lows))
    assert both.highest == (None if None in highs or not parts else max(highs))
    assert both.has_null == (left.has_null or right.has_null)
    assert both == right | left


@FEW
@given(ranges, ranges, ranges)
def test_a_union_does_not_depend_on_the_order(one: ChangeRange, two: ChangeRange, three: ChangeRange) -> None:
    assert (one | two) | three == one | (two | three)


@given(ranges)
def test_a_union_with_nothing_changes_nothing(some: ChangeRange) -> None:
    assert some | ChangeRange.nothing("x") == some
    assert ChangeRange.nothing("x") | some == some


@given(ranges)
def test_a_union_with_everything_is_everything(some: ChangeRange) -> None:
    both = some | ChangeRange.everything("x")
    assert matched(both.between("x")) == matched(both.since("x")) == set(DOMAIN)


@given(ranges, kinds)
def test_a_union_is_exact_only_if_both_sides_are(some: ChangeRange, kind: RangeKind) -> None:
    both = ChangeRange.of("x", [(0, 1)], kind=kind) | some
    if both.kind is RangeKind.EXACT:
        assert kind is RangeKind.EXACT
        assert some.kind in {RangeKind.EXACT, RangeKind.EMPTY}


def test_nothing_matches_no_row_and_everything_matches_nulls_too() -> None:
    assert matched(ChangeRange.nothing("x").between("x")) == matched(ChangeRange.nothing("x").since("x")) == set()
    assert matched(ChangeRange.everything("x").between("x")) == set(DOMAIN)
    assert matched(ChangeRange.everything("x").since("x")) == set(DOMAIN)


def test_a_change_of_nulls_alone_still_matches_its_rows() -> None:
    nulls = ChangeRange.of("x", [], kind=RangeKind.EXACT, has_null=True)
    assert not nulls.is_empty
    assert None in matched(nulls.between("x")) & matched(nulls.since("x"))


@pytest.mark.parametrize("empty_or_open", [ChangeRange.nothing("x"), ChangeRange.everything("x")])
def test_asking_for_a_missing_bound_is_an_error_and_never_a_guess(empty_or_open: ChangeRange) -> None:
    for bound in ("lower", "upper"):
        with pytest.raises(UnboundedRangeError, match=rf"no {bound} bound.*\.since\(\)"):
            getattr(empty_or_open, bound)


def test_ranges_of_columns_with_different_names_can_be_united() -> None:
    days = ChangeRange.of("event_date", [(1, 2)], kind=RangeKind.EXACT)
    assert (days | ChangeRange.of("valid_on", [(0, 1)], kind=RangeKind.EXACT)).column == "event_date"


@given(ranges, ranges)
def test_conditions_on_different_columns_can_be_combined(left: ChangeRange, right: ChangeRange) -> None:
    some, others = left.between("x"), right.since("x")
    assert matched(some | others) == matched(some) | matched(others)
    assert matched(some & others) == matched(some) & matched(others)
    assert matched("x = 1" | some) == matched("x = 1") | matched(some)


def test_a_range_cannot_be_used_as_a_condition() -> None:
    some = ChangeRange.nothing("x")
    for join in (lambda: some.since("x") | some, lambda: some | some.since("x")):
        with pytest.raises(TypeError, match="unsupported operand"):
            join()


def one_of(value: Bound, column: str = "x") -> ChangeRange:
    return ChangeRange.of(column, [(value, value)], kind=RangeKind.EXACT)


# All time zones, and every time and day that a test can widen without leaving Python's calendar.
offsets = st.integers(-12, 14).map(lambda hours: dt.timezone(dt.timedelta(hours=hours)))
days = st.dates(dt.date(2, 1, 1), dt.date(9998, 1, 1))
zoneless = st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1))  # noqa: DTZ001  # deliberately without a zone


@FEW
@given(days, zoneless)
def test_the_union_of_a_date_and_a_timestamp_is_in_days_and_includes_both_for_either_column_type(
    day: dt.date, moment: dt.datetime
) -> None:
    both = one_of(moment) | one_of(day)
    lowest, highest = both.lower, both.upper
    assert isinstance(lowest, dt.date)
    assert isinstance(highest, dt.date)
    assert both.kind is RangeKind.BOUNDED
    assert lowest <= min(day, moment.date()) <= max(day, moment.date()) <= highest
    assert dt.datetime.combine(lowest, dt.time()) <= moment <= dt.datetime.combine(highest, dt.time())
    assert highest - lowest <= abs(moment.date() - day) + dt.timedelta(days=1)


@FEW
@given(day=days, moment=zoneless, zone=offsets)
def test_a_union_includes_a_timestamp_with_a_zone_whatever_the_zone_in_which_dates_are_read(
    day: dt.date, moment: dt.datetime, zone: dt.timezone
) -> None:
    both = one_of(day) | one_of(moment.replace(tzinfo=dt.UTC))
    lowest, highest = both.lower, both.upper
    assert isinstance(lowest, dt.date)
    assert isinstance(highest, dt.date)
    there = moment.replace(tzinfo=dt.UTC).astimezone(zone)
    assert lowest <= there.date() <= highest
    assert dt.datetime.combine(lowest, dt.time(), zone) <= there <= dt.datetime.combine(highest, dt.time(), zone)
    assert lowest <= day <= highest


@FEW
@given(moments=st.lists(zoneless, min_size=1, max_size=3), other=zoneless)
def test_a_condition_on_another_column_counts_whole_days_as_that_column_may_be_a_date(
    moments: list[dt.datetime], other: dt.datetime
) -> None:
    found = ChangeRange.of("played_at", [(min(moments), max(moments))], kind=RangeKind.BOUNDED)
    dates = ChangeRange.of("day", [(min(moments).date(), max(moments).date())], kind=RangeKind.EXACT)
    for condition in (found.between("day"), dates.between("played_at")):
        for column in ("day", "played_at"):
            keeps = condition.replace("`day`", column).replace("`played_at`", column)
            rows = ", ".join(f"(DATE '{each.date()}', TIMESTAMP '{each}')" for each in [*moments, other])
            kept = duckdb.sql(f"SELECT played_at FROM (VALUES {rows}) t(day, played_at) WHERE {keeps}").fetchall()
            is_within = min(moments).date() <= other.date() <= max(moments).date()
            assert [each for (each,) in kept] == [*moments, *[other] * is_within]


@FEW
@given(st.lists(st.one_of(days, zoneless).map(one_of), min_size=3, max_size=3))
def test_a_union_of_dates_and_timestamps_does_not_depend_on_the_order(some: list[ChangeRange]) -> None:
    one, two, three = some
    assert (one | two) | three == one | (two | three) == (three | one) | two


def test_a_timestamp_at_the_end_of_the_calendar_leaves_that_side_open() -> None:
    both = one_of(dt.date(2026, 1, 3)) | one_of(dt.datetime.max)  # noqa: DTZ901  # deliberately without a zone
    assert (both.lowest, both.highest, both.kind) == (dt.date(2026, 1, 3), None, RangeKind.UNBOUNDED)


def test_ranges_of_different_number_types_can_be_united() -> None:
    assert (one_of(1) | one_of(2.5) | one_of(Decimal("0.5"))).between("x") == "(`x` >= 0.5BD AND `x` <= DOUBLE('2.5'))"


@pytest.mark.parametrize(
    ("left", "right", "types"),
    [
        (1, "a", ("number", "text")),
        (dt.date(2026, 1, 3), 20260103, ("date", "number")),
        (True, 1, ("boolean", "number")),
        (dt.datetime(2026, 1, 3), dt.datetime(2026, 1, 3, tzinfo=dt.UTC), ("timestamp", "timestamp with time zone")),  # noqa: DTZ001  # deliberately without a zone
    ],
)
def test_ranges_of_values_without_a_common_order_are_not_united(
    left: Bound, right: Bound, types: tuple[str, str]
) -> None:
    for one, other in ((left, right), (right, left)):
        with pytest.raises(RangeTypesError) as raised:
            one_of(one, "event_date") | one_of(other, "valid_on")
        said = str(pickle.loads(pickle.dumps(raised.value)))
        assert all(word in said for word in ("event_date", "valid_on", *types))


# Spark keeps no time zone and only microseconds; its literals cover the years 1 to 9999, like Python's.
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=12),
    st.text(alphabet="'\\`\"%_\n\t\x00n", max_size=8),
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**12), max_value=10**12),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
)
TYPES = {bool: "boolean", float: "double", str: "string", dt.date: "date", Decimal: "decimal"}


def expected_type(value: Bound) -> str:
    if isinstance(value, dt.datetime):
        return "timestamp_ntz" if value.tzinfo is None else "timestamp"
    if isinstance(value, int) and not isinstance(value, bool):
        return "bigint" if abs(value) >= 2**31 else "int"
    return TYPES[type(value)]


def readable(sql: str, value: Bound) -> str:
    """Times as microseconds, so that this machine's time zone has no influence."""
    if isinstance(value, dt.datetime):
        return f"timestampdiff(MICROSECOND, {literal(dt.datetime(1970, 1, 1, tzinfo=value.tzinfo))}, {sql})"
    return sql


def comparable(value: Bound) -> Bound:
    if isinstance(value, dt.datetime):
        return (value - dt.datetime(1970, 1, 1, tzinfo=value.tzinfo)) // dt.timedelta(microseconds=1)
    return str(value) if value != value else value  # noqa: PLR0124  # NaN is not equal to itself


@IN_SPARK
@given(values=st.lists(scalars, min_size=40, max_size=60))
def test_spark_reads_a_literal_back_as_the_same_value_of_the_same_type(lake: Lake, values: list[Bound]) -> None:
    columns = [f"{readable(literal(v), v)} AS v{i}, typeof({literal(v)}) AS t{i}" for i, v in enumerate(values)]
    row = lake.sql(f"SELECT {', '.join(columns)}").first()
    assert row is not None
    for i, value in enumerate(values):
        assert row[f"t{i}"].partition("(")[0] == expected_type(value)
        assert comparable(row[f"v{i}"]) == comparable(value)


@IN_SPARK
@given(names=st.lists(st.text(min_size=1, max_size=12), min_size=20, max_size=20))
def test_spark_reads_a_quoted_name_back_as_the_same_name(lake: Lake, names: list[str]) -> None:
    assert lake.sql("SELECT " + ", ".join(f"1 AS {quoted(name)}" for name in names)).columns == names


@pytest.mark.parametrize("text", ["${env:HOME}", "a\\b", "it's"])
def test_a_text_that_spark_sql_settings_could_change_is_written_as_bytes(text: str) -> None:
    assert literal(text) == f"CAST(X'{text.encode().hex()}' AS STRING)"


def test_a_value_of_a_type_without_a_literal_is_refused() -> None:
    with pytest.raises(TypeError, match="list has no SQL literal"):
        literal([b"1"])  # type: ignore[arg-type]  # deliberately


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_bound_of_zero_includes_both_zeros(zero: float) -> None:
    found = ChangeRange.of("x", [(zero, zero)], kind=RangeKind.EXACT)
    assert found.between("x") == "(`x` >= DOUBLE('-0.0') AND `x` <= DOUBLE('0.0'))"
    assert equals("x", zero) == "(x >= DOUBLE('-0.0') AND x <= DOUBLE('0.0'))"
