"""What a target claims to be made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ips.core.capture import EdgeState, TargetMark
from dagster_ips.errors import UnprovableError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.claims import Prover
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, numbered


def test_a_table_that_is_gone_is_not_taken_for_one_that_no_run_has_published_to(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    prover, inputs = Prover(source.lake, source.store), [TrackedInput(EDGE.upstream, TABLE)]
    assert prover.claim(EDGE.consumer, TARGET, inputs, None) is None
    mark = TargetMark("its uuid", 1, 1, 1)
    source.store.set(EdgeState(EDGE, number=1, target=mark))
    with pytest.raises(UnprovableError, match="gone or empty, although runs have published to it"):
        prover.claim(EDGE.consumer, TARGET, inputs, None)
