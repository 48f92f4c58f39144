"""What a proof found, as the result of an asset check that a person can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ips.errors import IpsError
from dagster_ips.errors.remedies import full_run
from dagster_ips.exactly_once.inspect.claims import Claim, ClaimedPart
from dagster_ips.exactly_once.inspect.sampled_rows import SampledRows
from dagster_ips.spark.comparison import Comparison

MOST_EXAMPLES = 10
_MOST_CHARACTERS = 500


@dataclass(frozen=True)
class Proved:
    """What was found in one part."""

    part: ClaimedPart
    rows: SampledRows
    found: Comparison
    columns_of_one: tuple[Sequence[str], Sequence[str]]
    floating: Sequence[str]
    lookups: Mapping[str, str]


@dataclass(frozen=True)
class Findings:
    """What was found in all parts; ``untold`` are the partitions that couldn't be compared, and why.

    ``outside`` is the number of rows in partitions that no known run computed.
    """

    claim: Claim
    proved: Sequence[Proved]
    untold: Mapping[str | None, IpsError]
    outside: int
    partitions: tuple[int, int]

    def result(self) -> dg.AssetCheckResult:
        """The check's result: it passes if rows were compared, none differs and all partitions could be compared.

        A difference is an error, or only a warning if a lookup, or the asset's config, may be the cause.
        """
        kinds = {kind: sum(getattr(each.found, kind) for each in self.proved) for kind in _KINDS}
        kinds["extra"] += 0 if self._may_be_forgotten else self.outside
        if self._says_nothing and not self.untold:
            remedy = (
                "Prove a larger one: proof(..., sample=1), or the check's config."
                if self.proved
                else f"It is unknown which partitions were computed. Recompute them: {full_run(self.claim.consumer)}."
            )
            return unknown(f"Not proved: no row of {self.claim.target.table} is in this sample. {remedy}")
        blamed = kinds["missing"] if self.claim.keeps_removed_rows else sum(kinds.values())
        is_sure = bool(blamed) and not self._lookups
        return dg.AssetCheckResult(
            passed=not blamed and not self.untold and not self.outside,
            severity=dg.AssetCheckSeverity.ERROR if is_sure else dg.AssetCheckSeverity.WARN,
            description=" ".join(self._sentences(kinds, blamed)),
            metadata=self._metadata(kinds),
        )

    @property
    def _says_nothing(self) -> bool:
        """Whether nothing was compared, although the table may have rows."""
        if self.outside or any(each.found.expected or each.found.actual for each in self.proved):
            return False
        is_whole = bool(self.proved) and all(each.rows.is_everything for each in self.proved)
        return not is_whole and self.claim.rows != 0

    @property
    def _may_be_forgotten(self) -> bool:
        """Whether snapshots that runs published may have expired."""
        return not self.claim.target.ancestry().is_whole

    @property
    def _lookups(self) -> Mapping[str, str]:
        return self.proved[0].lookups if self.proved else {}

    def _sentences(self, kinds: Mapping[str, int], blamed: int) -> list[str]:
        rows = sum(each.found.expected for each in self.proved)
        counted = ", ".join(f"{kinds[kind]:,} {kind}" for kind in _KINDS if kinds[kind])
        all_right = "all are there" if self.outside else "all are there, and no others"
        said = [f"{rows:,} rows recomputed: {counted or all_right}."]
        if self.outside:
            said.append(
                f"{self.outside:,} rows are in partitions of which it is unknown whether a run computed them. To "
                f"recompute them: {full_run(self.claim.consumer)}."
                if self._may_be_forgotten
                else f"{self.outside:,} rows are in partitions that no run has ever computed."
            )
        if counted and self.claim.keeps_removed_rows:
            said.append(
                'Extra and different rows may be what on_removed="ignore" keeps, so they don\'t count as errors.'
            )
        if blamed and self._lookups:
            named = ", ".join(self._lookups)
            said.append(
                f"This may be due to {named}, whose changes the asset ignores: older rows may have used older values."
            )
        if blamed:
            said.append(
                f"If the asset is wrong, fix it first. To recompute the table: {full_run(self.claim.consumer)}."
            )
        if self.untold:
            said.append(f"{len(self.untold):,} partitions could not be proved: {next(iter(self.untold.values()))}")
        return said

    def _metadata(self, kinds: Mapping[str, int]) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "rows compared": sum(each.found.expected for each in self.proved),
            **{f"rows {kind}": count for kind, count in kinds.items()},
            "compared": "; ".join(dict.fromkeys(str(each.rows) for each in self.proved)) or "nothing",
        }
        if self.partitions[1] > 1:
            metadata["partitions"] = f"{self.partitions[0]:,} of {self.partitions[1]:,}"
        if examples := self._examples():
            metadata["examples"] = dg.MetadataValue.table(examples)
        if floats := sorted({name for each in self.proved for name in each.floating}):
            metadata["compared with a tolerance"] = ", ".join(floats)
        for said, index in (("columns that the table lacks", 0), ("columns that the asset no longer has", 1)):
            if names := sorted({name for each in self.proved for name in each.columns_of_one[index]}):
                metadata[said] = ", ".join(names)
        metadata["inputs"] = "; ".join(dict.fromkeys(text for each in self.proved for text in _inputs(each.part)))
        if self._lookups:
            metadata["lookups"] = "; ".join(f"{name}: {said}" for name, said in self._lookups.items())
        metadata["table snapshot"] = str(self.claim.target.head_snapshot_id())
        return metadata

    def _examples(self) -> list[dg.TableRecord]:
        found = [example for each in self.proved for example in each.found.examples]
        return [
            dg.TableRecord(
                {
                    "kind": each.kind,
                    "key": each.key[:_MOST_CHARACTERS],
                    "column": each.column,
                    "expected": None if each.expected is None else each.expected[:_MOST_CHARACTERS],
                    "actual": None if each.actual is None else each.actual[:_MOST_CHARACTERS],
                }
            )
            for each in found[:MOST_EXAMPLES]
        ]


_KINDS = ("missing", "extra", "different")


def _inputs(part: ClaimedPart) -> list[str]:
    return [
        f"{each.capture.edge.upstream} at snapshot {each.head.snapshot_id if each.head else 'none'}"
        for each in part.inputs
    ]


def unknown(said: str) -> dg.AssetCheckResult:
    """The result if nothing could be compared: a warning, because it is unknown whether anything is wrong."""
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=said)
