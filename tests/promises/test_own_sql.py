"""An asset's own statements are published as a whole or not at all, and consume their inputs exactly once."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.errors import (
    DeclarationError,
    DirectWriteError,
    ForeignWriteError,
    IpsError,
    PublishError,
    RefMovedError,
    RemovedRowsError,
    TargetColumnsChangedError,
)
from dagster_ips.exactly_once.publish import publisher
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.ref_commits import RefCommit
from tests.support.lake import Event, Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.progress import copied_state
from tests.support.variants import mostly_slow

COLUMNS = "account STRING, plays BIGINT"
TABLE = "media.by_account"
CHANGED = "(SELECT account FROM {added} UNION SELECT account FROM {removed})"
AGAIN = (
    f"DELETE FROM {{target}} WHERE account IN {CHANGED}",
    f"""INSERT INTO {{target}} SELECT account, count(*) FROM {{source}}
        WHERE account IN {CHANGED} GROUP BY account""",
)
ADDING = """MERGE INTO {target} t USING (SELECT account, count(*) plays FROM {icdc} GROUP BY account) c
    ON t.account = c.account
    WHEN MATCHED THEN UPDATE SET plays = t.plays + c.plays WHEN NOT MATCHED THEN INSERT *"""


def by_account(write: Callable[[ips.OwnSql], Any]) -> dg.AssetsDefinition:
    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made(context):  # noqa: ANN001, ANN202  # as one writes it who annotates nothing
        with ips.capture(context, "playback", writes=TABLE, columns=COLUMNS) as icdc:
            write(icdc)

    return made


def statements(*texts: str) -> dg.AssetsDefinition:
    return by_account(lambda icdc: [icdc.sql(text) for text in texts])


def run(lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, **tags: str) -> dg.ExecuteInProcessResult:
    definitions = pipeline(lake.folder, lake.spark_folder, asset)
    tags = {f"dagster_ips/{tag}": value for tag, value in tags.items()}
    return materialize(definitions, instance, "by_account", tags=tags)


def failure(lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition) -> IpsError:
    with pytest.raises(Exception) as raised:  # noqa: PT011  # Dagster wraps the error
        run(lake, instance, asset)
    return cause_of(raised.value)


def cause_of(raised: BaseException) -> IpsError:
    """The library's error inside whatever Dagster wrapped it in."""
    errors = [raised]
    for error in errors:  # grows in the loop; errors may refer to each other
        errors += [e for e in (error.__cause__, error.__context__) if e is not None and e not in errors]
    (found, *_) = [error for error in errors if isinstance(error, IpsError)]
    return found


def state(instance: dg.DagsterInstance, consumer: str = "by_account", upstream: str = "playback") -> EdgeState:
    return copied_state(instance, Edge(consumer, upstream))


def expected(rows: list[Event]) -> Counter[tuple[Any, ...]]:
    return Counter(Counter(row[2] for row in rows).items())


def test_several_statements_follow_added_and_removed_rows(lake: Lake, instance: dg.DagsterInstance) -> None:
    rows = events(range(9))
    lake.create_playback(rows)
    asset = statements(*AGAIN)
    run(lake, instance, asset)
    assert lake.rows(TABLE) == expected(rows)
    late = events(range(20, 23), day=2)
    lake.append(late)
    lake.sql("DELETE FROM lake.media.playback WHERE account = 'a1'")
    (event,) = run(lake, instance, asset).get_asset_materialization_events()
    left = [row for row in rows + late if row[2] != "a1"]
    assert lake.rows(TABLE) == expected(left)
    shown = event.materialization.metadata
    assert shown["mode"].value == "incremental"
    assert shown["playback: capture"].value == 2
    assert shown["dagster/table_name"].value == TABLE
    assert shown["dagster/row_count"].value == 2
    assert lake.branches(TABLE) == {"main"}
    head = lake.catalog.load("media.playback", asset="test").head_snapshot_id()
    committed = state(instance).committed
    assert committed is not None
    assert committed.snapshot_id == head


def test_a_merge_that_adds_up_the_change_counts_every_row_once(lake: Lake, instance: dg.DagsterInstance) -> None:
    rows = events(range(5))
    lake.create_playback(rows)
    asset = statements(ADDING)
    for more in ([], events(range(5, 9)), events(range(9, 10))):
        if more:
            lake.append(more)
        rows = rows + more
        run(lake, instance, asset)
        commits = lake.commits(TABLE)
        run(lake, instance, asset)
        assert lake.commits(TABLE) == commits, "what changed nothing published something"
        assert lake.rows(TABLE) == expected(rows)


