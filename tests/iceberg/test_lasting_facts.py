"""Facts about a target's rows are known after the snapshots that said so have expired, and never for another table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from dagster_ips.core.capture import TargetMark
from dagster_ips.core.code_of_rows import OTHER_DECLARATION
from dagster_ips.core.edge import Edge
from dagster_ips.core.ownership import EDGE
from dagster_ips.iceberg import lookup_stamps
from dagster_ips.iceberg.code_stamps import MADE, lasting_properties, making_of
from dagster_ips.iceberg.lasting_facts import DECLARED, fact_properties, lasting_fact, renewed_facts
from dagster_ips.iceberg.lookup_stamps import LookedUp
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import division_properties, last_divided_otherwise

LINE = Edge("daily", "playback")


def table(
    head: int | None, properties: Mapping[str, str], *, uuid: str = "u", summary: Mapping[str, str] | None = None
) -> TableMetadata:
    """A table of which only the snapshot ``head`` is retained."""
    snapshot = {"snapshot-id": head, "sequence-number": head, "timestamp-ms": head, "schema-id": 0}
    raw: dict[str, Any] = {
        "format-version": 2,
        "table-uuid": uuid,
        "location": "l",
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "schemas": [{"schema-id": 0, "fields": []}],
        "current-schema-id": 0,
        "properties": dict(properties),
        "snapshots": [snapshot | {"summary": {"operation": "append", **(summary or {})}}] if head else [],
        "current-snapshot-id": head or -1,
    }
    return TableMetadata.parse("media.daily", "m", json.dumps(raw).encode())


def mark(number: int, schema_id: str | None = None) -> TargetMark:
    return TargetMark("u", number, number, number, schema_id)


SECOND = mark(2, schema_id=table(2, {}).current_schema_id)


def made(declared: str, code: str, *partitions: str) -> dict[str, str]:
    return {MADE: json.dumps([{"codes": [code], "declared": declared, "partitions": list(partitions)}])}


def published(properties: dict[str, str], head: int | None, *summaries: Mapping[str, str]) -> dict[str, str]:
    """The table's properties once snapshots with ``summaries`` were announced on top of ``head``."""
    return properties | lasting_properties(table(head, properties), summaries)


def declared_at(properties: Mapping[str, str], number: int) -> tuple[str | None, tuple[str, ...]]:
    making = making_of(table(99, properties), {}, "a", mark(number))
    return making.declared, making.codes


def test_rows_are_known_to_be_of_the_declaration_that_held_when_they_were_last_published() -> None:
    properties = published({}, None, made("append", "1", "a", "b"))
    assert declared_at(properties, 1) == ("append", ("1",))
    properties = published(properties, 1, made("append", "1", "b"))
    properties = published(properties, 2, made("merge", "1", "b"))
    assert declared_at(properties, 3) == ("merge", ("1",))
    assert declared_at(properties, 2) == (OTHER_DECLARATION, ("1",))
    properties = published(properties, 3, made("merge", "2", "b"))
    assert declared_at(properties, 3) == ("merge", ())
    assert declared_at(properties, 4) == ("merge", ("2",))


def test_snapshots_of_several_declarations_published_together_are_of_none_that_is_known() -> None:
    properties = published({}, None, made("append", "1", "a"))
    properties = published(properties, 1, made("append", "1", "a"), made("merge", "2", "b"))
    assert declared_at(properties, 3) == (OTHER_DECLARATION, ())
    properties = published(properties, 3, made("merge", "2", "b"))
    assert declared_at(properties, 3) == (OTHER_DECLARATION, ())
    assert declared_at(properties, 4) == ("merge", ("2",))


def test_a_run_that_announced_and_lost_a_race_begins_its_facts_again() -> None:
    properties = published({}, None, made("append", "1", "a"))
    changed = lasting_properties(table(1, properties), [made("merge", "1", "b")])
    assert lasting_properties(table(2, properties | changed), [made("merge", "1", "b")]) == {}
    renewed = renewed_facts(table(2, properties | changed), {*changed, "dagster-ips.asset"})
    assert declared_at(properties | changed, 2) == ("merge", ("1",))
    assert declared_at(properties | changed | renewed, 2) == (OTHER_DECLARATION, ("1",))


