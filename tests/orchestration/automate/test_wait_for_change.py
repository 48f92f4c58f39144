"""A tick that finds nothing to run waits for a change, and sees all commits that an outside job makes in a row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.automate import wait_for_change
from dagster_ips.orchestration.watch.watched_tables import WatchedTables
from tests.support.lake import events
from tests.support.ticks import tick
from tests.support.without_spark import Tables, manager_of


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    tables = Tables(tmp_path / "lake")
    tables.create("playback")
    return tables


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[object]]:
    """Calls the next of several functions whenever a tick sleeps, and returns those that are left."""

    def do(*things: Callable[[], object]) -> Iterator[object]:
        left = iter(things)
        monkeypatch.setattr(wait_for_change.time, "sleep", lambda _: next(left, lambda: None)())
        return left

    return do


def waiting(tables: Tables, wait_seconds: float) -> dg.Definitions:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append())
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    manager = manager_of(tables.folder)
    definitions = dg.Definitions(
        assets=[ips.iceberg_asset("playback", table="media.playback"), daily], resources={"io_manager": manager}
    )
    return ips.with_incremental(definitions, wait_seconds=wait_seconds)


def requested(instance: dg.DagsterInstance, definitions: dg.Definitions) -> list[dg.AssetKey]:
    return [key for request in tick(definitions, instance).run_requests or () for key in request.asset_selection or ()]


@pytest.mark.parametrize(("wait_seconds", "found"), [(20, [dg.AssetKey("daily")]), (0, [])])
def test_a_change_committed_while_a_tick_waits_is_requested_by_that_tick(
    tables: Tables,
    instance: dg.DagsterInstance,
    meanwhile: Callable[..., object],
    wait_seconds: float,
    found: list[dg.AssetKey],
) -> None:
    definitions = waiting(tables, wait_seconds)
    assert requested(instance, waiting(tables, 0)) == []
    meanwhile(*[lambda: None] * 3, lambda: tables.append(events(range(3))))
    assert requested(instance, definitions) == found


def test_a_tick_without_any_change_ends(tables: Tables, instance: dg.DagsterInstance) -> None:
    assert requested(instance, waiting(tables, 1.5)) == []


def test_a_change_committed_before_a_tick_is_requested_without_another_change(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    tables.append(events(range(3)))
    assert requested(instance, waiting(tables, 20)) == [dg.AssetKey("daily")]


def watched(tables: Tables) -> wait_for_change.ChangeWait:
    each = WatchedTables(ips.IcebergCatalog(folder=str(tables.folder)))
    each.names.add("media.playback")
    return wait_for_change.ChangeWait.of([each, each])


def test_a_tick_looks_until_a_job_that_commits_several_times_is_done(
    tables: Tables, instance: dg.DagsterInstance, meanwhile: Callable[..., Iterator[object]]
) -> None:
    found = watched(tables)
    found.look(instance, until=math.inf)
    tables.append(events(range(3)))
    left = meanwhile(*[lambda n=n: tables.append(events(range(n, n + 1))) for n in range(3, 7)])
    found.look(instance, until=math.inf)
    assert list(left) == []
    meanwhile()
    assert not found.came(instance, until=time.monotonic() + 0.3)


def test_a_run_that_begins_or_finishes_ends_the_wait(
    tables: Tables, instance: dg.DagsterInstance, meanwhile: Callable[..., object]
) -> None:
    found, run = watched(tables), dg.DagsterRun("some", status=dg.DagsterRunStatus.STARTED)
    found.look(instance, until=math.inf)
    meanwhile(lambda: instance.run_storage.add_run(run))
    assert found.came(instance, until=math.inf)
    found.look(instance, until=math.inf)
    ended = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, "some")
    meanwhile(lambda: instance.report_dagster_event(ended, run.run_id))
    assert found.came(instance, until=math.inf)


def test_a_catalog_that_does_not_answer_does_not_end_the_wait(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    (tmp_path / "file").write_text("not a folder")
    found = watched(Tables(tmp_path / "file" / "lake"))
    found.look(instance, until=time.monotonic() + 1)
    assert not found.came(instance, until=time.monotonic() + 1)


@pytest.mark.parametrize("wait_seconds", [-1, 30, math.nan])
def test_a_wait_that_would_hold_up_the_ticks_of_other_sensors_is_refused(tables: Tables, wait_seconds: float) -> None:
    with pytest.raises(DeclarationError, match="Give at least 0 and less than 30"):
        waiting(tables, wait_seconds)
