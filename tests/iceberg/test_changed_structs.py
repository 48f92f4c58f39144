"""Which structs in columns have other fields than in an earlier schema."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ips.iceberg.metadata import TableMetadata


def field(number: int, name: str, kind: Any = "int") -> dict[str, Any]:  # noqa: ANN401  # a type as in the metadata
    return {"id": number, "name": name, "required": False, "type": kind}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def of_list(kind: Any) -> dict[str, Any]:  # noqa: ANN401  # as above
    return {"type": "list", "element-id": 90, "element": kind, "element-required": False}


BEFORE = [
    field(1, "day"),
    field(2, "shown", struct(field(3, "a"), field(4, "of", struct(field(5, "b"))))),
    field(6, "lines", of_list(struct(field(7, "p"), field(8, "value", struct(field(9, "v")))))),
]


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (BEFORE, set()),
        ([*BEFORE, field(10, "new", struct(field(11, "x")))], set()),
        ([BEFORE[1], BEFORE[2], BEFORE[0]], set()),
        ([field(2, "shown", struct(field(3, "a", "long"), field(4, "of", struct(field(5, "b")))))], set()),
        ([field(2, "shown", struct(*BEFORE[1]["type"]["fields"], field(10, "c")))], {("shown",)}),
        ([field(2, "shown", struct(field(3, "a"), field(4, "of", struct(field(5, "c")))))], {("shown", "of")}),
        ([field(2, "shown", struct(*reversed(BEFORE[1]["type"]["fields"])))], {("shown",)}),
        ([field(2, "shown", struct(field(3, "a")))], {("shown",)}),
        (
            [field(6, "lines", of_list(struct(field(8, "value", struct(field(12, "v"))))))],
            {("lines",), ("lines", "value")},
        ),
    ],
)
def test_structs_with_other_fields_are_named_by_the_names_that_lead_to_them(
    now: list[dict[str, Any]], changed: set[tuple[str, ...]]
) -> None:
    schemas = [{"schema-id": number, "type": "struct", "fields": fields} for number, fields in enumerate([BEFORE, now])]
    found = TableMetadata("media.t", "v1.metadata.json", {"schemas": schemas, "current-schema-id": 1})
    assert found.structs_changed_since("0") == changed
    assert found.structs_changed_since("7") == frozenset()