def test_the_same_statements_recompute_the_table_in_mode_full(lake: Lake, instance: dg.DagsterInstance) -> None:
    rows = events(range(7))
    lake.create_playback(rows)
    asset = statements(ADDING)
    run(lake, instance, asset)
    lake.sql(f"INSERT INTO lake.{TABLE} VALUES ('wrong', 1)")
    run(lake, instance, asset, mode="full")
    assert lake.rows(TABLE) == expected(rows)


@pytest.mark.slow
@pytest.mark.everywhere
def test_a_table_gets_newly_declared_columns_and_wider_types(lake: Lake, instance: dg.DagsterInstance) -> None:
    def of_columns(columns: str, *texts: str) -> dg.AssetsDefinition:
        @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
        def made(context):  # noqa: ANN001, ANN202  # as one writes it who annotates nothing
            with ips.capture(context, columns=columns) as icdc:
                for text in texts:
                    icdc.sql(text)

        return made

    insert = "INSERT INTO {target} (account, plays) SELECT account, 1 FROM {added}"
    lake.create_playback(events([1]))
    run(lake, instance, of_columns("account STRING, plays INT", insert))
    lake.append(events([2]))
    wider = "plays BIGINT, account STRING, seconds BIGINT"
    run(lake, instance, of_columns(wider, "INSERT INTO {target} SELECT account, 3000000000, seconds FROM {added}"))
    assert lake.rows(TABLE) == Counter({("a1", 1, None): 1, ("a2", 3_000_000_000, 2): 1})
    lake.append(events([3]))
    refused = failure(lake, instance, of_columns("account STRING, plays STRING", insert))
    assert "plays is string in the frame and bigint in the table" in str(refused)
    # Statements may leave columns out.
    run(lake, instance, of_columns("account STRING", insert))
    assert lake.rows(TABLE)["a0", 1, None] == 1


def test_a_run_that_only_drops_whole_files_is_published_and_stamped(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(5)))
    run(lake, instance, statements(ADDING))
    lake.append(events([7]))
    run(lake, instance, statements("DELETE FROM {target}"))
    assert lake.rows(TABLE) == Counter()
    mark = state(instance).target
    assert mark is not None
    assert mark.snapshot_id == lake.catalog.load(TABLE, asset="test").head_snapshot_id()


def test_an_error_after_a_statement_publishes_and_consumes_nothing(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(5)))
    run(lake, instance, statements(ADDING))
    lake.append(events([7]))
    before, commits = state(instance), lake.commits(TABLE)
    asset = statements(ADDING, "SELECT no_such_column FROM {target}")
    with pytest.raises(Exception, match="no_such_column"):
        run(lake, instance, asset)
    after = state(instance)
    assert (after.committed, after.number) == (before.committed, before.number)
    assert (lake.commits(TABLE), lake.branches(TABLE)) == (commits, {"main"})
    run(lake, instance, statements(ADDING))
    assert lake.rows(TABLE) == expected(events([*range(5), 7]))


@pytest.mark.everywhere
@pytest.mark.parametrize("then_fails", mostly_slow([False, True]))
def test_a_statement_that_writes_to_the_table_directly_is_detected(
    lake: Lake, instance: dg.DagsterInstance, *, then_fails: bool
) -> None:
    lake.create_playback(events(range(5)))
    run(lake, instance, statements(ADDING))
    lake.append(events([7]))
    before = state(instance)

    def write(icdc: ips.OwnSql) -> None:
        icdc.session.sql(f"INSERT INTO lake.{TABLE} VALUES ('direct', 1)")
        if then_fails:
            raise ValueError
        icdc.sql(ADDING)

    error = failure(lake, instance, by_account(write))
    assert isinstance(error, DirectWriteError)
    after = state(instance)
    assert (after.committed, after.number) == (before.committed, before.number)
    assert lake.branches(TABLE) == {"main"}
    assert error.undo.startswith("CALL `lake`.system.rollback_to_snapshot")
    lake.sql(error.undo).collect()
    run(lake, instance, statements(ADDING))
    assert lake.rows(TABLE) == expected(events([*range(5), 7]))


@pytest.mark.everywhere
@pytest.mark.parametrize("then", mostly_slow(["", "INSERT INTO {target} SELECT * FROM lake.media.dropped_meanwhile"]))
def test_a_table_changed_during_a_run_is_not_published_over_and_continues_once_that_is_accepted(
    lake: Lake, instance: dg.DagsterInstance, then: str
) -> None:
    lake.create_playback(events(range(5)))
    run(lake, instance, statements(ADDING))
    lake.append(events([7]))

    def write(icdc: ips.OwnSql) -> None:
        icdc.sql(ADDING)
        lake.sql(f"INSERT INTO lake.{TABLE} VALUES ('other', 1)")
        if then:
            icdc.sql(then)

    error = failure(lake, instance, by_account(write))
    assert isinstance(error, PublishError)
    assert "someone else" in str(error)
    error = failure(lake, instance, statements(ADDING))
    assert isinstance(error, ForeignWriteError)
    run(lake, instance, statements(ADDING), accept=str(error.newest))
    assert lake.rows(TABLE) == expected(events([*range(5), 7])) + Counter([("other", 1)])


