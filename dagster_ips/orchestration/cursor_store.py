"""Edge states in Dagster's cursor storage."""

from __future__ import annotations

from collections.abc import Iterable

from dagster import DagsterInstance

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.touched import LineState
from dagster_ips.errors import CursorStorageError
from dagster_ips.state.codec import decode, encode
from dagster_ips.state.line_codec import decode_line, encode_line

_PREFIX = "dagster_ips:edge:"
_LINE_PREFIX = "dagster_ips:line:"
_BATCH = 500
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
        return self.get_many([edge])[edge]

    def get_many(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        """As ``get``, of each of ``edges``, some hundreds in one query."""
        asked = list(edges)
        texts = self._read([_PREFIX + edge.id for edge in asked])
        found = ((edge, texts.get(_PREFIX + edge.id)) for edge in asked)
        return {edge: decode(text, edge) if text else EdgeState(edge) for edge, text in found}

    def set(self, state: EdgeState) -> None:
        """Store ``state``; durable when this returns.

        Raises:
            CursorStorageError: the storage doesn't work, or did not keep the value.
        """
        self._write(_PREFIX + state.edge.id, encode(state))

    def get_line(self, edge: Edge) -> LineState:
        """What is known of all partitions of the line ``edge``; errors as of ``get``."""
        text = self._read([_LINE_PREFIX + edge.id]).get(_LINE_PREFIX + edge.id)
        return decode_line(text, edge) if text else LineState(edge)

    def set_line(self, state: LineState) -> None:
        """As ``set``."""
        self._write(_LINE_PREFIX + state.edge.id, encode_line(state))

    def _read(self, keys: list[str]) -> dict[str, str]:
        try:
            found: dict[str, str] = {}
            for start in range(0, len(keys), _BATCH):
                found |= self._storage.get_cursor_values(set(keys[start : start + _BATCH]))
        except NotImplementedError as error:
            raise CursorStorageError(cause="get_cursor_values is not implemented") from error
        return found

    def _write(self, key: str, text: str) -> None:
        try:
            self._storage.set_cursor_values({key: text})
            kept = self._storage.get_cursor_values({key}).get(key)
        except NotImplementedError as error:
            raise CursorStorageError(cause="set_cursor_values is not implemented") from error
        if kept is None:
            raise CursorStorageError(cause="a value that was set did not come back")
