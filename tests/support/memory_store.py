"""Cursors without Dagster, and what a run does to them that publishes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.progress.cursor import Copy, Cursor, Cursors, Job, Request
from dagster_ips.progress.cursor_text import copy_text, cursor_from, job_text, requests_text
from dagster_ips.progress.table_progress import mark_of


class MemoryCursors:
    """Cursors that live as long as the process. They hold text, so that the codec is used as in production."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], str] = {}

    def get(self, asset: str) -> Cursor:
        return cursor_from(*(self._texts.get((asset, part)) for part in ("copy", "asked", "job")), asset=asset)

    def get_many(self, assets: Iterable[str]) -> dict[str, Cursor]:
        return {asset: self.get(asset) for asset in assets}

    def set_copy(self, asset: str, copy: Copy) -> None:
        self._texts[asset, "copy"] = copy_text(copy)

    def set_requests(self, asset: str, requests: tuple[Request, ...]) -> None:
        self._texts[asset, "asked"] = requests_text(requests)

    def set_job(self, asset: str, job: Job | None) -> None:
        self._texts[asset, "job"] = job_text(job)


def consume(store: Cursors, lake: LakeCatalog, target: str, captured: Sequence[CapturedInput]) -> None:
    """Count what was captured as consumed, as if a job had reported that it has written ``target``."""
    advance, found = captured[0].advance, lake.load(target, asset="a test")
    progress = advance.progress(advance.base, made={}, lookups={})
    store.set_copy(captured[0].capture.edge.consumer, Copy(progress, mark_of(found), is_reported=True))
