"""Edge states in Dagster's cursor storage."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from dagster import DagsterInstance

from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.touched import LineState
from dagster_ips.errors import CursorStorageError, StateUnreadableError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.state.backfill_codec import decode_backfill, encode_backfill
from dagster_ips.state.codec import decode_line, encode, encode_line
from dagster_ips.state.store import stored_state

_PREFIX = "dagster_ips:edge:"
_VOIDED = ":voided"
_LINE_PREFIX = "dagster_ips:line:"
_BACKFILL_PREFIX = "dagster_ips:backfill:"
_PROBE = "dagster_ips:probe"
_MOST_READ, _MOST_WRITTEN = 500, 100

_Any = TypeVar("_Any")
_LOG = logging.getLogger(__name__)


class CursorStore:
    """Stores edge states: one key per edge, and a second one once a person has intervened.

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

    def get(self, edge: Edge) -> EdgeState:
        """The stored state, or an initial one.

        Raises:
            StateVersionError, StateUnreadableError: see ``dagster_ips.state.codec.decode``.
            CursorStorageError: the storage doesn't work.
        """
        return self.get_many([edge])[edge]

    def get_many(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        """The state of each edge, read with one query per 500 edges; without edges there is no query.

        Raises:
            As for ``get``.
        """
        states: dict[Edge, EdgeState] = {}
        for some in _batches(list(dict.fromkeys(edges)), _MOST_READ):
            keys = [_key(edge) for edge in some]
            texts = self._values([*keys, *(key + _VOIDED for key in keys)])
            for edge, key in zip(some, keys, strict=True):
                states[edge] = stored_state(edge, texts.get(key), texts.get(key + _VOIDED))
        return states

    def set(self, *states: EdgeState) -> None:
        """Store ``states``, with two or three queries per 100 partitions. They are durable when this returns.

        Raises:
            CursorStorageError: the storage doesn't work, or didn't keep a whole value.
        """
        together: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        # In order: two runs that write the same rows of a database in another order wait for each other for ever.
        for state in sorted(states, key=lambda state: (*_reader(state.edge), _key(state.edge))):
            together[_reader(state.edge)][_key(state.edge)] = encode(state)
        for some in _batches(list(together.values()), _MOST_WRITTEN):
            self._write({key: text for texts in some for key, text in texts.items()})

    def intervene(self, state: EdgeState) -> None:
        """Like ``set``, but a run that had read the earlier state can't undo it."""
        self._write({_key(state.edge) + _VOIDED: encode(state)})
        self.set(state)

    def get_line(self, edge: Edge) -> LineState:
        """What is known about all partitions of the line ``edge``.

        A damaged text counts as lost, because everything else says what was consumed: each partition is pending once.

        Raises:
            StateVersionError: a newer version wrote it.
            CursorStorageError: the storage doesn't work.
        """
        key = _LINE_PREFIX + edge.id
        text = self._values([key]).get(key)
        try:
            return decode_line(text, edge) if text else LineState(edge)
        except StateUnreadableError as error:
            _LOG.warning("what was last looked at of %s can't be read and counts as lost: %s", edge, error.cause)
            return LineState(edge)

    def set_line(self, state: LineState) -> None:
        """Like ``set``, for the state of a line."""
        self._write({_LINE_PREFIX + state.edge.id: encode_line(state)})

    def set_names(self, state: LineState) -> None:
        """As ``set_line``."""
        self.set_line(state)

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


def _key(edge: Edge) -> str:
    return _PREFIX + edge.id


def _reader(edge: Edge) -> tuple[str, str]:
    """Whose edge it is: the consumer and its partition."""
    return edge.consumer, edge.key


def _batches(of: Sequence[_Any], size: int) -> Iterator[Sequence[_Any]]:
    return (of[start : start + size] for start in range(0, len(of), size))