def test_a_commit_of_another_run_just_before_publishing_is_a_clear_error(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create_playback(events(range(5)))
    run(lake, instance, statements(ADDING))
    lake.append(events([7]))

    commit = publisher.commit_refs

    def conflict(catalog: LakeCatalog, table: str, change: RefCommit, *, asset: str) -> None:
        if change.onto is not None:
            raise RefMovedError(table=table, ref="main", expected=1, found=2)
        commit(catalog, table, change, asset=asset)

    with monkeypatch.context() as patched:
        patched.setattr(publisher, "commit_refs", conflict)
        error = failure(lake, instance, statements(ADDING))
    assert isinstance(error, PublishError)
    run(lake, instance, statements(ADDING))
    assert lake.rows(TABLE) == expected(events([*range(5), 7]))


def test_a_branch_recreated_during_the_block_is_not_published(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(5)))
    run(lake, instance, statements(ADDING))
    lake.append(events([7]))
    commits, before = lake.commits(TABLE), state(instance)

    def write(icdc: ips.OwnSql) -> None:
        icdc.sql(ADDING)
        name = icdc.target.rpartition("branch_")[2].strip("`")
        for change in ("DROP", "CREATE"):
            lake.sql(f"ALTER TABLE lake.{TABLE} {change} BRANCH `{name}`")
        icdc.sql("INSERT INTO {target} VALUES ('second', 1)")

    error = failure(lake, instance, by_account(write))
    assert isinstance(error, PublishError)
    assert "on the branch" in str(error)
    after = state(instance)
    assert (after.committed, after.number) == (before.committed, before.number)
    assert lake.commits(TABLE) == commits


@pytest.mark.slow
@pytest.mark.everywhere
def test_a_column_dropped_and_added_again_while_a_block_writes_is_noticed_before_it_is_published(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(5)))
    run(lake, instance, statements(ADDING))
    lake.append(events([7]))
    commits = lake.commits(TABLE)

    def write(icdc: ips.OwnSql) -> None:
        icdc.sql(ADDING)
        for change in ("DROP COLUMN plays", "ADD COLUMN plays BIGINT"):
            lake.another_session().sql(f"ALTER TABLE lake.{TABLE} {change}")

    assert isinstance(failure(lake, instance, by_account(write)), TargetColumnsChangedError)
    assert lake.commits(TABLE) == commits
    assert isinstance(failure(lake, instance, statements(ADDING)), TargetColumnsChangedError)
    run(lake, instance, statements(ADDING), mode="full")
    found = lake.another_session().sql(f"SELECT account, plays FROM lake.{TABLE}").collect()
    assert Counter(map(tuple, found)) == expected(events([*range(5), 7]))


@pytest.mark.everywhere
@pytest.mark.parametrize("text", mostly_slow([ADDING, ADDING.replace("{icdc}", "{added}")]))
def test_statements_that_ignore_removed_rows_are_refused_when_there_are_some(
    lake: Lake, instance: dg.DagsterInstance, text: str
) -> None:
    lake.create_playback(events(range(5)))
    run(lake, instance, statements(text))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    error = failure(lake, instance, statements(text))
    assert isinstance(error, RemovedRowsError)
    assert lake.rows(TABLE) == expected(events(range(5)))


def test_several_upstreams_are_captured_in_one_block(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(deps=[ips.incremental_dep("playback"), ips.incremental_dep("daily")], metadata=ips.table("media.counts"))
    def counts(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, "playback", "daily", columns="of STRING, rows BIGINT") as icdc:
            for upstream in icdc.views:
                icdc.sql(f"INSERT INTO {{target}} SELECT '{upstream}', count(*) FROM {{{upstream}.added}}")
            assert icdc.mode is icdc.views["daily"].mode

    definitions = pipeline(lake.folder, lake.spark_folder, counts)
    lake.create_playback(events(range(4)))
    materialize(definitions, instance, "daily")
    materialize(definitions, instance, "counts")
    lake.append(events(range(4, 9)))
    materialize(definitions, instance, "counts")
    assert lake.rows("media.counts") == Counter([("playback", 4), ("daily", 4), ("playback", 5), ("daily", 0)])
    assert state(instance, "counts", "daily").number == 2


def test_a_statement_that_names_an_unknown_upstream_is_refused(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(4)))
    error = failure(lake, instance, by_account(lambda icdc: icdc.sql("SELECT * FROM {playbak.added}")))
    assert isinstance(error, DeclarationError)
    assert "playbak" in str(error)


