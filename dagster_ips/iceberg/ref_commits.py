"""Changes of a table's refs, several in one commit of its metadata: all of them or none.

Where a server writes the metadata, it gets the change in the REST catalog's words. Elsewhere, the current metadata.json
is edited as JSON, so that everything else in it stays, also what PyIceberg doesn't know and what it refuses to write
(format 3). The catalog then swaps the file for the one that was edited, or refuses because the table has changed.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyiceberg.exceptions import CommitFailedException

from dagster_ips.core.ancestry import MAIN, Ancestry
from dagster_ips.errors import PublishError, RefMovedError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_MOST_ATTEMPTS = 50
_PAUSE_SECONDS = 0.05
_V2 = 2
_FOR_EVER_MS = 2**63 - 1
_VERSION = re.compile(r"(\d+)-[^/]*$")
_PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_DELETES = "write.metadata.delete-after-commit.enabled"
"""Whoever drops metadata files from the log has to delete them, which is left to the next commit of an engine."""


@dataclass(frozen=True, slots=True)
class RefCommit:
    """What a commit does to a table's refs. It may be tried until it succeeds: what it has done shows in the table.

    ``expects`` says where refs must be, None for those that mustn't exist. ``sets`` are the snapshots that refs get,
    ``tags`` those of them that are tags. ``drops`` that are gone already are no error. ``onto`` is a branch that may
    only move forward. ``ages_ms`` say for how long an expiry keeps refs, counted from their snapshots' commits.

    Source: Iceberg REST catalog specification, "CommitTableRequest".
    """

    expects: Mapping[str, int | None] = field(default_factory=dict)
    sets: Mapping[str, int] = field(default_factory=dict)
    tags: Collection[str] = ()
    drops: Collection[str] = ()
    onto: str | None = None
    ages_ms: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if kept := {MAIN, *self.sets} & {*self.drops}:
            message = f"{sorted(kept)} can't be dropped in this commit"
            raise ValueError(message)

    def is_in(self, table: TableMetadata) -> bool:
        """Whether the table is as after the commit."""
        is_set = all(table.head_snapshot_id(ref) == snapshot_id for ref, snapshot_id in self.sets.items())
        return is_set and not any(name in table.raw.get("refs", {}) for name in self.drops)

    def require_possible(self, table: TableMetadata) -> None:
        """Fail unless the refs are as expected.

        Raises:
            RefMovedError: one isn't, or a snapshot that a ref is to get has expired.
            PublishError: the table has format 1, or ``onto`` would not move forward.
        """
        if table.format_version < _V2:
            problem = "it has format version 1; set its property format-version to 2"
            raise PublishError(table=table.table, branch=self.onto or MAIN, problem=problem)
        for ref, expected in self.expects.items():
            if (found := table.head_snapshot_id(ref)) != expected:
                raise RefMovedError(table=table.table, ref=ref, expected=expected, found=found)
        for ref, snapshot_id in self.sets.items():
            if snapshot_id not in table.snapshots:  # Expired meanwhile: with such a ref, nothing could read the table.
                raise RefMovedError(table=table.table, ref=ref, expected=snapshot_id, found=table.head_snapshot_id(ref))
        before = self.expects.get(self.onto) if self.onto is not None else None
        if before is not None and Ancestry.of(table.snapshots, self.sets[str(self.onto)]).find(before) is None:
            problem = f"snapshot {before}, the head of {self.onto}, isn't an ancestor of what would replace it"
            raise PublishError(table=table.table, branch=str(self.onto), problem=problem)

    def requirements(self, table: TableMetadata) -> list[dict[str, Any]]:
        """What a server must find in the table."""
        refs = [
            {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": expected}
            for ref, expected in self.expects.items()
        ]
        return [{"type": "assert-table-uuid", "uuid": table.uuid}, *refs]

    def updates(self, table: TableMetadata) -> list[dict[str, Any]]:
        """What a server changes in the table. A branch that is moved keeps its settings of retention."""
        refs = table.raw.get("refs", {})
        sets = [
            {"action": "set-snapshot-ref", "ref-name": ref, "type": "tag" if ref in self.tags else "branch"}
            | {**refs.get(ref, {}), "snapshot-id": snapshot_id}
            | ({"max-ref-age-ms": self.ages_ms[ref]} if ref in self.ages_ms else {})
            for ref, snapshot_id in self.sets.items()
        ]
        return [*sets, *({"action": "remove-snapshot-ref", "ref-name": ref} for ref in self.drops)]

    def applied_to(self, table: TableMetadata, *, now_ms: int) -> dict[str, Any]:
        """The table's metadata after the commit; all that has nothing to do with refs stays.

        The table's clock doesn't go back if another machine's is ahead: Iceberg refuses a log that does.

        Source: ``TableMetadata.Builder`` of Iceberg's implementation in Java (1.12).
        """
        raw, refs = table.raw, dict(table.raw.get("refs", {}))
        if MAIN not in refs and (head := table.head_snapshot_id()) is not None:
            refs[MAIN] = {"snapshot-id": head, "type": "branch"}
        for update in self.updates(table):
            ref = {key: value for key, value in update.items() if key not in {"action", "ref-name"}}
            refs.pop(update["ref-name"], None)
            if ref:
                refs[update["ref-name"]] = ref
        before_ms = int(raw["last-updated-ms"])
        at_ms = max(now_ms, before_ms)
        log = [*raw.get("metadata-log", ()), {"timestamp-ms": before_ms, "metadata-file": table.metadata_location}]
        if table.properties.get(_DELETES, "").lower() != "true":
            log = log[-max(1, int(table.properties.get(_PREVIOUS_VERSIONS, 100))) :]
        changed = {**raw, "refs": refs, "last-updated-ms": at_ms, "metadata-log": log}
        if (head := self.sets.get(MAIN)) is not None and head != table.head_snapshot_id():
            entry = {"timestamp-ms": at_ms, "snapshot-id": head}
            changed |= {"current-snapshot-id": head, "snapshot-log": [*raw.get("snapshot-log", ()), entry]}
        return changed


def publication(  # noqa: PLR0913  # all are independent
    branch: str, *, head: int, expected: int | None, pin: str | None, drops: Collection[str] = (), onto: str = MAIN
) -> RefCommit:
    """Make ``head``, where ``branch`` must be, the head of ``onto``, move the tag ``pin`` there, and drop the branch.

    ``onto`` must be at ``expected``, which is None if it mustn't exist yet. Other branches to drop are ``drops``.

    Example:
        >>> made = publication("ips_run", head=2, expected=1, pin="ips_progress")
        >>> dict(made.sets), made.drops
        ({'main': 2, 'ips_progress': 2}, ('ips_run',))
    """
    tags = {} if pin is None else {pin: head}
    return RefCommit(
        expects={onto: expected, branch: head},
        sets={onto: head, **tags},
        tags=tuple(tags),
        drops=tuple(dict.fromkeys([branch, *drops])),
        onto=onto,
        ages_ms=dict.fromkeys(tags, _FOR_EVER_MS),  # The table's own setting may be shorter.
    )


def pinning(pin: str, *, at: int) -> RefCommit:
    """Move the tag ``pin`` to the snapshot ``at``."""
    return RefCommit(sets={pin: at}, tags=(pin,), ages_ms={pin: _FOR_EVER_MS})


def dropping(refs: Collection[str]) -> RefCommit:
    """Drop refs, those that exist."""
    return RefCommit(drops=tuple(refs))


def branching(branch: str, *, at: int, age_ms: int) -> RefCommit:
    """Create a branch at the snapshot ``at``; no expiry drops it until its head is ``age_ms`` old."""
    return RefCommit(expects={branch: None}, sets={branch: at}, ages_ms={branch: age_ms})


def commit_refs(catalog: LakeCatalog, table: str, change: RefCommit, *, asset: str) -> None:
    """Make the commit, on top of what others commit to the table meanwhile; nothing of theirs is lost.

    If the process is killed, a metadata file may be left that nothing refers to. It is never deleted after a refusal
    either: a catalog may refuse a request that its client repeated after the first one had succeeded.

    Raises:
        RefMovedError: a ref isn't where it is expected; nothing was changed.
        PublishError: the table's format is 1, or others committed to the table each time; nothing was changed.
        CatalogUnreachableError: the catalog did not answer, and may have made the commit.
    """
    lake = catalog if catalog.branch is None else catalog.on_branch(None)
    for attempt in range(_MOST_ATTEMPTS):
        now = lake.load(table, asset=asset)
        if change.is_in(now):
            return
        change.require_possible(now)
        try:
            lake.commit(now, change.requirements(now), change.updates(now), partial(_write, lake.storage, now, change))
        except CommitFailedException:
            time.sleep(random.random() * _PAUSE_SECONDS * min(attempt, 10))  # noqa: S311  # no secret
        else:
            return
    problem = f"each of {_MOST_ATTEMPTS} times, something else was committed to the table in the meantime"
    raise PublishError(table=table, branch=change.onto or MAIN, problem=problem)


def _write(storage: Storage, table: TableMetadata, change: RefCommit) -> str:
    """Write the table's metadata after ``change`` where Iceberg would; returns where that is."""
    content = change.applied_to(table, now_ms=time.time_ns() // 1_000_000)
    folder = table.properties.get("write.metadata.path") or f"{table.location.rstrip('/')}/metadata"
    found = _VERSION.search(table.metadata_location)
    is_packed = table.properties.get("write.metadata.compression-codec", "none").lower() == "gzip"
    ending = ".gz.metadata.json" if is_packed else ".metadata.json"
    path = f"{folder.rstrip('/')}/{int(found[1]) + 1 if found else 0:05d}-{uuid.uuid4()}{ending}"
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    storage.write(path, gzip.compress(text) if is_packed else text, table=table.table)
    return path
