"""A table's own files: metadata, manifest lists and manifests whole, data files in parts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dagster_ips.errors import CatalogUnreachableError, MetadataUnreadableError
from dagster_ips.iceberg.answer_deadline import NoAnswerError, Patience
from dagster_ips.iceberg.late import io

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputStream


@dataclass(frozen=True)
class Storage:
    """Reads and writes whole files by the catalog's own storage configuration; waits for reads with ``patience``."""

    properties: Mapping[str, str] = field(repr=False)
    catalog: str = ""
    patience: Patience | None = None
    _ios: dict[str, FileIO] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read(self, location: str, *, table: str) -> bytes:
        """The file's content.

        Raises:
            MetadataUnreadableError: it can't be opened or read.
            CatalogUnreachableError: it wasn't in time.
        """
        try:
            return self.patience.ask(lambda: self._content(location)) if self.patience else self._content(location)
        except NoAnswerError as error:
            raise CatalogUnreachableError(catalog=self.catalog, doing=f"reading {location}", cause=str(error)) from None
        except Exception as error:
            # Every storage has its own exceptions; all mean the same to the table that needs the file.
            raise MetadataUnreadableError(table=table, file=location, cause=type(error).__name__) from error

    def _content(self, location: str) -> bytes:
        with self._io(location).new_input(location).open() as stream:
            return stream.read()

    def open(self, location: str) -> InputStream:
        """A file to read parts of; whatever the storage raises if it isn't there."""
        return self._io(location).new_input(location).open(seekable=True)

    def exists(self, location: str) -> bool:
        """Whether there is such a file."""
        return self._io(location).new_input(location).exists()

    def write(self, location: str, content: bytes) -> None:
        """Create the file; an existing one is never overwritten."""
        with self._io(location).new_output(location).create(overwrite=False) as stream:
            stream.write(content)

    def delete(self, location: str) -> None:
        """Delete the file; one that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._io(location).delete(location)

    def remove_empty_folder(self, location: str) -> None:
        """Remove a local folder unless something is in it; an object store has no folders."""
        path = location.removeprefix("file:").removeprefix("//")
        if path.startswith("/"):
            with contextlib.suppress(OSError):
                Path(path).rmdir()

    def _io(self, location: str) -> FileIO:
        """One for each kind of storage: it keeps its connections, which cost an object store more than small files."""
        scheme = urlsplit(location).scheme
        if scheme not in self._ios:
            self._ios[scheme] = io.load_file_io(dict(self.properties), location)
        return self._ios[scheme]
