"""Several tables that one step writes from one change: each equals its recompute, even if others failed.

No ``from __future__ import annotations`` here: Dagster reads the outputs' types from the function's annotations.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.cli.main import main
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.errors import DeclarationError, UnfitFrameError, UnfollowedChangeError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.support.lake import Event, Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.progress import copied_state
from tests.support.ticks import tick

BOTH = ("even", "odd")
HALVES = {name: dg.AssetOut(metadata=ips.append() | ips.table(f"media.{name}"), is_required=False) for name in BOTH}


@dg.multi_asset(ins={"playback": ips.incremental()}, outs=HALVES, can_subset=True)
def halves(context: dg.AssetExecutionContext, playback: ips.IcdcView) -> Iterator[dg.Output[DataFrame]]:
    for rest, name in enumerate(BOTH):
        if context.run.tags.get("fail") == name:
            raise ValueError(name)
        if name in context.op_execution_context.selected_output_names:
            yield dg.Output(playback.added.where(f"event_id % 2 = {rest}").select("event_id"), name)


@dg.multi_asset(
    ins={"playback": ips.incremental()},
    outs={
        "per_account": dg.AssetOut(metadata=ips.merge(on=["event_date", "account"]) | ips.table("media.per_account")),
        "per_day": dg.AssetOut(metadata=ips.merge(on=["event_date"]) | ips.table("media.per_day")),
    },
)
def sums(playback: ips.IcdcView) -> tuple[DataFrame, DataFrame]:
    days = playback.affected("event_date")
    return (
        days.groupBy("event_date", "account").agg(F.sum("seconds").alias("seconds")),
        days.groupBy("event_date").agg(F.sum("seconds").alias("seconds")),
    )


class Made:
    """``halves`` on a lake, with the rows and the states of its tables."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance) -> None:
        self.lake, self.instance = lake, instance
        self.definitions = pipeline(lake.folder, lake.spark_folder, halves)
        lake.create_playback(events(range(4)))

    def run(self, *names: str, **tags: str) -> dict[str, object]:
        """Run the tables; the number of upstream rows that each read, None for one that wasn't written."""
        done = materialize(self.definitions, self.instance, *names, tags=tags).get_asset_materialization_events()
        read = {event.asset_key.to_user_string(): event.materialization.metadata.get("rows captured") for event in done}
        return {name: rows and rows.value for name, rows in read.items()}

    def state(self, name: str) -> EdgeState:
        return copied_state(self.instance, Edge(name, "playback"))

    def ids(self, name: str) -> Counter[int]:
        return Counter(row[0] for row in self.lake.rows(f"media.{name}").elements())


@pytest.fixture
def made(lake: Lake, instance: dg.DagsterInstance) -> Made:
    made = Made(lake, instance)
    assert made.run(*BOTH) == {"even": 4, "odd": 4}
    return made


def test_both_tables_consume_the_same_change(made: Made) -> None:
    made.lake.append(events(range(4, 9)))
    assert made.run(*BOTH) == {"even": 5, "odd": 5}
    assert made.run(*BOTH) == {"even": 0, "odd": 0}
    assert made.ids("even") == Counter(range(0, 9, 2))
    assert made.ids("odd") == Counter(range(1, 9, 2))
    even, odd = made.state("even"), made.state("odd")
    assert (even.committed, even.number) == (odd.committed, odd.number)


@pytest.mark.slow
def test_a_failed_table_first_catches_up_with_the_other_and_then_both_continue(made: Made) -> None:
    made.lake.append(events(range(4, 9)))
    with pytest.raises(ValueError, match="odd"):
        made.run(*BOTH, fail="odd")
    assert (made.state("even").number, made.state("odd").number) == (2, 1)
    made.lake.append(events(range(9, 12)))
    published = made.lake.commits("media.even")
    assert made.run(*BOTH) == {"even": None, "odd": 5}
    assert made.lake.commits("media.even") == published
    assert made.run(*BOTH) == {"even": 3, "odd": 3}
    assert made.ids("even") == Counter(range(0, 12, 2))
    assert made.ids("odd") == Counter(range(1, 12, 2))


@pytest.mark.slow
def test_a_run_of_one_table_leaves_the_change_pending_for_the_other(made: Made) -> None:
    made.lake.append(events(range(4, 9)))
    assert made.run("odd") == {"odd": 5}
    made.lake.append(events(range(9, 12)))
    assert made.run("odd") == {"odd": 3}
    assert made.ids("even") == Counter([0, 2])
    assert made.run(*BOTH) == {"even": 8, "odd": None}
    assert made.ids("even") == Counter(range(0, 12, 2))
    assert made.ids("odd") == Counter(range(1, 12, 2))


