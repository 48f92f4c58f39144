"""A run that is refused, however late, leaves no trace: not of its rows, nor in the table's columns and properties."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.exactly_once.effects import Effect
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.support.at_effect import at
from tests.support.lake import Lake, events
from tests.support.pipeline import pipeline
from tests.support.variants import mostly_slow

TABLE = "media.some"
MORE = "account AS more"
"""The column that only the refused frame has."""
FAILING = "1 / (seconds - seconds) AS more"


def written(mode: dict[str, Any], *columns: str, frame: str = "added", **table: Any) -> dg.AssetsDefinition:  # noqa: ANN401  # as table()
    """An asset that returns these SQL expressions over a frame of the change."""

    @dg.asset(name="some", ins={"playback": ips.incremental()}, metadata=mode | ips.table(TABLE, **table))
    def some(playback: ips.IcdcView) -> Any:  # noqa: ANN401  # a frame
        rows = playback.affected("account") if frame == "affected" else getattr(playback, frame)
        return rows.selectExpr(*columns)

    return some


def combined(*columns: str, **aggregates: str) -> dg.AssetsDefinition:
    mode = ips.combine(on=["account"], aggregates={"plays": "count(*)"} | aggregates)
    return written(mode, "account", "_weight", *columns, frame="weighted")


def overwritten(where: str, *columns: str) -> dg.AssetsDefinition:
    @dg.asset(name="some", ins={"playback": ips.incremental()}, metadata=ips.table(TABLE))
    def some(playback: ips.IcdcView) -> ips.Overwrite:
        return ips.Overwrite(playback.source.selectExpr("event_id", "seconds", *columns), where)

    return some


def stated(columns: str, *statements: str) -> dg.AssetsDefinition:
    @dg.asset(name="some", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def some(context):  # noqa: ANN001, ANN202  # as one writes it who annotates nothing
        with ips.capture(context, columns=columns) as icdc:
            for statement in statements:
                icdc.sql(statement)

    return some


def queried(text: str) -> dg.AssetsDefinition:
    return ips.sql_asset("some", text, table=TABLE)


@ips.audit(asset="some")
def never(rows: Any) -> bool:  # noqa: ANN401  # a frame
    return rows is None


ROWS, DAY = ("event_id", "event_date", "seconds"), ["event_date"]
BY_DAY = {"partition_by": DAY, "sort_by": ["seconds"]}
INSERT = "INSERT INTO {target} SELECT event_id, seconds{more} FROM {added}"
ROWS_OF = "SELECT event_id, seconds{more} FROM playback"
SUMS_OF = "SELECT account, sum(seconds) AS seconds{more} FROM playback GROUP BY account"

GOOD_AND_REFUSED: dict[str, tuple[dg.AssetsDefinition, dg.AssetsDefinition]] = {
    "keys that repeat": (
        written(ips.merge(on=["event_id"]), *ROWS, **BY_DAY),
        written(ips.merge(on=["event_id"]), "event_id % 2 AS event_id", *ROWS[1:], MORE, **BY_DAY),
    ),
    "an error of a statement": (
        stated("event_id LONG, seconds LONG", INSERT.replace("{more}", "")),
        stated("event_id LONG, seconds LONG, more DOUBLE", INSERT.replace("{more}", f", {FAILING}")),
    ),
    "an error of a query": (
        queried(ROWS_OF.replace("{more}", "")),
        queried(ROWS_OF.replace("{more}", f", {FAILING}")),
    ),
    "a sum that is too large": (
        combined("seconds"),
        combined("seconds", most="sum(seconds + 9223372036854775000)"),
    ),
    "rows that tie": (
        written(ips.merge(on=["account"], latest_by="event_id"), "account", "event_id"),
        written(ips.merge(on=["account"], latest_by="event_id"), "account", "1L AS event_id", "event_id AS more"),
    ),
    "rows outside the condition": (overwritten("seconds >= 0"), overwritten("seconds < 3", MORE)),
    "rows of other partitions": (
        written(ips.overwrite_partitions(), *ROWS, frame="scope", **BY_DAY),
        written(ips.overwrite_partitions(), "event_id", "event_date + 1 AS event_date", "seconds", MORE, frame="scope"),
    ),
    "an error while rows are appended": (
        written(ips.append(remove_on=["event_id"]), *ROWS, **BY_DAY),
        written(ips.append(remove_on=["event_id"]), *ROWS, FAILING, **BY_DAY),
    ),
    "an error while all rows are replaced": (
        written(ips.replace(), "seconds", frame="source"),
        written(ips.replace(), "seconds", FAILING, frame="source"),
    ),
    "an error of a query of groups": (
        queried(SUMS_OF.replace("{more}", "")),
        queried(SUMS_OF.replace("{more}", ", sum(1 / (seconds - seconds)) AS more")),
    ),
}


def refused(lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, *checks: Any) -> str:  # noqa: ANN401  # audits
    """What the run's failure says."""
    result = run(lake, instance, asset, *checks)
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.error)


