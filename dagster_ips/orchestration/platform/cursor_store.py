"""Cursors of assets in Dagster's cursor storage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from dagster import DagsterInstance

from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill
from dagster_ips.core.backfill_text import decode_backfill, encode_backfill
from dagster_ips.errors import CursorStorageError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.progress.cursor import Copy, Cursor, Job, Request
from dagster_ips.progress.cursor_text import copy_text, cursor_from, job_text, requests_text

_PREFIX = "dagster_ips:asset:"
_COPY, _ASKED, _JOB = "", ":asked", ":job"
_PARTS = (_COPY, _ASKED, _JOB)
_BACKFILL_PREFIX = "dagster_ips:backfill:"
_PROBE = "dagster_ips:probe"
_MOST_READ = 500

_Any = TypeVar("_Any")


class CursorStore:
    """Stores the cursor of each asset, in three keys: what runs, persons and jobs write must not overwrite each other.

    Keys are lowercase and shorter than 64 characters, because MySQL compares only the first 64 characters and ignores
    case.
    """

    def __init__(self, instance: DagsterInstance) -> None:
        storage = instance.daemon_cursor_storage
        if storage is None:
            raise CursorStorageError(cause="it has no daemon cursor storage")
        self._storage = storage

    def require_working(self) -> None:
        """Set a value and read it back, because some cursor storages don't really store anything.

        Raises:
            CursorStorageError: the storage doesn't work.
        """
        try:
            kept = self._storage.get_cursor_values({_PROBE}).get(_PROBE)
            if kept is None:
                with effect(Effect.TRY_CURSORS):
                    self._storage.set_cursor_values({_PROBE: "works"})
                kept = self._storage.get_cursor_values({_PROBE}).get(_PROBE)
        except NotImplementedError as error:
            raise CursorStorageError(cause="it doesn't implement them") from error
        if kept != "works":
            raise CursorStorageError(cause="a value that was set did not come back")

    def get(self, asset: str) -> Cursor:
        """The stored cursor, or an empty one.

        Raises:
            StateVersionError, StateUnreadableError: see ``dagster_ips.progress.cursor_text``.
            CursorStorageError: the storage doesn't work.
        """
        return self.get_many([asset])[asset]

    def get_many(self, assets: Iterable[str]) -> dict[str, Cursor]:
        """The cursor of each asset, read with one query per 500 assets; without assets there is no query.

        Raises:
            As for ``get``.
        """
        found: dict[str, Cursor] = {}
        for some in _batches(list(dict.fromkeys(assets)), _MOST_READ):
            keys = {asset: _key(asset) for asset in some}
            texts = self._values([key + part for key in keys.values() for part in _PARTS])
            for asset, key in keys.items():
                found[asset] = cursor_from(*(texts.get(key + part) for part in _PARTS), asset=asset)
        return found

    def set_copy(self, asset: str, copy: Copy) -> None:
        """Store a copy of the progress. It is durable when this returns, as with the others."""
        self._write({_key(asset) + _COPY: copy_text(copy)})

    def set_requests(self, asset: str, requests: tuple[Request, ...]) -> None:
        """Store what persons asked for."""
        self._write({_key(asset) + _ASKED: requests_text(requests)})

    def set_job(self, asset: str, job: Job | None) -> None:
        """Store what a job outside of Dagster is working on."""
        self._write({_key(asset) + _JOB: job_text(job)})

    def get_backfill(self, backfill: str) -> BackfillPlan | LaunchedBackfill | None:
        """The plan with this id, or its record if it was launched; None if there is none.

        Raises:
            BackfillRecordError: the record can't be read.
            CursorStorageError: the storage doesn't work.
        """
        key = _BACKFILL_PREFIX + backfill.lower()
        text = self._values([key]).get(key)
        return decode_backfill(text, where=f"The stored record of backfill {backfill}") if text else None

    def set_backfill(self, backfill: BackfillPlan | LaunchedBackfill) -> None:
        """Store a plan, or the record of a launched one. It is durable when this returns."""
        plan = backfill if isinstance(backfill, BackfillPlan) else backfill.plan
        self._write({_BACKFILL_PREFIX + plan.id.lower(): encode_backfill(backfill)})

    def _write(self, texts: Mapping[str, str]) -> None:
        kept = self._set_and_read(texts)
        # SQLite drops new keys from a batch that also holds existing ones; another run may add some of them meanwhile.
        while new := {key: text for key, text in texts.items() if key not in kept}:
            found = self._set_and_read(new)
            if not found:
                break
            kept |= found
        for key, text in texts.items():
            if key not in kept:
                raise CursorStorageError(cause="a value that was set did not come back")
            # Not just any difference: another run of the edge may have set it since.
            if kept[key] != text and text.startswith(kept[key]):
                cause = f"a value of {len(text):,} characters came back with only {len(kept[key]):,}"
                raise CursorStorageError(cause=cause)

    def _set_and_read(self, texts: Mapping[str, str]) -> dict[str, str]:
        """What the storage has of these keys once they were set."""
        try:
            self._storage.set_cursor_values(texts)
        except NotImplementedError as error:
            raise CursorStorageError(cause="set_cursor_values is not implemented") from error
        return dict(self._values(list(texts)))

    def _values(self, keys: Sequence[str]) -> Mapping[str, str]:
        try:
            return self._storage.get_cursor_values(set(keys))
        except NotImplementedError as error:
            raise CursorStorageError(cause="get_cursor_values is not implemented") from error


def _key(asset: str) -> str:
    return _PREFIX + hashlib.blake2b(asset.encode(), digest_size=16).hexdigest()


def _batches(of: Sequence[_Any], size: int) -> Iterator[Sequence[_Any]]:
    return (of[start : start + size] for start in range(0, len(of), size))
