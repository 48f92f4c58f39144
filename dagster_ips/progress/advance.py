"""What a run adds to a table's progress, and whether it may still be published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from dagster_ips.core.capture import Mode, TargetMark
from dagster_ips.core.code_of_rows import Making
from dagster_ips.core.file_set import FileSet
from dagster_ips.core.watermark import Watermark, is_certainly_before
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.table_progress import TableProgress

Unchanged = Callable[[str, str | None, Watermark, Watermark], bool]
"""Whether no row of an upstream's share of a partition came or went between two watermarks."""


@dataclass(frozen=True, slots=True)
class InputAdvance:
    """How far a run reads one upstream.

    Each partition (None without partitions) reads from its ``starts``, None for all rows, and a part of a change begins
    after ``files``. ``then`` is the upstream's progress if nothing else was published in the meantime.
    """

    upstream: str
    to: Watermark | None
    starts: Mapping[str | None, Watermark | None]
    then: InputProgress
    files: FileSet | None = None

    @property
    def is_partitioned(self) -> bool:
        """Whether the consumer is."""
        return None not in self.starts


class Standing(StrEnum):
    """Whether a run may be published on what the table has become since it captured."""

    MAY_PUBLISH = "may publish"
    DONE = "another run has published the same"
    PARTLY_DONE = "another run has published some of it"


@dataclass(frozen=True)
class Advance:
    """What a run adds to its table's progress; ``base`` is the progress that it captured from.

    A run without ``inputs`` replaces all rows, or those of ``partitions``. ``obeyed`` is the newest request of a person
    that it fulfils, and ``accepts`` up to where that accepts what others wrote. ``rolled_back_from`` is how often the
    table had been published when someone rolled it back to ``base``; None if nobody did. ``every`` are all existing
    partitions; ``was_empty`` says whether one certainly had no row before.
    """

    base: TableProgress | None = None
    inputs: tuple[InputAdvance, ...] = ()
    partitions: tuple[str, ...] = ()
    mode: Mode = Mode.FULL
    obeyed: int = 0
    accepts: int | None = None
    rolled_back_from: int | None = None
    unchanged: Unchanged = field(default=lambda *_: False, repr=False)
    every: frozenset[str] = frozenset()
    was_empty: Callable[[str], bool] = field(default=lambda _: False, repr=False)

    @property
    def anew(self) -> frozenset[str | None]:
        """The partitions of which all rows are computed."""
        if not self.inputs:
            return frozenset()
        first, *others = [{key for key, start in each.starts.items() if start is None} for each in self.inputs]
        found = first.intersection(*others)
        return frozenset(key for key in found if key is not None)

    def standing(self, now: TableProgress | None) -> Standing:
        """Whether each partition still holds what its change begins at.

        What is computed anew replaces whatever is there.
        """
        if self._is_as_captured(now):
            return Standing.MAY_PUBLISH
        if self.inputs and now is not None and self._is_before_a_request(now.progress.obeyed):
            return Standing.PARTLY_DONE  # What a person asked for is done since; this run knew nothing of it.
        if self.mode is Mode.FULL:
            return Standing.MAY_PUBLISH
        told = {self._standing(each, partition, now) for each in self.inputs for partition in each.starts}
        found = {each for each in told if each is not None} or {Standing.MAY_PUBLISH}
        return found.pop() if len(found) == 1 else Standing.PARTLY_DONE

    def _is_before_a_request(self, obeyed: int) -> bool:
        """Whether the table fulfils another request than when this run captured, and not the one that this run does."""
        before = self.base.progress.obeyed if self.base is not None else 0
        return obeyed > max(before, self.obeyed) if self.mode is Mode.FULL else obeyed != before

    def _is_as_captured(self, now: TableProgress | None) -> bool:
        return (self.base and self.base.mark) == (now and now.mark)

    def _standing(self, each: InputAdvance, partition: str | None, now: TableProgress | None) -> Standing | None:
        """As ``standing``, for one input of one partition; None if the run reads nothing new of it."""
        start, known = each.starts[partition], now.progress.inputs.get(each.upstream) if now is not None else None
        if start is None and partition is not None:  # All rows of the partition are replaced.
            return Standing.MAY_PUBLISH
        if known is None or (known.division, known.sharing) != (each.then.division, each.then.sharing):
            return Standing.PARTLY_DONE  # Its partitions mean something else, or take other keys since.
        at = known.position(partition)
        if at == start == each.to and known.files == each.files:
            return None
        if at is not None and at == each.to and known.files == each.then.files:
            return Standing.DONE
        if self.base is not None and _made(self.base, partition) != _made(now, partition):
            return Standing.PARTLY_DONE  # Its rows were computed anew, by other code.
        is_same = at == start or self._goes_on(each, partition, start, at)
        return Standing.MAY_PUBLISH if is_same and known.files == each.files else Standing.PARTLY_DONE

    def _goes_on(
        self, each: InputAdvance, partition: str | None, start: Watermark | None, at: Watermark | None
    ) -> bool:
        """Whether the change from ``start`` is the same as from ``at``; a partition never moves backward."""
        if start is None or at is None or each.to is None or not is_certainly_before(at.position, each.to.position):
            return False
        return self.unchanged(each.upstream, partition, start, at)

    def progress(
        self,
        now: TableProgress | None,
        *,
        made: Mapping[str | None, Making],
        lookups: Mapping[str, str | None],
        known_to: TargetMark | None = None,
    ) -> Progress:
        """The table's progress once the run is published; ``now`` is the one that it is published on."""
        before = now.progress if now is not None else Progress()
        if self._is_as_captured(now):
            inputs = {each.upstream: each.then for each in self.inputs}
        else:
            inputs = {each.upstream: self._rebased(each, before.inputs.get(each.upstream)) for each in self.inputs}
        return Progress(
            before.number + 1,
            inputs,
            made=made,
            lookups=lookups,
            obeyed=max(self.obeyed, before.obeyed),
            known_to=known_to,
        )

    def _rebased(self, each: InputAdvance, now: InputProgress | None) -> InputProgress:
        if not each.is_partitioned:
            return each.then
        own = {partition: each.to for partition in each.starts if partition is not None}
        if now is None or now.division != each.then.division:  # Other rows are of partitions that meant something else.
            now = InputProgress(division=each.then.division, sharing=each.then.sharing)
        if now.sharing != each.then.sharing:  # Partitions take other keys since: they are to be computed once more.
            own = dict.fromkeys(own)
        else:  # The run may be of an earlier time, and rows that its partitions didn't take may be gone since.
            now = replace(now, untaken={**each.then.untaken, **now.untaken})
        return now.joined(own)

    def without_writing(self) -> Progress | None:
        """The progress if the run has nothing to write: the table contains more of its upstreams just as it is."""
        if self.base is None:
            return None
        inputs = {**self.base.progress.inputs, **{each.upstream: each.then for each in self.inputs}}
        return replace(self.base.progress, inputs=inputs, obeyed=max(self.obeyed, self.base.progress.obeyed))


def _made(table: TableProgress | None, partition: str | None) -> Making | None:
    return table.progress.making(partition) if table is not None else None
