"""An instance that would not store what was consumed is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import dagster as dg
import pytest

from dagster_ips.errors import CursorStorageError, IpsError
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.cursor import Cursor
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline


def not_implemented(keys: Iterable[str]) -> dict[str, str]:
    """Fails only for the library's keys: Dagster stores a few of its own here."""
    if any(key.startswith("dagster_ips") for key in keys):
        raise NotImplementedError
    return {}


def forgets(_: Iterable[str]) -> dict[str, str]:
    return {}


@pytest.mark.parametrize(
    ("method", "instead"),
    [("set_cursor_values", not_implemented), ("get_cursor_values", not_implemented), ("set_cursor_values", forgets)],
)
def test_an_instance_without_working_cursors_is_refused_before_anything_is_captured(
    lake: Lake,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    instead: Callable[..., dict[str, str]],
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(3)))
    monkeypatch.setattr(instance.daemon_cursor_storage, method, instead)
    with pytest.raises((CursorStorageError, dg.DagsterError)) as raised:
        materialize(definitions, instance, "daily")
    assert "can't store cursors" in told(raised.value)
    assert not lake.catalog.metadata_locations_by_prefix("ips", "daily")
    with pytest.raises(CursorStorageError, match="SQLite, PostgreSQL or MySQL"):
        CursorStore(instance).require_working()


def test_checking_an_instance_that_stores_cursors_changes_no_cursor(instance: dg.DagsterInstance) -> None:
    store = CursorStore(instance)
    store.require_working()
    store.require_working()
    assert store.get("daily") == Cursor()


def told(error: BaseException) -> str:
    """The message of the library's error, which may be the cause of an error of Dagster."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, IpsError):
        found = found.__cause__
    return str(found)
