"""A job in another process, launched by a run, is given a change and publishes its table exactly once."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import dagster_ips as ips
from dagster_ips.errors import (
    DirectWriteError,
    ForeignWriteError,
    IdleJobError,
    IpsError,
    PublishError,
    RemovedRowsError,
    UnstampedCommitError,
)
from dagster_ips.spark.branches import SNAPSHOT_PROPERTY
from tests.support.lake import Event, Lake, events
from tests.support.lake_catalog import lake_catalog
from tests.support.lake_definitions import definitions_on
from tests.support.pipeline import materialize, pipeline
from tests.support.quick_spark import INTERPRETED
from tests.support.spark_resource import server_config, spark_resource
from tests.support.variants import mostly_slow

COLUMNS = "account STRING, plays BIGINT"
TABLE = "media.by_account"
PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
SMALL = (
    "--conf",
    "spark.master=local[1]",
    "--conf",
    "spark.ui.enabled=false",
    "--conf",
    "spark.sql.shuffle.partitions=1",
)
JOBS = {"spark-submit": ("by_account.py", "py"), "spark-sql": ("by_account.sql", "sql")}
"""The name of each program's job, and the language of the first block with it on the page."""


def command(icdc: ips.OwnSql, program: str, lake: Lake) -> list[str]:
    """As on the page, but for a Spark that starts quickly, on the cluster if the tests have one."""
    folder, cluster = lake.folder, server_config(lake.spark_folder)
    if cluster:
        cluster |= {"spark.authenticate": "true", "spark.driver.host": "127.0.0.1", "spark.cores.max": "1"}
    settings = [part for key, value in cluster.items() for part in ("--conf", f"{key}={value}")]
    name, language = JOBS[program]
    (block, *_) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (folder / name).write_text(block)
    kind = ("--conf", "spark.sql.catalogImplementation=in-memory", "-f") if language == "sql" else ()
    found = icdc.spark_command(program, *SMALL, *settings, *kind, str(folder / name))
    return ["env", f"JDK_JAVA_OPTIONS={INTERPRETED}", *found]


def launched(program: str, lake: Lake, *, returns: bool = True) -> dg.AssetsDefinition:
    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made(context):  # noqa: ANN001, ANN202  # Dagster reads its annotation at run time
        pipes = dg.PipesSubprocessClient()
        with ips.capture(context, columns=COLUMNS) as icdc:
            done = pipes.run(context=context, command=command(icdc, program, lake), extras={"icdc": icdc.job})
            return done.get_results() if returns else None

    return made


def run(lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, **tags: str) -> dg.ExecuteInProcessResult:
    definitions = pipeline(lake.folder, lake.spark_folder, asset)
    return materialize(
        definitions, instance, "by_account", tags={f"dagster_ips/{tag}": value for tag, value in tags.items()}
    )


