"""What a target's own history says about an edge: its published stamps decide, the cursor remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from dagster_ips.core.ancestry import Ancestry
from dagster_ips.core.capture import Capture, EdgeState, Mode, Stamp, TargetMark
from dagster_ips.core.edge import Edge


@dataclass(frozen=True, slots=True)
class TargetHistory:
    """The target's ``main``, newest first, and the newest stamp of one edge in it.

    ``announced`` is the last snapshot that a run was about to publish for the edge; None if no run ever was.
    """

    table_uuid: str
    ancestry: Ancestry
    newest: Stamp | None
    announced: int | None = None


class Standing(StrEnum):
    """Whether a capture may be published to the target as it is now. All values but the first two say why not."""

    MAY_PUBLISH = "may publish"
    SUPERSEDED = "superseded"
    PARTIAL = "another run published a change of {edge} while this run recomputed everything"
    CHANGED = "the newest stamp of {edge} isn't the one that this capture started from"
    UNKNOWN = "snapshots have expired, so it is unknown whether another run published {edge} in the meantime"


def settle(state: EdgeState, history: TargetHistory | None) -> EdgeState:
    """``state``, updated to what the target's newest stamp of the edge records as consumed.

    The stamp is newer if a run was killed between publishing and committing, or if the cursor was lost. Without a stamp
    newer than the one that the state knows of, the state is returned unchanged. Numbers don't show which is newer: a
    run that had nothing to write uses one up without a stamp, while another run may publish with the same number.
    """
    if history is None or history.newest is None or not _is_newer(history.newest, state.target, history):
        return state
    return state.with_stamp(history.newest)


def settle_all(states: Mapping[Edge, EdgeState], histories: Mapping[Edge, TargetHistory]) -> dict[Edge, EdgeState]:
    """Each of ``states`` as ``settle`` returns it."""
    return {edge: settle(state, histories.get(edge)) for edge, state in states.items()}


def is_older(known: TargetMark | None, other: TargetMark) -> bool:
    """Whether the ``known`` mark is missing, older than ``other``, or of a table that this one replaced."""
    if known is None or known.table_uuid != other.table_uuid:
        return True
    return known.position < other.position


def committed(state: EdgeState, capture: Capture, history: TargetHistory | None) -> EdgeState:
    """``state`` after a run of ``capture`` published or had nothing to write; ``history`` shows which.

    What is published is consumed as its stamp says, whatever others wrote to the cursor in the meantime. Without a
    stamp, the capture counts only if the state is still the one that it was taken from. Otherwise the run has no
    effect, and the next one captures the same changes again.
    """
    known = replace(state, in_flight=capture)  # another capture may have been taken since, and be in flight instead
    settled = settle(known, history)
    if settled is not known:
        return replace(settled, in_flight=state.without(capture).in_flight)
    return state.with_committed(capture, None) if state.goes_on_as(capture) else state


def shows_all_since(mark: TargetMark | None, history: TargetHistory) -> bool:
    """Whether ``history`` shows everything that can have been published for the edge after ``mark``.

    Snapshots expire, and stamps with them, but the table's properties don't: in a property, a run announces which
    snapshot it is about to publish. Everything that was published was announced before, and an announcement is only
    overwritten by a later one. So if ``mark`` was announced last, nothing was published after it, however many
    snapshots have expired: if two runs announced and raced, the one that announced first can't have published after the
    other, which moved ``main``. If another snapshot was announced last, it was either published or never will be. The
    history of ``main`` shows which, as far as it is retained; beyond that, it can't be known.
    """
    known = mark.snapshot_id if mark is not None else None
    if history.announced in (None, known) or history.ancestry.is_whole:
        return True
    return known is not None and history.ancestry.find(known) is not None


def standing_of(capture: Capture, history: TargetHistory) -> Standing:
    """Whether ``capture`` may be published, or another run has, or may have, published its changes in the meantime."""
    newest = history.newest
    if newest is not None and newest.number >= capture.number:
        is_partial = capture.mode is Mode.FULL and newest.mode is not Mode.FULL
        return Standing.PARTIAL if is_partial else Standing.SUPERSEDED
    if not _is_as_it_began(capture, history):
        return Standing.CHANGED
    if capture.mode is Mode.INCREMENTAL and not shows_all_since(capture.target, history):
        return Standing.UNKNOWN
    return Standing.MAY_PUBLISH


def without_target(state: EdgeState) -> EdgeState:
    """``state`` if the target doesn't exist: if it held anything, it is gone, and the next run computes everything."""
    if state.target is None:
        return state
    return replace(state, target=None) if state.is_beginning else EdgeState(state.edge)


def unexpected_change(state: EdgeState, history: TargetHistory | None) -> str | None:
    """Why the target isn't in the state that the cursor records, as the end of a sentence; None if it is.

    A target that is gone holds nothing that could be wrong: it is rebuilt. A mark whose snapshot has expired is
    believed as long as all retained snapshots are newer and the oldest of them says that it had a parent.
    """
    mark = state.target
    if mark is None or history is None:
        return None
    if history.table_uuid != mark.table_uuid:
        changed = f"uuid {mark.table_uuid} → {history.table_uuid}"
        return f"isn't the table it wrote: that was dropped and created again, or table(...) names another ({changed})"
    if history.ancestry.find(mark.snapshot_id) is not None:
        return None
    if history.ancestry.head is None or any(s.position < mark.position for s in history.ancestry.snapshots):
        return (
            f"was rolled back or rewritten to before snapshot {mark.snapshot_id}, which holds the last published change"
        )
    if history.ancestry.is_whole:
        return (
            f"was replaced (CREATE OR REPLACE) after snapshot {mark.snapshot_id}, which held the last published change"
        )
    return None


def _is_as_it_began(capture: Capture, history: TargetHistory) -> bool:
    if history.newest is not None:
        # A stamp that had expired when the capture was taken may have been found in older metadata since.
        return history.newest.target.snapshot_id == capture.after_stamp or history.newest.target == capture.target
    mark = EdgeState(capture.edge, target=capture.target)
    is_same_table = capture.target is not None and not unexpected_change(mark, history)
    # A change must not be added to a table that took the target's place, and that no expired stamp gives away.
    needs_rows = capture.mode is Mode.INCREMENTAL and capture.target is not None
    return is_same_table or (capture.after_stamp is None and not needs_rows)


def _is_newer(stamp: Stamp, known: TargetMark | None, history: TargetHistory) -> bool:
    if known is None or known.table_uuid != history.table_uuid:
        return True
    for snapshot in history.ancestry.snapshots:
        if snapshot.snapshot_id == known.snapshot_id:
            return False
        if snapshot.snapshot_id == stamp.target.snapshot_id:
            return snapshot.position >= known.position
    return False
