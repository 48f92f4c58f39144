"""What a table's snapshots, and its properties, say about the code that made its rows.

Each snapshot says it about all rows, or about all rows of the partitions that it wrote, and not just about its own:
what earlier snapshots said may have expired.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from dagster_ips.core.capture import Capture, Mode, TargetMark
from dagster_ips.core.code_of_rows import (
    ALL_ROWS_EACH_TIME,
    OTHER_DECLARATION,
    ColumnChanges,
    Making,
    OlderRows,
    going_on_with,
    older_rows,
)
from dagster_ips.core.plan_version import declared_in, has_plan, is_other_code
from dagster_ips.core.target import is_older
from dagster_ips.iceberg.lasting_facts import CODE, DECLARED, fact_properties, lasting_fact
from dagster_ips.iceberg.metadata import TableMetadata

MADE = "dagster-ips.made"


def properties(  # noqa: PLR0913  # all are independent
    target: TableMetadata | None,
    captures: Sequence[Capture],
    code: str | None,
    *,
    declared: str | None = None,
    replaces_all: bool,
    partitions: Sequence[str] = (),
) -> dict[str, str]:
    """Summary properties for a write of ``captures`` to ``target`` by the code ``code``, None if that is unknown.

    Without captures, it replaces all rows, or those of ``partitions``: the asset has no incremental inputs.

    ``declared`` is how the asset is declared, as in ``Maker``. ``replaces_all`` says that every row of what the run
    computes is recomputed, as by a run in mode ``full``.
    """
    if not captures:
        return _entry([_value(None, code, ALL_ROWS_EACH_TIME, partitions)])
    known = makings(target) if target else {}
    marks = {capture.edge.partition: capture.target for capture in captures}
    wanted: dict[Making | None, list[str]] = {}
    for partition in dict.fromkeys(capture.edge.partition for capture in captures):
        of_it = [capture for capture in captures if capture.edge.partition == partition]
        is_whole = replaces_all or all(map(_is_whole, of_it))
        before = making_of(target, known, partition, marks[partition]) if target else Making()
        wanted.setdefault(None if is_whole else before, []).extend([partition] if partition is not None else [])
    return _entry([_value(making, code, declared, partitions) for making, partitions in wanted.items()])


def restored(before: TableMetadata, partitions: Sequence[str | None]) -> dict[str, str]:
    """Summary properties for a write that restores the rows of ``partitions`` as they are in ``before``.

    For an asset without partitions, ``partitions`` is a single None.
    """
    known = makings(before)
    by_making: dict[Making, list[str]] = {}
    for partition in partitions:
        making = making_of(before, known, partition, None)
        by_making.setdefault(making, []).extend([partition] if partition is not None else [])
    return _entry([_value(making, None, making.declared, keys) for making, keys in by_making.items()])


def makings(metadata: TableMetadata, *, after: TargetMark | None = None) -> dict[str | None, Making]:
    """How the table's rows were made, by partition, as far as it says; the key is None without partitions.

    With ``after``, only what was published after that mark.
    """
    found: dict[str | None, Making] = {}
    for snapshot in metadata.ancestry().snapshots:
        if after is not None and not is_older(after, TargetMark.at(snapshot, metadata.uuid)):
            break
        for each in json.loads(snapshot.summary.get(MADE, "[]")):
            making = Making(tuple(each["codes"]), each.get("schema", snapshot.schema_id), each.get("declared"))
            for partition in each.get("partitions", [None]):
                found.setdefault(partition, making)
        if None in found:
            break
    return found


def making_of(
    metadata: TableMetadata, known: Mapping[str | None, Making], partition: str | None, published: TargetMark | None
) -> Making:
    """How the rows of ``partition`` were made: as ``known`` from retained snapshots, else by what lasts longer.

    ``published`` is the snapshot with which the partition was last published; None if unknown.
    """
    found = known.get(partition, known.get(None))
    if found is not None:
        return found
    declared, code = lasting_fact(metadata, DECLARED), lasting_fact(metadata, CODE)
    codes = (code.value,) if code and code.value is not None and code.holds_for(published) else ()
    if declared is None:
        return Making(codes)
    is_known = declared.value is not None and declared.holds_for(published)
    return Making(codes, declared=declared.value if is_known else OTHER_DECLARATION)


def lasting_properties(metadata: TableMetadata, summaries: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Table properties for snapshots with ``summaries`` that are about to be published: what must outlast them.

    Only what differs from what is recorded. A writer that doesn't say how it is declared changes nothing.
    """
    entries = [entry for summary in summaries for entry in json.loads(summary.get(MADE, "[]"))]
    if not any("declared" in each for each in entries):
        return {}
    declared, codes = {each.get("declared") for each in entries}, {tuple(each["codes"]) for each in entries}
    one = declared.pop() if len(declared) == 1 else None
    code = next(iter(codes))[0] if len(codes) == 1 and len(next(iter(codes))) == 1 else None
    # An unknown value holds for nothing, so nothing contradicts it.
    as_ever = one is None or all(each.declared in (None, one) for each in _since(metadata, DECLARED))
    same_code = code is None or all(each.codes in ((), (code,)) for each in _since(metadata, CODE))
    return fact_properties(metadata, DECLARED, one, held_before=as_ever) | fact_properties(
        metadata, CODE, code, held_before=same_code
    )


