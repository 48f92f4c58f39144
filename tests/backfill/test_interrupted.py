"""Backfills whose publication, or whose revert, was killed before it was done with what follows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dagster_ips.core.backfill_plan import staged_branch
from dagster_ips.core.capture import Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.core.policy import OnRemoved
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.publisher import Publication
from dagster_ips.iceberg.ref_commits import commit_refs, publication
from dagster_ips.iceberg.stamps import owner_properties
from dagster_ips.orchestration.backfill import reverting
from dagster_ips.orchestration.backfill.reverting import BackfillReverter
from dagster_ips.orchestration.backfill.staging import StagedBackfill
from dagster_ips.progress.table_progress import PIN
from dagster_ips.spark.branches import Branch
from tests.backfill.test_random_lives import Backfill, Backfills
from tests.exactly_once.capture.test_partitions_to_come import ARROW, BY_DAY, DAYS, TARGET


class Interrupted(Backfills):
    """Such backfills of partitions, and what is reported of them."""

    on_removed = OnRemoved.APPLY

    def __init__(self) -> None:
        super().__init__()
        self.reported: list[tuple[str, str]] = []

    @property
    def tracked(self) -> TrackedInput:
        found = super().tracked
        return replace(found, policies=replace(found.policies, on_removed=self.on_removed))

    @property
    def lineage(self) -> Any:  # noqa: ANN401  # stands in for it
        found = super().lineage
        found.session = lambda _: None
        found.report = lambda _, part, **told: self.reported.append((part, told["became"]))
        return found

    def begin_with_rows(self, *days: dt.date) -> None:
        self.begin(made="the same day", spec=BY_DAY)
        self.rows_come([(day, "a") for day in days])
        self.all_that_waits_is_run()

    def launched_or_staged(self, *, is_staged: bool) -> tuple[str, Backfill]:
        """A partition with a row, and a backfill of it."""
        self.begin_with_rows(DAYS[0])
        key = self.keys_of(self.consumer)[0]
        if not is_staged:
            return key, self.launched([key], is_staged=False)
        self.stage([key])
        assert self.waiting is not None
        return key, self.waiting

    def of_partitions(self, backfill: Backfill, *keys: str) -> Backfill:
        """The backfill as if it had computed only these."""
        record = backfill.record
        plan = replace(record.plan, stages=(replace(record.plan.root, partitions=keys),))
        return replace(backfill, record=replace(record, plan=plan))

    def a_staged_run_reads_a_row_that_goes(self, key: str, backfill: Backfill, *, named_by_person: bool) -> None:
        """The next look doesn't see the row. The result's publication is killed before it is reported."""
        self.rows_come([(DAYS[0], "b")])
        self.capture_staged(key, named_by_person=named_by_person)
        self.cascade = Cascade((backfill.id,))
        self.a_staged_run_writes()
        self.cascade = Cascade()
        self.delete(DAYS[0], "b")
        self.the_sensor_looks()
        self.publication_is_killed(backfill)

    def publication_is_killed(self, backfill: Backfill) -> None:
        """It has published what is staged, and nothing else."""
        branch = staged_branch(backfill.id)
        head = self.target.head_snapshot_id(branch)
        assert head is not None
        change = replace(publication(branch, head=head, expected=backfill.cut, pin=PIN), drops=())
        commit_refs(self.lake, TARGET, change, asset="out")
        self.held |= backfill.staged


@pytest.fixture
def lives() -> Iterator[Interrupted]:
    found = Interrupted()
    yield found
    found.teardown()


def test_a_row_that_is_gone_is_not_kept_if_the_backfill_is_cancelled(
    lives: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, backfill = lives.launched_or_staged(is_staged=True)
    lives.a_staged_run_reads_a_row_that_goes(key, backfill, named_by_person=True)
    monkeypatch.setattr(Branch, "drop", lambda *_: lives.cancel())
    assert not StagedBackfill(lives.lineage, backfill.record).discard()
    assert lives.waiting is None
    assert key in lives.pending()
    lives.all_that_waits_is_run()


@pytest.mark.parametrize("writes", [True, False], ids=["it writes rows", "it has nothing to write"])
def test_a_row_that_is_gone_is_not_kept_if_a_run_comes_before_the_backfill_is_cancelled(
    lives: Interrupted, monkeypatch: pytest.MonkeyPatch, *, writes: bool
) -> None:
    """The run goes on from what was published, which is earlier than the last look."""
    key, backfill = lives.launched_or_staged(is_staged=True)
    lives.a_staged_run_reads_a_row_that_goes(key, backfill, named_by_person=True)
    lives.rows_come([(DAYS[0] if writes else DAYS[1], "c")])
    lives.run_of([key])
    monkeypatch.setattr(Branch, "drop", lambda *_: lives.cancel())
    StagedBackfill(lives.lineage, backfill.record).discard()
    lives.all_that_waits_is_run()


def test_a_run_that_comes_before_the_backfill_is_cancelled_is_enough_if_no_row_is_gone(
    lives: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, backfill = lives.launched_or_staged(is_staged=True)
    lives.rows_come([(DAYS[0], "b")])
    lives.capture_staged(key)
    lives.cascade = Cascade((backfill.id,))
    lives.a_staged_run_writes()
    lives.cascade = Cascade()
    lives.rows_come([(DAYS[1], "a")])
    lives.the_sensor_looks()
    lives.publication_is_killed(backfill)
    lives.rows_come([(DAYS[0], "c")])
    lives.run_of([key])
    monkeypatch.setattr(Branch, "drop", lambda *_: lives.cancel())
    StagedBackfill(lives.lineage, backfill.record).discard()
    assert key not in lives.pending()
    lives.all_that_waits_is_run()


def test_results_that_are_meant_to_stay_are_not_recomputed(lives: Interrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    lives.on_removed = OnRemoved.IGNORE
    key, backfill = lives.launched_or_staged(is_staged=True)
    lives.a_staged_run_reads_a_row_that_goes(key, backfill, named_by_person=False)
    monkeypatch.setattr(Branch, "drop", lambda *_: lives.cancel())
    assert not StagedBackfill(lives.lineage, backfill.record).discard()
    assert key in lives.pending()
    (work,) = lives.capture([key])
    assert work.capture.mode is Mode.INCREMENTAL
    assert work.capture.from_exclusive is not None
    assert lives.rows_at[work.capture.from_exclusive.snapshot_id].total() == 2
    lives.run_of([key])
    assert key not in lives.pending()


def test_a_revert_that_was_killed_is_reported_to_dagster_once_it_is_done_again(lives: Interrupted) -> None:
    key, backfill = lives.launched_or_staged(is_staged=False)
    lives.cascade = Cascade((backfill.id,))
    lives.run_of([key], named_by_person=True)
    lives.cascade = Cascade()
    lives.live.append(backfill)
    chosen: Any = SimpleNamespace(draw=lambda _: backfill)
    lives.a_backfill_is_reverted(chosen)
    assert not lives.reported
    reverter = BackfillReverter(lives.lineage, backfill.record)
    planned, _ = reverter.revert(None, leave_out_changed=False, drop_staged=lambda: None)
    assert planned.already == (key,)
    assert lives.reported == [(key, "reverted")]


def test_a_revert_also_reports_partitions_that_one_that_was_killed_has_restored(
    lives: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives.begin_with_rows(DAYS[0], DAYS[1])
    key, other = lives.keys_of(lives.consumer)[:2]
    backfill = lives.launched([key, other], is_staged=False)
    lives.cascade = Cascade((backfill.id,))
    lives.run_of([key, other], named_by_person=True)
    lives.cascade = Cascade()
    of_one: Any = SimpleNamespace(draw=lambda _: lives.of_partitions(backfill, key))
    lives.live.append(backfill)
    lives.a_backfill_is_reverted(of_one)
    monkeypatch.setattr(reverting, "restore", lambda *_: Publication(None))
    reverter = BackfillReverter(lives.lineage, backfill.record)
    planned, _ = reverter.revert(None, leave_out_changed=False, drop_staged=lambda: None)
    assert (planned.already, planned.restored) == ((key,), (other,))
    assert sorted(lives.reported) == [(key, "reverted"), (other, "reverted")]


def test_what_a_killed_publication_has_published_is_reported_if_the_backfill_is_cancelled(
    lives: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, backfill = lives.launched_or_staged(is_staged=True)
    lives.a_staged_run_reads_a_row_that_goes(key, backfill, named_by_person=True)
    row = pa.table([[DAYS[0]], ["a"], [0]], schema=ARROW)
    lives.lake.client.load_table(TARGET).append(row, snapshot_properties=owner_properties("out", None))
    monkeypatch.setattr(Branch, "drop", lambda *_: lives.cancel())
    assert not StagedBackfill(lives.lineage, backfill.record).discard()
    assert lives.reported == [(key, "published")]
