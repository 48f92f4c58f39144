"""Random lives of one consumer on the real code: what its runs, a sensor, persons and others do is interleaved.

The consumer copies its inputs, so what its table must hold at any progress follows from the inputs' histories. After
each switch, main holds what its progress says, and what the cursor says beyond; in the end, it holds the inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from dagster_ips.core.capture import Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import AtSnapshot
from dagster_ips.core.ownership import ASSET, Consent
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.policy import InputPolicies, OnExpired, OnRollback
from dagster_ips.errors import (
    ForeignWriteError,
    IpsError,
    RevertError,
    TargetChangedError,
    UnknownPublicationError,
)
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.partitioned_input import look_at
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.publisher import Publication, Publisher
from dagster_ips.exactly_once.publish.restorer import (
    Restoration,
    require_nothing_newer,
    restored_progress,
    with_lacking,
)
from dagster_ips.exactly_once.target_table.target_ownership import left_unknown
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import REVERTED, owner_properties
from dagster_ips.orchestration.declare.partition_mappings import SameKeys
from dagster_ips.progress.advance import Advance
from dagster_ips.progress.cursor import Cursor, Request, RequestKind, known_progress
from dagster_ips.progress.made_rows import MadeBy
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.table_progress import PROGRESS, TableProgress, progress_at, table_progress
from dagster_ips.spark.branches import Branch, is_branch_of_run
from tests.interleavings.actors import Actor, KilledError, pass_on, switched_at_effects
from tests.interleavings.keys import KeysByValue
from tests.interleavings.lake import MemoryLake, Row, Rows, Table
from tests.interleavings.session import NoSpark
from tests.support.memory_store import MemoryCursors

CONSUMER, TARGET, FOREIGN = "copy", "lake.copy", "foreign"
_KEYS = ("a", "b", "c")
MOST_TURNS = 400
_MOST_LAST_RUNS = 12
_UNKNOWN = (TargetChangedError, UnknownPublicationError)


class WrongRowsError(BaseException):
    """Main doesn't hold what it should; no code that handles errors handles this."""


@dataclass
class _Shared:
    """What all actors see of Dagster's storage; ``code`` is what makes rows now."""

    texts: dict[tuple[str, str], str]
    code: int = 1
    floors: tuple[tuple[int, int], ...] = ()
    """The id of each reset, and the first code that saw it."""


class _Cursors(MemoryCursors):
    """The cursors as one actor sees them; ``code`` is what makes its rows, since it first looked."""

    def __init__(self, shared: _Shared) -> None:
        self._texts, self.shared = shared.texts, shared
        self.code: int | None = None

    def get(self, asset: str) -> Cursor:
        pass_on("before reading the cursor")
        self.code = self.code or self.shared.code
        return super().get(asset)

    def set_requests(self, asset: str, requests: tuple[Request, ...]) -> None:
        super().set_requests(asset, requests)
        self.shared.code += 1
        if requests[-1].kind is RequestKind.RESET:
            self.shared.floors += ((requests[-1].id, self.shared.code),)


