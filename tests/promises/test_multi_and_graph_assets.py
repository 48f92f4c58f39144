"""Graph-backed assets and multi-assets read incrementally through capture, one table per block."""

from collections import Counter

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.errors import DeclarationError
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.progress import copied_state

ADD = "INSERT INTO {target} SELECT event_id FROM {added}"


def ids(lake: Lake, table: str) -> Counter[int]:
    return Counter(row[0] for row in lake.rows(table).elements())


def number(instance: dg.DagsterInstance, consumer: str) -> int:
    return copied_state(instance, Edge(consumer, "playback")).number


@dg.op(ins={"before": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def collect_ids(context: dg.OpExecutionContext) -> None:
    with ips.capture(context, "playback", columns="id BIGINT") as icdc:
        icdc.sql(ADD)


@dg.graph_asset(
    name="graph_ids", ins={"playback": dg.AssetIn(dagster_type=dg.Nothing)}, metadata=ips.table("media.graph_ids")
)
def graph_of_ids(playback):  # noqa: ANN001, ANN201  # Dagster composes it
    return collect_ids(before=playback)


def test_a_graph_asset_captures_in_the_op_that_makes_it(lake: Lake, instance: dg.DagsterInstance) -> None:
    (graph,) = dg.map_asset_specs(
        lambda spec: spec.replace_attributes(deps=[ips.incremental_dep("playback")]), [graph_of_ids]
    )
    definitions = pipeline(lake.folder, lake.spark_folder, graph)
    lake.create_playback(events(range(4)))
    materialize(definitions, instance, "graph_ids")
    lake.append(events(range(4, 6)))
    (event,) = materialize(definitions, instance, "graph_ids").get_asset_materialization_events()
    assert event.materialization.metadata["rows captured"].value == 2
    assert ids(lake, "media.graph_ids") == Counter(range(6))
    assert number(instance, "graph_ids") == 2


@dg.multi_asset(
    specs=[
        dg.AssetSpec(name, deps=[ips.incremental_dep("playback")], metadata=ips.table(f"media.{name}"), skippable=True)
        for name in ("even", "odd")
    ],
    can_subset=True,
)
def halves(context: dg.AssetExecutionContext):  # noqa: ANN201  # a generator of Dagster's results
    for rest, name in enumerate(("even", "odd")):
        if dg.AssetKey(name) in context.selected_asset_keys:
            with ips.capture(context, "playback", writes=f"media.{name}", columns="id BIGINT") as icdc:
                icdc.sql(f"{ADD} WHERE event_id % 2 = {rest}")
                if context.run.tags.get("fail") == name:
                    raise ValueError(name)
            yield dg.MaterializeResult(name)


def test_each_table_of_a_multi_asset_is_published_and_consumed_on_its_own(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, halves)
    lake.create_playback(events(range(5)))
    materialize(definitions, instance, "even", "odd")
    lake.append(events(range(5, 9)))
    with pytest.raises(ValueError, match="odd"):
        materialize(definitions, instance, "even", "odd", tags={"fail": "odd"})
    assert (number(instance, "even"), number(instance, "odd")) == (2, 1)
    assert ids(lake, "media.odd") == Counter([1, 3])
    lake.append(events(range(9, 12)))
    results = materialize(definitions, instance, "even", "odd").get_asset_materialization_events()
    assert {e.asset_key.to_user_string(): e.materialization.metadata["rows captured"].value for e in results} == {
        "even": 3,
        "odd": 7,
    }
    lake.append(events([12, 13]))
    materialize(definitions, instance, "odd")
    assert ids(lake, "media.even") == Counter(range(0, 12, 2))
    assert ids(lake, "media.odd") == Counter(range(1, 14, 2))


def test_a_capture_of_a_table_that_is_not_selected_is_refused(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.multi_asset(specs=list(halves.specs), can_subset=True)
    def both(context: dg.AssetExecutionContext):  # noqa: ANN202  # Dagster wants as many as there are assets
        with ips.capture(context, "playback", writes="media.even", columns="id BIGINT"):
            pass

    lake.create_playback(events(range(5)))
    with pytest.raises(DeclarationError, match="isn't part of this run"):
        materialize(pipeline(lake.folder, lake.spark_folder, both), instance, "odd")
    assert number(instance, "even") == 0


def test_a_step_of_several_assets_must_say_which_it_writes(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.multi_asset(specs=list(halves.specs))
    def both(context: dg.AssetExecutionContext):  # noqa: ANN202  # Dagster wants as many as there are assets
        with ips.capture(context, "playback"):
            pass

    lake.create_playback(events(range(5)))
    with pytest.raises(DeclarationError, match=r"capture\(writes=...\)"):
        materialize(pipeline(lake.folder, lake.spark_folder, both), instance, "even", "odd")


def test_a_graph_asset_whose_op_wants_a_view_is_told_to_capture(lake: Lake) -> None:
    @dg.op(out=dg.Out(metadata=ips.append() | ips.table("media.inner")))
    def take(change: ips.IcdcView):  # noqa: ANN202  # a frame
        return change.added

    @dg.graph_asset(ins={"playback": ips.incremental()})
    def inner(playback):  # noqa: ANN001, ANN202  # Dagster composes it
        return take(playback)

    with pytest.raises(DeclarationError, match="capture"):
        pipeline(lake.folder, lake.spark_folder, inner)
