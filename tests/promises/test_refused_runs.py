"""A run that is refused, however late, leaves no trace: not of its rows, nor in the table's columns and properties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.exactly_once.effects import Effect
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.spark.branches import Branch
from tests.support.at_effect import at
from tests.support.lake import SCHEMA, Lake, events
from tests.support.pipeline import pipeline
from tests.support.progress import copied_state
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


def combined(*columns: str, layout: dict[str, Any] | None = None, **aggregates: str) -> dg.AssetsDefinition:
    mode = ips.combine(on=["account"], aggregates={"plays": "count(*)"} | aggregates)
    return written(mode, "account", "_weight", *columns, frame="weighted", **(layout or {}))


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
        written(ips.merge(on=["account"], latest_by="event_id"), "account", "100L AS event_id", "event_id AS more"),
    ),
    "rows outside the condition": (overwritten("seconds >= 0"), overwritten("seconds < 3", MORE)),
    "rows of other partitions": (
        written(ips.overwrite_partitions(), *ROWS, frame="scope", **BY_DAY),
        written(
            ips.overwrite_partitions(),
            *("event_id", "event_date + 1 AS event_date", "seconds", MORE),
            frame="scope",
            **BY_DAY,
        ),
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
    target, state = lake.catalog.find(TABLE), copied_state(instance, Edge("some", "playback"))
    layout = (target.struct, target.current_schema_id, target.default_spec, target.properties) if target else None
    refs = target and (target.raw.get("refs"), target.head_snapshot_id(), target.raw.get("default-sort-order-id"))
    return tables | {"layout": layout, "refs": refs, "state": (state.number, state.committed)}


@pytest.mark.parametrize("case", mostly_slow(GOOD_AND_REFUSED, quick=3))
def test_a_refused_run_leaves_columns_properties_branches_and_tables_as_they_were(
    lake: Lake, instance: dg.DagsterInstance, case: str
) -> None:
    good, bad = GOOD_AND_REFUSED[case]
    lake.create_playback(events(range(6)))
    lake.catalog.create_namespace("ips")
    nothing = everything(lake, instance)
    if case != "rows outside the condition":  # A first run writes all rows, whatever the condition.
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


@pytest.mark.parametrize("shared", mostly_slow(["media.some", "media.playback"]))
def test_a_table_in_the_folder_of_another_catalogs_table_is_refused_by_the_first_run(
    lake: Lake, instance: dg.DagsterInstance, shared: str
) -> None:
    """Two names of a catalog on one database give tables of one name the same folder."""
    lake.create_playback(events(range(3)))
    other = LakeCatalog("other", lake.catalog.properties)
    other.create_namespace("media")
    other.client.create_table(shared, SCHEMA)
    good, _ = GOOD_AND_REFUSED["keys that repeat"]
    said = refused(lake, instance, good)
    assert f"{shared}: catalog other in the same database has a table of this name in the same folder" in said
    assert lake.catalog.find(TABLE) is None
    assert lake.catalog.client.list_tables("ips") == []
    other.load(shared, asset="test")
    other.drop(shared)
    assert run(lake, instance, good).success


BY_ACCOUNT = {"partition_by": ["account"]}
LONG: dict[str, Callable[..., dg.AssetsDefinition]] = {
    "append": lambda **table: written(ips.append(), "account", **table),
    "merge": lambda **table: written(ips.merge(on=["account", "event_id"]), "account", "event_id", **table),
    "combine": lambda **table: combined(layout={**table}),
    "sql": lambda **table: ips.sql_asset("some", SUMS_OF.replace("{more}", ""), table=TABLE, **table),
}


@pytest.mark.parametrize("mode", mostly_slow(LONG))
def test_a_value_of_a_partition_that_no_folder_can_be_named_after_is_refused_with_its_column_and_length(
    lake: Lake, instance: dg.DagsterInstance, mode: str
) -> None:
    lake.create_playback(events([1]))
    lake.sql("INSERT INTO lake.media.playback SELECT 2, event_date, repeat('\u00e9', 300), 3 FROM lake.media.playback")
    said = refused(lake, instance, LONG[mode](**BY_ACCOUNT))
    assert f"{TABLE}: a row's account has 300 characters, and a partition's value is part of the paths" in said
    assert lake.catalog.find(TABLE) is None
    names = ("write.object-storage.enabled", "write.object-storage.partitioned-paths")
    assert all(name in said for name in names)
    properties = dict(zip(names, ("true", "false"), strict=True))
    assert run(lake, instance, LONG[mode](**BY_ACCOUNT, properties=properties)).success
    assert sum(lake.rows(TABLE).values()) == 2


FIRST = {
    "append": written(ips.append(), *ROWS),
    "own SQL": stated("event_id LONG, seconds LONG", INSERT.replace("{more}", "")),
}


@pytest.mark.parametrize("first", mostly_slow(FIRST))
def test_a_first_run_in_a_catalog_that_does_not_keep_branches_leaves_no_table(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Nessie takes the empty snapshot by which a new table's branch is created for the head of main."""
    create = Branch.create

    def created_on_main(branch: Branch, session: Any, *, head: Any) -> None:  # noqa: ANN401  # as create()
        create(branch, session, head=head)
        session.sql(f"CALL lake.system.fast_forward('{branch.table}', 'main', '{branch.name}')").collect()
        branch.drop(session)

    lake.create_playback(events(range(3)))
    monkeypatch.setattr(Branch, "create", created_on_main)
    assert "media.some: catalog lake doesn't keep branches" in refused(lake, instance, FIRST[first])
    assert lake.catalog.find(TABLE) is None
    assert lake.catalog.client.list_tables("ips") == []
