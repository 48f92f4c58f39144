"""What a target says about its edges, even if snapshots of it have expired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dagster_ips.core.capture import EdgeState, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.target import TargetHistory, settle, settle_all, shows_all_since, unexpected_change
from dagster_ips.errors import TargetChangedError, UnknownPublicationError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.expired_snapshots import with_expired_snapshots
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import target_histories
from dagster_ips.iceberg.storage import Storage
from dagster_ips.state.store import EdgeStore


def histories_since(
    storage: Storage, target: TableMetadata | None, marks: Mapping[Edge, TargetMark | None]
) -> dict[Edge, TargetHistory]:
    """The target's history and the newest stamp of each edge; empty if the target doesn't exist.

    Something may have been published after an edge's mark that is no longer retained, namely after a run was killed or
    Dagster's database was restored. Then older metadata files are read, as far back as there are any. After mere
    maintenance of the table, none is read.
    """
    if target is None:
        return {}
    found = target_histories(target, marks)
    if _show_all(found, marks):
        return found
    for more in with_expired_snapshots(storage, target):
        found = target_histories(more, marks)
        if _show_all(found, marks):
            break
    return found


def histories_of(
    storage: Storage, target: TableMetadata | None, states: Iterable[EdgeState]
) -> dict[Edge, TargetHistory]:
    """As ``histories_since``, with the mark of each state."""
    return histories_since(storage, target, {state.edge: state.target for state in states})


def store_settled(
    store: EdgeStore, states: Mapping[Edge, EdgeState], histories: Mapping[Edge, TargetHistory]
) -> dict[Edge, EdgeState]:
    """The states as the target's stamps have them: what a run published and did not live to commit is committed."""
    settled = settle_all(states, histories)
    if changed := [each for edge, each in settled.items() if each is not states[edge]]:
        with effect(Effect.COMMIT):
            store.set(*changed)
    return settled


def require_unchanged(table: str, settled: Iterable[tuple[EdgeState, TargetHistory | None]]) -> None:
    """Fail if the table isn't what was published last as far as a settled state knows.

    Raises:
        TargetChangedError: it isn't.
    """
    for state, history in settled:
        if what := unexpected_change(state, history):
            raise TargetChangedError(table=table, consumer=state.edge.consumer, what=what)


def require_known_publications(table: str, settled: Iterable[tuple[EdgeState, TargetHistory | None]]) -> None:
    """Fail if something may have been published that a settled state doesn't know about.

    Raises:
        UnknownPublicationError: it may have been.
    """
    for state, history in settled:
        if history is not None and not shows_all_since(state.target, history):
            edge, snapshot_id = state.edge, history.announced
            raise UnknownPublicationError(table=table, edge=str(edge), consumer=edge.consumer, snapshot_id=snapshot_id)


def _show_all(found: Mapping[Edge, TargetHistory], marks: Mapping[Edge, TargetMark | None]) -> bool:
    return all(shows_all_since(settle(EdgeState(e, target=marks[e]), h).target, h) for e, h in found.items())
