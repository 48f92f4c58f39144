"""Tables that one step writes together: one change is read for all of them.

Each table has its own edges, and is published and committed separately. So some of them may be behind: a run was killed
after it had published others, or wrote only those; a table is new, or what it consumed was reset. Then the next run
computes only the tables that are furthest behind, up to where the next ones are. Once all are at the same place, they
are computed together again. No table gets a change twice or misses one, or is recomputed because another table is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest, ReadyToCapture
from dagster_ips.exactly_once.capture.partitioned_input import look_at
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage


def capture_together(
    capturer: Capturer, requests: Sequence[CaptureRequest], *, run_id: str
) -> dict[str, tuple[CapturedInput, ...]]:
    """Take one capture per input for each consumer that is furthest behind, all of the same change; skip the others.

    The ``requests`` are for the same inputs. Consumers that must read everything are the furthest behind.

    Raises:
        IpsError: as in ``Capturer.capture``.
    """
    if len(requests) == 1:
        return {requests[0].consumer: capturer.capture(requests[0], run_id=run_id)}
    ready = [capturer.look(each) for each in requests]
    # The sources that were loaded last are the newest, so all that is consumed is in their history.
    chosen, sources = _furthest_behind(ready, [each.source for each in ready[-1].inputs])
    return {
        each.request.consumer: capturer.take(_with_sources(each, sources, capturer.catalog.storage), run_id=run_id)
        for each in chosen
    }


def _with_sources(ready: ReadyToCapture, sources: Sequence[TableMetadata], storage: Storage) -> ReadyToCapture:
    """A copy that captures up to the heads of ``sources``, one for each input."""
    inputs = []
    for each, source in zip(ready.inputs, sources, strict=True):
        looked, consumer = each.looked, ready.request.consumer
        if looked is not None:
            replaces_all = not looked.changed.is_followed
            looked = look_at(storage, source, each.tracked, ready.known, consumer, replaces_all=replaces_all)
        inputs.append(replace(each, source=source, looked=looked))
    return replace(ready, inputs=tuple(inputs))


def _furthest_behind(
    ready: Sequence[ReadyToCapture], sources: Sequence[TableMetadata]
) -> tuple[list[ReadyToCapture], Sequence[TableMetadata]]:
    """The consumers that are furthest behind, all at one place, and the sources as of where the next consumers are.

    If there are several inputs, the first input decides first. An input in which the next consumers are further behind
    stays where it is.
    """
    if unread := [each for each in ready if each.decision.mode is Mode.FULL]:
        return unread, sources
    last = max(ready, key=lambda each: _ages(each, sources))
    chosen = [each for each in ready if _place(each) == _place(last)]
    own, others = _ages(last, sources), [_ages(each, sources) for each in ready if each not in chosen]
    if not others or math.inf in own:
        return chosen, sources
    ends = [min(ages) for ages in zip(own, max(others), strict=True)]
    return chosen, [
        source.as_of(source.ancestry(each.tracked.ref).snapshots[int(end)].snapshot_id, each.tracked.ref)
        for source, each, end in zip(sources, last.inputs, ends, strict=True)
    ]


def _ages(ready: ReadyToCapture, sources: Sequence[TableMetadata]) -> tuple[float, ...]:
    """How many snapshots each input's watermark is behind the head.

    Infinite if the watermark is no longer in the history, or the state itself says up to where to read next.
    """
    return tuple(
        _age(state, source, each.tracked.ref)
        for source, each in zip(sources, ready.inputs, strict=True)
        for state in each.states
    )


def _age(state: EdgeState, source: TableMetadata, ref: str) -> float:
    committed = state.committed
    if committed is None or state.file_set or state.reread_to or committed.table_uuid != source.uuid:
        return math.inf
    ids = [snapshot.snapshot_id for snapshot in source.ancestry(ref).snapshots]
    return ids.index(committed.snapshot_id) if committed.snapshot_id in ids else math.inf


def _place(ready: ReadyToCapture) -> list[object]:
    """Equal for consumers whose captures would take the same."""
    marks = [(state, state.committed) for each in ready.inputs for state in each.states]
    return [(at and (at.table_uuid, at.snapshot_id), state.file_set, state.reread_to) for state, at in marks]
