"""Which rows of a result and of its target a proof compares: the same of both, some of them from the last change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core.sampling import Sample
from dagster_ips.core.write_mode import WriteMode
from dagster_ips.exactly_once.inspect.claims import Claim, ClaimedPart, KeyValues, Prover, values_in
from dagster_ips.spark.comparison import alike, changed_keys, hashable, partitions_of, rows_among

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame

_MOST_RECENT_KEYS = 100


@dataclass(frozen=True)
class SampledRows:
    """A condition on the rows of both a result and its target, and its description.

    It selects the rows in one of ``partitions``, which are values of ``columns`` (None is no condition), whose ``keys``
    are in the ``sample`` or have one of the hashes ``recent``.
    """

    keys: Sequence[str]
    sample: Sample
    columns: Sequence[str] = ()
    partitions: Sequence[KeyValues] | None = None
    of_partitions: int = 0
    recent: Sequence[int] = ()

    @property
    def is_everything(self) -> bool:
        """Whether it selects every row."""
        return self.partitions is None and self.sample.is_everything

    def of(self, rows: DataFrame) -> DataFrame:
        """Those of ``rows`` that are in the sample."""
        return rows_among(rows, self.keys, self.sample, self.recent, self.columns, self.partitions)

    def __str__(self) -> str:
        if self.is_everything:
            return "every row"
        parts = []
        if self.partitions is not None:
            parts.append(f"{len(self.partitions):,} of {self.of_partitions:,} partitions ({', '.join(self.columns)})")
        if not self.sample.is_everything:
            parts.append(f"{self.sample.share:.2%} of the values of {', '.join(self.keys)}")
        if self.recent:
            parts.append(f"{len(self.recent):,} from the last change")
        return ", ".join(parts)


def key_of(write_mode: WriteMode | None) -> tuple[str, ...]:
    """The columns by which a write mode identifies rows; none if it doesn't."""
    return write_mode.keys if write_mode else ()


def sampled_rows(  # noqa: PLR0913, PLR0917  # all are independent
    prover: Prover,
    claim: Claim,
    part: ClaimedPart,
    frames: tuple[DataFrame, DataFrame],
    keys: Sequence[str],
    sample: Sample,
) -> SampledRows:
    """What is compared of a ``part``'s result and the target, the ``frames``, by ``keys`` or by all their columns.

    These are whole partitions of the target if it is partitioned by plain columns that the key contains, so that less
    is read for a smaller sample; otherwise keys, chosen by their hash. If no input is partitioned by the same columns,
    the result's own partitions are computed, because the target may lack some of them altogether.

    Raises:
        IpsError: the target's metadata can't be read.
    """
    hashed_by = hashable(frames, keys)
    if sample.is_everything or not hashed_by:
        return SampledRows(hashed_by, Sample(1.0, sample.seed))
    if part.partitions:  # They are already a sample of the existing ones.
        return SampledRows(hashed_by, sample)
    change, columns = prover.last_change(claim.target), claim.target.identity_partition_columns()
    if columns and (not keys or set(columns) <= set(keys)):
        there = prover.partition_values(claim.target, columns)
        changed = values_in(change.captured, claim.target, columns) if change else None
        if there:
            made = _values_of_inputs(part, columns) or frozenset(partitions_of(alike(*frames)[0], columns))
            known = there | (changed or frozenset()) | made
            chosen = sample.of(known, changed or ())
            within = sample.within(chosen=len(chosen), of=len(known))
            return SampledRows(hashed_by, within, columns, chosen, len(known))
    if change is None:
        return SampledRows(hashed_by, sample)
    recent = changed_keys(
        frames[0].sparkSession,
        prover.catalog.name,
        claim.target.table,
        hashed_by,
        before=change.before,
        after=change.after,
        most=_MOST_RECENT_KEYS,
        seed=sample.seed,
    )
    return SampledRows(hashed_by, sample, recent=recent)


def _values_of_inputs(part: ClaimedPart, columns: Sequence[str]) -> frozenset[KeyValues]:
    """Values of partitions that the target may lack altogether; none if no input is partitioned by these columns."""
    found = frozenset[KeyValues]()
    for captured in part.inputs:
        if captured.head is not None and set(columns) <= set(captured.source.column_names):
            values = values_in(captured.files, captured.source, columns)
            found |= values or frozenset()
    return found
