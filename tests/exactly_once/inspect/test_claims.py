"""What a target claims to be made of."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from dagster_ips.core.capture import TargetMark
from dagster_ips.errors import UnprovableError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.claims import Prover
from dagster_ips.progress.cursor import Copy
from dagster_ips.progress.progress import Progress
from tests.exactly_once.capture.test_partitions_to_come import DAYS, PartitionsToCome
from tests.exactly_once.capture.test_partitions_to_come import TARGET as OUT
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, numbered


def test_a_table_that_is_gone_is_not_taken_for_one_that_no_run_has_published_to(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    prover, inputs = Prover(source.lake, source.store), [TrackedInput(EDGE.upstream, TABLE)]
    assert prover.claim(EDGE.consumer, TARGET, inputs, None) is None
    source.store.set_copy(EDGE.consumer, Copy(Progress(1), TargetMark("its uuid", 1, 1, 1)))
    with pytest.raises(UnprovableError, match="gone or empty, although runs have published to it"):
        prover.claim(EDGE.consumer, TARGET, inputs, None)


def test_rows_whose_partition_came_later_are_not_said_to_be_missing_before_the_next_run() -> None:
    lives = PartitionsToCome()
    lives.begin(made="all titles", spec=UNPARTITIONED_PARTITION_SPEC)
    try:
        lives.rows_come([(DAYS[0], "a"), (DAYS[0], "b")])
        lives.all_that_waits_is_run()
        prover, regions = Prover(lives.lake, lives.store), ["eu", "us"]

        def told() -> tuple[list[str], set[str | None]]:
            claim = prover.claim("out", OUT, [lives.tracked], regions)
            assert claim is not None
            parts, untold = prover.parts(claim, regions)
            assert all("before Dagster had the partitions of plays" in str(why) for why in untold.values())
            return [key for part in parts for key in part.partitions], set(untold)

        assert told() == (regions, set())
        lives.instance.add_dynamic_partitions("titles", ["b"])
        assert told() == ([], set(regions))
        lives.all_that_waits_is_run()
        assert told() == (regions, set())
    finally:
        lives.teardown()
