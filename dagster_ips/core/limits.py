"""How much of a backlog one capture takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import ChangeSet


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one capture takes: ``max_bytes`` and ``max_files`` of added data files, None for any number.

    ``cuts_files`` says whether part of an append's files may be taken, or only whole snapshots.
    """

    max_bytes: int | None = None
    max_files: int | None = None
    cuts_files: bool = False

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return self.max_bytes is not None or self.max_files is not None

    def allow(self, files: int, size_bytes: int) -> bool:
        """Whether this much may be taken at once."""
        within_bytes = self.max_bytes is None or size_bytes <= self.max_bytes
        return within_bytes and (self.max_files is None or files <= self.max_files)

    def allow_change(self, changes: ChangeSet) -> bool:
        """Whether the change may be taken at once."""
        return self.allow(len(changes.added), changes.size_bytes)


def snapshots_within(snapshots: Iterable[Snapshot], limits: Limits) -> int:
    """How many of ``snapshots``, oldest first, are taken together, by their summaries: at least one if there are any.

    A snapshot that doesn't say how much it added may have added any amount. A ``replace`` adds no row and isn't
    counted.

    Example:
        >>> counts = {"total-data-files": "9", "added-data-files": "2", "added-files-size": "10"}
        >>> backlog = [Snapshot(n, n - 1, n, n, "append", "", counts) for n in range(1, 6)]
        >>> snapshots_within(backlog, Limits(max_files=5))
        2
    """
    files = size_bytes = count = 0
    for snapshot in snapshots:
        added = _added(snapshot)
        if added is not None:
            files, size_bytes = files + added[0], size_bytes + added[1]
        if limits.is_set and count and (added is None or not limits.allow(files, size_bytes)):
            return count
        count += 1
        if limits.is_set and added is None:
            return count
    return count


def _added(snapshot: Snapshot) -> tuple[int, int] | None:
    """Files and bytes that the snapshot added; None if its summary doesn't say."""
    if snapshot.only_moves:
        return 0, 0
    summary = snapshot.summary
    if "total-data-files" not in summary:
        return None
    files = int(summary.get("added-data-files", "0"))
    if files and "added-files-size" not in summary:
        return None
    return files, int(summary.get("added-files-size", "0"))
