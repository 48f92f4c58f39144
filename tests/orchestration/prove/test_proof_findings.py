"""A proof passes only if it compared something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.core.sampling import Sample
from dagster_ips.exactly_once.inspect.claims import Claim, ClaimedPart
from dagster_ips.exactly_once.inspect.sampled_rows import SampledRows
from dagster_ips.orchestration.prove.proof_findings import Findings, Proved
from dagster_ips.spark.comparison import Comparison
from tests.iceberg.sources import TABLE, Source, numbered


def claim_of_a_table_with_rows(folder: Path, *, commits: int = 1) -> Claim:
    source = Source(folder, "day")
    for _ in range(commits):
        source.append(numbered(1, 2, 3))
    return Claim("daily", source.lake.load(TABLE, asset="test"), (), (), (), ())


def found(folder: Path, *, share: float, compared: int) -> dg.AssetCheckResult:
    """What a proof says that drew a ``share`` of a table's keys, which ``compared`` rows have."""
    claim = claim_of_a_table_with_rows(folder)
    sampled = SampledRows(("number",), Sample(share, seed=7))
    proved = Proved(ClaimedPart(()), sampled, Comparison(compared, compared), ((), ()), (), {})
    return Findings(claim, [proved], {}, 0, (1, 1)).result()


# With every key, no row is a finding: deletes may hide all that the files hold.
@pytest.mark.parametrize(("share", "compared", "passes"), [(0.01, 0, False), (0.01, 1, True), (1.0, 0, True)])
def test_a_sample_without_any_row_of_the_table_proves_nothing(
    tmp_path: Path, share: float, compared: int, *, passes: bool
) -> None:
    result = found(tmp_path, share=share, compared=compared)
    assert result.passed is passes
    if not passes:
        assert result.severity is dg.AssetCheckSeverity.WARN
        assert "no row of media.playback is in this sample" in str(result.description)


def test_partitions_of_which_none_is_known_to_be_computed_prove_nothing(tmp_path: Path) -> None:
    claim = claim_of_a_table_with_rows(tmp_path)
    assert not Findings(claim, [], {}, 0, (0, 0)).result().passed
    assert not Findings(claim, [], {}, 3, (0, 0)).result().passed


@pytest.mark.parametrize("has_expired", [False, True])
def test_rows_in_partitions_that_no_known_run_computed_are_not_proved_even_if_stamps_have_expired(
    tmp_path: Path, *, has_expired: bool
) -> None:
    claim = claim_of_a_table_with_rows(tmp_path, commits=2)
    if has_expired:
        raw = claim.target.raw
        newest = [each for each in raw["snapshots"] if each["snapshot-id"] == raw["current-snapshot-id"]]
        claim = replace(claim, target=replace(claim.target, raw={**raw, "snapshots": newest}))
    assert claim.target.ancestry().is_whole is not has_expired
    proved = Proved(ClaimedPart(()), SampledRows((), Sample(1.0, seed=7)), Comparison(3, 3), ((), ()), (), {})
    result = Findings(claim, [proved], {}, 2, (1, 1)).result()
    assert not result.passed
    assert result.severity is (dg.AssetCheckSeverity.WARN if has_expired else dg.AssetCheckSeverity.ERROR)
    known = "2 rows are in partitions that no run has ever computed"
    unknown = "2 rows are in partitions of which it is unknown whether a run computed them"
    assert (unknown if has_expired else known) in str(result.description)
    assert Findings(claim, [proved], {}, 0, (1, 1)).result().passed
