"""The registry of effects is complete: nothing durable happens outside it, so kills at each effect cover every kill."""

from __future__ import annotations

import textwrap
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips
import dagster_ips as ips
from dagster_ips.exactly_once import effects
from dagster_ips.exactly_once.effects import OF_RUNS, Effect
from tests.exactly_once.durable_calls import durable_calls
from tests.support.durable import Durable, durable
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow

# Rooms that don't know effects: the rooms above call their writes inside effects, or they are processes that start.
BELOW = ("core/", "iceberg/", "local_spark/", "orchestration/launch/", "spark/", "state/")
# Syntax trees have methods with the names of writers, and query/ imports nothing that can write. queries.py runs only
# parsed text, as one SELECT.
PURE = ("query/", "spark/queries.py")
ALLOWED = {
    "_compat.py execute_run": "does a run, with the effects that it has",
    "cli/__main__.py <module>": "runs the command that was asked for",
    "cli/captures.py commit": "has a method called like one of iceberg/; what it commits are effects",
    "cli/main.py commit": "as the one in captures.py",
    "_compat.py commit_or_swap": "as iceberg/, whose door to PyIceberg it is",
    "_compat.py stage": "as iceberg/, whose door to PyIceberg it is",
    "orchestration/platform/cursor_store.py set_copy": "is the store itself",
    "orchestration/platform/cursor_store.py set_requests": "is the store itself",
    "orchestration/platform/cursor_store.py set_job": "is the store itself",
    "orchestration/platform/cursor_store.py set_backfill": "is the store itself",
    "orchestration/platform/cursor_store.py _write": "is the store itself",
    "orchestration/platform/cursor_store.py _set_and_read": "is the store itself",
    "orchestration/platform/resources.py spark_config": "downloads jars, once for the machine",
    "orchestration/platform/resources.py spark_session": "starts the machine's Spark",
    "orchestration/run/own_sql.py spark_submit_arguments": "downloads jars, and writes a file that lasts as the block",
    "orchestration/run/own_sql.py spark_command": "as spark_submit_arguments",
    "exactly_once/publish/table_changes.py _take_columns_back": "is what ALTER_TARGET does",
    "exactly_once/publish/table_changes.py _take_properties_back": "is what ALTER_TARGET does",
    "exactly_once/publish/restorer.py write": "is what WRITE_BRANCH does",
    "exactly_once/publish/result_writer.py write": "is what WRITE_BRANCH does",
    "exactly_once/publish/result_writer.py _write": "as write, which alone calls it",
    "exactly_once/publish/result_writer.py _remove": "as write, which alone calls it",
    "exactly_once/publish/result_writer.py write_rows": "as write, which alone calls it",
    "exactly_once/publish/result_writer.py _write_all": "as write, which alone calls it",
    "exactly_once/publish/result_writer.py _replace_all": "as write, which alone calls it",
    "exactly_once/publish/result_writer.py _combine_all": "as write, which alone calls it",
}


def sources() -> dict[str, str]:
    root = Path(dagster_ips.__file__).parent
    found = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    return {name: text for name, text in found.items() if not name.startswith(PURE)}


def outside_effects(files: dict[str, str]) -> dict[str, list[str]]:
    return {where: calls for where, calls in durable_calls(files).items() if not where.startswith(BELOW)}


def test_no_durable_write_is_called_outside_an_effect() -> None:
    found = outside_effects(sources())
    assert {where: calls for where, calls in found.items() if where not in ALLOWED} == {}
    assert found.keys() >= ALLOWED.keys(), "an exception that nothing needs any more"


