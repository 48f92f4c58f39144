"""How far a consumer has consumed a source table."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.core.ancestry import Snapshot

_SKEW_MS = 60_000
"""By how much the clocks of committers may differ; Iceberg's own metadata refuses more."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """All of ``ref`` up to and including ``snapshot_id`` is consumed.

    The table's uuid distinguishes a re-created table from the one consumed. The sequence number and the timestamp give
    the watermark's position even if its snapshot has expired. ``schema_id`` is the schema by which its rows were read,
    as its number and a digest of its columns (``TableMetadata.schema_ids``); None if an earlier release didn't record
    it.
    """

    table_uuid: str
    ref: str
    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    schema_id: str | None = None

    @property
    def position(self) -> tuple[int, int]:
        """Orders snapshots by when they were committed; in v1 tables, which have no sequence numbers, by the clock."""
        return (self.sequence_number, self.timestamp_ms)

    @classmethod
    def at(cls, snapshot: Snapshot, *, table_uuid: str, ref: str, schema_id: str) -> Watermark:
        """The watermark at ``snapshot``."""
        return cls(table_uuid, ref, snapshot.snapshot_id, snapshot.sequence_number, snapshot.timestamp_ms, schema_id)


def is_certainly_before(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether position ``one`` was committed before ``other``; False if their clock times are too close to tell.

    Example:
        >>> is_certainly_before((1, 900), (2, 100)), is_certainly_before((0, 100), (0, 900))
        (True, False)
    """
    if one[0] or other[0]:
        return one[0] < other[0]
    return one[1] < other[1] - _SKEW_MS
