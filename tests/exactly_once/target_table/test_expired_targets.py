"""What a target contains is known from itself, whatever expires of it; if that is lost, nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.table import Table

from dagster_ips.core.capture import Mode
from dagster_ips.core.ownership import ASSET
from dagster_ips.errors import CatalogUnreachableError, IpsError, TargetChangedError, UnknownPublicationError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.edge_status import EdgeStatus, Inspector
from dagster_ips.iceberg.storage import Storage
from dagster_ips.progress.advance import Standing
from dagster_ips.progress.table_progress import PIN
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, numbered
from tests.support.memory_store import MemoryCursors
from tests.support.publishing import copy_progress, known_of


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Two commits, each consumed and published by its own run."""
    source = Source(tmp_path, "day")
    with target_of(source).transaction() as transaction:
        transaction.set_properties({ASSET: EDGE.consumer})
    for number in (1, 2):
        source.append(numbered(number))
        publish(source, source.capture())
    return source


def publish(source: Source, captured: CapturedInput) -> None:
    source.publish(captured)
    copy_progress(source.store, source.lake, TARGET, EDGE.consumer)


def target_of(source: Source) -> Table:
    return source.lake.client.load_table(TARGET)


def status(source: Source) -> EdgeStatus:
    return Inspector(source.lake, source.store, TARGET).status(EDGE.consumer, TrackedInput(EDGE.upstream, TABLE))


def holds(source: Source, captured: CapturedInput, *numbers: int) -> bool:
    return source.scan(captured.capture.icdc_table) == source.expected(numbered(*numbers))


def maintain(source: Source) -> None:
    """Leave only the newest snapshot of the history, like a compaction in two commits followed by an expiry."""
    for _ in range(2):
        target = target_of(source)
        target.append(target.scan(limit=0).to_arrow())
    expire(source)


def compact(source: Source) -> None:
    """Replace every file, then leave only that, so that nothing in the table is from the last publication."""
    for _ in range(2):
        target = target_of(source)
        target.overwrite(target.scan().to_arrow())
    expire(source)

    def as_compaction(raw: dict[str, Any]) -> None:
        (head,) = (each for each in raw["snapshots"] if each["snapshot-id"] == raw["current-snapshot-id"])
        head["summary"] |= {"operation": "replace", "deleted-records": head["summary"]["added-records"]}

    edit(source, as_compaction)


def expire(source: Source) -> None:
    target = target_of(source)
    kept = {ref.snapshot_id for ref in target.metadata.refs.values()}
    gone = [each.snapshot_id for each in target.metadata.snapshots if each.snapshot_id not in kept]
    target.maintenance.expire_snapshots().by_ids(gone).commit()


