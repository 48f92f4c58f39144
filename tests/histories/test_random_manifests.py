"""What changed in random histories of manifests is what a model of Iceberg's delete rules says; no Spark is needed.

The histories are odder than those that engines make: files are listed several times, added again after a compaction,
or compacted into another spec while rows are deleted, and the start of what is to be consumed has expired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from dagster_ips.exactly_once.capture.tracked_input import files_in, readable_interval
from dagster_ips.iceberg.change_reader import ChangedFiles
from dagster_ips.iceberg.manifests import Content, ManifestEntry, content_of, read_live_entries
from dagster_ips.iceberg.metadata import TableMetadata
from tests.histories.manifest_model import NAME, ModelTable, Row, parsed, rows_of
from tests.histories.manifest_steps import ModelHistory
from tests.support.variants import mostly_slow

Rows = Counter[Row]


@pytest.mark.parametrize("seeds", mostly_slow([range(200), range(200, 3_000)]), ids=str)
def test_what_changed_in_random_manifests_is_what_the_delete_rules_say(seeds: range) -> None:
    for seed in seeds:
        history = ModelHistory.of_seed(seed)
        if failure(history):
            pytest.fail(described(smallest(history)))


def smallest(history: ModelHistory) -> ModelHistory:
    """The same without every step that it doesn't take to fail."""
    return next((smallest(each) for each in history.shorter() if failure(each)), history)


def described(history: ModelHistory) -> str:
    """The steps that are left of the seed's history, the commits that they made, and what is wrong."""
    steps = ", ".join(step.operation for step in history.steps)
    head = f"seed {history.seed}, of whose history these steps are enough: version {history.version}, append, {steps}"
    return "\n".join([head, *history.table().log, failure(history)])


def failure(history: ModelHistory) -> str:
    """What is wrong about the changes between a snapshot and the head of the history's table; empty if nothing is."""
    table = history.table()
    starts = [each["snapshot-id"] for each in table.snapshots]
    found = (wrong_since(table, start, seen, metadata) for start in starts for seen, metadata in retained(table, start))
    return next(filter(None, found), "")


def retained(table: ModelTable, start: int) -> Iterator[tuple[str, TableMetadata]]:
    """The table's metadata with all snapshots, and, in two ways, without ``start`` and what came before it."""
    raw, ancestors = table.metadata(), list(table.ancestors())
    yield "retained", parsed(raw)
    if start in ancestors[1:]:
        expired = set(ancestors[ancestors.index(start) :])
        kept = [each for each in raw["snapshots"] if each["snapshot-id"] not in expired]
        yield "expired as by Java", parsed({**raw, "snapshots": kept})
        cut = [{**s, "parent-snapshot-id": None} if s["parent-snapshot-id"] in expired else s for s in kept]
        yield "expired as by PyIceberg", parsed({**raw, "snapshots": cut})


def wrong_since(table: ModelTable, start: int, seen: str, metadata: TableMetadata) -> str:
    """How the changes since ``start`` differ from the model's; empty if they don't, or if they are refused."""
    consumed = metadata.watermark_at(parsed(table.metadata()).snapshots[start], "main")
    interval = readable_interval(table.storage, metadata, consumed, metadata.ancestry())
    if interval is None:
        return f"since {start}: refused" if seen == "retained" and start in table.ancestors() else ""
    head = metadata.ancestry().head
    assert head
    files = files_in(table.storage, metadata, interval, head)
    before, after = table.rows_at(start), table.rows_at(table.head)
    found, expected = changed_rows(table, files), (after - before, before - after)
    if found == expected and not (files.changes.is_empty and before != after):
        return ""
    return f"since {start}, {seen}, added and removed:\n{found}, but by the model\n{expected}"


def changed_rows(table: ModelTable, files: ChangedFiles) -> tuple[Rows, Rows]:
    """The rows that were added, and those that were removed, as the views of an input tell them from its files."""

    def whole(content: Content) -> Iterator[ManifestEntry]:
        rows = (row for row in files.whole if content_of(row) is content)
        return (entry for row in rows for entry in read_live_entries(table.storage, row, table=NAME))

    def read(data: Iterable[ManifestEntry], deletes: Iterable[ManifestEntry]) -> Rows:
        return rows_of([table.listed(entry) for entry in data], [table.listed(entry) for entry in deletes])

    deletes = [*files.deletes, *whole(Content.DELETES)]
    fresh = read([*whole(Content.DATA), *files.fresh], deletes)
    before = read(files.before.data, files.before.deletes)
    after = read([*files.rewritten, *files.hidden], deletes)
    return fresh + (after - before), before - after
