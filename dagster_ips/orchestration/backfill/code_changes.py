"""What differs between the code that made an asset's rows and the code that would compute them now, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dagster_ips.core.plan_version import declared_in
from dagster_ips.core.queries_property import query_text_of
from dagster_ips.core.write_mode import ByQuery, WriteMode
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.made_rows import older_rows_of
from dagster_ips.query.query_difference import query_differences

_OF_A_FUNCTION = (
    "what that changes can't be read from a function, so all rows are computed; to see it before readers do, launch it "
    "--staged, then diff"
)


def code_changes(
    metadata: TableMetadata | None, code: str | None, write_mode: WriteMode | None, partitions: Sequence[str] | None
) -> tuple[str, ...]:
    """How ``code`` differs from the versions that made the rows of ``partitions``, None for the whole table.

    Empty if no row is known to be made by other code.
    """
    older = older_rows_of(metadata, code, partitions) if metadata is not None and partitions != () else None
    if metadata is None or older is None:
        return ()
    said = (each for earlier in older.codes for each in _changes(metadata, earlier, code, write_mode))
    return tuple(dict.fromkeys(said))


def _changes(metadata: TableMetadata, earlier: str, code: str | None, write_mode: WriteMode | None) -> Iterator[str]:
    if not isinstance(write_mode, ByQuery):
        before, now = declared_in(earlier), declared_in(code)
        if before == now:
            yield f"another version of its function, with another plan, made its rows; {_OF_A_FUNCTION}"
        else:
            yield f"version {before or 'none'} made rows that version {now} computes; {_OF_A_FUNCTION}"
        return
    text = query_text_of(metadata.properties, earlier)
    if text is None:
        yield f"another query made its rows (version {earlier}), whose text isn't known; all rows are computed"
        return
    differences = query_differences(text, write_mode.text)
    yield from (f"in its query, {each}" for each in differences)
    rest = "all rows are computed, because a query's table has no partitions in Dagster"
    yield rest if differences else f"its query has other words or other sources, but says the same; {rest}"
