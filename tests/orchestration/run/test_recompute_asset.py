"""A proof gets the result of an asset's function in whatever way the function returns it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dagster_ips.orchestration.run import recompute_asset
from dagster_ips.orchestration.run.recompute_asset import Asset, Surroundings

CHECK = [dg.AssetCheckSpec("check", asset="made")]
PASSED = dg.AssetCheckResult(passed=True)


@dg.asset(name="made", check_specs=CHECK)
def a_check_first() -> Iterator[Any]:
    yield PASSED
    yield dg.MaterializeResult(value=7)


@dg.asset(name="made", check_specs=CHECK)
def beside_a_check():  # noqa: ANN201  # Dagster wants as many types as there are outputs
    return dg.Output(7), PASSED


@dg.asset(name="made")
async def async_function() -> int:
    return 7


@dg.asset(name="made", check_specs=CHECK)
async def async_generator():  # noqa: ANN201  # as above
    yield PASSED
    yield dg.Output(7)


@dg.multi_asset(outs={name: dg.AssetOut(is_required=False) for name in ("made", "other")}, can_subset=True)
def what_is_selected(context: dg.AssetExecutionContext) -> Iterator[dg.Output[int]]:
    for name in sorted(context.op_execution_context.selected_output_names):
        yield dg.Output(7 if name == "made" else 8, name)


@pytest.mark.parametrize(
    "asset", [a_check_first, beside_a_check, async_function, async_generator, what_is_selected], ids=lambda a: a.op.name
)
def test_the_result_of_an_assets_function_is_found_among_all_that_it_returns(
    asset: dg.AssetsDefinition, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer: Any = SimpleNamespace(key=dg.AssetKey("made"), name="made", inputs={}, table="media.made")
    manager: Any = SimpleNamespace(session=lambda: None)
    graph: Any = SimpleNamespace(get=lambda _: SimpleNamespace(metadata={}))
    part: Any = SimpleNamespace(inputs=(), partitions=())
    lake: Any = SimpleNamespace(name="lake")
    found: list[object] = []

    def returned(made: object, *_: object, **__: object) -> Any:  # noqa: ANN401  # it never returns
        found.append(made)
        raise InterruptedError

    monkeypatch.setattr(recompute_asset, "returned", returned)
    around = Surroundings(graph, instance, None, lake)
    with pytest.raises(InterruptedError):
        recompute_asset.recompute(Asset(asset, consumer, "io"), part, manager, around)
    assert found == [7]
