"""States as compact, versioned JSON: that of an edge, and that of a line of partitioned captures.

In a line's state, keys that changed together are listed together, and a long text is compressed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from dagster_ips.core.capture import Capture, EdgeState, Mode, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import Bite, FileSet
from dagster_ips.core.intervention import Intervention, InterventionKind
from dagster_ips.core.packed_text import packed, unpacked
from dagster_ips.core.touched import LineState, Stray, Touched, Unread
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import StateUnreadableError, StateVersionError

EDGE_VERSION = 5
"""Version 1 has no bites, so it would read a change of which some files are consumed as one of which none is. It also
lacks what a person's interventions leave. Version 2 lacks what a capture knows of its target, version 3 the keys that
had no partition, and version 4 what a key meant."""

LINE_VERSION = 2
_SELDOM = ("began_late", "replaced")
"""What most edge states don't have: it is left out there."""
_State = TypeVar("_State", EdgeState, LineState)


def encode(state: EdgeState) -> str:
    """``state`` as JSON of 0.3 to 1.5 kB, whatever the size of the table, and of a change that is taken in bites.

    Example:
        >>> state = EdgeState(Edge("playback_daily", "playback"))
        >>> decode(encode(state), Edge("playback_daily", "playback")) == state
        True
    """
    value = {name: each for name, each in asdict(state).items() if each or name not in _SELDOM}
    return json.dumps({"version": EDGE_VERSION, **value}, separators=(",", ":"), default=sorted)


def decode(text: str, edge: Edge) -> EdgeState:
    """The state that ``encode`` wrote for ``edge``.

    Raises:
        StateVersionError: a newer version wrote it.
        StateUnreadableError: it isn't such a value, or it belongs to another edge.
    """
    return _decoded(edge, lambda: json.loads(text), _edge_state, newest=EDGE_VERSION)


def _decoded(
    edge: Edge, content: Callable[[], Any], state_of: Callable[[dict[str, Any]], _State], *, newest: int
) -> _State:
    """The state of ``edge`` by the ``content`` of a text, of which the versions up to the ``newest`` are known."""
    try:
        value = content()
        version = int(value["version"])
        if version > newest:
            raise StateVersionError(edge=str(edge), found=version, known=newest)
        state = state_of(value)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise StateUnreadableError(str(edge), edge.consumer, f"{type(error).__name__}: {error}") from error
    if state.edge != edge:
        raise StateUnreadableError(str(edge), edge.consumer, f"it is the state of {state.edge}")
    return state


def _edge_state(value: dict[str, Any]) -> EdgeState:
    edge = Edge(**value["edge"])
    return EdgeState(
        edge=edge,
        committed=watermark_of(value["committed"]),
        number=int(value["number"]),
        in_flight=_capture(edge, value["in_flight"]),
        target=_mark(value["target"]),
        file_set=file_set_of(value.get("file_set")),
        voided=int(value.get("voided", 0)),
        reread_to=watermark_of(value.get("reread_to")),
        is_beginning=bool(value.get("is_beginning", False)),
        left_out=frozenset(value.get("left_out", ())),
        division=value.get("division"),
        began_late=bool(value.get("began_late", False)),
        replaced=tuple(Watermark(**each) for each in value.get("replaced", ())),
        interventions=tuple(_intervention(each) for each in value.get("interventions", ())),
    )


def watermark_of(value: Mapping[str, Any] | None) -> Watermark | None:
    """The watermark that ``asdict`` made into ``value``."""
    return Watermark(**value) if value else None


def _mark(value: dict[str, Any] | None) -> TargetMark | None:
    return TargetMark(**value) if value else None


def file_set_of(value: Mapping[str, Any] | None) -> FileSet | None:
    """The file set that ``asdict`` made into ``value``."""
    return FileSet(**{**value, "to_inclusive": Watermark(**value["to_inclusive"])}) if value else None


def _frozen(value: Iterable[str] | None) -> frozenset[str] | None:
    return None if value is None else frozenset(value)


