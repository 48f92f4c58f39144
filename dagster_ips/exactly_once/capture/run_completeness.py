"""Up to which event time a run makes its table complete: the minimum over all inputs of what it has consumed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from dagster_ips.core.ancestry import MAIN
from dagster_ips.core.file_set import consumed_after
from dagster_ips.core.valid_through import ALWAYS, EventTime, least
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.iceberg.event_time import valid_through_at
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage


@dataclass(frozen=True)
class Completion:
    """What is needed to say up to when an asset is complete.

    ``last_window_end`` is when the last partition ends of an asset that is partitioned by time.
    """

    storage: Storage
    last_window_end: dt.datetime | None = None

    def after(self, inputs: Iterable[CapturedInput]) -> dt.datetime | None:
        """Up to when the asset is complete once the captures are published; None if an input doesn't say.

        Lookups don't count: an asset doesn't wait for changes that it is told to ignore.

        Raises:
            UnknownColumnError, ValidThroughError: an input's table doesn't say, though it is declared to.
        """
        return self.capped(least(self._of(captured) for captured in inputs))

    def capped(self, time: dt.datetime | None) -> dt.datetime | None:
        """``time``, but not after the end of the last partition: what comes after that isn't in the table."""
        return min(time, self.last_window_end) if time and self.last_window_end else time

    def _of(self, captured: CapturedInput) -> dt.datetime | None:
        tracked = captured.tracked
        head = captured.source.head_snapshot_id(tracked.ref)
        at_head = time_at(self.storage, captured.source, tracked.event_time, head, ref=tracked.ref)
        if at_head is None:
            return None  # If the head doesn't say, there is no need to look at each partition.
        consumed = self._consumed(captured)
        at = consumed.snapshot_id if consumed else None
        return (
            at_head if at == head else time_at(self.storage, captured.source, tracked.event_time, at, ref=tracked.ref)
        )

    def _consumed(self, captured: CapturedInput) -> Watermark | None:
        if captured.looked is None:
            capture = captured.capture
            consumed, _ = consumed_after(capture.from_exclusive, capture.to_inclusive, capture.bite)
            return consumed
        keys = {capture.edge.key for capture in captured.captures}
        return captured.looked.consumed_up_to(but=keys, by_time=self.last_window_end is not None)


def time_at(
    storage: Storage, table: TableMetadata | None, declared: EventTime | None, snapshot_id: int | None, ref: str = MAIN
) -> dt.datetime | None:
    """Up to when a table is complete at one of its snapshots; None if that is unknown.

    It is unknown without a snapshot, unless the table is declared to have no event time: then it is always complete.

    Raises:
        UnknownColumnError, ValidThroughError: the table doesn't say, though it is declared to.
    """
    if table is None or snapshot_id is None:
        return ALWAYS if declared and declared.column is None else None
    return valid_through_at(storage, table, ref, snapshot_id, declared)
