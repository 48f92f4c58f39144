"""How far a consumer has consumed a source table."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.core.ancestry import Snapshot


@dataclass(frozen=True, slots=True)
class Watermark:
    """All of ``ref`` up to and including ``snapshot_id`` is consumed.

    The table's uuid tells a re-created table from the one consumed; the sequence number and the timestamp still place
    the watermark when its snapshot has been expired. ``schema_id`` is the schema that its rows were read by; None where
    an earlier release didn't say.
    """

    table_uuid: str
    ref: str
    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    schema_id: int | None = None

    @property
    def position(self) -> tuple[int, int]:
        """Orders snapshots by when they were committed, also in v1 tables, which have no sequence numbers."""
        return (self.sequence_number, self.timestamp_ms)

    @classmethod
    def at(cls, snapshot: Snapshot, *, table_uuid: str, ref: str, schema_id: int) -> Watermark:
        """The watermark at ``snapshot``."""
        return cls(table_uuid, ref, snapshot.snapshot_id, snapshot.sequence_number, snapshot.timestamp_ms, schema_id)
