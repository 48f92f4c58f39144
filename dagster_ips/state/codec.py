"""An edge's state as compact, versioned JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from dagster_ips.core.capture import Capture, EdgeState, Mode, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import Bite, FileSet
from dagster_ips.core.intervention import Intervention, InterventionKind
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import StateUnreadableError, StateVersionError

VERSION = 3
"""1 knew no bites, so that it would read a change of which some files are consumed as one of which none is, and nothing
of what a person's interventions leave; 2 knew nothing of what a capture knew of its target."""


def encode(state: EdgeState) -> str:
    """``state`` as JSON of 0.3 to 1.4 kB, whatever the size of the table and of a change that is taken in bites.

    Example:
        >>> state = EdgeState(Edge("playback_daily", "playback"))
        >>> decode(encode(state), Edge("playback_daily", "playback")) == state
        True
    """
    return json.dumps({"version": VERSION, **asdict(state)}, separators=(",", ":"))


def decode(text: str, edge: Edge) -> EdgeState:
    """The state that ``encode`` wrote for ``edge``.

    Raises:
        StateVersionError: a newer version wrote it.
        StateUnreadableError: it isn't such a value, or it belongs to another edge.
    """
    try:
        value: dict[str, Any] = json.loads(text)
        version = int(value["version"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise StateUnreadableError(edge=str(edge), cause=f"{type(error).__name__}: {error}") from error
    if version > VERSION:
        raise StateVersionError(edge=str(edge), found=version, known=VERSION)
    try:
        state = _state(value)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise StateUnreadableError(edge=str(edge), cause=f"{type(error).__name__}: {error}") from error
    if state.edge != edge:
        raise StateUnreadableError(edge=str(edge), cause=f"it is the state of {state.edge}")
    return state


def _state(value: dict[str, Any]) -> EdgeState:
    edge = Edge(**value["edge"])
    return EdgeState(
        edge=edge,
        committed=_watermark(value["committed"]),
        number=int(value["number"]),
        in_flight=_capture(edge, value["in_flight"]),
        target=_mark(value["target"]),
        file_set=_file_set(value.get("file_set")),
        voided=int(value.get("voided", 0)),
        reread_to=_watermark(value.get("reread_to")),
        is_beginning=bool(value.get("is_beginning", False)),
        interventions=tuple(_intervention(each) for each in value.get("interventions", ())),
    )


def _watermark(value: dict[str, Any] | None) -> Watermark | None:
    return Watermark(**value) if value else None


def _mark(value: dict[str, Any] | None) -> TargetMark | None:
    return TargetMark(**value) if value else None


def _file_set(value: dict[str, Any] | None) -> FileSet | None:
    return FileSet(**{**value, "to_inclusive": Watermark(**value["to_inclusive"])}) if value else None


def _intervention(value: dict[str, Any]) -> Intervention:
    both = {end: _watermark(value[end]) for end in ("before", "after")}
    return Intervention(**{**value, "kind": InterventionKind(value["kind"]), **both})


def _capture(edge: Edge, value: dict[str, Any] | None) -> Capture | None:
    if not value:
        return None
    known = {
        **value,
        "edge": edge,
        "mode": Mode(value["mode"]),
        "from_exclusive": _watermark(value["from_exclusive"]),
        "to_inclusive": _watermark(value["to_inclusive"]),
        "bite": Bite(**value["bite"]) if value.get("bite") else None,
        "target": _mark(value.get("target")),
    }
    return Capture(**known)
