"""What a target's own history says about an edge: its published stamps decide, the cursor remembers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import Capture, EdgeState, Stamp, TargetMark


@dataclass(frozen=True, slots=True)
class TargetHistory:
    """The target's ``main``, newest first, and the newest stamp of one edge in it."""

    table_uuid: str
    ancestry: Ancestry
    newest: Stamp | None


def settle(state: EdgeState, history: TargetHistory | None) -> EdgeState:
    """``state``, brought up to what the target's newest stamp of the edge vouches for.

    A run that was killed between publishing and committing left such a stamp, and so does a lost cursor. Without a
    stamp newer than the one that the state knows of, it comes back as it is. Numbers don't tell which is newer: a run
    that had nothing to write uses one up without a stamp, while another of the same number may publish.
    """
    if history is None or history.newest is None or not _is_newer(history.newest, state.target, history):
        return state
    return state.with_stamp(history.newest)


def committed(state: EdgeState, capture: Capture, history: TargetHistory | None) -> EdgeState:
    """``state`` after a run of ``capture`` published, or had nothing to write, which ``history`` tells.

    What is published is consumed as its stamp says, whatever others wrote to the cursor meanwhile. Without a stamp
    the capture counts only if the state is still what it was taken from; else it is as if the run had not been, and
    what it looked at is looked at again.
    """
    settled = settle(state, history)
    if settled is not state:
        return replace(settled, in_flight=state.without(capture).in_flight)
    return state.with_committed(capture, None) if state.goes_on_as(capture) else state


def unexpected_change(state: EdgeState, history: TargetHistory | None) -> str | None:
    """Why the target isn't what the cursor vouches for, as the end of a sentence; None when it is.

    A target that is gone holds nothing that could be wrong: it is built anew. A mark whose snapshot was expired is
    believed as long as everything that is retained is newer and the oldest of it says to have had a parent.
    """
    mark = state.target
    if mark is None or history is None:
        return None
    if history.table_uuid != mark.table_uuid:
        return f"was dropped and created again (uuid {mark.table_uuid} → {history.table_uuid})"
    if history.ancestry.find(mark.snapshot_id) is not None:
        return None
    if history.ancestry.head is None or any(_is_older(s, mark) for s in history.ancestry.snapshots):
        return f"was rolled back or rewritten behind snapshot {mark.snapshot_id}, which holds what was published last"
    if history.ancestry.is_whole:
        return f"was replaced (CREATE OR REPLACE) after snapshot {mark.snapshot_id}, which held what was published last"
    return None


def _is_newer(stamp: Stamp, known: TargetMark | None, history: TargetHistory) -> bool:
    if known is None or known.table_uuid != history.table_uuid:
        return True
    for snapshot in history.ancestry.snapshots:
        if snapshot.snapshot_id == known.snapshot_id:
            return False
        if snapshot.snapshot_id == stamp.target.snapshot_id:
            return not _is_older(snapshot, known)
    return False


def _is_older(snapshot: Snapshot, mark: TargetMark) -> bool:
    return (snapshot.sequence_number, snapshot.timestamp_ms) < (mark.sequence_number, mark.timestamp_ms)