@pytest.mark.parametrize(
    "stray",
    mostly_slow(
        [
            "catalog.register('ips.x', location)",
            "catalog.drop(name)",
            "drop_icdc_table(catalog, name, edge)",
            "self.store.set_copy(asset, copy)",
            "instance.daemon_cursor_storage.set_cursor_values({'a': 'b'})",
            "catalog.storage.write(location, b'')",
            "catalog.storage.delete(location)",
            "catalog.client.load_table(name).transaction()",
            "frame.writeTo(name).append()",
            "frame.writeTo(name).overwritePartitions()",
            "frame.write.saveAsTable(name)",
            "frame.alias('s').mergeInto(name, on).whenMatched().delete().merge()",
            "session.sql(f'DELETE FROM {name}')",
            "session.sql(text)",
            "commit_refs(catalog, table, change, asset=asset)",
            "branch.cut_for_days(session, head_snapshot_id=1, days=1)",
            "result.write(branch, target)",
            "path.write_text('x')",
            "path.unlink()",
            "os.remove(path)",
            "open(path, 'w')",
        ],
        quick=4,
    ),
)
def test_a_stray_write_is_found_even_if_it_is_behind_a_function(stray: str) -> None:
    body = f"""
    def _deep():
        {stray}

    def step():
        with effect(Effect.PUBLISH):
            _deep()
        _deep()
    """
    found = outside_effects(sources() | {"exactly_once/stray.py": textwrap.dedent(body)})
    assert found["exactly_once/stray.py _deep"]
    assert found["exactly_once/stray.py step"] == ["8: _deep"]


class Watch:
    """Compares the durable state at the end of an effect with the state at the beginning of the next one."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance) -> None:
        self._lake, self._instance = lake, instance
        self.last: Durable = durable(lake, instance)
        self.strays: list[tuple[str, set[str]]] = []
        self.seen: dict[Effect, int] = {}
        self.idle: list[Effect] = []

    def __call__(self, effect: Effect, when: str) -> None:
        now = durable(self._lake, self._instance)
        changed = now.changed_since(self.last)
        if when == "before" and changed:
            self.strays.append((f"before {effect}", changed))
        if when == "after":
            self.seen[effect] = self.seen.get(effect, 0) + 1
            if not changed:
                self.idle.append(effect)
        self.last = now

    def end(self) -> None:
        if changed := durable(self._lake, self._instance).changed_since(self.last):
            self.strays.append(("at the end", changed))


@pytest.fixture
def watch(lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Watch:
    lake.create_playback(events(range(6)))
    watch = Watch(lake, instance)
    monkeypatch.setattr(effects, "observers", [watch])
    return watch


def test_durable_state_changes_in_every_effect_and_never_between_effects(
    lake: Lake, instance: dg.DagsterInstance, watch: Watch
) -> None:
    columns = ["*"]

    @dg.asset(ins={"daily": ips.incremental()}, metadata=ips.append() | ips.table("media.sorted", sort_by=["event_id"]))
    def ordered(daily: ips.IcdcView) -> DataFrame:
        return daily.added.selectExpr(*columns)

    definitions = pipeline(lake.folder, lake.spark_folder, ordered)
    for late in ([], [10, 11], []):
        if late:
            lake.append(events(late))
            watch.last = durable(lake, instance)
            columns.append("1 AS more")
        materialize(definitions, instance, "daily", "agg", "ordered")
        watch.end()
    assert watch.strays == []
    # A branch is dropped by its publication; a run drops one by itself only if it isn't published.
    assert watch.seen.keys() == {*OF_RUNS, Effect.TRY_CURSORS} - {Effect.DROP_BRANCH}
    assert watch.idle == []


def test_a_write_between_effects_is_found(lake: Lake, instance: dg.DagsterInstance, watch: Watch) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.stray"))
    def stray(playback: ips.IcdcView) -> DataFrame:
        instance.daemon_cursor_storage.set_cursor_values({"stray": "1"})
        (lake.folder / "stray").touch()
        return playback.added

    materialize(pipeline(lake.folder, lake.spark_folder, stray), instance, "stray")
    assert watch.strays == [(f"before {Effect.CREATE_TARGET}", {"cursor stray", f"file {lake.folder}/stray"})]
