"""Finds which partitions of a consumer are pending, by looking at its upstreams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from dagster_ips.core.capture import EdgeState, Mode, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.expiry_limit import Need
from dagster_ips.core.partition_keys import Slicing, taken_by_any
from dagster_ips.core.target import settle, settle_all, shows_all_since
from dagster_ips.core.touched import LineState, Touched, before_all, first_of, reaches
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.line_look import (
    as_divided_now,
    keys_gone_since,
    keys_since,
    known_line,
    known_of,
    look,
    may_lack_rows,
    with_newcomers,
    with_rows_read,
    with_taken_back,
)
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.capture.unread_history import needs_of_line, read_from
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.target_table.target_history import histories_of
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import last_divided_otherwise, partitions_of_others, partitions_read, taken_back
from dagster_ips.iceberg.storage import Storage
from dagster_ips.state.store import EdgeStore


@dataclass(frozen=True, slots=True)
class _PendingKeys:
    """What a look found: which partitions are made of each changed key, and the states of the pending partitions."""

    line: LineState
    made_of: Mapping[str, frozenset[str]]
    pending: Mapping[str, EdgeState]


@dataclass(frozen=True)
class PartitionWatch:
    """Looks at the upstreams of a partitioned consumer; ``target`` is its table, None before the first run.

    ``newest`` gives a table's metadata as it is now, for looks at metadata that may have been read a while ago.
    """

    storage: Storage
    store: EdgeStore
    consumer: str
    target: TableMetadata | None
    newest: Callable[[str], TableMetadata | None] | None = None

    def pending(self, tracked: TrackedInput, source: TableMetadata) -> frozenset[str]:
        """The existing partitions that are made of rows that changed after what they have consumed.

        What was found is stored, without what every partition has consumed, so that the next look starts from here. If
        something else was stored during this look, that stays instead.
        """
        stored = self.store.get_line(Edge(self.consumer, tracked.upstream))
        if self.newest is not None and stored.scanned is not None and source.predates(stored.scanned):
            # Another look has seen more by now. To this one, the table would look rolled back.
            source = self.newest(tracked.table) or source
        known = known_of(stored, tracked, self.target)
        found = self._look(known, tracked, source)
        pending, made_of = found.pending.keys(), found.made_of
        done = [key for key, consumers in made_of.items() if consumers and consumers.isdisjoint(pending)]
        line = replace(self._without_consumed_unread(found.line.without(done), tracked), unchecked=None)
        # If the target is only away, as someone renamed it or is restoring it, what is known of it is still needed.
        is_away = self.target is None and stored.division not in (None, line.division)
        if not is_away and (line != known or (line.losses, line.landmarks) != (stored.losses, stored.landmarks)):
            now = self.store.get_line(line.edge)
            if replace(now, landmarks=stored.landmarks) != stored:
                # What another look or a publication has stored meanwhile stays: the next look goes on from there.
                return frozenset(pending)
            # What a run that captured during the look knows to be there isn't missed later, if it is deleted then.
            latest, *known_before = (each.landmarks or frozenset() for each in (now, stored, line))
            if new := latest.difference(*known_before):
                line = replace(line, landmarks=new.union(line.landmarks or ()))
            since = known.checked_to or (before_all(line.scanned) if line.scanned else None)
            if since is not None and not may_lack_rows(line, since, source, tracked.ref):
                since = None
            with effect(Effect.RECORD_LOOK):
                self.store.set_line(replace(line, unchecked=since))
            if since is not None:
                self._follow_captures_since(since, line, tracked, source)
        return frozenset(pending)

    def _follow_captures_since(
        self, since: Watermark, line: LineState, tracked: TrackedInput, source: TableMetadata
    ) -> None:
        """Store what a run has read that captured during the look, which began at ``since``, and doesn't know of it.

        A run first stores what it captures and then reads the line; here it is the other way round. So one of the two
        sees the other. If this is cut short, the next look does it.
        """
        states = self._states_ever(line, tracked)
        behind: dict[str, Watermark | None] = {k: at for k, at in _consumed(states).items() if at != line.scanned}
        for read in (*_being_read(states), behind):
            line = with_rows_read(line, since, source, tracked, read)
        with effect(Effect.RECORD_LOOK):
            self.store.set_line(line)

    def recompute_overtaken(
        self,
        tracked: TrackedInput,
        source: TableMetadata,
        partitions: Collection[str],
        *,
        published: Mapping[str, Watermark] = MappingProxyType({}),
        keeps_results: bool = False,
    ) -> None:
        """Have those of the just published ``partitions`` recomputed that hold rows which no look has seen.

        Looks don't know of staged runs. So if such a run read rows that were gone at the next look, that look has found
        no change, and neither will a later one. Partitions that were read where no look has gone beyond are left alone:
        the next look sees their stamps.

        ``published`` is up to where each had read when it was published; by default, as its cursor says. If that was
        some time ago, a run may have gone on since, from where the last look was.

        If the asset ``keeps_results`` of removed rows, a recompute would drop them. Then the partitions only read what
        has changed after what they hold.
        """
        slicing, line = tracked.known_slicing, self._line(tracked)
        overtaken: dict[tuple[Watermark, bool], dict[str, EdgeState]] = {}
        for key, state in self._states(line, slicing, frozenset(partitions)).items():
            to = state.committed
            if to is None:
                continue
            read = published.get(key, to)
            if has_gone_on := read != to:
                is_missed = not (keeps_results or self._is_computed_anew(state, read))
            else:
                # If it is read from there anyway, nothing is missed.
                is_missed = line.start_of(state, slicing.taken_by(key)) != to
            if is_missed and _has_passed(line, read):
                overtaken.setdefault((read, has_gone_on), {})[key] = state
        # If the last look's snapshot was rolled back, older ones may have been read after that look.
        is_there = line.scanned is not None and source.ancestry(tracked.ref).find(line.scanned.snapshot_id) is not None
        missed: list[EdgeState] = []
        for (to, has_gone_on), states in overtaken.items():
            # The run that has gone on has read all that came and is still there.
            find = keys_gone_since if has_gone_on else keys_since
            changed = find(self.storage, source, tracked, to) if is_there else None
            # One that is pending although nothing changed has read, after a rollback, the rows that a later look found.
            keys = [
                key
                for key, state in states.items()
                if changed is None
                or not changed.isdisjoint(slicing.taken_by(key))
                or (not has_gone_on and line.is_pending(state, slicing.taken_by(key)))
            ]
            missed += [states[key] for key in keys]
            since = to if keeps_results else line.scanned
            if since is not None:
                line = line.with_read_beyond(taken_by_any(slicing, keys), since)
        if missed:
            with effect(Effect.RECORD_LOOK):
                self.store.set_line(line)
        if missed and not keeps_results:
            # With a number of its own, so that no run goes on that has read the states before.
            anew = [replace(state, committed=None, number=state.next_number) for state in missed]
            with effect(Effect.COMMIT):
                self.store.set(*anew)

    def _is_computed_anew(self, state: EdgeState, published: Watermark) -> bool:
        """Whether the newest stamp says that all rows of the partition were computed after it was ``published``."""
        history = histories_of(self.storage, self.target, [state]).get(state.edge)
        stamp = history.newest if history else None
        return stamp is not None and stamp.mode is Mode.FULL and stamp.to_inclusive != published

    def known(self, tracked: TrackedInput) -> LineState:
        """What is stored about all partitions, and which of them a revert has taken back since. Nothing is looked at.

        A revert that was killed after it published hasn't stored that their changes are to be consumed again.
        """
        slicing, line = tracked.known_slicing, self._line(tracked)
        return with_taken_back(line, slicing, *self._taken_back(line, slicing))

    def waiting(self, tracked: TrackedInput, source: TableMetadata) -> Mapping[str, Watermark | None]:
        """As ``pending``, each with the watermark up to which it has consumed, None if never. Nothing is stored."""
        return self.looked(tracked, source)[0]

    def looked(self, tracked: TrackedInput, source: TableMetadata) -> tuple[Mapping[str, Watermark | None], LineState]:
        """As ``waiting``, and the line, which has the files whose partitions are unknown. Nothing is stored."""
        found = self._look(self._line(tracked), tracked, source)
        line = self._without_consumed_unread(found.line, tracked)
        return {key: state.committed for key, state in found.pending.items()}, line

    def consumed_up_to(
        self, tracked: TrackedInput, source: TableMetadata, *, but: Collection[str] = (), by_time: bool
    ) -> Watermark | None:
        """Up to where every partition has consumed the upstream, if the partitions ``but`` are taken to be up to date.

        None if that is unknown: a partition was never computed and may have had rows from the beginning, or only clocks
        could say which partition is behind. Rows whose keys have no partition yet count as not consumed; for an asset
        that is partitioned ``by_time``, times after its last partition don't count. Nothing is stored.
        """
        slicing = tracked.known_slicing
        found = self._look(self._line(tracked), tracked, source)
        line = found.line
        if source.head_snapshot_id(tracked.ref) is None:
            return None
        left = {key: state for key, state in found.pending.items() if key not in but}
        starts = [line.consumed_up_to(state, slicing.taken_by(key)) for key, state in left.items()]
        nobodys = {key for key, consumers in found.made_of.items() if not consumers}
        waiting = nobodys - slicing.lost(nobodys)
        starts += [
            line.touched[key].since for key in (slicing.upstream_keys.to_be_added(waiting) if by_time else waiting)
        ]
        starts += [each.changed.since for each in line.unread.values()]
        known = [start for start in starts if start is not None]
        if line.scanned is None or len(known) < len(starts):
            return None
        return first_of([line.scanned, *known])

    def published(self, tracked: TrackedInput) -> dict[str | None, TargetMark | None]:
        """The target's snapshot with which each existing partition that was ever computed was last published."""
        states = self._every_state(self._line(tracked), tracked)
        return {key: state.target for key, state in states.items() if state.committed is not None}

    def needs(self, tracked: TrackedInput, source: TableMetadata) -> Iterator[Need]:
        """What is still to be read of the upstream's history. Nothing is stored."""
        slicing, known = tracked.known_slicing, self._line(tracked)
        found = self._look(known, tracked, source)
        starts = [found.line.start_of(state, slicing.taken_by(key)) for key, state in found.pending.items()]
        starts += [read_from(state) for state in self._every_state(known, tracked).values()]
        # The next look begins where the last stored one ended, as this one isn't stored.
        return needs_of_line(known, [*starts, *(each.changed.since for each in found.line.unread.values())], source)

    def _line(self, tracked: TrackedInput) -> LineState:
        """What is known from the stored line before the next look."""
        return known_line(self.store, self.consumer, tracked, self.target)

    def _without_consumed_unread(self, line: LineState, tracked: TrackedInput) -> LineState:
        if not line.unread:
            return line
        return line.without_consumed_unread(list(self._every_state(line, tracked).values()))

    def _look(self, known: LineState, tracked: TrackedInput, source: TableMetadata) -> _PendingKeys:
        slicing = tracked.known_slicing
        if source.head_snapshot_id(tracked.ref) is None:
            return _PendingKeys(known, {}, self._holding_what_is_gone(known, tracked))
        line = look(self.storage, known, source, tracked)
        if known.scanned is None and line.scanned is not None:
            line = self._with_consumed(line, tracked, source)
        elif known.checked_to and may_lack_rows(line, known.checked_to, source, tracked.ref):
            states = self._states_ever(line, tracked)
            # A run that had nothing to write leaves no stamp, and may have read less than the last stamp says.
            for read in (*_being_read(states), self._read_up_to(line.edge, states, slicing), _consumed(states)):
                line = with_rows_read(line, known.checked_to, source, tracked, read)
        line = self._with_newcomers(line, tracked, source)
        if not slicing.dynamic <= line.dynamic:
            line = replace(line, dynamic=line.dynamic | slicing.dynamic)
        back = self._taken_back(line, slicing)
        line = with_taken_back(line, slicing, *back)
        made_of = slicing.made_of_each(line.touched)
        states = self._states(line, slicing, frozenset[str]().union(*made_of.values()))
        # If a run was killed before it committed, the cursor is behind the stamps; if a revert was, it is ahead.
        states |= {state.edge.key: state for state in back[1] if state.edge.partition in states}
        pending = {key: state for key, state in states.items() if line.is_pending(state, slicing.taken_by(key))}
        pending |= self._read_by_other_columns(line, tracked, source)
        pending |= self._computed_before_losses(line, slicing)
        return _PendingKeys(line, made_of, pending)

    def _computed_before_losses(self, line: LineState, slicing: Slicing) -> dict[str, EdgeState]:
        """The partitions that may hold rows of upstream partitions that were deleted, whatever they take now.

        A run that captured before may publish at any time, so all partitions are asked at each look. If it was killed
        before it committed, only its stamp says what it published. If a run that was to recompute was killed before it
        published, nothing is consumed any more, but the target's mark is still there.
        """
        if not line.losses:
            return {}
        stored = self.store.get_many([line.edge.of(key) for key in sorted(slicing.sharing)])
        settled = settle_all(stored, histories_of(self.storage, self.target, stored.values()))
        now = as_divided_now(settled.values(), self.target, line, slicing)
        return {
            edge.key: now[edge]
            for edge, state in settled.items()
            if now[edge].committed is None and (state.committed is not None or state.target is not None)
        }

    def _read_by_other_columns(
        self, line: LineState, tracked: TrackedInput, source: TableMetadata
    ) -> dict[str, EdgeState]:
        """The partitions that consumed rows in which a name meant another column than now, which no file shows.

        A run of these partitions is refused, with the reason. If the schema that they were read with was removed from
        the metadata, that is decided only when a change of theirs is to be read.
        """
        if source.columns_of_other_meaning(None) == ():
            return {}
        states = self._every_state(line, tracked)
        consumed = _consumed(states)
        others = {each: source.columns_of_other_meaning(each) for each in {at.schema_id for at in consumed.values()}}
        return {key: states[key] for key, at in consumed.items() if others[at.schema_id]}

    def _with_newcomers(self, line: LineState, tracked: TrackedInput, source: TableMetadata) -> LineState:
        """``line`` with the partitions that are new or back since the last look and share keys with others."""
        slicing = tracked.known_slicing
        there = slicing.sharing
        if there == line.partitions:
            return line
        states = self._states(line, slicing, there - (line.partitions or frozenset()))
        line = with_newcomers(self.storage, line, source, tracked, list(states.values()))
        return replace(line, partitions=there)

    def _taken_back(self, line: LineState, slicing: Slicing) -> tuple[dict[str, Watermark], list[EdgeState]]:
        """The partitions that a revert took back, up to where, and their states according to the target."""
        found = taken_back(self.target, line.edge) if self.target is not None else {}
        back = {key: at for key, at in found.items() if key is not None}
        states = self._states(line, slicing, frozenset(back))
        histories = histories_of(self.storage, self.target, states.values())
        return back, [settle(state, histories.get(state.edge)) for state in states.values()]

    def _read_up_to(self, line: Edge, states: Mapping[str, EdgeState], slicing: Slicing) -> dict[str, Watermark | None]:
        """Up to where each partition has read, None where that is unknown.

        If stamps have expired, the cursors and the announcements in the table say so.
        """
        if self.target is None:
            return {}
        read: dict[str, Watermark | None] = dict(partitions_read(self.target, line, slicing.division))
        if not self.target.ancestry().is_whole:
            histories = histories_of(self.storage, self.target, states.values())
            for key, state in states.items():
                settled, history = settle(state, histories[state.edge]), histories[state.edge]
                if not shows_all_since(settled.target, history):
                    read[key] = None
                elif settled.committed is not None:
                    read[key] = settled.committed
        else:
            # A run may have published and committed after this look read where the target's metadata is.
            for key, state in states.items():
                at, known = state.committed, read.get(key)
                if at is not None and (known is None or not reaches(known, at)):
                    read[key] = at
        return read

    def _holding_what_is_gone(self, line: LineState, tracked: TrackedInput) -> dict[str, EdgeState]:
        """The partitions that consumed an upstream that now has no snapshot, because it was re-created without rows."""
        states = self._every_state(line, tracked)
        return {key: states[key] for key in _consumed(states)}

    def _with_consumed(self, line: LineState, tracked: TrackedInput, source: TableMetadata) -> LineState:
        """``line`` after the first look, with the partitions that were computed before it.

        All their rows may be gone by now, so that no file shows them; also because what they have consumed was rolled
        back. If the table was divided otherwise before, its rows may be of any partition. If it was another asset's,
        that asset's partitions may have rows.
        """
        slicing, scanned = tracked.known_slicing, line.scanned
        assert scanned is not None  # noqa: S101  # it was looked
        states = self._every_state(line, tracked)
        consumed = {key for key, state in states.items() if state != EdgeState(state.edge)}
        consumed |= self._read_up_to(line.edge, states, slicing).keys()
        if self.target is not None and last_divided_otherwise(self.target, line.edge, slicing.division):
            consumed |= states.keys()
        if self.target is not None:
            others = partitions_of_others(self.target, self.consumer)
            consumed |= states.keys() if others is None or others - states.keys() else others
        touched = {key: Touched(None, scanned) for key in taken_by_any(slicing, consumed) | line.touched.keys()}
        beyond = {key: mark for key, mark in _consumed(states).items() if mark and not reaches(scanned, mark)}
        later = {key: mark for key, mark in beyond.items() if source.predates(mark)}
        gone = {mark.snapshot_id for key, mark in beyond.items() if key not in later}
        line = replace(line, touched=touched, partitions=slicing.sharing, abandoned=line.abandoned | gone)
        for key, mark in later.items():
            line = line.with_read_beyond(slicing.taken_by(key), before_all(scanned), to=mark)
        return line

    def _every_state(self, line: LineState, tracked: TrackedInput) -> dict[str, EdgeState]:
        """The states of all existing partitions."""
        slicing = tracked.known_slicing
        return self._states(line, slicing, slicing.made_of(slicing.upstream_keys.known()))

    def _states_ever(self, line: LineState, tracked: TrackedInput) -> dict[str, EdgeState]:
        """As ``_every_state``, with the partitions that were deleted: they may be added again, and then have rows."""
        there = self._every_state(line, tracked)
        return self._states(line, tracked.known_slicing, line.dynamic - there.keys()) | there

    def _states(self, line: LineState, slicing: Slicing, partitions: frozenset[str]) -> dict[str, EdgeState]:
        stored = self.store.get_many([line.edge.of(key) for key in sorted(partitions)])
        states = as_divided_now(stored.values(), self.target, line, slicing)
        return {edge.key: state for edge, state in states.items()}


def _has_passed(line: LineState, to: Watermark) -> bool:
    """Whether the last look was at a later snapshot than ``to``."""
    return line.scanned is not None and line.scanned.snapshot_id != to.snapshot_id and reaches(line.scanned, to)


def _consumed(states: Mapping[str, EdgeState]) -> Mapping[str, Watermark]:
    """Up to where each partition that was ever computed has consumed."""
    return {key: state.committed for key, state in states.items() if state.committed is not None}


def _being_read(states: Mapping[str, EdgeState]) -> list[dict[str, Watermark | None]]:
    """Up to where partitions have read once the runs at work are done; these may be dead. Several runs may read one."""
    marks = {key: state.being_read for key, state in states.items()}
    most = max(map(len, marks.values()), default=0)
    return [{key: of[number] for key, of in marks.items() if number < len(of)} for number in range(most)]