def failure(lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition) -> IpsError:
    """The library's error inside whatever Dagster wrapped it in."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  # Dagster wraps the error
        run(lake, instance, asset)
    found: list[BaseException] = [raised.value]
    for error in found:  # grows in the loop
        found += [each for each in (error.__cause__, error.__context__) if each is not None and each not in found]
    return next(error for error in found if isinstance(error, IpsError))


def expected(rows: list[Event]) -> Counter[tuple[Any, ...]]:
    return Counter(Counter(row[2] for row in rows).items())


def test_a_spark_submit_and_a_spark_sql_that_a_run_launches_follow_every_kind_of_change(
    request: pytest.FixtureRequest, lake: Lake, instance: dg.DagsterInstance
) -> None:
    if server_config(lake.spark_folder):
        request.getfixturevalue("spark_cluster").start_worker()  # The tests' own Spark keeps the two others.
    rows = events(range(9))
    lake.create_playback(rows)
    (event,) = run(lake, instance, launched("spark-submit", lake)).get_asset_materialization_events()
    assert lake.rows(TABLE) == expected(rows)
    assert event.materialization.metadata["spark"].value == lake.session.version
    assert event.materialization.metadata["mode"].value == "full"

    late = events(range(20, 23), day=2)
    lake.append(late)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (1, 2)")
    lake.sql("UPDATE lake.media.playback SET account = 'other' WHERE event_id = 3")
    rows = [row if row[0] != 3 else (3, row[1], "other", row[3]) for row in rows + late if row[0] not in (1, 2)]
    (event,) = run(lake, instance, launched("spark-sql", lake, returns=False)).get_asset_materialization_events()
    assert lake.rows(TABLE) == expected(rows)
    assert event.materialization.metadata["mode"].value == "incremental"
    assert lake.branches(TABLE) == {"main"}


# A session of its own stands for the other process below: it has nothing but the JSON value.

ADD_UP = """MERGE INTO {target} t USING (
        SELECT account, sum(n) AS plays
        FROM (SELECT account, 1 AS n FROM {added} UNION ALL SELECT account, -1 AS n FROM {removed}) GROUP BY account
    ) c ON t.account = c.account
    WHEN MATCHED THEN UPDATE SET plays = t.plays + c.plays WHEN NOT MATCHED THEN INSERT *"""
ONLY_ADDED = "INSERT INTO {target} SELECT account, 1 FROM {added}"
Job = Callable[[dict[str, Any], SparkSession], object]


def by_job(lake: Lake, *work: Job, seen: list[dict[str, Any]] | None = None) -> dg.AssetsDefinition:
    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, columns=COLUMNS) as icdc:
            job = json.loads(json.dumps(icdc.job))
            if seen is not None:
                seen.append(job | {"parameters": dict(icdc.parameters)})
            for each in work:
                each(job, of_job(lake, job))

    return made


def of_job(lake: Lake, job: dict[str, Any], *, is_stamped: bool = True) -> SparkSession:
    session = lake.another_session()
    for key, value in job["spark_conf"].items():
        if is_stamped or not key.startswith(SNAPSHOT_PROPERTY):
            session.conf.set(key, value)
    return session


def statement(text: str) -> Job:
    return lambda job, session: session.sql(text.format_map(job))


def branch_of(job: dict[str, Any]) -> str:
    """The branch's own name."""
    return str(job["target"].rpartition("branch_")[2].strip("`"))


def late(lake: Lake, job: dict[str, Any]) -> None:
    """A commit as by a job that doesn't know that its branch is gone: it creates the branch again.

    Spark refuses that from Iceberg 1.12 on, unless the statement has begun before.
    """
    stamp = {
        key.removeprefix(SNAPSHOT_PROPERTY): value
        for key, value in job["spark_conf"].items()
        if key.startswith(SNAPSHOT_PROPERTY)
    }
    row = pa.table({"account": ["late"], "plays": pa.array([1], pa.int64())})
    lake.catalog.client.load_table(TABLE).append(row, snapshot_properties=stamp, branch=branch_of(job))


@pytest.fixture
def summed(lake: Lake, instance: dg.DagsterInstance) -> Lake:
    """A lake whose table was summed up once, with a change that only added rows since."""
    lake.create_playback(events(range(5)))
    run(lake, instance, by_job(lake, statement(ADD_UP)))
    lake.append(events([7]))
    return lake


def unchanged(lake: Lake, instance: dg.DagsterInstance) -> bool:
    """Whether nothing was published or consumed since ``summed``; the next run finishes the work."""
    was = lake.rows(TABLE) == expected(events(range(5)))
    run(lake, instance, by_job(lake, statement(ADD_UP)))
    return was and lake.rows(TABLE) == expected(events([*range(5), 7])) and lake.branches(TABLE) == {"main"}


def test_the_icdc_table_is_given_to_a_job_only_if_all_of_its_rows_are_new(
    summed: Lake, instance: dg.DagsterInstance
) -> None:
    seen: list[dict[str, Any]] = []
    asset = by_job(summed, statement(ADD_UP), seen=seen)
    run(summed, instance, asset)
    summed.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    run(summed, instance, asset)
    appended, deleted = seen
    assert appended["icdc_table"] == appended["parameters"]["icdc_table"] == appended["added"]
    assert (deleted["icdc_table"], deleted["parameters"]["icdc_table"]) == (None, "")
    assert "VERSION AS OF" in deleted["added"]
    left = [row for row in events([*range(5), 7]) if row[0] != 3]
    assert +summed.rows(TABLE) == expected(left)


def test_a_commit_without_the_stamp_is_refused_with_the_setting_that_was_missing(
    summed: Lake, instance: dg.DagsterInstance
) -> None:
    seen: list[dict[str, Any]] = []

    def write(job: dict[str, Any], _: SparkSession) -> None:
        statement(ADD_UP)(job, of_job(summed, job, is_stamped=False))

    error = failure(summed, instance, by_job(summed, write, seen=seen))
    assert isinstance(error, UnstampedCommitError)
    key = f"{SNAPSHOT_PROPERTY}dagster-ips.attempt"
    assert f"{key}={seen[0]['spark_conf'][key]}" in str(error)
    assert unchanged(summed, instance)