@pytest.mark.slow
def test_a_reset_table_is_computed_in_full_and_the_other_stays_as_it_is(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.lake.sql("DELETE FROM lake.media.odd")
    made.lake.append(events(range(4, 9)))
    file = tmp_path / "its_definitions.py"
    file.write_text(
        "from pathlib import Path\n\nfrom tests.support.pipeline import pipeline\n"
        "from tests.promises.test_tables_made_together import halves\n\n"
        f"defs = pipeline(Path({str(made.lake.folder)!r}), Path({str(made.lake.spark_folder)!r}), halves)\n"
    )
    monkeypatch.setenv("DAGSTER_HOME", made.instance.root_directory)
    done = CliRunner().invoke(main, ["reset", "-f", str(file), "odd", "--why", "its rows are gone", "--yes"])
    assert done.exit_code == 0, done.output
    assert made.run(*BOTH) == {"even": None, "odd": 9}
    assert made.run(*BOTH) == {"even": 5, "odd": None}
    assert made.ids("odd") == Counter(range(1, 9, 2))
    assert made.ids("even") == Counter(range(0, 9, 2))


@pytest.mark.slow
def test_a_table_added_to_a_step_is_first_computed_alone(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.multi_asset(ins={"playback": ips.incremental()}, outs={"even": HALVES["even"]}, can_subset=True)
    def before(playback: ips.IcdcView) -> Iterator[dg.Output[DataFrame]]:
        yield dg.Output(playback.added.where("event_id % 2 = 0").select("event_id"), "even")

    made = Made(lake, instance)
    materialize(pipeline(lake.folder, lake.spark_folder, before), instance, "even")
    lake.append(events(range(4, 9)))
    assert made.run(*BOTH) == {"even": None, "odd": 9}
    assert made.run(*BOTH) == {"even": 5, "odd": None}
    lake.append(events(range(9, 12)))
    assert made.run(*BOTH) == {"even": 3, "odd": 3}
    assert made.ids("even") == Counter(range(0, 12, 2))
    assert made.ids("odd") == Counter(range(1, 12, 2))


@pytest.mark.slow
def test_the_mode_that_a_run_requests_applies_to_every_table(made: Made) -> None:
    made.lake.append(events(range(4, 9)))
    made.run("odd")
    made.lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    assert made.run(*BOTH, **{"dagster_ips/mode": "full"}) == {"even": 8, "odd": 8}
    assert made.ids("even") == Counter(range(0, 9, 2))
    assert made.ids("odd") == Counter([1, 5, 7])


def expected_sums(rows: list[Event], *keys: int) -> Counter[tuple[object, ...]]:
    seconds: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        seconds[tuple(row[key] for key in keys)] += row[3]
    return Counter((*key, total) for key, total in seconds.items())


@pytest.mark.slow
def test_tables_of_the_same_groups_equal_their_recompute_after_updates_and_deletes(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, sums)
    lake.create_playback(events(range(6)) + events(range(6, 12), day=1))
    for statement in (
        "INSERT INTO lake.media.playback VALUES (12, DATE '2026-01-02', 'late', 5)",
        "DELETE FROM lake.media.playback WHERE event_date = DATE '2026-01-01'",
        "UPDATE lake.media.playback SET account = 'a9', seconds = seconds + 1 WHERE event_id IN (7, 12)",
    ):
        materialize(definitions, instance, "per_account", "per_day")
        lake.sql(statement)
    materialize(definitions, instance, "per_account", "per_day")
    rows = [tuple(row) for row in lake.sql("SELECT * FROM lake.media.playback").collect()]
    assert lake.rows("media.per_account") == expected_sums(rows, 1, 2)
    assert lake.rows("media.per_day") == expected_sums(rows, 1)


@pytest.mark.slow
def test_each_table_of_a_step_is_written_from_its_own_frame(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.multi_asset(
        ins={"playback": ips.incremental()},
        outs={
            "plain": dg.AssetOut(metadata=ips.append() | ips.table("media.plain")),
            "counted": dg.AssetOut(metadata=ips.merge(on=["account"]) | ips.table("media.counted")),
        },
    )
    def two(playback: ips.IcdcView) -> tuple[DataFrame, DataFrame]:
        right = playback.added, playback.affected("account").groupBy("account").count()
        return right if is_right else (playback.affected("account"), playback.added.groupBy("account").count())

    is_right = True
    definitions = pipeline(lake.folder, lake.spark_folder, two)
    lake.create_playback(events(range(6)))
    materialize(definitions, instance, "plain", "counted")
    lake.append(events(range(6, 9)))
    materialize(definitions, instance, "plain", "counted")
    assert lake.rows("media.plain") == Counter(events(range(9)))
    assert lake.rows("media.counted") == Counter({(f"a{i}", 3): 1 for i in range(3)})
    lake.append(events(range(9, 12)))
    is_right = False
    with pytest.raises(UnfitFrameError, match="a second time"):
        materialize(definitions, instance, "plain", "counted")
    assert sum(lake.rows("media.plain").values()) == 9
    assert copied_state(instance, Edge("plain", "playback")).number == 2


@pytest.mark.parametrize("sensor", ["ips_automation", pytest.param("by_sensor", marks=pytest.mark.slow)])
def test_one_run_is_requested_for_all_tables_of_a_step_until_each_is_up_to_date(made: Made, sensor: str) -> None:
    assets = [ips.iceberg_asset("playback", table="media.playback"), halves]
    sensors = [ips.pending_sensor("by_sensor", BOTH)] if sensor == "by_sensor" else []
    resources = made.definitions.resources
    made.definitions = ips.with_incremental(dg.Definitions(assets=assets, sensors=sensors, resources=resources))
    assert requests(made.definitions, made.instance, sensor) == []
    made.lake.append(events(range(4, 9)))
    made.run("even")
    made.lake.append(events(range(9, 12)))
    seen = set()
    for _ in range(2):
        ((key, selection),) = requests(made.definitions, made.instance, sensor)
        assert selection == {dg.AssetKey(name) for name in BOTH}
        seen.add(key)
        made.run(*BOTH)
    assert requests(made.definitions, made.instance, sensor) == []
    assert len(seen) == 2 or sensor == "ips_automation"
    assert made.ids("odd") == Counter(range(1, 12, 2))


@pytest.mark.slow
def test_a_step_that_cannot_be_divided_is_requested_as_a_whole_if_one_of_its_tables_is_behind(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, sums)
    lake.create_playback(events(range(4)))
    materialize(definitions, instance, "per_account", "per_day")
    administrator = Administrator(lake.catalog, CursorStore(instance), "media.per_day")
    administrator.reset(Edge("per_day", "playback"), who="a test", why="to be behind")
    ours = {dg.AssetKey("per_account"), dg.AssetKey("per_day")}
    asked = [selection for _, selection in requests(definitions, instance, "ips_automation")]
    assert [selection & ours for selection in asked if selection & ours] == [ours]
    materialize(definitions, instance, "per_account", "per_day")
    asked = [selection for _, selection in requests(definitions, instance, "ips_automation")]
    assert [selection & ours for selection in asked if selection & ours] == []


def requests(
    definitions: dg.Definitions, instance: dg.DagsterInstance, sensor: str
) -> list[tuple[str | None, set[dg.AssetKey]]]:
    """The key and the assets of each run that a tick would launch."""
    found = tick(definitions, instance, sensor).run_requests
    return [(request.run_key, set(request.asset_selection or ())) for request in found]


@pytest.mark.parametrize(
    ("options", "out", "says"),
    [
        ({}, ips.append() | {"is_required": False}, "may leave it out"),
        ({"partitions_def": dg.DailyPartitionsDefinition("2026-01-01")}, ips.append(), "partitioned"),
        ({}, {}, "how its rows join"),
        ({}, ips.overwrite_partitions(), "plain columns"),
    ],
)
def test_declarations_that_cannot_work_for_several_tables_are_refused_when_definitions_load(
    lake: Lake, options: dict[str, object], out: dict[str, object], says: str
) -> None:
    is_required = out.get("is_required") is None
    outs = {
        "good": dg.AssetOut(metadata=ips.append() | {"partition_expr": "event_date"}),
        "other": dg.AssetOut(metadata=out | {"partition_expr": "event_date"}, is_required=is_required),
    }

    @dg.multi_asset(ins={"playback": ips.incremental()}, outs=outs, **options)  # type: ignore[arg-type]
    def two(playback: ips.IcdcView) -> tuple[DataFrame, DataFrame]:
        return playback.added, playback.added

    with pytest.raises(DeclarationError, match=says):
        pipeline(lake.folder, lake.spark_folder, two)


def two_inputs(
    *, of_plays: set[str], of_titles: Sequence[str] = ("title",), joins: bool = False, declares: bool = True
) -> dg.AssetsDefinition:
    """``plays`` and ``titles`` from two inputs, where ``plays`` is declared to be made from those ``of_plays``."""
    deps = {"plays": set(map(dg.AssetKey, of_plays)), "titles": set(map(dg.AssetKey, of_titles))}

    @dg.multi_asset(
        ins={"playback": ips.incremental(), "title": ips.incremental()},
        outs={
            "plays": dg.AssetOut(metadata=ips.merge(on=["event_id"]) | ips.table("media.plays")),
            "titles": dg.AssetOut(metadata=ips.merge(on=["title"]) | ips.table("media.titles")),
        },
        **({"internal_asset_deps": deps} if declares else {}),  # type: ignore[arg-type]
    )
    def made(playback: ips.IcdcView, title: ips.IcdcView) -> tuple[DataFrame, DataFrame]:
        rows = playback.added.select("event_id", "seconds")
        plays = rows.join(title.source.select(F.max("title").alias("most"))) if joins else rows
        return plays, title.added

    return made


@pytest.fixture
def with_titles(lake: Lake) -> Lake:
    lake.create_playback(events(range(4)))
    lake.sql("CREATE TABLE lake.media.title (title int, genre string) USING iceberg")
    lake.sql("INSERT INTO lake.media.title VALUES (1, 'news'), (2, 'film')")
    return lake


def run_of(lake: Lake, instance: dg.DagsterInstance, made: dg.AssetsDefinition) -> dg.ExecuteInProcessResult:
    title = ips.iceberg_asset("title", table="media.title")
    return materialize(pipeline(lake.folder, lake.spark_folder, made, title), instance, "plays", "titles")  # type: ignore[arg-type]


CHANGE_OF_TITLES = "UPDATE lake.media.title SET genre = 'show' WHERE title = 2"


def test_a_table_need_not_follow_an_input_that_it_is_declared_to_be_made_without(
    with_titles: Lake, instance: dg.DagsterInstance
) -> None:
    lake = with_titles
    for change in ("", CHANGE_OF_TITLES, "DELETE FROM lake.media.playback WHERE event_id = 1", CHANGE_OF_TITLES):
        if change:
            lake.sql(change)
        before = lake.catalog.find("media.plays")
        run_of(lake, instance, two_inputs(of_plays={"playback"}))
        assert lake.rows("media.titles") == lake.rows("media.title")
        plays = lake.session.sql("SELECT event_id, seconds FROM lake.media.playback").collect()
        assert lake.rows("media.plays") == Counter(map(tuple, plays))
        head = lake.catalog.load("media.title", asset="").head_snapshot_id()
        for name in ("plays", "titles"):
            consumed = copied_state(instance, Edge(name, "title")).committed
            assert consumed is not None
            assert consumed.snapshot_id == head
        if change == CHANGE_OF_TITLES:
            assert before is not None
            assert lake.catalog.load("media.plays", asset="").head_snapshot_id() == before.head_snapshot_id()


def test_a_table_that_uses_what_it_is_declared_to_be_made_without_is_refused_from_the_first_run_on(
    with_titles: Lake, instance: dg.DagsterInstance
) -> None:
    with pytest.raises(DeclarationError, match=r"media\.plays: its result uses title.*internal_asset_deps"):
        run_of(with_titles, instance, two_inputs(of_plays={"playback"}, joins=True))
    assert with_titles.catalog.find("media.plays") is None


def test_a_table_that_is_declared_to_be_made_from_no_input_is_refused(with_titles: Lake) -> None:
    made = two_inputs(of_plays=set(), of_titles=("playback", "title"))
    title = ips.iceberg_asset("title", table="media.title")
    with pytest.raises(DeclarationError, match="plays: none of the inputs of its step"):
        pipeline(with_titles.folder, with_titles.spark_folder, made, title)  # type: ignore[arg-type]


def test_a_table_that_does_not_use_an_input_is_refused_with_a_remedy_that_works(
    with_titles: Lake, instance: dg.DagsterInstance
) -> None:
    run_of(with_titles, instance, two_inputs(of_plays=set(), declares=False))
    with_titles.sql(CHANGE_OF_TITLES)
    with pytest.raises(UnfollowedChangeError, match=r"media\.plays: .*doesn't use them.*internal_asset_deps="):
        run_of(with_titles, instance, two_inputs(of_plays=set(), declares=False))
    run_of(with_titles, instance, two_inputs(of_plays={"playback"}))
    assert with_titles.rows("media.titles") == with_titles.rows("media.title")


def test_a_table_is_recomputed_once_it_is_declared_to_be_made_from_another_input(
    with_titles: Lake, instance: dg.DagsterInstance
) -> None:
    run_of(with_titles, instance, two_inputs(of_plays={"playback"}))
    with_titles.append(events(range(4, 6)))
    done = run_of(with_titles, instance, two_inputs(of_plays={"playback", "title"}))
    (mode,) = (
        event.materialization.metadata["mode"].value
        for event in done.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey("plays")
    )
    assert mode == "full"
