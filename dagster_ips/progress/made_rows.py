"""Which code and which declaration made a table's rows, as its progress says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from dagster_ips.core.capture import Mode
from dagster_ips.core.code_of_rows import (
    ALL_ROWS_EACH_TIME,
    ColumnChanges,
    Making,
    OlderRows,
    going_on_with,
    older_rows,
)
from dagster_ips.core.plan_version import declared_in, has_plan, is_other_code
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.table_progress import newest_progress


@dataclass(frozen=True, slots=True)
class MadeBy:
    """How a run makes rows: by the code ``code``, None if unknown, and ``declared`` as in ``Maker``.

    ``replaces_all`` says that every row of what the run computes is recomputed, as in mode ``full``.
    """

    code: str | None = None
    declared: str | None = None
    replaces_all: bool = False


def made_after(  # noqa: PLR0913  # all are independent
    before: Progress | None,
    origin: MadeBy,
    *,
    mode: Mode,
    anew: Collection[str | None],
    partitions: Collection[str],
    every: Collection[str],
    was_empty: Callable[[str], bool],
    schema_id: str,
    has_inputs: bool,
) -> dict[str | None, Making]:
    """How a table's rows were made once a run of ``origin`` is published.

    The run computes ``partitions`` of ``every`` existing one, none without partitions, and all rows of those in
    ``anew``. ``was_empty`` says whether a partition certainly had no row before. ``schema_id`` is the table's schema.
    Without inputs, every row is replaced each time.
    """
    code = origin.code
    if not has_inputs:
        whole = Making((code,) if code is not None else (), schema_id, ALL_ROWS_EACH_TIME)
    else:
        whole = Making((code,) if code is not None else (), schema_id, going_on_with(origin.declared, None))
    known = before.made if before is not None else {}
    is_whole = origin.replaces_all or mode is Mode.FULL

    def making(partition: str | None) -> Making:
        made = before.making(partition) if before is not None else None
        if is_whole or partition in anew:
            return whole
        if partition is not None and made not in (None, whole) and partition not in known and was_empty(partition):
            return whole
        made = made or Making()
        gone_on = made.gone_on_by(code)
        return Making(gone_on.codes, gone_on.schema_id, going_on_with(origin.declared, made))

    if not partitions:
        return {None: making(None)}
    own: dict[str | None, Making] = {partition: making(partition) for partition in partitions}
    rest = known.get(None)
    if rest is None or set(every) <= set(partitions):
        rest = next(iter(own.values()))
    found: dict[str | None, Making] = {None: rest, **known, **own}
    found[None] = rest
    return {partition: each for partition, each in found.items() if partition is None or each != rest}


def restored_made(now: Progress, before: Progress, partitions: Iterable[str | None]) -> dict[str | None, Making]:
    """How a table's rows were made once the rows of ``partitions`` are as they were in ``before``.

    For an asset without partitions, ``partitions`` is a single None.
    """
    keys = list(partitions)
    if keys == [None]:
        return dict(before.made)
    own = {key: before.making(key) or Making() for key in keys}
    return {**now.made, **own}


def older_rows_of(
    metadata: TableMetadata,
    code: str | None,
    partitions: Iterable[str | None] | None = None,
    *,
    declared: str | None = None,
    with_rows: Callable[[], Collection[str]] | None = None,
) -> OlderRows | None:
    """What in the table, or in some of its partitions, the code version ``code`` would make differently.

    With ``declared``, this includes what was made while the asset was declared differently. None if nothing is known to
    be older. Of a partitioned asset, the partitions must be given. ``with_rows`` finds those that have rows; others
    aren't older, if only they were never computed by themselves.
    """
    known = newest_progress(metadata)
    if known is None:
        return None
    code = current_code(known.progress, code)
    keys, progress = [None] if partitions is None else partitions, known.progress
    # A partition that was never computed from the inputs of now may have rows of earlier ones.
    made = made_of(progress, keys) if with_rows is None else _made(progress, keys)
    since = {each.schema_id: _changes(metadata, each.schema_id) for each in made.values()}
    older = older_rows(metadata.table, made, code, since, declared)
    if older is None or with_rows is None or progress.made.keys() >= {*older.partitions}:
        return older
    there = {*with_rows(), *progress.made}
    return older_rows(metadata.table, {k: each for k, each in made.items() if k in there}, code, since, declared)


def made_of(progress: Progress, partitions: Iterable[str | None]) -> dict[str | None, Making]:
    """How the rows of each of the partitions were made, of those that were ever computed."""
    positions = list(progress.inputs.values())
    return {
        key: made
        for key, made in _made(progress, partitions).items()
        if not any(key is not None and key in each.behind and each.behind[key] is None for each in positions)
    }


def _made(progress: Progress, partitions: Iterable[str | None]) -> dict[str | None, Making]:
    """As ``made_of``, with partitions that were never computed."""
    found = {key: progress.making(key) for key in partitions}
    return {key: made for key, made in found.items() if made is not None}


def current_code(progress: Progress, code: str | None) -> str | None:
    """The code as which rows of the code ``code`` are up to date.

    If only what is declared of the code is known, it is the newest run's, as far as the same is declared: what the plan
    of new code is, is known once it has run.
    """
    newest = None if has_plan(code) else progress.code
    return newest if newest is not None and declared_in(newest) == code else code


def codes_of(progress: Progress | None) -> set[str]:
    """The code versions that are known to have made some of the table's rows."""
    return {code for making in progress.made.values() for code in making.codes} if progress is not None else set()


def partitions_not_of(progress: Progress, code: str | None, partitions: Iterable[str]) -> set[str]:
    """Those of the ``partitions`` whose rows aren't known to be up to date with the code ``code``."""
    code = current_code(progress, code)
    if code is None:
        return set()
    made = made_of(progress, partitions)
    return {
        key
        for key, making in made.items()
        if key is not None and (not making.codes or any(is_other_code(each, code) for each in making.codes))
    }


def _changes(metadata: TableMetadata, schema_id: str | None) -> ColumnChanges:
    return ColumnChanges(metadata.columns_since(schema_id), metadata.columns_widened_since(schema_id))