def test_a_job_that_commits_nothing_is_refused_and_one_that_says_so_is_not(
    summed: Lake, instance: dg.DagsterInstance
) -> None:
    error = failure(summed, instance, by_job(summed, statement("SELECT count(*) FROM {added}")))
    assert isinstance(error, IdleJobError)
    assert summed.rows(TABLE) == expected(events(range(5)))
    _, _, remedy = str(error).rpartition(": ")
    says_so = remedy.replace(error.target, "{target}")
    run(summed, instance, by_job(summed, statement(says_so)))
    run(summed, instance, by_job(summed))  # nothing changed
    assert summed.rows(TABLE) == expected(events(range(5)))


@pytest.mark.slow
def test_a_job_that_commits_nothing_in_mode_full_does_not_empty_the_table(
    summed: Lake, instance: dg.DagsterInstance
) -> None:
    with pytest.raises(IdleJobError):
        run(summed, instance, by_job(summed), mode="full")
    assert unchanged(summed, instance)


def test_a_job_that_only_adds_rows_is_refused_if_rows_were_removed(summed: Lake, instance: dg.DagsterInstance) -> None:
    summed.sql("UPDATE lake.media.playback SET seconds = seconds + 1")
    summed.sql("DELETE FROM lake.media.playback WHERE event_id = 3")
    error = failure(summed, instance, by_job(summed, statement(ONLY_ADDED)))
    assert isinstance(error, RemovedRowsError)
    assert "the job only added rows" in str(error)
    assert summed.rows(TABLE) == expected(events(range(5)))


@pytest.mark.parametrize("is_stamped", mostly_slow([True, False]))
def test_a_job_that_writes_to_the_table_itself_is_noticed(
    summed: Lake, instance: dg.DagsterInstance, *, is_stamped: bool
) -> None:
    def write(job: dict[str, Any], _: SparkSession) -> None:
        of_job(summed, job, is_stamped=is_stamped).sql(f"INSERT INTO lake.{TABLE} VALUES ('direct', 1)")

    error = failure(summed, instance, by_job(summed, write))
    assert isinstance(error, DirectWriteError if is_stamped else PublishError)
    if isinstance(error, DirectWriteError):
        summed.sql(error.undo).collect()
        assert unchanged(summed, instance)
    else:
        assert isinstance(failure(summed, instance, by_job(summed, statement(ADD_UP))), ForeignWriteError)


@pytest.mark.parametrize("fails", mostly_slow([False, True]))
def test_what_a_job_writes_after_its_run_never_reaches_the_table_and_is_dropped_by_the_next_run(
    summed: Lake, instance: dg.DagsterInstance, *, fails: bool
) -> None:
    seen: list[dict[str, Any]] = []

    def fail(*_: object) -> None:
        if fails:
            raise ConnectionError

    asset = by_job(summed, statement(ADD_UP), fail, seen=seen)
    if fails:
        with pytest.raises(ConnectionError):
            run(summed, instance, asset)
    else:
        run(summed, instance, asset)
    before = summed.rows(TABLE)
    (job,) = seen
    late(summed, job)
    assert summed.rows(TABLE) == before
    assert summed.branches(TABLE) == {"main", branch_of(job)}
    run(summed, instance, by_job(summed, statement(ADD_UP)))
    assert summed.branches(TABLE) == {"main"}
    assert summed.rows(TABLE) == expected(events([*range(5), 7]))


def test_a_job_that_still_writes_while_its_rows_are_audited_publishes_nothing(
    summed: Lake, instance: dg.DagsterInstance
) -> None:
    seen: list[dict[str, Any]] = []

    @ips.audit(asset="by_account")
    def slow_audit(rows: DataFrame) -> bool:
        statement("INSERT INTO {target} VALUES ('late', 1)")(seen[0], of_job(summed, seen[0]))
        return rows.where("account = 'late'").isEmpty()

    playback = ips.iceberg_asset("playback", table="media.playback")
    asset = by_job(summed, statement(ADD_UP), seen=seen)
    definitions = definitions_on(summed.folder, summed.spark_folder, playback, asset, asset_checks=[slow_audit])
    with pytest.raises(PublishError, match="still wrote"):
        materialize(definitions, instance, "by_account")
    assert summed.rows(TABLE) == expected(events(range(5)))
    assert unchanged(summed, instance)


