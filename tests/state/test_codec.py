"""A stored state is read back exactly as it was written, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagster_ips.core.capture import Capture, EdgeState, Mode, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import Bite, FileSet
from dagster_ips.core.intervention import Intervention, InterventionKind
from dagster_ips.core.touched import LineState, Stray, Touched, Unread
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import StateUnreadableError, StateVersionError
from dagster_ips.state.codec import EDGE_VERSION, decode, decode_line, encode, encode_line
from tests.support.memory_store import MemoryEdgeStore

EDGE = Edge("playback_daily", "playback")

# Never change this: any later release must read a cursor of version 1.
VERSION_1 = """
{"version":1,"edge":{"consumer":"playback_daily","upstream":"playback"},
 "committed":{"table_uuid":"9d0c","ref":"main","snapshot_id":8412,"sequence_number":7,"timestamp_ms":1767225600000},
 "number":3,
 "in_flight":{"edge":{"consumer":"playback_daily","upstream":"playback"},"number":4,"mode":"incremental",
  "reason":"goes on from what was consumed of playback",
  "from_exclusive":{"table_uuid":"9d0c","ref":"main","snapshot_id":8412,"sequence_number":7,
   "timestamp_ms":1767225600000},
  "to_inclusive":{"table_uuid":"9d0c","ref":"main","snapshot_id":9001,"sequence_number":9,
   "timestamp_ms":1767229200000},
  "icdc_table":"ips.playback_daily__playback_392911__000004_c57f89","run_id":"5b1e","after_stamp":77},
 "target":{"table_uuid":"1f3a","snapshot_id":77,"sequence_number":5,"timestamp_ms":1767225700000}}
"""

VERSION_2 = """
{"version":2,"edge":{"consumer":"playback_daily","upstream":"playback"},
 "committed":{"table_uuid":"9d0c","ref":"main","snapshot_id":8412,"sequence_number":7,"timestamp_ms":1767225600000},
 "number":4,"in_flight":{"edge":{"consumer":"playback_daily","upstream":"playback"},"number":5,"mode":"incremental",
  "reason":"goes on","from_exclusive":null,
  "to_inclusive":{"table_uuid":"9d0c","ref":"main","snapshot_id":9001,"sequence_number":9,"timestamp_ms":1767229200000},
  "icdc_table":"ips.t","run_id":"r","after_stamp":77,"bite":{"first":100,"end":200,"total":10000}},
 "target":{"table_uuid":"1f3a","snapshot_id":77,"sequence_number":5,"timestamp_ms":1767225700000},
 "file_set":{"to_inclusive":{"table_uuid":"9d0c","ref":"main","snapshot_id":9001,"sequence_number":9,
  "timestamp_ms":1767229200000},"taken":100,"total":10000},
 "voided":4,"is_beginning":false,
 "interventions":[{"kind":"rewind","who":"ada","why":"a bad update","at_ms":1767229300000,"number":4,
  "before":{"table_uuid":"9d0c","ref":"main","snapshot_id":9001,"sequence_number":9,"timestamp_ms":1767229200000},
  "after":{"table_uuid":"9d0c","ref":"main","snapshot_id":8412,"sequence_number":7,"timestamp_ms":1767225600000}}],
 "reread_to":{"table_uuid":"9d0c","ref":"main","snapshot_id":9001,"sequence_number":9,"timestamp_ms":1767229200000}}
