"""An asset's cursor as versioned JSON that a person can read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple
from typing import Any

from dagster_ips.core.capture import Capture, Mode, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import Bite
from dagster_ips.core.packed_text import packed, unpacked
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import StateUnreadableError, StateVersionError
from dagster_ips.progress.cursor import Copy, Cursor, Job, Request, RequestKind
from dagster_ips.progress.progress_text import mark_from, mark_json, progress_from, progress_text

_VERSION = 1


def copy_text(copy: Copy) -> str:
    """``copy`` as text."""
    value = {
        "mark": astuple(copy.mark) if copy.mark else None,
        "is_reported": copy.is_reported,
        "begun": {upstream: mark_json(at) for upstream, at in copy.begun.items()},
        "progress": progress_text(copy.progress),
    }
    return _text(value)


def requests_text(requests: tuple[Request, ...]) -> str:
    """``requests`` as text."""
    shown = [{**asdict(each), "before": mark_json(each.before), "after": mark_json(each.after)} for each in requests]
    return _text({"requests": shown})


def job_text(job: Job | None) -> str:
    """``job`` as text."""
    if job is None:
        return _text({})
    return _text({"captures": [asdict(each) for each in job.captures], "progress": progress_text(job.progress)})


def cursor_from(copy: str | None, asked: str | None, job: str | None, *, asset: str) -> Cursor:
    """The cursor of ``asset`` by its texts, None for what was never stored.

    A damaged copy counts as lost: it only saves work.

    Raises:
        StateVersionError: a newer version wrote one of them.
        StateUnreadableError: what persons or jobs did can't be read.
    """
    try:
        found = _copy(_value(copy, asset), asset) if copy else None
    except StateUnreadableError:
        found = None
    requests = tuple(_request(each, asset) for each in _value(asked, asset)["requests"]) if asked else ()
    return Cursor(found, requests, _job(_value(job, asset), asset) if job else None)


def _text(value: Mapping[str, Any]) -> str:
    return packed(json.dumps({"version": _VERSION, **value}, separators=(",", ":"), ensure_ascii=False))


def _value(text: str, asset: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(unpacked(text))
        version = int(value["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(asset, error) from error
    if version > _VERSION:
        raise StateVersionError(edge=asset, found=version, known=_VERSION)
    return value


def _unreadable(asset: str, error: Exception) -> StateUnreadableError:
    return StateUnreadableError(asset, asset, f"{type(error).__name__}: {error}")


def _copy(value: Mapping[str, Any], asset: str) -> Copy:
    try:
        return Copy(
            progress_from(value["progress"], where=asset, asset=asset),
            TargetMark(*value["mark"]) if value["mark"] else None,
            bool(value["is_reported"]),
            {upstream: mark_from(at) for upstream, at in value["begun"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(asset, error) from error


def _request(value: Mapping[str, Any], asset: str) -> Request:
    try:
        marks = {"before": mark_from(value["before"]), "after": mark_from(value["after"])}
        return Request(**{**value, "kind": RequestKind(value["kind"]), **marks})
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(asset, error) from error


def _job(value: Mapping[str, Any], asset: str) -> Job | None:
    if "captures" not in value:
        return None
    try:
        captures = tuple(_capture(each) for each in value["captures"])
        return Job(captures, progress_from(value["progress"], where=asset, asset=asset))
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(asset, error) from error


def _capture(value: Mapping[str, Any]) -> Capture:
    known = {
        **value,
        "edge": Edge(**value["edge"]),
        "mode": Mode(value["mode"]),
        "from_exclusive": _mark_of(value["from_exclusive"]),
        "to_inclusive": _mark_of(value["to_inclusive"]),
        "bite": Bite(**value["bite"]) if value["bite"] else None,
        "target": TargetMark(**value["target"]) if value["target"] else None,
    }
    return Capture(**known)


def _mark_of(value: Mapping[str, Any] | None) -> Watermark | None:
    return Watermark(**value) if value else None
