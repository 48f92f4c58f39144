"""A table has one owner, and changes of its rows by anyone else are noticed before anything builds on them."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from dagster_ips.core.capture import Mode
from dagster_ips.core.history_place import Everywhere, Start
from dagster_ips.core.ownership import ASSET, Consent
from dagster_ips.errors import ForeignWriteError, IpsError, TargetOfAnotherError, UnknownRowsError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.edge_status import Inspector
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.iceberg.ref_commits import RefCommit, commit_refs
from dagster_ips.iceberg.stamps import attempt_properties, computed_properties, owner_properties
from dagster_ips.progress.cursor import Job
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PIN, PROGRESS
from tests.iceberg.sources import EDGE, TABLE, TARGET, Rows, Source, numbered
from tests.support.memory_store import MemoryCursors

NO_SESSION: Any = None


@dataclass
class Lake:
    """A source, and consumers that all copy it to one table, each with its own cursor."""

    source: Source
    runs: int = field(default=0)
    is_news: bool = field(default=False)

    @property
    def target(self):  # noqa: ANN201  # a type of PyIceberg
        return self.source.lake.client.load_table(TARGET)

    @property
    def head(self) -> int:
        found = self.target.current_snapshot()
        assert found
        return int(found.snapshot_id)

    def capture(
        self,
        consumer: str = EDGE.consumer,
        *,
        asked_for: Mode | None = None,
        consent: Consent | None = None,
        start: Start = Everywhere.ALL,
    ) -> CapturedInput:
        self.runs += 1
        (captured,) = Capturer(self.source.lake, self.source.store).capture(
            CaptureRequest(
                consumer,
                [TrackedInput(EDGE.upstream, TABLE, start=start)],
                target=TARGET,
                asked_for=asked_for,
                consent=consent or Consent(),
            ),
            run_id=f"run{self.runs}",
        )
        return captured

    def publish(self, captured: CapturedInput, consent: Consent) -> None:
        """What a run does after its capture, here by PyIceberg."""
        rows = self.source.lake.client.load_table(captured.capture.icdc_table).scan().to_arrow()
        consumer, advance = captured.capture.edge.consumer, captured.advance
        owner = owner_properties(consumer, captured.accepted.head)
        publisher = Publisher(
            self.source.lake, self.source.store, NO_SESSION, "run", properties=owner, consent=consent, advance=advance
        ).settling(self.metadata, consumer)
        self.is_news = publisher.are_news
        publisher.require_own(self.metadata, captured.captures, consumer)
        progress = publisher.progress(self.metadata, publisher.known(self.metadata, consumer), consumer)
        stamp = attempt_properties(f"ips_{self.runs}", "run") | computed_properties(advance.mode, ()) | owner
        stamp |= {PROGRESS: progress_text(progress)}
        if captured.capture.mode is Mode.FULL:
            self.target.overwrite(rows, snapshot_properties=stamp)
        else:
            self.target.append(rows, snapshot_properties=stamp)
        pin = RefCommit(sets={PIN: self.head}, tags=[PIN])
        commit_refs(self.source.lake, TARGET, pin, asset=consumer)
        publisher.copy_progress(self.metadata, consumer)

    def run(self, consumer: str = EDGE.consumer, **wishes: Consent | Mode | Start) -> CapturedInput:
        captured = self.capture(consumer, **wishes)  # type: ignore[arg-type]  # the arguments of ``capture``
        consent = wishes.get("consent")
        self.publish(captured, consent if isinstance(consent, Consent) else Consent())
        return captured

    @property
    def metadata(self):  # noqa: ANN201  # a type of the library
        return self.source.lake.load(TARGET, asset="test")

    def rows(self) -> Rows:
        return self.source.scan(TARGET)

    def refused(self, kind: type[IpsError], consumer: str = EDGE.consumer, **wishes: Consent | Mode | Start) -> str:
        before = self.source.store.get(consumer)
        with pytest.raises(kind) as raised:
            self.capture(consumer, **wishes)  # type: ignore[arg-type]  # the arguments of ``capture``
        assert self.source.store.get(consumer) == before
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
        return str(raised.value)

    def write_by_hand(self, *numbers: int) -> None:
        rows = numbered(*numbers)
        arrays = {each.name: [row.get(each.field_id) for row in rows] for each in self.source.fields}
        self.target.append(pa.table(arrays, schema=self.target.schema().as_arrow()))

    def expire_all_but_the_head(self, *, rows: int = 9, keeps_parents: bool = True) -> None:
        """Leave only the head, turned into a compaction, which doesn't say who wrote the rows, and what is tagged."""
        path = Path(urlsplit(self.target.metadata_location).path)
        raw = json.loads(path.read_text())
        head = next(each for each in raw["snapshots"] if each["snapshot-id"] == self.head)
        head["summary"] = {"operation": "replace", "total-data-files": "1", "total-records": str(rows)}
        head["summary"] |= {"total-position-deletes": "0", "total-equality-deletes": "0"}
        if not keeps_parents:
            del head["parent-snapshot-id"]
        tagged = {ref["snapshot-id"] for ref in raw["refs"].values()} - {self.head}
        raw["snapshots"] = [*(each for each in raw["snapshots"] if each["snapshot-id"] in tagged), head]
        raw["snapshot-log"] = raw["snapshot-log"][-1:]
        path.write_text(json.dumps(raw))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(Source(tmp_path))
    lake.source.append(numbered(1, 2))
    return lake


