"""Progress as text: compact and versioned JSON, compressed if it is long, the same in summaries and in the cursor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

from dagster_ips.core.capture import TargetMark
from dagster_ips.core.code_of_rows import Making
from dagster_ips.core.file_set import FileSet
from dagster_ips.core.packed_text import packed, unpacked
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import StateUnreadableError, StateVersionError
from dagster_ips.progress.progress import InputProgress, Progress, Sharing

VERSION = 1


def progress_text(progress: Progress) -> str:
    """``progress`` as text: 0.2 kB, and about 10 bytes more for each partition that is behind.

    Example:
        >>> progress_from(progress_text(Progress(3)), where="a test", asset="daily")
        Progress(number=3, inputs={}, made={}, code=None, lookups={}, obeyed=0, known_to=None)
    """
    return packed(json.dumps(progress_json(progress), separators=(",", ":"), ensure_ascii=False))


def progress_json(progress: Progress) -> dict[str, Any]:
    """``progress`` as JSON values, without what is empty."""
    value = {
        "version": VERSION,
        "number": progress.number,
        "inputs": {upstream: _input_json(each) for upstream, each in progress.inputs.items()},
        "made": _made_json(progress.made),
        "code": progress.code,
        "lookups": dict(progress.lookups),
        "obeyed": progress.obeyed,
        "known_to": astuple(progress.known_to) if progress.known_to else None,
    }
    return {name: each for name, each in value.items() if each or name == "number"}


def progress_from(text: str, *, where: str, asset: str) -> Progress:
    """The progress of ``asset`` that ``progress_text`` wrote; ``where`` it was found.

    Raises:
        StateVersionError: a newer version wrote it.
        StateUnreadableError: it isn't such a text.
    """
    try:
        value = json.loads(unpacked(text))
        if int(value["version"]) > VERSION:
            raise StateVersionError(edge=where, found=int(value["version"]), known=VERSION)
        known_to = value.get("known_to")
        return Progress(
            number=int(value["number"]),
            inputs={upstream: _input(each) for upstream, each in value.get("inputs", {}).items()},
            made=_made(value.get("made", ())),
            code=value.get("code"),
            lookups=value.get("lookups", {}),
            obeyed=int(value.get("obeyed", 0)),
            known_to=TargetMark(*known_to) if known_to else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StateUnreadableError(where, asset, f"{type(error).__name__}: {error}") from error


def _input_json(progress: InputProgress) -> dict[str, Any]:
    sharing = progress.sharing
    value = {
        "at": mark_json(progress.at),
        "behind": _keys_json(progress.behind),
        "untaken": _keys_json(progress.untaken),
        "files": [mark_json(progress.files.to_inclusive), progress.files.taken, progress.files.total]
        if progress.files
        else None,
        "division": progress.division,
        "sharing": [sorted(sharing.partitions), sorted(sharing.landmarks)] if sharing else None,
        "began_late": progress.began_late,
    }
    return {name: each for name, each in value.items() if each}


def _input(value: Mapping[str, Any]) -> InputProgress:
    files, sharing = value.get("files"), value.get("sharing")
    return InputProgress(
        at=mark_from(value.get("at")),
        behind=_keys(value.get("behind", ())),
        untaken=_keys(value.get("untaken", ())),
        files=FileSet(Watermark(*files[0]), int(files[1]), int(files[2])) if files else None,
        division=value.get("division"),
        sharing=Sharing(*map(frozenset, sharing)) if sharing else None,
        began_late=bool(value.get("began_late", False)),
    )


def _keys_json(since: Mapping[str, Watermark | None]) -> list[Any]:
    """Keys with the same watermark are listed together."""
    groups: dict[Watermark | None, list[str]] = {}
    for key in sorted(since):
        groups.setdefault(since[key], []).append(key)
    return [[mark_json(mark), keys] for mark, keys in groups.items()]


def _keys(groups: Iterable[Any]) -> dict[str, Watermark | None]:
    return {key: mark_from(mark) for mark, keys in groups for key in keys}


def mark_json(mark: Watermark | None) -> list[Any] | None:
    """A watermark as JSON."""
    return list(astuple(mark)) if mark else None


def mark_from(value: list[Any] | None) -> Watermark | None:
    """The watermark that ``mark_json`` gave.

    Raises:
        TypeError: it is none.
    """
    return Watermark(*value) if value else None


def _made_json(made: Mapping[str | None, Making]) -> list[dict[str, Any]]:
    groups: dict[Making, list[str]] = {}
    for partition, making in made.items():
        groups.setdefault(making, []).extend([] if partition is None else [partition])
    rest = made.get(None)
    return [
        {
            "codes": list(making.codes),
            "schema": making.schema_id,
            "declared": making.declared,
            **({"partitions": sorted(keys)} if keys else {}),
            **({"rest": True} if making == rest else {}),
        }
        for making, keys in groups.items()
    ]


def _made(entries: list[Mapping[str, Any]]) -> dict[str | None, Making]:
    found: dict[str | None, Making] = {}
    for each in entries:
        making = Making(tuple(each["codes"]), each.get("schema"), each.get("declared"))
        found |= dict.fromkeys(each.get("partitions", ()), making)
        if each.get("rest"):
            found[None] = making
    return found