def test_a_first_run_without_a_table_or_columns_says_what_to_do(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context) as icdc:
            icdc.sql(ADDING)

    lake.create_playback(events(range(4)))
    error = failure(lake, instance, made)
    assert isinstance(error, DeclarationError)
    assert "doesn't exist" in str(error)
    lake.sql(f"CREATE TABLE lake.{TABLE} ({COLUMNS}) USING iceberg")
    run(lake, instance, made)
    assert lake.rows(TABLE) == expected(events(range(4)))


@pytest.mark.parametrize("writes", ["media.other", None])
def test_capture_of_an_undeclared_upstream_or_table_is_refused(
    lake: Lake, instance: dg.DagsterInstance, writes: str | None
) -> None:
    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, "daily", writes=writes):
            pass

    lake.create_playback(events(range(4)))
    error = failure(lake, instance, made)
    assert isinstance(error, DeclarationError)


@pytest.mark.parametrize(("returned", "said"), [(None, "didn't call capture"), ("a frame", "returned a DataFrame")])
def test_an_asset_that_does_not_call_capture_fails(
    lake: Lake, instance: dg.DagsterInstance, returned: str | None, said: str
) -> None:
    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made():  # noqa: ANN202  # as one writes it who annotates nothing
        return returned and lake.session.table("lake.media.playback")

    lake.create_playback(events(range(4)))
    assert said in str(failure(lake, instance, made))
    assert lake.catalog.find(TABLE) is None


@pytest.mark.parametrize("is_nested", [True, False])
def test_a_second_block_for_the_same_table_is_refused_before_it_does_anything(
    lake: Lake, instance: dg.DagsterInstance, *, is_nested: bool
) -> None:
    rows = events(range(6))
    lake.create_playback(rows)
    counting = "INSERT INTO {target} SELECT account, count(*) FROM {added} GROUP BY account"

    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, columns=COLUMNS) as first:
            first.sql(counting)
            if is_nested:
                with ips.capture(context) as second:
                    second.sql(counting)
        with ips.capture(context) as second:
            second.sql(counting)

    raised = failure(lake, instance, made)
    assert isinstance(raised, DeclarationError)
    assert "calls capture() twice" in str(raised)
    assert ("outer block" if is_nested else "dagster_ips/mode=full") in str(raised)
    assert state(instance).number == (0 if is_nested else 1)
    if is_nested:
        assert lake.catalog.find(TABLE) is None
    else:
        assert lake.rows(TABLE) == expected(rows)
        assert lake.branches(TABLE) <= {"main"}


def test_a_step_may_begin_another_block_after_one_that_failed(lake: Lake, instance: dg.DagsterInstance) -> None:
    rows = events(range(6))
    lake.create_playback(rows)

    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made(context: dg.AssetExecutionContext) -> None:
        with contextlib.suppress(ZeroDivisionError), ips.capture(context, columns=COLUMNS):
            raise ZeroDivisionError
        with ips.capture(context, columns=COLUMNS) as icdc:
            icdc.sql("INSERT INTO {target} SELECT account, count(*) FROM {added} GROUP BY account")

    run(lake, instance, made)
    assert lake.rows(TABLE) == expected(rows)


def test_an_asset_with_own_statements_runs_when_something_is_pending(lake: Lake, instance: dg.DagsterInstance) -> None:
    asset = statements(ADDING)
    definitions = pipeline(lake.folder, lake.spark_folder, asset)
    lake.create_playback(events(range(4)))

    def requested() -> bool:
        result = dg.evaluate_automation_conditions(defs=definitions, instance=instance)
        return bool(result.get_num_requested(dg.AssetKey("by_account")))

    assert requested()
    run(lake, instance, asset)
    assert not requested()
    lake.append(events([5]))
    assert requested()


@pytest.mark.parametrize(
    "wrong",
    [
        dg.AssetSpec("x", deps=[ips.incremental_dep("unknown")]),
        dg.AssetSpec("x", deps=[ips.incremental_dep("playback")], metadata=ips.append()),
        dg.AssetSpec(
            "x", deps=[ips.incremental_dep("playback")], partitions_def=dg.StaticPartitionsDefinition(["a", "b"])
        ),
    ],
    ids=["unknown upstream", "a write mode", "partitions"],
)
def test_declarations_that_cannot_work_are_refused_when_definitions_load(lake: Lake, wrong: dg.AssetSpec) -> None:
    @dg.multi_asset(specs=[wrong])
    def made() -> None: ...

    with pytest.raises(DeclarationError, match="x: "):
        pipeline(lake.folder, lake.spark_folder, made)