def expected(lake: Lake, *numbers: int) -> Rows:
    return lake.source.expected(numbered(*numbers))


def test_an_asset_of_another_code_location_is_refused_on_a_table_that_has_an_owner(lake: Lake) -> None:
    lake.run()
    said = lake.refused(TargetOfAnotherError, "other")
    assert "belongs to daily" in said
    assert "dagster_ips/take_over=daily" in said
    lake.refused(TargetOfAnotherError, "other", asked_for=Mode.FULL)
    lake.refused(TargetOfAnotherError, "other", consent=Consent(take_over="someone else"))
    assert lake.rows() == expected(lake, 1, 2)


def test_an_asset_that_is_renamed_back_and_forth_takes_over_its_table_each_time_without_doubling_rows(
    lake: Lake,
) -> None:
    lake.run("a")
    taken = lake.run("b", consent=Consent(take_over="a"))
    assert (taken.capture.mode, taken.capture.reason) == (Mode.FULL, "takes over the table from a")
    lake.source.append(numbered(3))
    assert lake.run("b", consent=Consent(take_over="a")).capture.mode is Mode.INCREMENTAL
    lake.refused(TargetOfAnotherError, "a")
    assert lake.run("a", consent=Consent(take_over="b")).capture.mode is Mode.FULL
    lake.source.append(numbered(4))
    lake.run("a")
    assert lake.rows() == expected(lake, 1, 2, 3, 4)


def test_the_owner_of_a_table_is_known_from_its_property_once_all_stamps_are_expired(lake: Lake) -> None:
    lake.run("a")
    lake.run("b", consent=Consent(take_over="a"))
    with lake.target.transaction() as transaction:
        transaction.set_properties({ASSET: "b"})
    lake.write_by_hand()  # stands for a compaction
    lake.expire_all_but_the_head()
    lake.refused(TargetOfAnotherError, "a")
    assert lake.run("b").capture.mode is Mode.INCREMENTAL


def test_rows_added_by_hand_are_refused_until_a_person_accepts_them_once(lake: Lake) -> None:
    lake.run()
    lake.write_by_hand(77)
    by_hand = lake.head
    lake.source.append(numbered(3))
    said = lake.refused(ForeignWriteError)
    assert f"snapshot {by_hand} (`append`, 1 row added)" in said
    assert f"dagster_ips/accept={by_hand}" in said
    lake.refused(ForeignWriteError, consent=Consent(accept=by_hand + 1))

    captured = lake.run(consent=Consent(accept=by_hand))
    assert captured.capture.mode is Mode.INCREMENTAL
    assert [each.snapshot_id for each in captured.accepted.snapshots] == [by_hand]
    lake.source.append(numbered(4))
    assert not lake.run().accepted.snapshots
    assert lake.rows() == expected(lake, 1, 2, 77, 3, 4)
    lake.write_by_hand(78)
    lake.refused(ForeignWriteError, consent=Consent(accept=by_hand))


def test_rows_deleted_by_hand_are_noticed_and_restored_by_a_full_run(lake: Lake) -> None:
    lake.run()
    lake.target.delete("number = 1")
    assert "`overwrite`" in lake.refused(ForeignWriteError)
    lake.run(asked_for=Mode.FULL)
    assert lake.rows() == expected(lake, 1, 2)
    lake.run()


@pytest.mark.parametrize("deletes", [True, False])
def test_foreign_changes_are_noticed_by_the_row_count_if_their_commit_is_expired(lake: Lake, *, deletes: bool) -> None:
    lake.run()
    lake.target.delete("number = 1") if deletes else lake.write_by_hand(77, 78)
    lake.write_by_hand(*[] if deletes else [79])  # stands for a compaction
    lake.expire_all_but_the_head(rows=1 if deletes else 5)
    lake.source.append(numbered(3))
    said = lake.refused(ForeignWriteError)
    assert f"have since expired (at least {'1 row fewer' if deletes else '3 rows more'})" in said
    lake.capture(consent=Consent(accept=lake.head))
    lake.run(asked_for=Mode.FULL)
    assert lake.rows() == expected(lake, 1, 2, 3)


