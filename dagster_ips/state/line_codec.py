"""A line's state as versioned JSON: keys that changed together are listed together, long lists are packed."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dagster_ips.core.edge import Edge
from dagster_ips.core.touched import LineState, Stray, Touched, Unread
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import StateUnreadableError, StateVersionError

VERSION = 2
_PACKED = "zlib:"
_LONG = 16_000


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
        "version": VERSION,
        "edge": asdict(state.edge),
        "scanned": asdict(state.scanned) if state.scanned else None,
        "touched": [{**asdict(touched), "keys": keys} for touched, keys in groups.items()],
        "abandoned": sorted(state.abandoned),
        "strays": [{"path": path, **asdict(state.strays[path])} for path in sorted(state.strays)],
        "knows_keys_to_come": state.knows_keys_to_come,
        "unread": [{**asdict(each), "paths": paths} for each, paths in unread.items()],
    }
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= _LONG else _PACKED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def decode_line(text: str, edge: Edge) -> LineState:
    """The state that ``encode_line`` wrote for ``edge``.

    Raises:
        StateVersionError: a newer version wrote it.
        StateUnreadableError: it isn't such a value, or it belongs to another edge.
    """
    try:
        packed = text.removeprefix(_PACKED)
        value = json.loads(zlib.decompress(base64.b64decode(packed)) if packed != text else text)
        version = int(value["version"])
        if version > VERSION:
            raise StateVersionError(edge=str(edge), found=version, known=VERSION)
        state = _state(value)
    except (ValueError, KeyError, TypeError, OverflowError, zlib.error) as error:
        raise StateUnreadableError(edge=str(edge), cause=f"{type(error).__name__}: {error}") from error
    if state.edge != edge:
        raise StateUnreadableError(edge=str(edge), cause=f"it is the state of {state.edge}")
    return state


def _state(value: Mapping[str, Any]) -> LineState:
    return LineState(
        edge=Edge(**value["edge"]),
        scanned=_watermark(value["scanned"]),
        touched={key: _touched(group) for group in value["touched"] for key in group["keys"]},
        abandoned=frozenset(value["abandoned"]),
        unread={
            path: Unread(_touched(group["changed"]), group["cause"], group["is_live"])
            for group in value.get("unread", ())
            for path in group["paths"]
        },
        strays=_strays(value),
        knows_keys_to_come=value["version"] > 1 and bool(value["knows_keys_to_come"]),
    )


def _strays(value: Mapping[str, Any]) -> dict[str, Stray]:
    if value["version"] == 1:  # which didn't say in which file they are
        return {"": Stray(tuple(value["unmapped"]))} if value["unmapped"] else {}
    return {each["path"]: Stray(tuple(each["values"]), tuple(each["keys"])) for each in value["strays"]}


def _touched(value: Mapping[str, Any]) -> Touched:
    return Touched(_watermark(value["since"]), Watermark(**value["last"]))


def _watermark(value: Mapping[str, Any] | None) -> Watermark | None:
    return Watermark(**value) if value else None
