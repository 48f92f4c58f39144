"""A table follows its frame as long as its existing rows stay right; anything that it can't follow is named."""

from __future__ import annotations

import pytest

from dagster_ips.core.columns import (
    UNSTORABLE,
    VOID,
    Added,
    Column,
    Fit,
    Gone,
    Kind,
    ListOf,
    MapOf,
    Struct,
    Widened,
    fit,
    type_text,
)


def struct(**kinds: Kind) -> Struct:
    return Struct(tuple(Column(name, kind) for name, kind in kinds.items()))


TABLE = struct(day="date", plays="int", at="timestamptz", price="decimal(10, 2)")


def problems(table: Struct, frame: Struct) -> list[str]:
    return [f"{'.'.join(each.path)} {each.problem}" for each in fit(table, frame).misfits]


def test_the_same_columns_fit_in_any_order_and_case() -> None:
    found = fit(struct(day="date", plays="int"), struct(PLAYS="int", Day="date"))
    assert found == Fit()


def test_columns_that_differ_in_case_are_different_if_spark_is_case_sensitive() -> None:
    found = fit(struct(day="date"), struct(Day="date"), is_case_sensitive=True)
    assert found.added == (Added(("Day",), "date"),)
    assert found.gone == (Gone(("day",)),)


def test_new_columns_are_added_at_whatever_depth() -> None:
    table = struct(s=struct(a="int"), many=ListOf(struct(a="int")), by_name=MapOf("string", struct(a="int")))
    frame = struct(
        s=struct(b="string", a="int"),
        many=ListOf(struct(a="int", b="string")),
        by_name=MapOf("string", struct(a="int", b="string")),
        more=struct(x="int"),
    )
    found = fit(table, frame)
    assert [each.path for each in found.added] == [
        ("s", "b"),
        ("many", "element", "b"),
        ("by_name", "value", "b"),
        ("more",),
    ]
    assert found == Fit(found.added)


@pytest.mark.parametrize(
    ("table", "frame"), [("int", "long"), ("float", "double"), ("decimal(10, 2)", "decimal(12, 2)")]
)
def test_a_wider_type_that_can_store_every_value_is_followed(table: str, frame: str) -> None:
    assert fit(struct(x=table), struct(X=frame)).widened == (Widened(("x",), frame),)
    assert fit(struct(s=ListOf(table)), struct(s=ListOf(frame))).widened == (Widened(("s", "element"), frame),)


@pytest.mark.parametrize(
    ("table", "frame"),
    [
        ("long", "int"),
        ("double", "float"),
        ("decimal(12, 2)", "decimal(10, 2)"),
        ("decimal(10, 2)", "decimal(12, 3)"),
        ("int", "string"),
        ("string", "int"),
        ("int", "double"),
        ("date", "timestamptz"),
        ("timestamp", "timestamptz"),
        ("timestamptz", "timestamp"),
        (struct(a="int"), "int"),
        (ListOf("string"), ListOf("int")),
        (MapOf("int", "int"), MapOf("long", "int")),
        (MapOf(struct(a="int"), "int"), MapOf(struct(a="int", b="int"), "int")),
    ],
)
def test_any_other_type_is_refused(table: Kind, frame: Kind) -> None:
    found = fit(struct(x=table), struct(x=frame))
    assert len(found.misfits) == 1
    assert found == Fit(misfits=found.misfits)


def test_a_missing_column_is_named_and_so_is_the_new_name_of_a_renamed_one() -> None:
    found = fit(struct(day="date", s=struct(old="int")), struct(day="date", s=struct(new="int")))
    assert found.gone == (Gone(("s", "old")),)
    assert found.added == (Added(("s", "new"), "int"),)
    assert fit(TABLE, struct(day="date")).gone == (Gone(("plays",)), Gone(("at",)), Gone(("price",)))


def test_a_column_of_only_null_fits_every_column_but_cannot_be_added() -> None:
    assert fit(TABLE, struct(day=VOID, plays=VOID, at=VOID, price=VOID)).misfits == ()
    assert problems(TABLE, Struct((*TABLE.fields, Column("x", VOID)))) == ["x is only NULL, which has no type"]
    assert problems(Struct(()), struct(x=struct(y=VOID))) == ["x.y is only NULL, which has no type"]


def test_a_type_that_iceberg_does_not_have_is_named() -> None:
    interval = f"{UNSTORABLE}interval day"
    assert problems(Struct(()), struct(x=ListOf(interval))) == [
        "x.element is of type interval day, which Iceberg doesn't have"
    ]
    assert problems(struct(x="int"), struct(x=interval)) == ["x is of type interval day, which Iceberg doesn't have"]


def test_a_column_that_occurs_twice_is_named() -> None:
    assert problems(Struct(()), Struct((Column("id", "int"), Column("ID", "int")))) == [
        "id is in the frame more than once"
    ]


def test_values_that_spark_can_write_fit_iceberg_types_that_spark_does_not_have() -> None:
    assert fit(struct(id="uuid", hash="fixed[16]"), struct(id="string", hash="binary")).misfits == ()


def test_the_text_of_a_type_can_quote_names() -> None:
    assert type_text(struct(a=MapOf("string", "long")), "<{}>".format) == "struct<<a>: map<string, bigint>>"
