"""A proof passes only if it compared something."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.core.sampling import Sample
from dagster_ips.exactly_once.inspect.claims import Claim, ClaimedPart
from dagster_ips.exactly_once.inspect.sampled_rows import SampledRows
from dagster_ips.orchestration.prove.proof_findings import Findings, Proved
from dagster_ips.spark.comparison import Comparison
from tests.iceberg.sources import TABLE, Source, numbered


def claim_of_a_table_with_rows(folder: Path) -> Claim:
    source = Source(folder, "day")
    source.append(numbered(1, 2, 3))
    return Claim("daily", source.lake.load(TABLE, asset="test"), (), (), (), (), ())


def found(folder: Path, *, share: float, compared: int) -> dg.AssetCheckResult:
    """What a proof says that drew a ``share`` of a table's keys, which ``compared`` rows have."""
    claim = claim_of_a_table_with_rows(folder)
    sampled = SampledRows(("number",), Sample(share, seed=7))
    proved = Proved(ClaimedPart(()), sampled, Comparison(compared, compared), ((), ()), (), {})
    return Findings(claim, [proved], {}, None, (1, 1)).result()


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
    assert not Findings(claim, [], {}, None, (0, 0)).result().passed
    assert not Findings(claim, [], {}, 3, (0, 0)).result().passed