def edit(source: Source, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the target's metadata.json in place."""
    path = Path(urlsplit(target_of(source).metadata_location).path)
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def lose_nothing(_: Source) -> None:
    pass


def lose_old_metadata(source: Source) -> None:
    for entry in target_of(source).metadata.metadata_log:
        Path(urlsplit(entry.metadata_file).path).unlink(missing_ok=True)


def lose_tag(source: Source) -> None:
    target_of(source).manage_snapshots().remove_tag(PIN).commit()


def replace_table(source: Source) -> None:
    """What CREATE OR REPLACE TABLE leaves: no ``main``, but the snapshots and tags of before."""

    def without_main(raw: dict[str, Any]) -> None:
        raw["refs"].pop("main")
        raw["current-snapshot-id"], raw["snapshot-log"] = -1, []

    edit(source, without_main)


def roll_back(source: Source, *, to: int) -> None:
    """Make the snapshot at this place of the history, from 0, the head."""
    target = target_of(source)
    target.manage_snapshots().rollback_to_snapshot(target.history()[to].snapshot_id).commit()


@pytest.mark.parametrize("how", [maintain, compact])
def test_nothing_is_read_twice_if_a_publication_expires_that_no_cursor_knows(
    source: Source, how: Callable[[Source], None]
) -> None:
    source.append(numbered(3))
    source.publish(source.capture())
    how(source)
    source.append(numbered(4))
    captured = source.capture()
    assert captured.capture.mode is Mode.INCREMENTAL
    assert holds(source, captured, 4)


@pytest.mark.parametrize("how", ["lost", "restored from a backup", "written late"])
@pytest.mark.parametrize("expires", [False, True])
def test_a_cursor_that_is_behind_its_target_changes_no_row(source: Source, how: str, *, expires: bool) -> None:
    backup = source.store.get(EDGE.consumer).copy
    assert backup is not None
    for number in (3, 4, 5):
        source.append(numbered(number))
        publish(source, source.capture())
    if how == "lost":
        source.store = MemoryCursors()
    elif how == "restored from a backup":
        source.store = MemoryCursors()
        source.store.set_copy(EDGE.consumer, backup)
    else:
        source.store.set_copy(EDGE.consumer, backup)
    if expires:
        maintain(source)
    source.append(numbered(6))
    assert holds(source, source.capture(), 6)


def test_a_cursor_that_is_ahead_of_a_restored_target_skips_no_row(source: Source) -> None:
    """A backup of the table is registered: it lacks what was published since, whatever the cursor says."""
    older = target_of(source).metadata_location
    source.append(numbered(3))
    publish(source, source.capture())
    source.lake.client.drop_table(TARGET)
    source.lake.client.register_table(TARGET, older)
    assert holds(source, source.capture(), 3)


@pytest.mark.parametrize("expires", [False, True])
def test_a_target_that_was_rolled_back_goes_on_from_what_it_holds(source: Source, *, expires: bool) -> None:
    for number in (3, 4):
        source.append(numbered(number))
        publish(source, source.capture())
    roll_back(source, to=1)
    if expires:
        expire(source)
    found = status(source)
    assert (found.problem, found.state.number) == (None, 2)
    assert found.pending is not None
    assert found.pending.rows == 2
    captured = source.capture()
    assert captured.capture.mode is Mode.INCREMENTAL
    assert holds(source, captured, 3, 4)
    publish(source, captured)
    assert source.scan(TARGET) == source.expected(numbered(1, 2, 3, 4))


def check_refused(source: Source, error: type[IpsError]) -> None:
    """The next capture is refused with advice, stores nothing, and ``status`` says the same."""
    before = source.store.get(EDGE.consumer)
    with pytest.raises(error, match="dagster_ips/mode=full") as raised:
        source.capture()
    assert source.store.get(EDGE.consumer) == before
    assert (status(source).problem, status(source).pending) == (str(raised.value), None)


def test_a_run_that_found_nothing_to_write_before_a_rollback_does_not_count_after_it(source: Source) -> None:
    roll_back(source, to=0)
    assert holds(source, source.capture(), 2)


@pytest.mark.parametrize("how", [replace_table, lambda source: roll_back(source, to=0)], ids=["replaced", "back"])
def test_a_target_that_lacks_all_that_is_known_is_refused_and_a_full_run_or_a_reset_repairs_it(
    tmp_path: Path, how: Callable[[Source], None]
) -> None:
    source = Source(tmp_path, "day")
    target = target_of(source)
    target.append(target.scan(limit=0).to_arrow())  # from before the first publication
    for number in (1, 2):
        source.append(numbered(number))
        publish(source, source.capture())
    how(source)
    check_refused(source, TargetChangedError)
    full = source.capture(asked_for=Mode.FULL)
    assert holds(source, full, 1, 2)
    publish(source, full)
    source.append(numbered(3))
    assert holds(source, source.capture(), 3)


def test_a_target_that_was_rolled_back_to_before_what_is_retained_is_refused(source: Source) -> None:
    for number in (3, 4):
        source.append(numbered(number))
        publish(source, source.capture())
    roll_back(source, to=0)
    edit(source, lambda raw: raw["snapshots"][0]["summary"].pop("dagster-ips.progress"))
    edit(source, lambda raw: raw["snapshots"][0].update({"parent-snapshot-id": 77}))
    with pytest.raises(TargetChangedError, match="what it contained then has expired"):
        source.capture()
    assert source.capture(asked_for=Mode.FULL).capture.mode is Mode.FULL


def lose_publication(source: Source) -> None:
    maintain(source)
    lose_tag(source)
    expire(source)
    lose_old_metadata(source)


def test_an_unknown_publication_is_reported_everywhere_and_the_advice_works(source: Source) -> None:
    source.append(numbered(3))
    source.publish(source.capture())
    lose_publication(source)
    check_refused(source, UnknownPublicationError)
    full = source.capture(asked_for=Mode.FULL)
    publish(source, full)
    source.append(numbered(4))
    assert holds(source, source.capture(), 4)


def test_what_is_known_is_not_said_to_be_lost_for_good_while_storage_is_down(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.append(numbered(3))
    publish(source, source.capture())
    compact(source)
    source.append(numbered(4))
    old = {entry.metadata_file for entry in target_of(source).metadata.metadata_log}
    read = Storage.read

    def fail_for_old(storage: Storage, location: str, *, table: str) -> bytes:
        if location in old:
            raise CatalogUnreachableError(catalog="lake", doing=f"reading {location}", cause="OSError")
        return read(storage, location, table=table)

    with monkeypatch.context() as down:
        down.setattr(Storage, "read", fail_for_old)
        with pytest.raises(UnknownPublicationError):
            source.capture()
    assert holds(source, source.capture(), 4)


@pytest.mark.parametrize("lose", [lose_publication, replace_table])
def test_a_full_run_after_a_reset_need_not_know_what_was_published(
    source: Source, lose: Callable[[Source], None]
) -> None:
    source.append(numbered(3))
    publish(source, source.capture())
    lose(source)
    Administrator(source.lake, source.store, TARGET).reset(EDGE, who="me", why="test")
    captured = source.capture()
    assert captured.capture.mode is Mode.FULL
    publish(source, captured)
    source.append(numbered(4))
    assert holds(source, source.capture(), 4)


@pytest.mark.parametrize("lose", [lose_nothing, lose_old_metadata])
def test_the_publication_of_another_run_is_noticed_although_it_expired_meanwhile(
    source: Source, lose: Callable[[Source], None]
) -> None:
    source.append(numbered(3))
    late, other = source.capture(), source.capture()
    publish(source, other)
    maintain(source)
    lose(source)
    assert late.advance.standing(known_of(source.store, source.lake, TARGET, EDGE.consumer)) is Standing.DONE


def test_maintenance_alone_reads_no_older_metadata(source: Source) -> None:
    maintain(source)
    lose_old_metadata(source)
    source.append(numbered(3))
    assert holds(source, source.capture(), 3)