def _since(metadata: TableMetadata, name: str) -> Collection[Making]:
    """How the rows were made that were published since the fact ``name`` is recorded; all rows if it never was."""
    fact = lasting_fact(metadata, name)
    return makings(metadata, after=fact.since if fact else None).values()


def older_rows_of(
    metadata: TableMetadata,
    code: str | None,
    partitions: Iterable[str | None] | None = None,
    *,
    declared: str | None = None,
    published: Callable[[], Mapping[str | None, TargetMark | None]] | None = None,
) -> OlderRows | None:
    """What in the table, or in some of its partitions, the code version ``code`` would make differently.

    With ``declared``, this includes what was made while the asset was declared differently; ``published`` looks up the
    snapshot with which each partition was last published, for those whose snapshots have expired. None if nothing is
    known to be older.
    """
    wanted = None if partitions is None else set(partitions)
    code = current_code(metadata, code)
    known = makings(metadata)
    fact = lasting_fact(metadata, DECLARED) if declared is not None else None
    if published is not None and fact is not None and (fact.since is not None or fact.value != declared):
        known |= {key: making_of(metadata, known, key, at) for key, at in published().items()}
    made = {key: each for key, each in known.items() if wanted is None or key in wanted}
    since = {each.schema_id: _changes(metadata, each.schema_id) for each in made.values()}
    return older_rows(metadata.table, made, code, since, declared)


def current_code(metadata: TableMetadata, code: str | None) -> str | None:
    """The code as which rows of the code ``code`` are up to date.

    If only what is declared of the code is known, it is the newest run's, as far as the same is declared: what the plan
    of new code is, is known once it has run.
    """
    newest = None if has_plan(code) else _newest_code(metadata)
    return newest if newest is not None and declared_in(newest) == code else code


def _newest_code(metadata: TableMetadata) -> str | None:
    """The code of the newest run that has written the table; None if it is unknown."""
    for snapshot in metadata.ancestry().snapshots:
        for each in json.loads(snapshot.summary.get(MADE, "[]")):
            if (by := each.get("by", (each["codes"] or [None])[-1])) is not None:
                return str(by)
    lasting = lasting_fact(metadata, CODE)
    return lasting.value if lasting else None


def codes_of(metadata: TableMetadata) -> set[str]:
    """The code versions that are known to have made some of the table's rows."""
    lasting = lasting_fact(metadata, CODE)
    known = {code for making in makings(metadata).values() for code in making.codes}
    return known | ({lasting.value} if lasting and lasting.value is not None else set())


def partitions_not_of(
    metadata: TableMetadata, code: str | None, published: Mapping[str | None, TargetMark | None]
) -> set[str]:
    """The ``published`` partitions whose rows aren't known to be up to date with the code ``code``.

    Of a partition whose snapshots have expired, the version may be unknown.
    """
    code, known = current_code(metadata, code), makings(metadata)
    if code is None:
        return set()
    made = {key: making_of(metadata, known, key, at) for key, at in published.items() if key is not None}
    are_other = {key: any(is_other_code(each, code) for each in making.codes) for key, making in made.items()}
    return {key for key, making in made.items() if not making.codes or are_other[key]}


def _changes(metadata: TableMetadata, schema_id: str | None) -> ColumnChanges:
    return ColumnChanges(metadata.columns_since(schema_id), metadata.columns_widened_since(schema_id))


def _is_whole(capture: Capture) -> bool:
    """Whether all that it computes is recomputed: in mode ``full``, and for a new partition."""
    return capture.mode is Mode.FULL or capture.is_of_new_partition


def _entry(said: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {MADE: json.dumps(said, separators=(",", ":"), ensure_ascii=False)} if said else {}


def _value(before: Making | None, code: str | None, declared: str | None, partitions: Sequence[str]) -> dict[str, Any]:
    """The entry for rows made as in ``before`` and by ``code``; without ``before``, the snapshot's schema counts."""
    making = (before or Making()).gone_on_by(code)
    value: dict[str, Any] = {"codes": list(making.codes)}
    if (making.codes or (None,))[-1] != code:
        value["by"] = code
    if declared is not None:
        value["declared"] = going_on_with(declared, before)
    if before is not None:
        value["schema"] = making.schema_id
    return value | ({"partitions": list(partitions)} if partitions else {})
