"""Whether a run goes on from where it was, or starts over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ips.core.capture import EdgeState, Mode


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """The mode of a run and, in words, why."""

    mode: Mode
    reason: str


def decide_mode(states: Sequence[EdgeState], *, asked_for: Mode | None, target_exists: bool) -> ModeDecision:
    """One mode for all inputs of a run: full if it is asked for and until every input has a watermark.

    Where all inputs only begin, at what ``start`` says, the target may be missing: what was before is left out on
    purpose.

    Example:
        >>> from dagster_ips.core.edge import Edge
        >>> decide_mode([EdgeState(Edge("daily", "playback"))], asked_for=None, target_exists=False)
        ModeDecision(mode=<Mode.FULL: 'full'>, reason='nothing of playback was consumed before')
    """
    if asked_for is Mode.FULL:
        return ModeDecision(asked_for, f"asked for by the run tag dagster_ips/mode={asked_for}")
    fresh = [state.edge.upstream for state in states if state.committed is None]
    if fresh:
        return ModeDecision(Mode.FULL, f"nothing of {', '.join(fresh)} was consumed before")
    beginning = [state for state in states if state.is_beginning]
    if not target_exists and len(beginning) < len(states):
        return ModeDecision(Mode.FULL, "its table does not exist")
    if beginning:
        return ModeDecision(Mode.INCREMENTAL, f"begins where start says for {_names(beginning)}")
    return ModeDecision(Mode.INCREMENTAL, f"goes on from what was consumed of {_names(states)}")


def _names(states: Sequence[EdgeState]) -> str:
    return ", ".join(state.edge.upstream for state in states)
