"""Stamps that have expired from the target are read from older metadata; if that is gone too, nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dagster_ips.core.capture import Mode
from dagster_ips.errors import CatalogUnreachableError, PublishError, UnknownPublicationError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.edge_status import Inspector
from dagster_ips.exactly_once.publish.publisher import published_by_another
from dagster_ips.iceberg.stamps import announcement
from dagster_ips.iceberg.storage import Storage
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, numbered


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Two commits, each consumed and published by its own run."""
    source = Source(tmp_path, "day")
    for number in (1, 2):
        source.append(numbered(number))
        publish(source, source.capture())
        source.capture()  # finds the stamp
    return source


def publish(source: Source, captured: CapturedInput) -> None:
    """Leave rows, stamp and announcement, like a run that is killed before it commits."""
    source.publish(captured)
    published = source.lake.load(TARGET, asset="test").head_snapshot_id()
    assert published
    announce(source, captured, published)


def announce(source: Source, captured: CapturedInput, snapshot_id: int) -> None:
    with source.lake.client.load_table(TARGET).transaction() as transaction:
        transaction.set_properties(announcement([captured.capture], snapshot_id))


def maintain(source: Source) -> None:
    """Leave only the newest snapshot of the history, like a compaction in two commits followed by an expiry."""
    for _ in range(2):
        target = source.lake.client.load_table(TARGET)
        target.append(target.scan().to_arrow().slice(0, 0))
    target = source.lake.client.load_table(TARGET)
    target.maintenance.expire_snapshots().by_ids([entry.snapshot_id for entry in target.history()[:-1]]).commit()


def lose_old_metadata(source: Source) -> None:
    for entry in source.lake.client.load_table(TARGET).metadata.metadata_log:
        Path(urlsplit(entry.metadata_file).path).unlink()


def test_nothing_is_read_twice_if_an_uncommitted_publication_expires(source: Source) -> None:
    source.append(numbered(3))
    publish(source, source.capture())
    maintain(source)
    source.append(numbered(4))
    captured = source.capture()
    assert captured.capture.mode is Mode.INCREMENTAL
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(4))


def test_a_cursor_from_a_backup_catches_up_with_publications_that_have_expired_since(source: Source) -> None:
    backup = source.state
    for number in (3, 4, 5):
        source.append(numbered(number))
        publish(source, source.capture())
        source.capture()
    maintain(source)
    source.store.set(backup)
    source.append(numbered(6))
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(6))


def test_changes_that_were_announced_but_never_published_are_read_again(source: Source) -> None:
    source.append(numbered(3))
    announce(source, source.capture(), 12345)
    maintain(source)
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(3))


def test_an_unknown_publication_is_reported_everywhere_and_the_advice_works(source: Source) -> None:
    source.append(numbered(3))
    publish(source, source.capture())
    maintain(source)
    lose_old_metadata(source)
    before = source.state
    with pytest.raises(UnknownPublicationError, match="dagster_ips/mode=full") as raised:
        source.capture()
    assert source.state == before
    status = Inspector(source.lake, source.store, TARGET).status(EDGE.consumer, TrackedInput(EDGE.upstream, TABLE))
    assert (status.problem, status.pending) == (str(raised.value), None)
    full = source.capture(asked_for=Mode.FULL)
    publish(source, full)
    source.append(numbered(4))
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(4))


def test_old_metadata_is_not_said_to_be_gone_while_its_storage_is_down(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.append(numbered(3))
    publish(source, source.capture())
    maintain(source)
    source.append(numbered(4))
    old = {entry.metadata_file for entry in source.lake.client.load_table(TARGET).metadata.metadata_log}
    read = Storage.read

    def fail_for_old(storage: Storage, location: str, *, table: str) -> bytes:
        if location in old:
            raise CatalogUnreachableError(catalog="lake", doing=f"reading {location}", cause="OSError")
        return read(storage, location, table=table)

    with monkeypatch.context() as down:
        down.setattr(Storage, "read", fail_for_old)
        with pytest.raises(UnknownPublicationError, match=r"or can't be read\. .* If its storage was down, run again"):
            source.capture()
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(4))


def test_a_full_run_after_a_reset_need_not_know_what_was_published(source: Source) -> None:
    source.append(numbered(3))
    publish(source, source.capture())
    maintain(source)
    lose_old_metadata(source)
    Administrator(source.lake, source.store, TARGET).reset(EDGE, who="me", why="test")
    assert source.capture().capture.mode is Mode.FULL


def lose_nothing(_: Source) -> None:
    pass


@pytest.mark.parametrize("lose", [lose_nothing, lose_old_metadata])
def test_the_publication_of_another_run_is_noticed_although_it_expired_meanwhile(
    source: Source, lose: Callable[[Source], None]
) -> None:
    source.append(numbered(3))
    late, other = source.capture(), source.capture()
    publish(source, other)
    maintain(source)
    lose(source)
    target = source.lake.load(TARGET, asset="test")
    if lose is lose_nothing:
        ((superseded, _),) = published_by_another(source.lake.storage, target, [late.capture])
        assert superseded == late.capture
    else:
        with pytest.raises(PublishError, match="it is unknown whether"):
            published_by_another(source.lake.storage, target, [late.capture])


def test_maintenance_alone_reads_no_older_metadata(source: Source) -> None:
    maintain(source)
    lose_old_metadata(source)
    source.append(numbered(3))
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(3))
