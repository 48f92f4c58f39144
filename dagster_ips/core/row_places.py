"""What in a plan says where rows lie or how a table was written, not what rows are: a compaction changes it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dagster_ips.core.spark_plan import Node

# Not a column of that name.
_FUNCTION = re.compile(r"(?<![\w`.])(?:input_file_(?:name|block_start|block_length)|spark_partition_id)\(\)(?!#)")
METADATA_COLUMNS = frozenset(
    ("_file", "_pos", "_partition", "_spec_id", "_deleted", "_row_id", "_last_updated_sequence_number")
)
"""Iceberg's metadata columns. Spark can't read a table that has a column of its own with such a name."""
_FILES = frozenset(("file_path", "record_count", "file_size_in_bytes"))
_MANIFESTS = frozenset(("path", "partition_spec_id", "added_snapshot_id"))
_ENTRIES = frozenset(("status", "snapshot_id", "data_file"))
_TABLES = {
    **dict.fromkeys(("files", "data_files", "delete_files"), _FILES),
    **dict.fromkeys(("all_files", "all_data_files", "all_delete_files"), _FILES),
    **dict.fromkeys(("manifests", "all_manifests"), _MANIFESTS),
    **dict.fromkeys(("entries", "all_entries"), _ENTRIES),
    "changes": frozenset(("_change_type", "_change_ordinal", "_commit_snapshot_id")),
    "history": frozenset(("made_current_at", "is_current_ancestor")),
    "metadata_log_entries": frozenset(("file", "latest_snapshot_id")),
    "partitions": frozenset(("record_count", "file_count", "total_data_file_size_in_bytes")),
    "position_deletes": frozenset(("file_path", "delete_file_path")),
    "refs": frozenset(("snapshot_id", "max_reference_age_in_ms")),
    "snapshots": frozenset(("committed_at", "snapshot_id", "manifest_list")),
}
"""Iceberg's metadata tables, and columns by which they are told from other tables of that name."""
_NUMBER = re.compile(r"#\d+L?$")
_PART = re.compile(r"[.#]")


def places_in(node: Node) -> Iterator[str]:
    """The functions, metadata columns and metadata tables that an operator itself uses, as parts of sentences.

    A relation lists its metadata columns only if something above it uses one; then it lists all of them.

    Example:
        >>> list(places_in(Node("Project", "Project [id#1, input_file_name() AS f#2]")))
        ['input_file_name()']
        >>> list(places_in(Node("RelationV2", "RelationV2[id#1, _pos#2L, _file#3] lake.media.plays")))
        ['a metadata column of lake.media.plays (_file, _pos)']
    """
    yield from _FUNCTION.findall(node.text.lower())
    if not node.operator.startswith("RelationV2"):
        return
    table = node.text.rpartition("] ")[2].partition(" VERSION AS OF ")[0].partition(" TIMESTAMP AS OF ")[0]
    columns = {_NUMBER.sub("", each).lower() for each in node.first_list}
    if found := sorted(METADATA_COLUMNS & columns):
        yield f"a metadata column of {table} ({', '.join(found)})"
    known = _TABLES.get(_PART.split(table.replace("`", ""))[-1].lower())
    if known is not None and known <= columns:
        yield f"the metadata table {table}"