def test_facts_begin_again_after_a_run_of_old_code_published_what_a_killed_run_had_announced_otherwise() -> None:
    properties = published({}, None, made("append", "1", "a")) | division_properties(table(None, {}), {LINE: "days"})
    announced = properties | lasting_properties(table(1, properties), [made("merge", "2", "b")])
    announced |= division_properties(table(1, properties), {LINE: "months"})
    by_old_code = made("append", "1", "a") | {EDGE + LINE.id: '{"partitions":{"a":2},"by":"days"}'}
    now = table(2, announced, summary=by_old_code)
    again = lasting_properties(now, [made("merge", "2", "b")]) | division_properties(now, {LINE: "months"})
    assert declared_at(announced | again, 2) == (OTHER_DECLARATION, ())
    assert last_divided_otherwise(table(3, announced | again), LINE, "months") == SECOND
    after = table(3, announced | again, summary=made("merge", "2", "b"))
    assert lasting_properties(after, [made("merge", "2", "b")]) == {}
    assert division_properties(after, {LINE: "months"}) == {}


def test_the_facts_of_code_without_a_version_are_recorded_once() -> None:
    entry = {MADE: json.dumps([{"codes": [], "declared": "append"}])}
    properties = published({}, None, entry)
    assert lasting_properties(table(1, properties, summary=entry), [entry]) == {}


def test_a_table_that_was_created_again_from_its_own_properties_has_no_facts() -> None:
    properties = fact_properties(table(1, {}), DECLARED, "append")
    properties |= division_properties(table(1, {}), {LINE: "days"})
    properties |= division_properties(table(2, properties), {LINE: "months"})
    again = table(1, properties, uuid="another")
    assert lasting_fact(again, DECLARED) is None
    assert last_divided_otherwise(again, LINE, "days") is None
    recorded = properties | division_properties(again, {LINE: "days"})
    assert last_divided_otherwise(table(2, recorded, uuid="another"), LINE, "days") is None


def test_partitions_that_meant_something_else_in_between_are_known_to_have() -> None:
    properties = division_properties(table(None, {}), {LINE: "days"})
    assert last_divided_otherwise(table(1, properties), LINE, "days") is None
    properties |= division_properties(table(1, properties), {LINE: "months"})
    assert last_divided_otherwise(table(2, properties), LINE, "days") == SECOND
    properties |= division_properties(table(2, properties), {LINE: "days"})
    assert last_divided_otherwise(table(3, properties), LINE, "days") == SECOND


def test_restored_rows_are_not_taken_for_looked_up_in_what_the_reverted_run_read() -> None:
    prices = LookedUp(table(7, {}))
    full = lookup_stamps.properties(None, {"media.prices": prices}, replaces_all=True)
    assert lookup_stamps.unchanged(table(1, {}, summary=full), {"media.prices": prices})
    restored = lookup_stamps.restored(table(1, {}))
    assert restored
    assert not lookup_stamps.unchanged(table(1, {}, summary=restored), {"media.prices": prices})
    without = lookup_stamps.properties(table(1, {}, summary=full), {}, replaces_all=True)
    assert not lookup_stamps.unchanged(table(2, {}, summary=without), {"media.prices": prices})


@pytest.mark.parametrize(("before", "now"), [("day = 1", "day = 2"), ("day = 1", None), (None, "day = 1")])
def test_rows_looked_up_in_other_rows_of_the_same_table_are_not_taken_for_unchanged(
    before: str | None, now: str | None
) -> None:
    prices = LookedUp(table(7, {}), before)
    full = lookup_stamps.properties(None, {"media.prices": prices}, replaces_all=True)
    assert lookup_stamps.unchanged(table(1, {}, summary=full), {"media.prices": prices})
    others = {"media.prices": LookedUp(table(7, {}), now)}
    assert not lookup_stamps.unchanged(table(1, {}, summary=full), others)
    mixed = full | lookup_stamps.properties(table(1, {}, summary=full), others, replaces_all=False)
    assert not lookup_stamps.unchanged(table(2, {}, summary=mixed), {"media.prices": prices})
