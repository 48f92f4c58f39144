"""Files that only their owner can read, in a folder that nobody else can enter."""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dagster_ips.errors import IpsError


@dataclass(eq=False)
class SparkFolderNotPrivateError(IpsError):
    """The folder of the local Spark is somebody else's, or holds other things and is open to others."""

    folder: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"The local Spark wasn't used: its folder {self.folder} {self.problem}. Anyone who can read or replace its "
            f"contents can run code as you. {self.remedy}"
        )


@dataclass(eq=False)
class SparkFolderUnusableError(IpsError):
    """The folder of Spark's jars or of the local Spark can't be created or written to."""

    folder: str
    cause: str

    def __str__(self) -> str:
        return (
            f"The folder {self.folder}, for Spark's jars or the local Spark, can't be created or written to "
            f"({self.cause}). Spark was not started, and no data was touched. Let this user write there, or choose "
            "another folder: set DAGSTER_IPS_CACHE, or LocalSparkConnect(server_folder=...) for the local Spark alone."
        )


def make_private(folder: Path, *, markers: Iterable[str]) -> None:
    """Create ``folder``, or close it to other users, which is only done if it is empty or contains one of ``markers``.

    >>> import tempfile
    >>> within = Path(tempfile.mkdtemp()) / "cache" / "spark"
    >>> make_private(within, markers=("lock",))
    >>> oct(within.stat().st_mode & 0o777)
    '0o700'

    Raises:
        SparkFolderUnusableError: it can't be created.
        SparkFolderNotPrivateError: it belongs to somebody else, or it is open to others and holds other things.
    """
    with must_be_usable(folder):
        folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    require_own(folder)
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        if any(folder.iterdir()) and not any((folder / marker).exists() for marker in markers):
            problem = "is open to other users and also holds other files"
            remedy = f"Give it a folder of its own, or close this one: chmod 700 {folder}"
            raise SparkFolderNotPrivateError(str(folder), problem, remedy)
        folder.chmod(stat.S_IRWXU)


@contextmanager
def must_be_usable(folder: Path) -> Iterator[None]:
    """Turn what the operating system says about ``folder`` into an error that says what to do.

    Raises:
        SparkFolderUnusableError: the block raised an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise SparkFolderUnusableError(str(folder), error.strerror or type(error).__name__) from error


def require_own(folder: Path) -> None:
    """Fail if ``folder`` belongs to another user than this process's; a missing folder is fine.

    Raises:
        SparkFolderNotPrivateError: it belongs to somebody else.
    """
    try:
        owner = folder.stat().st_uid
    except FileNotFoundError:
        return
    if owner != os.geteuid():
        problem = f"belongs to user {owner}, but this process runs as user {os.geteuid()}"
        remedy = "Give this user a folder of its own (server_folder, or DAGSTER_IPS_CACHE for the default one)."
        raise SparkFolderNotPrivateError(str(folder), problem, remedy)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; meanwhile, readers get either the old or the new content.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "token"
    >>> write_private(file, "secret")
    >>> oct(file.stat().st_mode & 0o777), file.read_text()
    ('0o600', 'secret')
    """
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)  # A draft that a killed process left may be open to others.
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # Otherwise the file may be empty after a crash of the machine.
    draft.replace(path)