def run(lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, *checks: Any) -> Any:  # noqa: ANN401  # a result
    plain = pipeline(lake.folder, lake.spark_folder)
    definitions = ips.with_incremental(
        dg.Definitions(
            assets=[ips.iceberg_asset("playback", table="media.playback"), asset],
            asset_checks=checks,
            resources=plain.resources,
        )
    )
    job = dg.define_asset_job("one", selection=dg.AssetSelection.assets("some"))
    resolved = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job])).resolve_job_def("one")
    return resolved.execute_in_process(instance=instance, raise_on_error=False)


def everything(lake: Lake, instance: dg.DagsterInstance) -> dict[str, Any]:
    """The tables, the ICDC tables, what is consumed, and all of the target's metadata that a reader goes by."""
    tables = {space: sorted(lake.catalog.client.list_tables(space)) for space in ("media", "ips")}
    target, state = lake.catalog.find(TABLE), CursorStore(instance).get(Edge("some", "playback"))
    layout = (target.struct, target.current_schema_id, target.default_spec, target.properties) if target else None
    refs = target and (target.raw.get("refs"), target.head_snapshot_id(), target.raw.get("default-sort-order-id"))
    return tables | {"layout": layout, "refs": refs, "state": (state.number, state.committed, state.in_flight)}


@pytest.mark.parametrize("case", mostly_slow(GOOD_AND_REFUSED, quick=3))
def test_a_refused_run_leaves_columns_properties_branches_and_tables_as_they_were(
    lake: Lake, instance: dg.DagsterInstance, case: str
) -> None:
    good, bad = GOOD_AND_REFUSED[case]
    lake.create_playback(events(range(6)))
    lake.catalog.create_namespace("ips")
    nothing = everything(lake, instance)
    assert "isn't as it was" not in refused(lake, instance, bad)
    assert everything(lake, instance) == nothing
    assert run(lake, instance, good).success
    before = everything(lake, instance)
    lake.append(events(range(6, 12)))
    assert "isn't as it was" not in refused(lake, instance, bad)
    assert everything(lake, instance) == before
    assert run(lake, instance, good).success


def test_rows_that_tie_by_latest_by_are_told_so_by_every_run(lake: Lake, instance: dg.DagsterInstance) -> None:
    _, bad = GOOD_AND_REFUSED["rows that tie"]
    lake.create_playback(events(range(6)))
    said = refused(lake, instance, bad)
    assert "with equal event_id" in said
    assert "different values of event_id" in said


@pytest.mark.slow
def test_rows_that_an_audit_refuses_leave_no_trace(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(6)))
    lake.catalog.create_namespace("ips")
    nothing = everything(lake, instance)
    refused(lake, instance, written(ips.append(), *ROWS), never)
    assert everything(lake, instance) == nothing
    assert run(lake, instance, written(ips.append(), *ROWS)).success
    before = everything(lake, instance)
    lake.append(events([7]))
    refused(lake, instance, written(ips.append(), *ROWS, MORE), never)
    assert everything(lake, instance) == before


@pytest.mark.slow
def test_a_wider_type_stays_and_the_refusal_says_so(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(6)))
    key, wide = "event_id", ("event_date", "seconds", MORE)
    narrow = written(ips.merge(on=[key]), key, "event_date", "CAST(seconds AS int) AS seconds")
    assert run(lake, instance, narrow).success
    lake.append(events(range(6, 12)))
    said = refused(lake, instance, written(ips.merge(on=[key]), "event_id % 2 AS event_id", *wide))
    assert "media.some isn't as it was: seconds keeps the wider type" in said
    assert lake.catalog.load(TABLE, asset="test").column_names == (key, "event_date", "seconds")


def test_a_column_that_another_run_may_use_by_now_stays_and_the_refusal_says_so(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(6)))
    assert run(lake, instance, written(ips.append(), *ROWS)).success
    lake.append(events([7]))

    def meanwhile() -> None:
        lake.sql(f"ALTER TABLE lake.{TABLE} CREATE BRANCH other").collect()
        lake.sql(f"INSERT INTO lake.{TABLE}.branch_other SELECT 8, DATE'2026-01-01', 1, 'a'").collect()

    with at(f"before:{Effect.WRITE_BRANCH}", meanwhile):
        said = refused(lake, instance, written(ips.append(), *ROWS, "CAST(1 / (seconds - seconds) AS STRING) AS more"))
    assert "newer snapshots" in said
    assert lake.sql(f"SELECT more FROM lake.{TABLE}.branch_other WHERE event_id = 8").collect()[0][0] == "a"
