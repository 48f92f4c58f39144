"""What the commits of a table wrote, and how much of it in partitions in which anything changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.lookback_cost import CommitCost, LookbackCost, lookback_cost
from dagster_ips.errors import MetadataUnreadableError
from dagster_ips.iceberg.delete_reach import PartitionKey, partition_key
from dagster_ips.iceberg.manifests import Content, Status, own_entries
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_TOGETHER_MS = 10_000


def cost_of_history(storage: Storage, metadata: TableMetadata, *, since_ms: int | None) -> LookbackCost:
    """What was written to ``main``, as far back as its snapshots are retained, or since ``since_ms``.

    Compactions and commits that changed no file don't count: following changes doesn't avoid these. PyIceberg
    overwrites by two snapshots, of which the first removes and the second adds; they count as one. Cost: one manifest
    list for each commit, and the manifests that it wrote.
    """
    snapshots = [s for s in metadata.ancestry().snapshots if since_ms is None or s.timestamp_ms >= since_ms]
    commits = _commits([snapshot for snapshot in reversed(snapshots) if not snapshot.keeps_rows])
    found = [_cost(storage, metadata, commit) for commit in reversed(commits)]
    known = [cost for cost in found if cost is not None]
    return lookback_cost(known, unknown=len(found) - len(known))


def _commits(snapshots: Sequence[Snapshot]) -> list[list[Snapshot]]:
    """The commits, oldest first, each together with a removal right before it."""
    found: list[list[Snapshot]] = []
    for snapshot in snapshots:
        before = found[-1][-1] if found else None
        if before and _only_takes(before) and snapshot.timestamp_ms - before.timestamp_ms <= _TOGETHER_MS:
            found[-1].append(snapshot)
        else:
            found.append([snapshot])
    return found


def _only_takes(snapshot: Snapshot) -> bool:
    added = (snapshot.summary.get(count, "0") for count in ("added-data-files", "added-delete-files"))
    return snapshot.operation == "delete" and all(count == "0" for count in added)


def _cost(storage: Storage, metadata: TableMetadata, commit: Sequence[Snapshot]) -> CommitCost | None:
    """The cost of one commit; None if its manifests can't be read."""
    try:
        own = [e for snapshot in commit for e in own_entries(storage, snapshot, Content.DATA, table=metadata.table)]
    except MetadataUnreadableError:
        return None
    added: dict[tuple[int, PartitionKey], list[DataFile]] = {}
    removed: dict[tuple[int, PartitionKey], list[DataFile]] = {}
    for entry in own:
        side = added if entry.status is Status.ADDED else removed
        side.setdefault((entry.spec_id, partition_key(entry)), []).append(entry.data_file())
    changed = [files for where, files in added.items() if _looks(files) != _looks(removed.get(where, []))]
    return CommitCost(
        timestamp_ms=commit[-1].timestamp_ms,
        rows_added=sum(file.record_count for files in added.values() for file in files),
        rows_removed=sum(file.record_count for files in removed.values() for file in files),
        bytes_added=sum(file.file_size_bytes for files in added.values() for file in files),
        bytes_in_changed=sum(file.file_size_bytes for files in changed for file in files),
    )


def _looks(files: list[DataFile]) -> Counter[Hashable]:
    """All that metadata says about the files' content: the same rows, written again, look the same."""
    return Counter(
        (
            file.record_count,
            file.file_size_bytes,
            *(tuple(sorted(bounds.items())) for bounds in (file.lower_bounds, file.upper_bounds)),
            tuple(sorted(file.null_counts.items())),
        )
        for file in files
    )