"""

VERSION_3 = VERSION_2.replace('"version":2', '"version":3').replace(
    '"bite":{',
    '"target":{"table_uuid":"1f3a","snapshot_id":77,"sequence_number":5,"timestamp_ms":1767225700000},"bite":{',
)

texts = st.text(max_size=20)
ids = st.integers(-(2**63), 2**63 - 1)
edges = st.builds(Edge, texts, texts)
watermarks = st.builds(Watermark, texts, texts, ids, ids, ids, st.none() | ids)
bites = st.builds(Bite, ids, ids, ids)
file_sets = st.builds(FileSet, watermarks, ids, ids)
marks = st.builds(TargetMark, texts, ids, ids, ids)


@st.composite
def states(draw: st.DrawFn) -> EdgeState:
    edge = draw(edges)
    some = st.none() | watermarks
    modes = st.sampled_from(Mode)
    number = st.none() | ids
    partly, known = st.none() | bites, st.none() | marks
    captures = st.builds(Capture, st.just(edge), ids, modes, texts, some, some, texts, texts, number, partly, known)
    in_flight, mark, file_set = draw(st.none() | captures), draw(st.none() | marks), draw(st.none() | file_sets)
    kinds = st.sampled_from(InterventionKind)
    interventions = st.lists(st.builds(Intervention, kinds, texts, texts, ids, ids, some, some), max_size=3).map(tuple)
    changed = draw(ids), draw(interventions), draw(st.booleans()), draw(some)
    return EdgeState(edge, draw(some), draw(ids), in_flight, mark, file_set, *changed)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
PLACES = [(), ("version",), ("edge",), ("committed",), ("number",), ("in_flight",), ("target",), ("in_flight", "mode")]
PLACES += [("file_set",), ("file_set", "to_inclusive"), ("file_set", "taken")]
PLACES += [("in_flight", "target"), ("voided",), ("interventions",), ("reread_to",), ("is_beginning",)]


@settings(max_examples=200, deadline=None)
@given(states())
def test_every_state_is_read_back_as_it_was(state: EdgeState) -> None:
    assert decode(encode(state), state.edge) == state


def test_a_cursor_of_version_1_is_read_by_this_release() -> None:
    committed = Watermark("9d0c", "main", 8412, 7, 1767225600000)
    to = Watermark("9d0c", "main", 9001, 9, 1767229200000)
    reason = "goes on from what was consumed of playback"
    icdc_table = "ips.playback_daily__playback_392911__000004_c57f89"
    capture = Capture(EDGE, 4, Mode.INCREMENTAL, reason, committed, to, icdc_table, "5b1e", 77)
    assert decode(VERSION_1, EDGE) == EdgeState(EDGE, committed, 3, capture, TargetMark("1f3a", 77, 5, 1767225700000))


def test_a_cursor_of_version_2_is_read_by_this_release() -> None:
    committed, before = (Watermark("9d0c", "main", *at) for at in [(8412, 7, 1767225600000), (9001, 9, 1767229200000)])
    rewind = Intervention(InterventionKind.REWIND, "ada", "a bad update", 1767229300000, 4, before, committed)
    mark = TargetMark("1f3a", 77, 5, 1767225700000)
    held = Capture(
        EDGE, 5, Mode.INCREMENTAL, "goes on", None, before, "ips.t", "r", after_stamp=77, bite=Bite(100, 200, 10_000)
    )
    expected = EdgeState(EDGE, committed, 4, held, mark, FileSet(before, 100, 10_000), 4, (rewind,), reread_to=before)
    assert decode(VERSION_2, EDGE) == expected


def test_a_cursor_of_version_3_is_read_by_this_release() -> None:
    before, now = decode(VERSION_2, EDGE), decode(VERSION_3, EDGE)
    assert before.in_flight
    assert now == replace(before, in_flight=replace(before.in_flight, target=TargetMark("1f3a", 77, 5, 1767225700000)))


@given(st.integers(EDGE_VERSION + 1, 10**6), json_values)
def test_a_newer_version_is_refused_whatever_else_it_contains(version: int, more: Any) -> None:  # noqa: ANN401  # any JSON
    text = json.dumps({"version": version, "whatever": more})
    with pytest.raises(StateVersionError, match="Upgrade dagster_ips"):
        decode(text, EDGE)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40) | json_values.map(json.dumps))
def test_garbage_is_refused_and_the_edge_named(text: str) -> None:
    with pytest.raises(StateUnreadableError, match="playback_daily"):
        decode(text, EDGE)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PLACES), json_values)
@example(("version",), float("inf"))
@example(("number",), float("inf"))
def test_a_value_damaged_in_one_place_never_fails_with_another_error(place: tuple[str, ...], damage: Any) -> None:  # noqa: ANN401  # any JSON
    value: Any = {"": json.loads(VERSION_3)}
    holder = value
    for key in ("", *place)[:-1]:
        holder = holder[key]
    holder[("", *place)[-1]] = damage
    try:
        state = decode(json.dumps(value[""]), EDGE)
    except (StateUnreadableError, StateVersionError):
        return
    assert decode(encode(state), EDGE) == state


@given(st.integers(0, len(VERSION_1.strip()) - 1))
def test_a_value_cut_short_is_refused(length: int) -> None:
    with pytest.raises(StateUnreadableError):
        decode(VERSION_1.strip()[:length], EDGE)


def test_the_state_of_another_edge_is_refused() -> None:
    with pytest.raises(StateUnreadableError, match="state of other ← playback"):
        decode(encode(EdgeState(Edge("other", "playback"))), EDGE)


def test_a_store_gives_a_fresh_state_first_and_then_the_last_one_set() -> None:
    store = MemoryEdgeStore()
    assert store.get(EDGE) == EdgeState(EDGE)
    later = EdgeState(EDGE, Watermark("9d0c", "main", 1, 1, 1), 1)
    store.set(later)
    assert store.get(EDGE) == later
    assert store.get(Edge("playback_daily", "plans")).number == 0


LINE_VERSION_1 = """
{"version":1,"edge":{"consumer":"playback_daily","upstream":"playback"},
 "scanned":{"table_uuid":"9d0c","ref":"main","snapshot_id":9001,"sequence_number":9,"timestamp_ms":1767229200000},
 "touched":[{"since":null,"last":{"table_uuid":"9d0c","ref":"main","snapshot_id":8412,"sequence_number":7,
  "timestamp_ms":1767225600000},"keys":["2026-01-01","2026-01-02"]}],
 "unmapped":["2025-12-31"],"abandoned":[12]}
"""

touches = st.builds(Touched, st.none() | watermarks, watermarks)
lines = st.builds(
    LineState,
    edges,
    st.none() | watermarks,
    st.dictionaries(texts, touches, max_size=4),
    st.frozensets(ids, max_size=3),
    st.dictionaries(texts, st.builds(Unread, touches, texts, st.booleans()), max_size=4),
    st.dictionaries(texts, st.builds(Stray, st.tuples(texts), st.tuples(texts, texts)), max_size=4),
    st.booleans(),
    st.none() | st.frozensets(texts, max_size=4),
    losses=st.sampled_from(["", "0" * 31 + "a"]),
    awaits_lost=st.booleans(),
    unchecked=st.none() | watermarks,
)


@settings(max_examples=100, deadline=None)
@given(lines)
def test_the_state_of_partitions_is_read_back_as_it_was(line: LineState) -> None:
    assert decode_line(encode_line(line), line.edge) == line


def test_a_partition_state_of_version_1_is_read_by_this_release() -> None:
    scanned, last = (Watermark("9d0c", "main", *at) for at in [(9001, 9, 1767229200000), (8412, 7, 1767225600000)])
    touched = dict.fromkeys(["2026-01-01", "2026-01-02"], Touched(None, last))
    expected = LineState(
        EDGE, scanned, touched, frozenset([12]), strays={"": Stray(("2025-12-31",))}, knows_keys_to_come=False
    )
    assert decode_line(LINE_VERSION_1, EDGE) == expected
