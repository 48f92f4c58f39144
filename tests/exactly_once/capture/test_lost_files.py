"""An engine's error about a file of an input says what is wrong with that file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dagster_ips.errors import CutBoundError, SnapshotGoneError
from dagster_ips.exactly_once.capture.lost_files import lost_file, unreadable
from tests.iceberg.sources import TABLE, Source, numbered
from tests.iceberg.test_manifests_of_others import rewrite_manifests


@pytest.mark.parametrize("folder", ["lake", "my lake", "la 50% ke"])
def test_a_damaged_file_is_not_said_to_be_gone_whatever_its_folder_is_called(tmp_path: Path, folder: str) -> None:
    source = Source(tmp_path / folder)
    source.append(numbered(1))
    captured = source.capture()
    (file,) = captured.files.changes.added
    error = RuntimeError(f"Job aborted: {file.path.replace('file://', 'file:')} is not a Parquet file\n at a.b(C.java)")
    found = lost_file(error, [captured], source.lake.storage)
    assert found is not None
    assert (found.file, found.cause) == (file.path, "can't be read (is not a Parquet file)")
    Path(urlsplit(file.path).path).unlink()
    gone = lost_file(error, [captured], source.lake.storage)
    assert gone is not None
    assert (gone.file, gone.cause) == (file.path, "no longer exists")


def test_an_error_about_another_tables_file_is_left_as_it_is(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append(numbered(1))
    error = RuntimeError("file:/elsewhere/part.parquet is not a Parquet file")
    assert lost_file(error, [source.capture()], source.lake.storage) is None


def test_a_file_without_an_extension_is_found_by_its_path(tmp_path: Path) -> None:
    """Hive names its files like this, and ``migrate`` and ``add_files`` leave them where they are."""
    source = Source(tmp_path)
    source.append(numbered(1))
    hive = (tmp_path / "hive" / "day=1" / "000000_0").as_uri()
    rewrite_manifests(source, lambda entry: {**entry, "data_file": {**entry["data_file"], "file_path": hive}})
    captured = source.capture()
    error = RuntimeError(f"File does not exist: {hive.replace('file://', 'file:')}\n at a.b(C.java)")
    found = lost_file(error, [captured], source.lake.storage)
    assert found is not None
    assert (found.file, found.cause) == (hive, "no longer exists")
    other = RuntimeError("File does not exist: file:/elsewhere/day=1/000000_0")
    assert lost_file(other, [captured], source.lake.storage) is None


def test_an_engines_error_about_a_snapshot_is_explained_only_if_the_run_reads_it_and_it_is_gone(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append(numbered(1))
    captured = source.capture()
    read = source.lake.load(TABLE, asset="test").head_snapshot_id()
    error = RuntimeError(f"Cannot find snapshot with ID {read}\n at a.b(C.java)")
    assert unreadable(error, [captured], source.lake) is None
    source.append(numbered(2))
    assert read is not None
    source.table.maintenance.expire_snapshots().by_id(read).commit()
    found = unreadable(error, [captured], source.lake)
    assert isinstance(found, SnapshotGoneError)
    assert (found.table, found.snapshot_id) == (TABLE, read)
    assert unreadable(RuntimeError("Cannot find snapshot with ID 7"), [captured], source.lake) is None


def test_an_engines_error_about_a_bound_names_the_tables_and_how_to_write_it_again(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append(numbered(1))
    error = RuntimeError("(RuntimeIOException) Failed to decode value as UTF-8: java.nio.HeapByteBuffer[pos=0]")
    found = unreadable(error, [source.capture()], source.lake)
    assert isinstance(found, CutBoundError)
    rewrite = f"rewrite_data_files(table => '{TABLE}', options => map('rewrite-all', 'true'))."
    assert str(found).endswith(f"CALL {source.lake.name}.system.{rewrite}")
