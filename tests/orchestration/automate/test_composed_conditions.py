"""Conditions that users compose of this library's and Dagster's check the asset for which Dagster evaluates them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import dagster as dg
import pytest
from dagster import AutomationCondition

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from tests.orchestration.watch.test_pending import consume
from tests.support.lake import events
from tests.support.without_spark import Tables, manager_of

Condition: TypeAlias = AutomationCondition[dg.AssetKey]


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Two stages, of which the second has something pending."""
    tables = Tables(tmp_path / "lake")
    for name in ("playback", "daily"):
        tables.create(name)
        tables.append(events(range(3)), f"media.{name}")
    return tables


def definitions(tables: Tables, condition: Condition | None, *others: dg.AssetsDefinition) -> dg.Definitions:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append())
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    @dg.asset(ins={"daily": ips.incremental()}, metadata=ips.append(), automation_condition=condition)
    def monthly(daily: ips.IcdcView) -> object:
        return daily.added

    manager = manager_of(tables.folder, default_namespace="media")
    assets: list[Any] = [ips.iceberg_asset("playback", table="media.playback"), daily, monthly, *others]
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


def requested(definitions: dg.Definitions, instance: dg.DagsterInstance) -> set[str]:
    result = dg.evaluate_automation_conditions(defs=definitions, instance=instance)
    return {each.key.to_user_string() for each in result.results if result.get_num_requested(each.key)}


@pytest.mark.parametrize("trigger", [ips.pending(), ips.on_change()], ids=["pending", "on_change"])
@pytest.mark.parametrize("matches", [AutomationCondition.any_deps_match, AutomationCondition.all_deps_match])
def test_a_condition_on_upstreams_checks_what_is_pending_for_them(
    tables: Tables, instance: dg.DagsterInstance, matches: Callable[[Condition], Condition], trigger: Condition
) -> None:
    once_done = definitions(tables, trigger & ~matches(ips.pending()))
    assert requested(once_done, instance) == {"daily"}
    consume(tables, instance, "media.daily")
    assert requested(once_done, instance) == {"monthly"}


def test_a_condition_on_an_upstream_that_reads_nothing_incrementally_is_false(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    @dg.asset(deps=["playback"], automation_condition=AutomationCondition.any_deps_match(ips.pending()))
    def of_source() -> None: ...

    @dg.asset(deps=["daily"], automation_condition=AutomationCondition.any_deps_match(ips.pending()))
    def of_consumer() -> None: ...

    assert requested(definitions(tables, None, of_source, of_consumer), instance) >= {"daily", "of_consumer"}
    assert "of_source" not in requested(definitions(tables, None, of_source, of_consumer), instance)


@pytest.mark.parametrize(
    "condition",
    [
        ips.pending().newly_true(),
        ips.pending().newly_true().with_label("new"),
        ips.pending().newly_true().since(AutomationCondition.newly_updated()) & ~ips.blocked(),
    ],
)
def test_pending_works_inside_of_all_of_dagsters_conditions(
    tables: Tables, instance: dg.DagsterInstance, condition: Condition
) -> None:
    assert "monthly" in requested(definitions(tables, condition), instance)


def test_an_asset_without_incremental_inputs_cannot_wait_for_its_own_changes(tables: Tables) -> None:
    @dg.asset(automation_condition=ips.pending() | AutomationCondition.missing())
    def plain() -> None: ...

    with pytest.raises(DeclarationError, match=r"plain.*reads nothing incrementally"):
        definitions(tables, None, plain)


def test_a_check_cannot_wait_for_pending_changes(tables: Tables) -> None:
    upstream_is_pending = AutomationCondition.any_deps_match(ips.pending())
    spec = dg.AssetCheckSpec("is_good", asset="plain", automation_condition=upstream_is_pending)

    @dg.asset(check_specs=[spec])
    def plain():  # type: ignore[no-untyped-def]  # noqa: ANN202  # nothing says what it returns
        return dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=True)])

    with pytest.raises(DeclarationError, match=r"plain.*is_good"):
        definitions(tables, None, plain)
