"""Whether a run continues from where it was, or starts over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ips.core.capture import EdgeState, Mode


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """The mode of a run and, in words, why."""

    mode: Mode
    reason: str

    def or_full(self, *reasons: str | None) -> ModeDecision:
        """Full if there is a reason for it; unchanged if there is none.

        Example:
            >>> ModeDecision(Mode.INCREMENTAL, "goes on").or_full(None, "its history was cut").mode
            <Mode.FULL: 'full'>
        """
        told = [reason for reason in reasons if reason is not None]
        return ModeDecision(Mode.FULL, ", ".join(told)) if told else self


def decide_mode(
    states: Sequence[EdgeState],
    *,
    asked_for: Mode | None,
    target_exists: bool,
    named_by_person: bool = False,
    taken_from: str | None = None,
) -> ModeDecision:
    """One mode for all inputs of a run: full if requested, and until something of every input is consumed.

    Partitions that a person named are recomputed, unless the run requests another mode, and so is a table that is
    ``taken_from`` another asset. New partitions are no reason to recompute others that have a watermark.

    If all inputs only begin, at their declared ``start``, the target may be missing: earlier rows are left out on
    purpose.

    Example:
        >>> from dagster_ips.core.edge import Edge
        >>> decide_mode([EdgeState(Edge("daily", "playback"))], asked_for=None, target_exists=False)
        ModeDecision(mode=<Mode.FULL: 'full'>, reason='nothing has been consumed from playback yet')
    """
    if why := _asked_for(asked_for, taken_from, named_by_person=named_by_person):
        return ModeDecision(Mode.FULL, why)
    old = _without_new_partitions(states)
    unread = [state for state in old or states if not (state.committed or state.file_set or state.consumed_nothing)]
    fresh = list(dict.fromkeys(state.edge.upstream for state in unread))
    if fresh:
        return ModeDecision(Mode.FULL, f"nothing has been consumed from {', '.join(fresh)} yet")
    beginning = [state for state in states if state.is_beginning]
    if not target_exists and len(beginning) < len(states):
        return ModeDecision(Mode.FULL, "its table doesn't exist")
    if beginning:
        return ModeDecision(Mode.INCREMENTAL, f"begins at the declared start of {_names(beginning)}")
    return ModeDecision(Mode.INCREMENTAL, f"continues from the last consumed change of {_names(states)}")


def _asked_for(asked_for: Mode | None, taken_from: str | None, *, named_by_person: bool) -> str | None:
    """Why everything is computed, whatever was consumed; None if nobody asked for that."""
    if taken_from:
        return f"takes over the table from {taken_from}"
    if asked_for is Mode.FULL:
        return f"requested by the run tag dagster_ips/mode={asked_for}"
    if asked_for is None and named_by_person:
        return "someone selected these partitions to materialize"
    return None


def _names(states: Sequence[EdgeState]) -> str:
    return ", ".join(dict.fromkeys(state.edge.upstream for state in states))


def _without_new_partitions(states: Sequence[EdgeState]) -> list[EdgeState]:
    """The states of the partitions that have consumed any input before."""
    known = {state.edge.partition for state in states if state.committed is not None}
    return [state for state in states if state.edge.partition in known]
