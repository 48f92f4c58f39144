"""Random histories: any operation at any time, and three consumers that capture at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.histories.history import CONSUMERS, Coverage, History
from tests.histories.operations import OPERATIONS, Operation
from tests.histories.table import Shape
from tests.histories.targets import KINDS
from tests.support.lake import Lake

PARTITIONINGS = (
    (),
    ("day",),
    ("title",),
    ("bucket(2, number)",),
    ("days(day)", "truncate(1, title)"),
    ("day", "bucket(2, number)"),
    ("price",),
)
WRITER = "the one who writes"
captures = st.sampled_from([None, None, None, *CONSUMERS, WRITER, WRITER])

shapes = st.builds(
    lambda partitioned_by, merging, variant: Shape(2, partitioned_by, merging, variant),
    st.sampled_from(PARTITIONINGS),
    st.booleans(),
    st.booleans(),
)


class Histories(RuleBasedStateMachine):
    """A state machine of histories. It keeps the newest history and the first one that failed.

    The class attributes ``lake`` and ``coverage`` are set by the caller. Tables begin with format ``version``, and
    ``favourites`` come more often than other operations. In each history, one consumer writes a target of one of the
    ``kinds``.
    """

    lake: ClassVar[Lake]
    coverage: ClassVar[Coverage]
    version: ClassVar[int] = 2
    favourites: ClassVar[Sequence[Operation]] = ()
    kinds: ClassVar[Sequence[str]] = tuple(KINDS)
    on_start: ClassVar[Callable[[], None]] = lambda: None
    newest: ClassVar[History | None] = None
    failed: ClassVar[History | None] = None

    @initialize(
        data=st.data(),
        shape=shapes,
        first=st.lists(st.integers(0, 23), min_size=1, max_size=8).map(tuple),
        writer=st.sampled_from([*CONSUMERS]),
    )
    def begin(self, *, data: st.DataObject, shape: Shape, first: tuple[int, ...], writer: str) -> None:
        type(self).on_start()
        possible = replace(shape, version=self.version, variant=shape.variant and self.version > 2)
        self.history = History(self.lake, possible, self.coverage)
        type(self).newest = self.history
        self.writer = writer
        self.history.write(writer, data.draw(st.sampled_from(self.kinds)))
        self.history.do("append_by_spark", rows=first)
        self.history.capture_by_all()

    def teardown(self) -> None:
        """At the end, every consumer catches up."""
        if (history := getattr(self, "history", None)) is None:
            return
        try:
            if not history.has_failed:
                for consumer in CONSUMERS:
                    history.capture(consumer)
        finally:
            if history.has_failed and type(self).failed is None:
                type(self).failed = history
            history.close()

    def change(self, data: st.DataObject, families: Sequence[str], then: str | None) -> None:
        """Do one operation of ``families``, then capture if ``then`` is a consumer or WRITER."""
        version = self.history.table.version
        self.do_one_of([o for o in OPERATIONS.values() if o.family in families and version in o.versions], data, then)

    def do_one_of(self, possible: Sequence[Operation], data: st.DataObject, then: str | None) -> None:
        chosen = data.draw(st.sampled_from(possible))
        self.history.do(chosen.name, **data.draw(chosen.arguments))
        if then == WRITER:
            if self.history.capture(self.writer) is None:
                self.history.capture(self.writer, full=True)
        elif then:
            consume, start_over = data.draw(st.sampled_from([True, True, False])), data.draw(st.booleans())
            if self.history.capture(then, consume=consume) is None and start_over:
                self.history.capture(then, full=True)

    @rule(data=st.data(), then=captures)
    def favour(self, data: st.DataObject, then: str | None) -> None:
        version = self.history.table.version
        if possible := [o for o in self.favourites if version in o.versions]:
            self.do_one_of(possible, data, then)

    @rule(data=st.data(), then=captures)
    def append(self, data: st.DataObject, then: str | None) -> None:
        self.change(data, ["append"], then)

    @rule(data=st.data(), then=captures)
    def change_rows(self, data: st.DataObject, then: str | None) -> None:
        self.change(data, ["delete", "update", "merge"], then)

    @rule(data=st.data(), then=captures)
    def delete_by_hand(self, data: st.DataObject, then: str | None) -> None:
        self.change(data, ["by hand", "delete"], then)

    @rule(data=st.data(), then=captures)
    def change_files(self, data: st.DataObject, then: str | None) -> None:
        self.change(data, ["overwrite", "publish"], then)

    @rule(data=st.data(), then=captures)
    def maintain(self, data: st.DataObject, then: str | None) -> None:
        self.change(data, ["maintenance"], then)

    @rule(data=st.data(), then=captures)
    def evolve(self, data: st.DataObject, then: str | None) -> None:
        self.change(data, ["schema", "spec", "format"], then)

    @rule(data=st.data(), then=captures)
    def move_back_and_forth(self, data: st.DataObject, then: str | None) -> None:
        self.change(data, ["move"], then)

    @rule(data=st.data(), then=captures, ends=st.integers(0, 3))
    def expire(self, data: st.DataObject, then: str | None, ends: int) -> None:
        """Expire snapshots; rarely, the table starts over instead."""
        self.change(data, ["expire"] if ends else ["replace"], then)
