"""Edge states in Dagster's cursor storage."""

from __future__ import annotations

from collections.abc import Iterable

from dagster import DagsterInstance

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.errors import CursorStorageError
from dagster_ips.state.codec import decode, encode

_PREFIX = "dagster_ips:edge:"


class CursorStore:
    """One key per edge, lowercase and under 64 characters, written one at a time.

    MySQL tells keys apart only by their first 64 characters and ignores case; SQLite drops new keys from a batch that
    also holds existing ones.
    """

    def __init__(self, instance: DagsterInstance) -> None:
        storage = instance.daemon_cursor_storage
        if storage is None:
            raise CursorStorageError(cause="it has no daemon cursor storage")
        self._storage = storage

    def get(self, edge: Edge) -> EdgeState:
        """The stored state, or a fresh one.

        Raises:
            StateVersionError, StateUnreadableError: see ``dagster_ips.state.codec.decode``.
            CursorStorageError: the storage doesn't work.
        """
        key = _PREFIX + edge.id
        try:
            text = self._storage.get_cursor_values({key}).get(key)
        except NotImplementedError as error:
            raise CursorStorageError(cause="get_cursor_values is not implemented") from error
        return decode(text, edge) if text else EdgeState(edge)

    def get_all(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        """As ``get`` of each, in one query."""
        keys = {_PREFIX + edge.id: edge for edge in edges}
        if not keys:
            return {}
        try:
            texts = self._storage.get_cursor_values(set(keys))
        except NotImplementedError as error:
            raise CursorStorageError(cause="get_cursor_values is not implemented") from error
        return {edge: decode(text, edge) if (text := texts.get(key)) else EdgeState(edge) for key, edge in keys.items()}

    def set(self, state: EdgeState) -> None:
        """Store ``state``; durable when this returns.

        Raises:
            CursorStorageError: the storage doesn't work, or did not keep the value.
        """
        key, text = _PREFIX + state.edge.id, encode(state)
        try:
            self._storage.set_cursor_values({key: text})
            kept = self._storage.get_cursor_values({key}).get(key)
        except NotImplementedError as error:
            raise CursorStorageError(cause="set_cursor_values is not implemented") from error
        if kept is None:
            raise CursorStorageError(cause="a value that was set did not come back")
