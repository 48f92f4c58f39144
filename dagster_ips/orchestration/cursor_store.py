"""Edge states in Dagster's cursor storage."""

from __future__ import annotations

from dagster import DagsterInstance

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.errors import CursorStorageError
from dagster_ips.state.codec import decode, encode

_PREFIX = "dagster_ips:edge:"
_PROBE = "dagster_ips:probe"


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

    def require_working(self) -> None:
        """Set a value and get it back: some storages of cursors only say that they are one.

        Raises:
            CursorStorageError: it doesn't work.
        """
        try:
            self._storage.set_cursor_values({_PROBE: "works"})
            kept = self._storage.get_cursor_values({_PROBE}).get(_PROBE)
        except NotImplementedError as error:
            raise CursorStorageError(cause="it does not implement them") from error
        if kept != "works":
            raise CursorStorageError(cause="a value that was set did not come back")

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
