"""A table's own files: metadata, manifest lists and manifests as a whole, data files in parts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from dagster_ips.errors import CatalogUnreachableError, MetadataUnreadableError, UnsupportedTableError
from dagster_ips.iceberg.answer_deadline import NoAnswerError, Patience
from dagster_ips.iceberg.late import fs, io, pyarrow_io
from dagster_ips.iceberg.vended import Vended

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputStream

_Answer = TypeVar("_Answer")
_ANSWERS = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
"""What a storage answers about one file; its other errors are about the storage itself."""
_CUTS_PATHS = frozenset("#?")
_DATABASE_CODES = ("sqlite_errorname", "sqlstate", "pgcode")
"""Where the errors of sqlite3, psycopg and psycopg2 have their code."""
_MOST_IOS = 64
_AWS_ERROR = re.compile(r"\bAWS Error (\w+(?: \(HTTP status \d+\))?)")


@dataclass(frozen=True)
class Storage:
    """Reads and writes whole files with the catalog's own storage configuration; reads wait with ``patience``.

    Every file is read or written for a ``table``. What ``vended`` knows for that table is used for it, unless the file
    is in ``own_folder``, which is the client's and not the server's. With ``manifests``, those that were read are kept.
    """

    properties: Mapping[str, str] = field(repr=False)
    catalog: str = ""
    patience: Patience | None = None
    vended: Callable[[str], Vended] | None = field(default=None, repr=False)
    own_folder: str | None = None
    manifests: dict[str, bytes] | None = field(default=None, repr=False, compare=False)
    _ios: dict[tuple[object, ...], FileIO] = field(default_factory=dict, init=False, repr=False, compare=False)

    def reading_once(self) -> Storage:
        """The same for one step or tick, which reads each manifest and manifest list once: they never change."""
        found = replace(self, manifests={})
        vars(found).update(_ios=self._ios)  # Its connections are shared.
        return found

    def read(self, location: str, *, table: str) -> bytes:
        """The file's content.

        Raises:
            MetadataUnreadableError: it doesn't exist, or can't be opened.
            UnsupportedTableError: PyIceberg would read another file instead.
            CatalogUnreachableError: the storage did not answer, or not in time. The file may be intact.
        """
        if self.manifests is None or not location.endswith(".avro"):
            return self._read(location, table)
        if location not in self.manifests:
            self.manifests[location] = self._read(location, table)
        return self.manifests[location]

    def _read(self, location: str, table: str) -> bytes:
        try:
            return self.answer(f"reading {location}", partial(self._content, location, table))
        except (CatalogUnreachableError, UnsupportedTableError):
            raise
        except Exception as error:  # noqa: BLE001  # every storage has its own; all mean the same to the table
            # The message may have a signed address in it.
            raise MetadataUnreadableError(table=table, file=location, cause=type(error).__name__) from None

    def _content(self, location: str, table: str) -> bytes:
        with self._io(location, table).new_input(location).open() as stream:
            return stream.read()

    def answer(self, doing: str, ask: Callable[[], _Answer]) -> _Answer:
        """What ``ask``, which reads a file, returns or raises.

        Raises:
            CatalogUnreachableError: the storage did not answer, or not in time. The file may be intact.
        """
        with self._reaching(doing):
            return self.patience.ask(ask) if self.patience else ask()

    def open(self, location: str, *, table: str) -> InputStream:
        """Open a file to read parts of it; raises whatever the storage does if it doesn't exist."""
        return self._io(location, table).new_input(location).open(seekable=True)

    def exists(self, location: str, *, table: str) -> bool:
        """Whether there is such a file.

        Raises:
            CatalogUnreachableError: the storage did not answer.
        """
        with self._reaching(f"looking for {location}"):
            return self._io(location, table).new_input(location).exists()

    def size(self, location: str, *, table: str) -> int:
        """The size in bytes of a file that exists.

        Raises:
            CatalogUnreachableError: the storage did not answer.
        """
        with self._reaching(f"measuring {location}"):
            return len(self._io(location, table).new_input(location))

    def write(self, location: str, content: bytes, *, table: str) -> None:
        """Create the file; an existing one is never overwritten.

        Raises:
            CatalogUnreachableError: the storage did not answer. The file may have been written.
        """
        output = self._io(location, table).new_output(location)
        with self._reaching(f"writing {location}"), output.create(overwrite=False) as stream:
            stream.write(content)

    def delete(self, location: str, *, table: str) -> None:
        """Delete the file; one that is gone already is no error.

        Raises:
            CatalogUnreachableError: the storage did not answer. The file may be gone.
        """
        with self._reaching(f"deleting {location}"), contextlib.suppress(FileNotFoundError):
            self._io(location, table).delete(location)

    def remove_empty_folder(self, location: str, *, table: str) -> None:
        """Remove a folder unless a file is in it.

        An object store has no folders, but deleting a file through PyArrow leaves an empty object in its folder's
        place.

        Raises:
            CatalogUnreachableError: the storage did not answer.
        """
        with self._reaching(f"removing {location}"):
            path = location.removeprefix("file:").removeprefix("//")
            if path.startswith("/"):
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
            elif isinstance(own := self._io(location, table), pyarrow_io.PyArrowFileIO):
                scheme, bucket, path = own.parse_location(location, own.properties)
                files = own.fs_by_scheme(scheme, bucket)
                inside = files.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
                if all(each.type == fs.FileType.Directory for each in inside):
                    with contextlib.suppress(FileNotFoundError):
                        files.delete_dir(path)

    def _io(self, location: str, table: str) -> FileIO:
        """One FileIO for each kind of storage and login: it keeps its connections, which cost more than small files.

        Raises:
            UnsupportedTableError: it would use another file than ``location``.
            CatalogUnreachableError: the catalog didn't say what it vends for the table.
        """
        properties = self._properties_for(location, table)
        key = (urlsplit(location).scheme, *sorted(properties.items()))
        found = self._ios.get(key)
        if found is None:
            if len(self._ios) >= _MOST_IOS:  # Most of them have vended credentials that have ended.
                self._ios.clear()
            found = self._ios[key] = io.load_file_io(dict(properties), location)
        if _CUTS_PATHS & set(location) and isinstance(found, pyarrow_io.PyArrowFileIO):
            raise UnsupportedTableError(
                table=location,
                problem="its path contains # or ?, from where on PyIceberg ignores it: another file would be used",
                remedy="Move the table to a path without these characters, or read it with PyIceberg's fsspec "
                "(py-io-impl).",
            )
        return found

    def _properties_for(self, location: str, table: str) -> Mapping[str, str]:
        is_own = self.own_folder is not None and location.startswith(f"{self.own_folder.rstrip('/')}/")
        if self.vended is None or is_own:
            return self.properties
        return self.vended(table).properties_for(location, self.properties)

    @contextlib.contextmanager
    def _reaching(self, doing: str) -> Iterator[None]:
        try:
            yield
        except NoAnswerError as error:
            raise CatalogUnreachableError(catalog=self.catalog, doing=doing, cause=str(error)) from None
        except _ANSWERS:
            raise
        except OSError as error:
            raise CatalogUnreachableError(catalog=self.catalog, doing=doing, cause=kind_of(error)) from None


def kind_of(error: Exception) -> str:
    """The kind of an error, without its message: drivers put addresses, with passwords, into their messages.

    What is wrong is added if the error has a code for it: the system's, AWS's, SQLite's or PostgreSQL's.

    >>> kind_of(OSError("When reading 's3://lake/a': AWS Error ACCESS_DENIED during HeadObject operation: …"))
    'AWS error ACCESS_DENIED'
    >>> kind_of(OSError(28, "Error writing bytes to file"))
    'OSError: No space left on device'
    """
    if isinstance(error, OSError) and (said := _AWS_ERROR.search(str(error))):
        return f"AWS error {said[1]}"
    by_driver = getattr(error, "orig", None)
    codes = (getattr(by_driver, name, None) for name in _DATABASE_CODES)
    code = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else next(filter(None, codes), None)
    return f"{type(error).__name__}: {code}" if code else type(error).__name__
