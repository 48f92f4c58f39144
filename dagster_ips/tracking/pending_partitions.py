"""Which partitions of a consumer have something to do, and looking at its upstreams for that."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.touched import LineState
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import stamped_partitions
from dagster_ips.iceberg.storage import Storage
from dagster_ips.state.store import EdgeStore
from dagster_ips.tracking.effects import Effect, effect
from dagster_ips.tracking.following import TrackedInput
from dagster_ips.tracking.partitions import look


@dataclass(frozen=True)
class PartitionWatch:
    """Looks at the upstreams of a partitioned consumer; ``target`` is its table, None before the first run."""

    storage: Storage
    store: EdgeStore
    consumer: str
    target: TableMetadata | None

    def pending(self, tracked: TrackedInput, source: TableMetadata) -> frozenset[str]:
        """The partitions that exist and are made of rows that changed after what they have consumed.

        What was found is remembered, less what every partition has consumed, so that the next look goes on from here.
        """
        slicing = tracked.slicing
        assert slicing is not None  # noqa: S101  # asked for partitioned consumers only
        known = self.store.get_line(Edge(self.consumer, tracked.upstream))
        line = look(self.storage, known, source, tracked)
        if known.scanned is None and line.scanned is not None:
            line = self._with_consumed(line, tracked)
        made_of = {key: slicing.made_of([key]) for key in line.touched}
        states = self._states(line.edge, frozenset[str]().union(*made_of.values()))
        pending = {key for key, state in states.items() if line.is_pending(state, slicing.taken_by(key))}
        line = line.without([key for key, consumers in made_of.items() if consumers and consumers.isdisjoint(pending)])
        if line != known:
            with effect(Effect.RECORD_LOOK):
                self.store.set_line(line)
        return frozenset(pending)

    def _with_consumed(self, line: LineState, tracked: TrackedInput) -> LineState:
        """``line`` after the first look, with the partitions that were computed before it.

        All their rows may be gone since, so that no file tells of them.
        """
        slicing, scanned = tracked.slicing, line.scanned
        assert slicing is not None  # noqa: S101  # as above
        assert scanned is not None  # noqa: S101  # it was looked
        consumers = slicing.made_of(slicing.upstream_keys.known())
        consumed = {key for key, state in self._states(line.edge, consumers).items() if state != EdgeState(state.edge)}
        if self.target is not None:
            consumed |= stamped_partitions(self.target, line.edge)
        keys = frozenset[str]().union(*[slicing.taken_by(key) for key in consumed])
        return LineState(line.edge).looked_at(scanned, keys | line.touched.keys(), unmapped=line.unmapped)

    def _states(self, line: Edge, partitions: frozenset[str]) -> dict[str, EdgeState]:
        states = self.store.get_many([line.of(key) for key in sorted(partitions)])
        return {edge.partition or "": state for edge, state in states.items()}
