"""Stamps: summary properties of the snapshots that runs write, and what they say about one commit."""

from __future__ import annotations

import json
from collections.abc import Collection

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Mode
from dagster_ips.core.ownership import ACCEPTED, ASSET, ATTEMPT

RUN = "dagster-ips.run"
REVERTED = "dagster-ips.reverted"
"""The backfill that a snapshot took back."""
_COMPUTED = "dagster-ips.computed"


def attempt_properties(attempt: str, run_id: str) -> dict[str, str]:
    """Summary properties that say which attempt of which run wrote a snapshot."""
    return {ATTEMPT: attempt, RUN: run_id}


def computed_properties(mode: Mode, partitions: Collection[str]) -> dict[str, str]:
    """Summary properties that say in which mode a run computed what; without ``partitions``, the whole table."""
    value = {"mode": mode.value, **({"partitions": sorted(partitions)} if partitions else {})}
    return {_COMPUTED: json.dumps(value, separators=(",", ":"), ensure_ascii=False)}


def computed_in(snapshot: Snapshot) -> dict[str, Mode]:
    """The partitions that a run computed with the snapshot, and in which mode; the key is empty without partitions.

    Empty if the snapshot doesn't complete a run's work.
    """
    text = snapshot.summary.get(_COMPUTED)
    if text is None:
        return {}
    value = json.loads(text)
    return dict.fromkeys(value.get("partitions", [""]), Mode(value["mode"]))


def owner_properties(asset: str, accepted: Snapshot | None) -> dict[str, str]:
    """Summary properties that say which asset wrote, and up to which snapshot the table was accepted as it was."""
    return {ASSET: asset} | ({ACCEPTED: str(accepted.snapshot_id)} if accepted else {})


def has_attempt(snapshot: Snapshot) -> bool:
    """Whether the snapshot says which attempt wrote it; a commit that only drops whole files can't."""
    return ATTEMPT in snapshot.summary


def is_of_attempt(snapshot: Snapshot, attempt: str) -> bool:
    """Whether the snapshot was written by the attempt."""
    return snapshot.summary.get(ATTEMPT) == attempt


def is_of_same_attempt(snapshot: Snapshot, other: Snapshot) -> bool:
    """Whether the same attempt of a run wrote both."""
    return has_attempt(snapshot) and is_of_attempt(other, snapshot.summary[ATTEMPT])