class World:
    """All of it, driven by one source of chance; ``log`` says what happened."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lake = MemoryLake.new(lambda: pass_on("before reading a table"))
        self.upstreams = ["u", "v"][: random.randint(1, 2)]
        self.sources = {each: Table(self.lake, f"lake.{each}", random) for each in self.upstreams}
        self.target = Table(self.lake, TARGET, random, forgets_parents=random.random() < 0.3)
        for source in self.sources.values():
            source.create()
        self.target.create(**({ASSET: CONSUMER} if random.random() < 0.7 else {}))
        self.is_partitioned = random.random() < 0.5
        self.partitions = list(_KEYS[: random.randint(2, 3)])
        self.may_repeat = random.random() < 0.5
        self.has_foreign = random.random() < 0.3
        self.has_rollbacks = random.random() < 0.25
        self.has_maintenance = random.random() < 0.6
        self.policies = InputPolicies(random.choice([OnRollback.CONTINUE, OnRollback.FULL]), OnExpired.FULL)
        self.shared = _Shared({})
        self.backups: list[dict[tuple[str, str], str]] = [{}]
        self.accepted: set[int] = set()
        self.foreign: dict[Row, int] = {}
        self.was_published = self.was_rolled_back = self.was_reverted = False
        self.rows_made = self.names = 0
        self.actors: list[Actor] = []
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()
        self._checked: object = None
        self._obeyed = 0

    # What runs do.

    def request(self, keys: Sequence[str] = (), **asked: Any) -> CaptureRequest:  # noqa: ANN401  # its fields
        """To capture all inputs, for partitions ``keys`` if the consumer has any."""
        by_person = asked.pop("by_person", False)
        partitions = RunPartitions(tuple(keys), named_by_person=by_person) if self.is_partitioned else None
        return CaptureRequest(CONSUMER, self.tracked(), TARGET, partitions=partitions, **asked)

    def tracked(self) -> list[TrackedInput]:
        """The inputs, with the partitions that there are now."""
        slicing = SameKeys(KeysByValue(frozenset(self.partitions)))
        return [
            TrackedInput(each, f"lake.{each}", policies=self.policies, slicing=slicing if self.is_partitioned else None)
            for each in self.upstreams
        ]

    def _slicings(self) -> dict[str, Slicing]:
        return {each.upstream: each.slicing for each in self.tracked() if each.slicing is not None}

    def run(self, name: str, request: CaptureRequest) -> Publication | None:
        """As a run of Dagster does: capture, compute, publish; None if there was nothing to write."""
        store = _Cursors(self.shared)
        captured = Capturer(self.lake, store).capture(request, run_id=name)
        first, captures = captured[0], [capture for each in captured for capture in each.captures]
        publisher = Publisher(
            self.lake,
            store,
            self.session(),
            name,
            properties=owner_properties(CONSUMER, first.accepted.head),
            consent=request.consent,
            advance=first.advance,
            origin=MadeBy(str(store.code)),
        )
        existing = self.lake.load(TARGET, asset=CONSUMER)
        if superseded := publisher.superseded(existing, captures, CONSUMER):
            return superseded
        publisher.require_own(existing, captures, CONSUMER)
        publisher = publisher.settling(existing, CONSUMER)
        known = publisher.known(existing, CONSUMER)
        new = frozenset(each.edge.key for each in captures if each.is_of_new_partition)
        is_idle = first.capture.mode is Mode.INCREMENTAL and all(each.files.changes.is_empty for each in captured)
        if known is not None and is_idle and not new and not publisher.are_news:
            publisher.commit_without_writing(captures, CONSUMER)
            self.counts["had nothing to write"] += 1
            return None
        times = self.random.choice((1, 1, 2))

        def write(branch: Branch, _: TableMetadata) -> None:
            before = publisher.session.rows(branch)  # type: ignore[attr-defined]  # it is no Spark
            # Without its branch, which maintenance may have dropped, the run writes on another state, and is refused.
            is_strict = not self.may_repeat and branch.name in self.target.metadata.branches
            after = self.computed(before, captured, request, new, store.code or 0, is_strict=is_strict)
            publisher.session.write(branch, after, times=times)  # type: ignore[attr-defined]  # it is no Spark

        published = publisher.publish(TARGET, captures, write, consumer=CONSUMER)
        told = "found it published" if published.superseded_by else "published" if published.snapshots else "idle"
        self.counts[f"{told}, {first.capture.mode}"] += 1
        return published

    def session(self) -> Any:  # noqa: ANN401  # it is no Spark
        """What a run calls its session."""
        return NoSpark(self.target)

    def computed(  # noqa: PLR0913  # all are independent
        self,
        before: Rows,
        captured: Sequence[CapturedInput],
        request: CaptureRequest,
        new: frozenset[str],
        code: int,
        *,
        is_strict: bool,
    ) -> Rows:
        """The table's rows once the run has written; if it ``is_strict``, nothing may be there twice or be missing."""
        keys = frozenset(request.partitions.keys) if request.partitions else frozenset(_KEYS)
        added, removed = self._delta(captured, keys)
        anew = keys if captured[0].capture.mode is Mode.FULL else new
        kept = Counter({row: count for row, count in before.items() if row[2] not in anew})
        there = {row[:3]: row for row in kept}
        for row in removed.elements():
            if (old := there.pop(row[:3], None)) is not None:
                del kept[old]
            elif is_strict:
                raise WrongRowsError(f"a run removes {row}, which isn't there")
        for row in added.elements():
            if (old := there.get(row[:3])) is not None:
                if is_strict:
                    raise WrongRowsError(f"a run adds {row}, which is there already")
                del kept[old]
            kept[*row[:3], code] += 1
        return kept

    def _delta(self, captured: Sequence[CapturedInput], keys: frozenset[str]) -> tuple[Rows, Rows]:
        added, removed = Counter[Row](), Counter[Row]()
        for each in captured:
            rows_of, changes = self.sources[each.tracked.upstream].rows_of, each.files.changes
            assert not changes.hidden
            for file in changes.added:
                added += rows_of[file.path]
            for file in changes.removed:
                removed += rows_of[file.path]
        came, went = added - removed, removed - added
        return tuple(Counter({row: n for row, n in each.items() if row[2] in keys}) for each in (came, went))  # type: ignore[return-value]  # two

    # What others do.

    def tick(self) -> None:
        """What a sensor finds out: it must be true of the tables as it has read them."""
        known, target = self.known()
        for tracked in self.tracked():
            source = self.lake.load(tracked.table, asset=CONSUMER)
            if not self.is_partitioned:
                continue
            looked = look_at(self.lake.storage, source, tracked, known, CONSUMER)
            held, now = self.target.rows(target.head_snapshot_id()), self.sources[tracked.upstream]
            rows = now.rows(source.head_snapshot_id())
            for key in set(self.partitions) - looked.pending.keys():
                if key in tracked.known_slicing.upstream_keys.known() and known is not None:
                    self._require_same(rows, held, tracked.upstream, key, "a sensor takes for up to date")
        self.counts["ticks"] += 1

    def known(self) -> tuple[TableProgress | None, TableMetadata]:
        """What the target contains, as everyone finds it out."""
        cursor = _Cursors(self.shared).get(CONSUMER)
        target = self.lake.load(TARGET, asset=CONSUMER)
        found = table_progress(target, asset=CONSUMER, storage=self.lake.storage)
        return known_progress(found, cursor, target), target

    def reset(self) -> None:
        """A person has everything computed anew."""
        self._administrator().reset(Edge(CONSUMER, self.random.choice(self.upstreams)), who="me", why="new code")
        self._accept_what_is_asked()
        self.counts["resets"] += 1

    def rewind(self) -> None:
        """A person has a part read again."""
        (tracked,) = self.random.sample(self.tracked(), 1)
        ids = [each.snapshot_id for each in self.sources[tracked.upstream].metadata.ancestry().snapshots]
        if not ids:
            return
        place = AtSnapshot(self.random.choice(ids))
        administrator = self._administrator()
        planned = administrator.plan_rewind(CONSUMER, tracked, place, may_repeat=self.may_repeat)
        administrator.rewind(planned, who="me", why="late rows")
        self._accept_what_is_asked()
        self.counts["rewinds"] += 1

    def _administrator(self) -> Administrator:
        return Administrator(self.lake, _Cursors(self.shared), TARGET)

    def _accept_what_is_asked(self) -> None:
        for request in MemoryCursors.get(_Cursors(self.shared), CONSUMER).requests:
            self.accepted.update(self.target.history(request.head))

    def revert(self, name: str) -> None:
        """A person has the rows of an earlier publication restored, of all or of some partitions."""
        publisher = Publisher(self.lake, _Cursors(self.shared), self.session(), name)
        target = self.lake.load(TARGET, asset=CONSUMER)
        known = publisher.known(target, CONSUMER)
        if left_unknown(target, CONSUMER, known) is not None:
            return
        found = [each for each in target.ancestry().snapshots if PROGRESS in each.summary]
        found = [each for each in found if self._ends_a_publication(target, each.snapshot_id)]
        if not found:
            return
        then = self.random.choice(found)
        keys = self.random.sample(self.partitions, self.random.randint(0, 2)) if self.is_partitioned else []
        rows: Any = "rows of partitions" if keys else None
        wanted = Restoration(
            "backfill",
            CONSUMER,
            TARGET,
            then.snapshot_id,
            rows,
            keys,
            with_lacking(progress_at(target, then).progress, self._slicings()),
            target.head_snapshot_id(),
        )

        def write(branch: Branch, now: TableMetadata) -> None:
            require_nothing_newer(now, wanted)
            if then.snapshot_id not in now.snapshots:
                raise RevertError("backfill", TARGET, ("what is to be restored has expired",), "")
            session: NoSpark = publisher.session  # type: ignore[assignment]  # it is no Spark
            old, kept = self.target.rows(then.snapshot_id), session.rows(branch)
            if keys:
                old = Counter({row: n for row, n in old.items() if row[2] in keys})
                old += Counter({row: n for row, n in kept.items() if row[2] not in keys})
            session.write(branch, old)

        restoring = replace(
            publisher,
            properties=owner_properties(CONSUMER, None) | {REVERTED: "backfill"},
            advance=Advance(partitions=tuple(keys)),
            sealed=lambda now: restored_progress(now, wanted),
        )
        self.was_reverted = True
        restoring.publish(TARGET, (), write, consumer=CONSUMER)
        self.counts["reverts"] += 1

    def source_changes(self) -> None:
        """A commit to a source, or maintenance of it."""
        source = self.sources[upstream := self.random.choice(self.upstreams)]
        what = self.random.choice("aaaarrrcxb")
        there = source.rows(source.head)
        if what == "a" or not there:
            source.commit(self._new_rows(upstream))
        elif what == "r":
            some = self.random.sample(sorted(there), self.random.randint(1, min(2, len(there))))
            source.rewrite(Counter(some), self._new_rows(upstream) if self.random.random() < 0.3 else Counter())
        elif what == "c":
            source.compact()
        elif what == "x":
            source.expire()
        elif older := [each.snapshot_id for each in source.metadata.ancestry().snapshots][1:4]:
            source.set_ref("main", self.random.choice(older))
        self._note(f"{upstream}: {what}")

    def _new_rows(self, upstream: str) -> Rows:
        self.rows_made += 2
        keys = self.random.sample(_KEYS, self.random.randint(1, 2))
        return Counter({(upstream, self.rows_made + place, key, 0): 1 for place, key in enumerate(keys)})

    def maintain(self) -> None:
        """Compaction, or expiry of everything that no ref holds, or of a branch that a run left."""
        what = self.random.choice("ccxxd")
        if what == "c" and self.target.head is not None:
            self.target.compact()
        elif what == "x":
            self.target.expire()
        elif branches := [each for each in self.target.metadata.branches if is_branch_of_run(each)]:
            self.target.drop_ref(self.random.choice(branches))
        self._note(f"maintenance: {what}")

    def write_foreign_row(self) -> None:
        """Someone else appends to the table, once the asset has published to it, or before any run looks at it."""
        is_new = not self.was_published
        if self.actors and is_new:
            return
        self.rows_made += 2
        row = (FOREIGN, self.rows_made, self.random.choice(self.partitions if is_new else _KEYS), 0)
        self.foreign[row] = self.target.commit(Counter([row]))
        self._note(f"foreign row {row}")

    def roll_back(self) -> None:
        """Someone takes the table back to an earlier publication."""
        metadata = self.target.metadata
        older = [each.snapshot_id for each in metadata.ancestry().snapshots if PROGRESS in each.summary][1:4]
        older = [each for each in older if self._ends_a_publication(metadata, each)]
        if older:
            self.target.set_ref("main", self.random.choice(older))
            self.was_rolled_back = True
            self._note("the target is rolled back")

    def _ends_a_publication(self, metadata: TableMetadata, snapshot_id: int) -> bool:
        attempt = "dagster-ips.attempt"
        mine = metadata.snapshots[snapshot_id].summary.get(attempt)
        after = [each for each in metadata.snapshots.values() if each.parent_id == snapshot_id]
        return not any(each.summary.get(attempt) == mine for each in after)

    def restore_storage(self) -> None:
        """Dagster's storage is lost, or restored from a backup; or a backup is made."""
        if self.random.random() < 0.5:
            self.backups.append(dict(self.shared.texts))
        else:
            self.shared.texts.clear()
            self.shared.texts.update(self.random.choice(self.backups))
            self._forget_lost_requests()
            self._note("Dagster's storage is restored")

    def _forget_lost_requests(self) -> None:
        """What was asked for, but wasn't done before the storage forgot it, was never asked for."""
        kept = {request.id for request in MemoryCursors.get(_Cursors(self.shared), CONSUMER).requests}
        floors = self.shared.floors
        self.shared.floors = tuple(each for each in floors if each[0] in kept or each[0] <= self._obeyed)

    # A life.

    def live(self, turns: int) -> None:
        """Begin something, go on with something or end something, one after the other; then end everything."""
        with switched_at_effects():
            try:
                last: Actor | None = None
                for _ in range(turns):
                    last = self._turn(last)
                while self.actors:
                    self._go_on(self.random.choice(self.actors))
                self.end()
            finally:
                for actor in self.actors:
                    actor.kill()

    def _turn(self, last: Actor | None) -> Actor | None:
        chance = self.random.random()
        if chance < 0.05 or not (self.actors or chance > 0.5):
            self.happen()
        elif len(self.actors) < 4 and (chance < 0.09 or not self.actors):
            self.begin()
        elif chance < 0.095 and self.actors:
            actor = self.random.choice(self.actors)
            self._note(f"{actor.name} is killed {actor.at}")
            actor.kill()
            self._end_of(actor)
        elif self.actors:
            actor = last if last in self.actors and self.random.random() < 0.6 else self.random.choice(self.actors)
            assert actor is not None
            self._go_on(actor)
            return actor
        self.check()
        return last

    def happen(self) -> None:
        """Something that nobody can interrupt."""
        chance = self.random.random()
        if chance < 0.55:
            self.source_changes()
        elif chance < 0.7 and self.has_maintenance:
            self.maintain()
        elif chance < 0.8 and self.has_foreign:
            self.write_foreign_row()
        elif chance < 0.87 and self.has_rollbacks:
            self.roll_back()
        elif chance < 0.93:
            self.restore_storage()
        elif new := [key for key in _KEYS if key not in self.partitions]:
            self.partitions.append(new[0])
            self._note(f"partition {new[0]} is added")

    def begin(self) -> None:
        """Someone begins to do something."""
        self.names += 1
        name = f"{self.names:08x}"  # Begins as an id of a run does.
        work: Callable[[], object] = partial(self.run, name, self._any_request())
        chance = self.random.random()
        # Dagster's storage can't compare and swap: of two persons who ask at the same moment, one isn't heard.
        is_asked = any(actor.name.startswith("re") for actor in self.actors)
        if chance < 0.1:
            name, work = f"sensor-{self.names}", self.tick
        elif chance < 0.15 and not self.is_partitioned and not is_asked:
            name, work = f"reset-{self.names}", self.reset
        elif chance < 0.22 and not self.is_partitioned and self.may_repeat and not is_asked:
            name, work = f"rewind-{self.names}", self.rewind
        elif chance < 0.3:
            name = f"{self.names:08x}-reverts"
            work = partial(self.revert, name)
        self.actors.append(Actor(name, work))
        self._note(f"{name} begins")

    def _any_request(self) -> CaptureRequest:
        keys = sorted(self.random.sample(self.partitions, self.random.randint(1, len(self.partitions))))
        asked: dict[str, Any] = {}
        if self.random.random() < 0.12:
            asked["asked_for"] = Mode.FULL
        elif self.random.random() < 0.1 and self.is_partitioned:
            asked["by_person"] = True
        if self.has_foreign and self.random.random() < 0.2 and (head := self.target.head) is not None:
            asked["consent"] = Consent(accept=head)
            self.accepted.update(self.target.history(head))
        return self.request(keys, **asked)

    def _go_on(self, actor: Actor) -> None:
        actor.go_on()
        self._note(f"{actor.name} {'ends' if actor.is_done else actor.at}")
        self._end_of(actor)
        self.check()

    def _end_of(self, actor: Actor) -> None:
        if not actor.is_done:
            return
        self.actors.remove(actor)
        match actor.ended_by:
            case None:
                return
            case KilledError():
                self.counts["killed"] += 1
            case IpsError() as error:
                self._refused(error)
            case error:
                raise error

    def _refused(self, error: IpsError) -> None:
        if isinstance(error, _UNKNOWN) and not self.was_rolled_back and self.was_published:
            raise WrongRowsError("what the table contains is unknown, though nobody rolled it back") from error
        self.counts[f"refused, {type(error).__name__}"] += 1
        self._note(f"  refused: {type(error).__name__}: {' '.join(str(error).split())[:200]}")

    def end(self) -> None:
        """Nobody disturbs any more: a few runs, and what their errors advise, and everything is up to date."""
        asked: dict[str, Any] = {}
        for turn in range(_MOST_LAST_RUNS):
            try:
                self.run(f"{turn:08x}", self.request(self.partitions, **asked))
            except IpsError as error:
                self._refused(error)
                asked = {"asked_for": Mode.FULL}
                if isinstance(error, ForeignWriteError) and turn and self.is_partitioned:
                    asked = {"consent": Consent(accept=self.target.head)}
                    self.accepted.update(self.target.history(self.target.head))
                elif asked.get("asked_for") is not None and turn > 8:
                    raise WrongRowsError("no run is published any more") from error
            else:
                asked = {}
            self.check()
        held = self.target.rows(self.target.head)
        for upstream, source in self.sources.items():
            rows = source.rows(source.head)
            for key in self.partitions if self.is_partitioned else _KEYS:
                self._require_same(rows, held, upstream, key, "is not up to date in the end")
        self.tick()

    # What must be true.

    def check(self) -> None:
        """Main holds what its progress says, and what the cursor says of it."""
        now = (self.lake.pointers[TARGET], *self.shared.texts.values(), *self.partitions)
        if now == self._checked:
            return
        self._checked = now
        target = self.target.metadata
        held = self.target.rows(target.head_snapshot_id())
        try:
            found = table_progress(target, asset=CONSUMER, storage=self.lake.storage)
        except _UNKNOWN as error:
            self._refused(error)
            return
        if found is None:
            if any(row[0] != FOREIGN for row in held):
                raise WrongRowsError("main holds rows, and nothing says so")
            return
        self.was_published = True
        cursor = MemoryCursors.get(_Cursors(self.shared), CONSUMER)
        for known in (found, known_progress(found, cursor, target)):
            assert known is not None
            self._check_rows(known.progress, held)
            self._check_foreign(known, held)
        self._check_resets(found.progress, held)
        self._obeyed = found.progress.obeyed

    def _check_rows(self, progress: Progress, held: Rows) -> None:
        for upstream, each in progress.inputs.items():
            for key in _KEYS:
                if self.is_partitioned and (key not in self.partitions or key in each.untaken):
                    continue
                mark = each.position(key if self.is_partitioned else None)
                if mark is not None:
                    rows = self.sources[upstream].rows(mark.snapshot_id)
                    self._require_same(rows, held, upstream, key, f"isn't as publication {progress.number} says")

    def _check_foreign(self, known: TableProgress, held: Rows) -> None:
        """Rows of others that nobody has accepted are known to be unknown, or are to be replaced anyway."""
        history = self.target.history(known.mark.snapshot_id)
        places = {snapshot_id: place for place, snapshot_id in enumerate(history)}
        inputs = known.progress.inputs.values()
        for row in (row for row in held if row[0] == FOREIGN):
            written, key = self.foreign[row], row[2]
            if written in self.accepted or written not in places:
                continue
            if self.is_partitioned and any(each.position(key) is None or key in each.untaken for each in inputs):
                continue
            known_to = known.progress.known_to
            if known_to is None or places.get(known_to.snapshot_id, len(history)) <= places[written]:
                raise WrongRowsError(f"{row} of someone else counts as the asset's own")

    def _check_resets(self, progress: Progress, held: Rows) -> None:
        """What was asked for is done once the table says so: no row is of before."""
        floor = max((code for asked, code in self.shared.floors if asked <= progress.obeyed), default=0)
        stale = [row for row in held if row[0] != FOREIGN and row[3] < floor]
        if stale and not self.was_reverted:
            raise WrongRowsError(f"a reset is done, but {stale[0]} is of before it")

    def _require_same(self, rows: Rows, held: Rows, upstream: str, key: str, what: str) -> None:
        wanted, found = (
            Counter({row[:3]: n for row, n in each.items() if row[0] == upstream and row[2] == key})
            for each in (rows, held)
        )
        if wanted != found:
            more, less = sorted((found - wanted).elements()), sorted((wanted - found).elements())
            raise WrongRowsError(f"{key} of {upstream} {what}: it has {more} too much and lacks {less}")

    def _note(self, what: str) -> None:
        self.log.append(what)


def life(seed: int, turns: int = MOST_TURNS) -> World:
    """One life, of as many ``turns``; the same seed gives the same. What it raises says what happened."""
    world = World(Random(seed))
    try:
        world.live(turns)
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}, {turns} turns:", *world.log[-60:]]))
        raise
    return world