def test_foreign_changes_are_noticed_by_the_row_count_if_pyiceberg_has_expired_their_commit(lake: Lake) -> None:
    """It removes the id of an expired parent from the commit that is kept."""
    lake.run()
    lake.write_by_hand(77, 78)
    lake.write_by_hand(79)
    lake.expire_all_but_the_head(rows=5, keeps_parents=False)
    assert "at least 3 rows more" in lake.refused(ForeignWriteError)


def test_expired_compactions_do_not_count_as_foreign_changes(lake: Lake) -> None:
    lake.run()
    lake.write_by_hand()
    lake.write_by_hand()  # both stand for compactions
    lake.expire_all_but_the_head(rows=2)
    assert lake.run().capture.mode is Mode.INCREMENTAL


def test_accepting_is_published_even_if_the_run_has_nothing_else_to_publish(lake: Lake) -> None:
    lake.run()
    lake.write_by_hand(77)
    captured = lake.run(consent=Consent(accept=lake.head))
    assert captured.files.changes.is_empty
    assert lake.is_news
    lake.source.store = MemoryCursors()
    assert lake.run().capture.mode is Mode.INCREMENTAL
    assert not lake.is_news


def test_a_first_run_does_not_remove_existing_rows(lake: Lake) -> None:
    lake.write_by_hand(77)
    said = lake.refused(UnknownRowsError)
    assert "dagster_ips/mode=full" in said
    lake.refused(UnknownRowsError, consent=Consent(accept=lake.head))
    lake.refused(UnknownRowsError, start=Everywhere.LATEST)
    assert lake.run(asked_for=Mode.FULL).capture.mode is Mode.FULL
    assert lake.rows() == expected(lake, 1, 2)


def test_a_consumer_with_a_start_keeps_existing_rows_if_a_person_accepts_them(lake: Lake) -> None:
    lake.write_by_hand(77)
    consent = Consent(accept=lake.head)
    lake.capture(consent=consent, start=Everywhere.LATEST)
    lake.source.append(numbered(3))
    lake.run(consent=consent, start=Everywhere.LATEST)
    assert lake.rows() == expected(lake, 77, 3)
    lake.source.append(numbered(4))
    lake.run(start=Everywhere.LATEST)
    assert lake.rows() == expected(lake, 77, 3, 4)


def test_a_reset_accepts_the_table_as_it_is(lake: Lake) -> None:
    lake.run()
    lake.target.delete("number = 1")
    Administrator(lake.source.lake, lake.source.store, TARGET).reset(EDGE, who="me", why="test")
    assert lake.run().capture.mode is Mode.FULL
    assert lake.rows() == expected(lake, 1, 2)


def test_a_job_that_reports_back_may_write_its_table_in_any_way(lake: Lake) -> None:
    of_job = Consent(any_writes=True)
    lake.write_by_hand(1, 2)
    token = "daily:1"  # noqa: S105  # the id of a capture
    (captured,) = Capturer(lake.source.lake, lake.source.store).capture(
        CaptureRequest(EDGE.consumer, [TrackedInput(EDGE.upstream, TABLE)], target=TARGET, consent=of_job), run_id=token
    )
    progress = captured.advance.progress(captured.advance.base, made={}, lookups={})
    lake.source.store.set_job(EDGE.consumer, Job((captured.capture,), progress))
    assert captured.capture.mode is Mode.FULL
    lake.write_by_hand(3)
    status = Inspector(lake.source.lake, lake.source.store, TARGET).status(
        EDGE.consumer, TrackedInput("playback", TABLE)
    )
    assert status.problem is None
    Administrator(lake.source.lake, lake.source.store, TARGET).commit(EDGE.consumer, [EDGE.upstream], token)
    assert lake.capture().capture.mode is Mode.INCREMENTAL
    lake.write_by_hand(4)
    lake.refused(ForeignWriteError)


def test_status_says_that_someone_else_wrote_to_the_table(lake: Lake) -> None:
    lake.run()
    lake.write_by_hand(77)
    status = Inspector(lake.source.lake, lake.source.store, TARGET).status(
        EDGE.consumer, TrackedInput("playback", TABLE)
    )
    assert "Someone other than daily" in str(status.problem)
