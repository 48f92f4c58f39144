"""Dagster's cursor storage keeps every edge's state, whatever database it is on."""

from __future__ import annotations

import string
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import dagster as dg
import pytest

from dagster_ips.core.capture import Capture, EdgeState, Mode, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.intervention import InterventionKind
from dagster_ips.core.touched import LineState
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import CursorStorageError
from dagster_ips.iceberg.icdc.icdc_names import new_name
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.state.codec import encode
from tests.support.backends import on_every_backend
from tests.support.durable import cursors

EDGE = Edge("daily", "playback")
# MySQL: Dagster keeps an asset key in VARCHAR(512), a cursor's value in TEXT, and tells keys apart by 64 characters.
MOST_KEY_CHARACTERS, MOST_VALUE_BYTES, MOST_ASSET_KEY_CHARACTERS = 64, 65_535, 512


def state(number: int, edge: Edge = EDGE) -> EdgeState:
    return EdgeState(edge, Watermark("9d0c", "main", number, number, number), number)


def largest_state() -> EdgeState:
    """A state in which every text is as long as possible, in the characters that take the most bytes."""
    key, number = "\N{PILE OF POO}" * MOST_ASSET_KEY_CHARACTERS, -(2**63)
    edge, uuid = Edge(key, key), "9d0c1f3a-0000-0000-0000-000000000000"
    mark = Watermark(uuid, "\N{PILE OF POO}" * 128, number, number, number)
    capture = Capture(
        edge=edge,
        number=2**63,
        mode=Mode.INCREMENTAL,
        reason=key,
        from_exclusive=mark,
        to_inclusive=mark,
        icdc_table=f"{'n' * 128}.{new_name(edge, 2**63)}",
        run_id=uuid,
        after_stamp=number,
        target=TargetMark(uuid, number, number, number),
    )
    return EdgeState(edge, mark, 2**63, capture, capture.target)


@on_every_backend
def test_a_state_is_read_back_by_any_store_on_the_instance(instance: dg.DagsterInstance) -> None:
    store = CursorStore(instance)
    assert store.get(EDGE) == EdgeState(EDGE)
    for number in (1, 2):
        store.set(state(number))
        assert store.get(EDGE) == state(number)
    with dg.DagsterInstance.from_config(instance.root_directory) as another:
        assert CursorStore(another).get(EDGE) == state(2)


@on_every_backend
def test_many_states_are_read_at_once_and_those_never_stored_are_fresh(instance: dg.DagsterInstance) -> None:
    store = CursorStore(instance)
    edges = [Edge(f"consumer_{number}", "playback") for number in range(2_100)]
    stored = {edge: state(number + 1, edge) for number, edge in enumerate(edges[::300])}
    for each in stored.values():
        store.set(each)
    assert store.get_many(edges) == {edge: stored.get(edge, EdgeState(edge)) for edge in edges}
    assert store.get_many([]) == {}


@on_every_backend
def test_runs_of_different_edges_at_once_lose_no_state(instance: dg.DagsterInstance) -> None:
    edges = [Edge("daily", f"upstream_{number}") for number in range(8)]

    def advance(edge: Edge) -> None:
        store = CursorStore(instance)
        for number in range(1, 11):
            assert store.get(edge).number == number - 1
            store.set(state(number, edge))

    with ThreadPoolExecutor(len(edges)) as threads:
        list(threads.map(advance, edges))
    assert CursorStore(instance).get_many(edges) == {edge: state(10, edge) for edge in edges}


@on_every_backend
def test_the_largest_state_fits_the_limits_of_the_smallest_database(instance: dg.DagsterInstance) -> None:
    store, largest = CursorStore(instance), largest_state()
    assert len(encode(largest).encode()) < MOST_VALUE_BYTES
    store.set(largest)
    assert store.get(largest.edge) == largest
    store.intervene(largest)
    keys = cursors(instance)
    assert len(keys) == 2
    assert max(map(len, keys)) <= MOST_KEY_CHARACTERS
    assert set("".join(keys)) <= set(string.ascii_lowercase + string.digits + ":_")


@on_every_backend
def test_a_persons_intervention_stays_whatever_an_unaware_run_writes(instance: dg.DagsterInstance) -> None:
    store = CursorStore(instance)
    store.set(before := state(3))
    reset = before.with_intervention(InterventionKind.RESET, None, who="me", why="test", at_ms=0)
    store.intervene(reset)
    store.set(replace(before, number=4))
    assert store.get(EDGE) == reset
    store.set(replace(reset, number=5))
    assert store.get(EDGE).number == 5


@on_every_backend
def test_many_states_are_stored_at_once_whether_their_edges_are_new_or_not(instance: dg.DagsterInstance) -> None:
    store = CursorStore(instance)
    states = [replace(state(1), edge=Edge("daily", "playback", str(partition))) for partition in range(250)]
    store.set(*states[::3])
    newer = [replace(each, number=7) for each in states]
    store.set(*newer)
    assert list(store.get_many(each.edge for each in states).values()) == newer


@pytest.mark.parametrize("writes", range(5))
def test_if_a_run_dies_meanwhile_the_inputs_of_a_partition_agree(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    edges = [Edge("daily", upstream, str(partition)) for upstream in ("playback", "title") for partition in range(250)]
    store = CursorStore(instance)
    store.set(*(state(1, edge) for edge in edges))
    left, storage = iter(range(writes)), type(instance.daemon_cursor_storage)
    write = storage.set_cursor_values

    def dies(self: object, pairs: Mapping[str, str]) -> None:
        next(left)
        write(self, pairs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, suppress(StopIteration):
        patch.setattr(storage, "set_cursor_values", dies)
        store.set(*(state(2, edge) for edge in edges))
    numbers = {edge: found.number for edge, found in store.get_many(edges).items()}
    assert all(numbers[edge] == numbers[replace(edge, upstream="title")] for edge in edges)
    assert len(set(numbers.values())) == (2 if 0 < writes < 3 else 1)


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
        store.set(state(1))


def test_what_is_known_of_a_line_counts_as_lost_if_it_was_not_stored_in_full() -> None:
    """No run of its asset could repair it: each of them reads it first."""
    storage = Storage(100)

    class Instance:
        daemon_cursor_storage = storage

    store = CursorStore(Instance())  # type: ignore[arg-type]  # the fault is below the store
    line = LineState(EDGE, state(1).committed)
    with pytest.raises(CursorStorageError, match="came back with only 100"):
        store.set_line(line)
    storage.most = 10_000
    assert store.get_line(EDGE) == LineState(EDGE)
    store.set_line(line)
    assert store.get_line(EDGE) == line