def _intervention(value: dict[str, Any]) -> Intervention:
    both = {end: watermark_of(value[end]) for end in ("before", "after")}
    return Intervention(**{**value, "kind": InterventionKind(value["kind"]), **both})


def _capture(edge: Edge, value: dict[str, Any] | None) -> Capture | None:
    if not value:
        return None
    known = {
        **value,
        "edge": edge,
        "mode": Mode(value["mode"]),
        "from_exclusive": watermark_of(value["from_exclusive"]),
        "to_inclusive": watermark_of(value["to_inclusive"]),
        "bite": Bite(**value["bite"]) if value.get("bite") else None,
        "target": _mark(value.get("target")),
        "left_out": _frozen(value.get("left_out", ())),
    }
    return Capture(**known)


def encode_line(state: LineState) -> str:
    """``state`` as text.

    Example:
        >>> line = Edge("daily", "playback")
        >>> decode_line(encode_line(LineState(line)), line) == LineState(line)
        True
    """
    groups: dict[Touched, list[str]] = {}
    for key in sorted(state.touched):
        groups.setdefault(state.touched[key], []).append(key)
    unread: dict[Unread, list[str]] = {}
    for path in sorted(state.unread):
        unread.setdefault(state.unread[path], []).append(path)
    value = {
        "version": LINE_VERSION,
        "edge": asdict(state.edge),
        "scanned": asdict(state.scanned) if state.scanned else None,
        "touched": [{**asdict(touched), "keys": keys} for touched, keys in groups.items()],
        "abandoned": sorted(state.abandoned),
        "strays": [{"path": path, **asdict(state.strays[path])} for path in sorted(state.strays)],
        "knows_keys_to_come": state.knows_keys_to_come,
        "partitions": None if state.partitions is None else sorted(state.partitions),
        **({"dynamic": sorted(state.dynamic)} if state.dynamic else {}),
        "landmarks": None if state.landmarks is None else sorted(state.landmarks),
        "division": state.division,
        **({"losses": state.losses} if state.losses else {}),
        **({"awaits_lost": True} if state.awaits_lost else {}),
        **({"unchecked": asdict(state.unchecked)} if state.unchecked else {}),
        "unread": [{**asdict(each), "paths": paths} for each, paths in unread.items()],
    }
    return packed(json.dumps(value, separators=(",", ":")))


def decode_line(text: str, edge: Edge) -> LineState:
    """The state that ``encode_line`` wrote for ``edge``.

    Raises:
        StateVersionError: a newer version wrote it.
        StateUnreadableError: it isn't such a value, or it belongs to another edge.
    """
    return _decoded(edge, lambda: json.loads(unpacked(text)), _line_state, newest=LINE_VERSION)


def _line_state(value: Mapping[str, Any]) -> LineState:
    return LineState(
        edge=Edge(**value["edge"]),
        scanned=watermark_of(value["scanned"]),
        touched={key: _touched(group) for group in value["touched"] for key in group["keys"]},
        abandoned=frozenset(value["abandoned"]),
        unread={
            path: Unread(_touched(group["changed"]), group["cause"], group["is_live"])
            for group in value.get("unread", ())
            for path in group["paths"]
        },
        strays=_strays(value),
        knows_keys_to_come=value["version"] > 1 and bool(value["knows_keys_to_come"]),
        partitions=_frozen(value.get("partitions")),
        dynamic=frozenset(value.get("dynamic", ())),
        landmarks=_frozen(value.get("landmarks")),
        division=value.get("division"),
        losses=value.get("losses", ""),
        awaits_lost=bool(value.get("awaits_lost", False)),
        unchecked=watermark_of(value.get("unchecked")),
    )


def _strays(value: Mapping[str, Any]) -> dict[str, Stray]:
    if value["version"] == 1:  # it doesn't say in which files they are
        return {"": Stray(tuple(value["unmapped"]))} if value["unmapped"] else {}
    return {each["path"]: Stray(tuple(each["values"]), tuple(each["keys"])) for each in value["strays"]}


def _touched(value: Mapping[str, Any]) -> Touched:
    return Touched(watermark_of(value["since"]), Watermark(**value["last"]))