@pytest.mark.parametrize("creates", mostly_slow([True, False]))
def test_a_branch_that_someone_drops_while_a_job_writes_to_it_is_not_published(
    summed: Lake, instance: dg.DagsterInstance, *, creates: bool
) -> None:
    def drop(job: dict[str, Any], _: SparkSession) -> None:
        for change in ("DROP", "CREATE") if creates else ("DROP",):
            summed.sql(f"ALTER TABLE lake.{TABLE} {change} BRANCH `{branch_of(job)}`")

    error = failure(summed, instance, by_job(summed, statement(ADD_UP), drop, lambda job, _: late(summed, job)))
    assert isinstance(error, PublishError)
    assert "dropped the branch" in str(error)
    assert unchanged(summed, instance)


@pytest.mark.slow
def test_a_job_of_two_upstreams_finds_each_of_them_by_name(summed: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(deps=[ips.incremental_dep("playback"), ips.incremental_dep("daily")], metadata=ips.table("media.counts"))
    def counts(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, "playback", "daily", columns="of STRING, rows BIGINT") as icdc:
            job = icdc.job
            for upstream in job["inputs"]:
                added = f"${{spark.icdc.{upstream}.added}}"
                text = f"INSERT INTO ${{spark.icdc.target}} SELECT '{upstream}', count(*) FROM {added}"
                of_job(summed, job).sql(text)
            assert "added" not in job

    definitions = pipeline(summed.folder, summed.spark_folder, counts)
    materialize(definitions, instance, "daily")
    materialize(definitions, instance, "counts")
    assert summed.rows("media.counts") == Counter([("playback", 6), ("daily", 6)])


@pytest.mark.slow
@pytest.mark.parametrize("yields", [True, False])
def test_a_step_of_several_tables_that_reports_nothing_of_its_job_materializes_them(
    lake: Lake, instance: dg.DagsterInstance, *, yields: bool
) -> None:
    names = ("left", "right")
    deps = [ips.incremental_dep("playback")]

    def work(context: dg.AssetExecutionContext) -> None:
        for name in names:
            with ips.capture(context, writes=f"media.{name}", columns="account STRING, plays BIGINT") as icdc:
                dg.PipesSubprocessClient().run(context=context, command=["true"])
                icdc.sql(ONLY_ADDED)

    specs = [dg.AssetSpec(name, deps=deps, metadata=ips.table(f"media.{name}")) for name in names]
    if yields:

        @dg.multi_asset(specs=specs)
        def both(context):  # noqa: ANN001, ANN202  # as one writes it who annotates nothing
            work(context)
            yield dg.MaterializeResult("left")

    else:

        @dg.multi_asset(specs=specs)
        def both(context):  # noqa: ANN001, ANN202  # as above
            work(context)

    lake.create_playback(events(range(4)))
    result = materialize(pipeline(lake.folder, lake.spark_folder, both), instance, *names)
    found = {event.asset_key.to_user_string() for event in result.get_asset_materialization_events() if event.asset_key}
    assert found == {*names}
    assert sum(lake.rows("media.right").values()) == 4


def test_secrets_are_in_a_private_file_and_in_the_value_only_by_their_variable(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_DATABASE_PASSWORD", "tell-nobody")
    properties = {name: dg.EnvVar("MY_DATABASE_PASSWORD") for name in ("jdbc.password", "header.X-Key")}
    folder, said = lake.folder, {}

    @dg.asset(name="by_account", deps=[ips.incremental_dep("playback")], metadata=ips.table(TABLE))
    def made(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, columns=COLUMNS) as icdc:
            said.update(job=icdc.job, arguments=icdc.spark_submit_arguments())
            said["file"] = file = Path(said["arguments"][1])
            assert "jdbc.password=tell-nobody" in file.read_text()
            assert file.stat().st_mode & 0o077 == 0
            icdc.sql(ADD_UP)

    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(properties=lake_catalog(folder).properties, spark_properties=properties),
        spark=spark_resource(lake.spark_folder),
    )
    lake.create_playback(events(range(5)))
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = dg.Definitions(assets=[playback, made], resources={"io_manager": manager})
    materialize(ips.with_incremental(definitions), instance, "by_account")
    names = ("jdbc.password", "header.X-Key")
    assert said["job"]["secrets"] == {f"spark.sql.catalog.lake.{name}": "MY_DATABASE_PASSWORD" for name in names}
    assert "tell-nobody" not in json.dumps([said["job"], said["arguments"]])
    assert not said["file"].parent.exists()
