"""Dagster's cursor storage keeps every asset's cursor, whatever database it is on."""

from __future__ import annotations

import string
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from dagster_ips.core.capture import Capture, Mode, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import CursorStorageError
from dagster_ips.iceberg.icdc.icdc_names import new_name
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.cursor import Copy, Cursor, Job, Request, RequestKind
from dagster_ips.progress.cursor_text import copy_text, job_text, requests_text
from dagster_ips.progress.progress import InputProgress, Progress
from tests.support.backends import on_every_backend
from tests.support.durable import cursors

ASSET = "daily"
# MySQL: Dagster keeps an asset key in VARCHAR(512), a cursor's value in TEXT, and tells keys apart by 64 characters.
MOST_KEY_CHARACTERS, MOST_VALUE_BYTES, MOST_ASSET_KEY_CHARACTERS = 64, 65_535, 512
UUID = "9d0c1f3a-0000-0000-0000-000000000000"


def copy(number: int) -> Copy:
    at = Watermark("9d0c", "main", number, number, number)
    return Copy(Progress(number, {"playback": InputProgress(at)}), TargetMark("8a1b", number, number, number))


def request(number: int) -> Request:
    return Request(number, RequestKind.RESET, "playback", "me", "test", None, None)


def job(number: int) -> Job:
    capture = Capture(Edge(ASSET, "playback"), number, Mode.FULL, "", None, None, "ips.a", "daily:1")
    return Job((capture,), copy(number).progress)


@on_every_backend
def test_a_cursor_is_read_back_by_any_store_on_the_instance(instance: dg.DagsterInstance) -> None:
    store = CursorStore(instance)
    assert store.get(ASSET) == Cursor()
    for number in (1, 2):
        store.set_copy(ASSET, copy(number))
        store.set_requests(ASSET, (request(number),))
        store.set_job(ASSET, job(number))
        assert store.get(ASSET) == Cursor(copy(number), (request(number),), job(number))
    with dg.DagsterInstance.from_config(instance.root_directory) as another:
        assert CursorStore(another).get(ASSET) == Cursor(copy(2), (request(2),), job(2))
    store.set_job(ASSET, None)
    assert store.get(ASSET).job is None


@on_every_backend
def test_many_cursors_are_read_at_once_and_those_never_stored_are_empty(instance: dg.DagsterInstance) -> None:
    store = CursorStore(instance)
    assets = [f"consumer_{number}" for number in range(2_100)]
    stored = {asset: copy(number + 1) for number, asset in enumerate(assets[::300])}
    for asset, each in stored.items():
        store.set_copy(asset, each)
    assert store.get_many(assets) == {asset: Cursor(stored.get(asset)) for asset in assets}
    assert store.get_many([]) == {}


@on_every_backend
def test_runs_of_different_assets_at_once_lose_no_cursor(instance: dg.DagsterInstance) -> None:
    assets = [f"consumer_{number}" for number in range(8)]

    def advance(asset: str) -> None:
        store = CursorStore(instance)
        for number in range(1, 11):
            found = store.get(asset).copy
            assert (found.progress.number if found else 0) == number - 1
            store.set_copy(asset, copy(number))

    with ThreadPoolExecutor(len(assets)) as threads:
        list(threads.map(advance, assets))
    assert CursorStore(instance).get_many(assets) == {asset: Cursor(copy(10)) for asset in assets}


@on_every_backend
def test_the_largest_cursor_fits_the_limits_of_the_smallest_database(instance: dg.DagsterInstance) -> None:
    """Every text is as long as possible, in the characters that take the most bytes."""
    key, number = "\N{PILE OF POO}" * MOST_ASSET_KEY_CHARACTERS, -(2**63)
    edge, at = Edge(key, key), Watermark(UUID, "\N{PILE OF POO}" * 128, number, number, number)
    mark = TargetMark(UUID, number, number, number)
    copied = Copy(Progress(2**63, {key: InputProgress(at)}), mark, begun={key: at})
    asked = tuple(Request(2**63 + n, RequestKind.REWIND, key, key, key, at, at, number) for n in range(5))
    icdc_table = f"{'n' * 128}.{new_name(edge, 2**63)}"
    capture = Capture(edge, 2**63, Mode.INCREMENTAL, key, at, at, icdc_table, UUID, target=mark)
    given = Job((capture,), copied.progress)
    for text in (copy_text(copied), requests_text(asked), job_text(given)):
        assert len(text.encode()) < MOST_VALUE_BYTES
    store = CursorStore(instance)
    store.set_copy(key, copied)
    store.set_requests(key, asked)
    store.set_job(key, given)
    assert store.get(key) == Cursor(copied, asked, given)
    keys = cursors(instance)
    assert len(keys) == 3
    assert max(map(len, keys)) <= MOST_KEY_CHARACTERS
    assert set("".join(keys)) <= set(string.ascii_lowercase + string.digits + ":_")


@on_every_backend
def test_what_a_person_asked_for_stays_whatever_an_unaware_run_writes(instance: dg.DagsterInstance) -> None:
    store = CursorStore(instance)
    store.set_copy(ASSET, copy(3))
    store.set_requests(ASSET, (request(1),))
    store.set_copy(ASSET, copy(4))
    store.set_job(ASSET, None)
    assert store.get(ASSET) == Cursor(copy(4), (request(1),))


class Storage:
    """Truncates values, as MySQL does outside its strict mode, or doesn't implement cursors, as an agent does."""

    def __init__(self, most: int | None) -> None:
        self.most, self._kept = most, dict[str, str]()

    def set_cursor_values(self, pairs: Mapping[str, str]) -> None:
        if self.most is None:
            raise NotImplementedError
        self._kept |= {key: value[: self.most] for key, value in pairs.items()}

    def get_cursor_values(self, keys: set[str]) -> Mapping[str, str]:
        return {key: self._kept[key] for key in keys & self._kept.keys()}


@pytest.mark.parametrize(("most", "said"), [(100, "came back with only 100"), (None, "not implemented")])
def test_a_value_that_is_not_stored_in_full_is_an_error(most: int | None, said: str) -> None:
    class Instance:
        daemon_cursor_storage = Storage(most)

    store = CursorStore(Instance())  # type: ignore[arg-type]  # the fault is below the store
    with pytest.raises(CursorStorageError, match=said):
        store.set_copy(ASSET, copy(1))
    with pytest.raises(CursorStorageError, match=said):
        store.set_requests(ASSET, (request(1),))


def test_a_copy_counts_as_lost_if_it_was_not_stored_in_full() -> None:
    """No run of its asset could repair it: each of them reads it first."""
    storage = Storage(100)

    class Instance:
        daemon_cursor_storage = storage

    store = CursorStore(Instance())  # type: ignore[arg-type]  # the fault is below the store
    with pytest.raises(CursorStorageError, match="came back with only 100"):
        store.set_copy(ASSET, copy(1))
    storage.most = 10_000
    assert store.get(ASSET) == Cursor()
    store.set_copy(ASSET, copy(1))
    assert store.get(ASSET) == Cursor(copy(1))
