"""Stamps: snapshot summary properties on the target that say which captures a commit came from.

There is one property per consumer and upstream, whatever the number of partitions, so that finding an edge's newest
stamp takes one look-up per snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, Mode, Stamp, TargetMark
from dagster_ips.core.division import says, without_losses
from dagster_ips.core.edge import ARROW, Edge
from dagster_ips.core.file_set import Bite
from dagster_ips.core.ownership import ACCEPTED, ASSET, ATTEMPT, EDGE, Published, live_rows
from dagster_ips.core.target import TargetHistory
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg.lasting_facts import division_of, fact_properties, head_mark, lasting_fact
from dagster_ips.iceberg.metadata import TableMetadata

RUN = "dagster-ips.run"
REVERTED = "dagster-ips.reverted"
"""On a snapshot: the backfill that it took back. As a property of the table: it may have such snapshots."""
_ANNOUNCED = "dagster-ips.announced."
_PUBLISHED = "dagster-ips.published"
_MOST_LISTED = 200
_MOST_SEARCHED = 10
_DIVISION = "by"


def stamp_properties(captures: tuple[Capture, ...], *, attempt: str, run_id: str) -> dict[str, str]:
    """Summary properties for a write of ``captures``: the attempt's name, the run's id, and one value per line.

    A capture of a table that has no snapshot yet proves nothing and leaves no stamp.
    """
    lines: dict[Edge, list[Capture]] = {}
    for capture in captures:
        if capture.to_inclusive is not None:
            lines.setdefault(capture.edge.line, []).append(capture)
    stamps = {EDGE + line.id: _value(line, of) for line, of in lines.items()}
    return attempt_properties(attempt, run_id) | stamps


def attempt_properties(attempt: str, run_id: str) -> dict[str, str]:
    """Summary properties for a write that isn't stamped with any capture yet."""
    return {ATTEMPT: attempt, RUN: run_id}


def announcement(captures: Sequence[Capture], snapshot_id: int) -> dict[str, str]:
    """Table properties that announce ``snapshot_id``, which is about to be published with stamps of ``captures``.

    They take some 80 characters for each edge, and so for each partition of a partitioned consumer.
    """
    return announcements({capture.edge: snapshot_id for capture in captures if capture.to_inclusive is not None})


def announcements(snapshots: Mapping[Edge, int]) -> dict[str, str]:
    """As ``announcement``, with the snapshot that is about to be published for each edge."""
    return {_ANNOUNCED + edge.id: str(snapshot_id) for edge, snapshot_id in snapshots.items()}


def published(snapshot: Snapshot | None) -> dict[str, str]:
    """Table properties that record how many rows there are with ``snapshot``, which is about to be published."""
    rows = live_rows(snapshot) if snapshot else None
    return {_PUBLISHED: str(Published(snapshot.snapshot_id, rows))} if snapshot and rows is not None else {}


def last_published(metadata: TableMetadata) -> Published | None:
    """What the last run that was about to publish recorded about the table; None if it couldn't."""
    return Published.parse(metadata.properties.get(_PUBLISHED))


def owner_properties(asset: str, accepted: Snapshot | None) -> dict[str, str]:
    """Summary properties that say which asset wrote, and up to which snapshot the table was accepted as it was."""
    return {ASSET: asset} | ({ACCEPTED: str(accepted.snapshot_id)} if accepted else {})


def target_history(metadata: TableMetadata, edge: Edge) -> TargetHistory:
    """``main``'s ancestry and the newest stamp of ``edge`` in it."""
    return target_histories(metadata, [edge])[edge]


def target_histories(metadata: TableMetadata, edges: Iterable[Edge]) -> dict[Edge, TargetHistory]:
    """As ``target_history``, for each of ``edges``; every stamp is read once."""
    ancestry = metadata.ancestry()
    asked = list(edges)
    newest: dict[Edge, Stamp] = {}
    for line in dict.fromkeys(edge.line for edge in asked):
        missing = {edge.partition for edge in asked if edge.line == line}
        names = {each: '"n":' if each is None else json.dumps(each, ensure_ascii=False) for each in missing}
        for snapshot in ancestry.snapshots:
            if not missing:
                break
            stamp = snapshot.summary.get(EDGE + line.id, "")
            # Few names are searched for in the text, as in ``_is_divided_by``; for many, decoding it takes less time.
            if stamp and (len(missing) > _MOST_SEARCHED or any(names[each] in stamp for each in missing)):
                found = _stamps(snapshot, metadata.uuid, line, missing)
                missing -= {edge.partition for edge in found}
                newest |= found
    properties = metadata.properties
    announced = {edge: properties.get(_ANNOUNCED + edge.id) for edge in asked}
    return {
        edge: TargetHistory(metadata.uuid, ancestry, newest.get(edge), int(last) if last else None)
        for edge, last in announced.items()
    }


def partitions_read(metadata: TableMetadata, line: Edge, division: str) -> dict[str, Watermark]:
    """Up to where each partition has read, according to the newest stamp of ``line`` in ``main`` that names it.

    Stamps from when partitions meant something else than by ``division`` don't count: their keys are no partitions now.
    """
    read: dict[str, Watermark] = {}
    for snapshot in metadata.ancestry().snapshots:
        stamp = snapshot.summary.get(EDGE + line.id)
        if stamp and _is_divided_by(division, stamp):
            read = _read_by_partition(json.loads(stamp)) | read
    return read


def taken_back(metadata: TableMetadata, line: Edge) -> dict[str | None, Watermark]:
    """The partitions of ``line`` (None without partitions) whose newest stamp took a backfill back, and to where."""
    if REVERTED not in metadata.properties:
        return {}
    seen: dict[str | None, Watermark | None] = {}
    for snapshot in metadata.ancestry().snapshots:
        for partition, (to, _) in stamped_partitions(snapshot, line).items():
            seen.setdefault(partition, to if REVERTED in snapshot.summary else None)
    return {partition: to for partition, to in seen.items() if to is not None}


def stamped_partitions(snapshot: Snapshot, line: Edge) -> dict[str | None, tuple[Watermark, Mode]]:
    """The partitions that the snapshot has stamps of for ``line``, up to where each had read, and in which mode.

    The key is None for a consumer without partitions.
    """
    stamp = snapshot.summary.get(EDGE + line.id)
    if stamp is None:
        return {}
    value = json.loads(stamp)
    mode, read = Mode(value["mode"]), _read_by_partition(value)
    return {key: (to, mode) for key, to in read.items()} if read else {None: (_read_up_to(value), mode)}


def partitions_ever_stamped(metadata: TableMetadata, line: Edge, division: str) -> frozenset[str]:
    """The partitions with stamps of ``line`` in ``main`` from when partitions meant what they do by ``division``."""
    stamped = [each for each in metadata.ancestry().snapshots if EDGE + line.id in each.summary]
    of_division = [each for each in stamped if _is_divided_by(division, each.summary[EDGE + line.id])]
    return frozenset(key for each in of_division for key in stamped_partitions(each, line) if key is not None)


def partitions_of_others(metadata: TableMetadata, consumer: str) -> frozenset[str] | None:
    """The partitions with stamps of other consumers in ``main``: the table was theirs before it was ``consumer``'s.

    None if the stamps have expired, or the others had no partitions: any partition may have rows of theirs then.
    """
    found: set[str] = set()
    is_of_others = metadata.properties.get(ASSET, consumer) != consumer
    for snapshot in metadata.ancestry().snapshots:
        for name, text in snapshot.summary.items():
            if name.startswith(EDGE) and json.loads(text)["edge"].partition(ARROW)[0] != consumer:
                stamped = _read_by_partition(json.loads(text))
                if not stamped:
                    return None
                is_of_others = True
                found.update(stamped)
    return None if is_of_others and not metadata.ancestry().is_whole else frozenset(found)


def last_divided_otherwise(metadata: TableMetadata, line: Edge, division: str | None) -> TargetMark | None:
    """The newest snapshot in ``main`` that a run of ``line`` wrote while its partitions, if any, had another meaning.

    ``division`` is what they mean now; None without partitions. If such snapshots have expired, it is the first one
    that is known to be newer than all of them.
    """
    name = EDGE + line.id
    stamped = ((s, s.summary.get(name)) for s in metadata.ancestry().snapshots)
    others = (TargetMark.at(s, metadata.uuid) for s, text in stamped if text and not _is_divided_by(division, text))
    found = [next(others, None)]
    fact = lasting_fact(metadata, division_of(line))
    if fact is not None:
        found.append(fact.since if fact.value == division else head_mark(metadata))
    return max((each for each in found if each), key=lambda each: each.position, default=None)


def division_properties(metadata: TableMetadata, divisions: Mapping[Edge, str | None]) -> dict[str, str]:
    """Table properties for what the partitions of each line mean, about to be published: what outlasts the stamps."""
    properties: dict[str, str] = {}
    for line, division in divisions.items():
        fact, other = lasting_fact(metadata, division_of(line)), last_divided_otherwise(metadata, line, division)
        held_before = other == (fact.since if fact else None)
        properties |= fact_properties(metadata, division_of(line), division, held_before=held_before)
    return properties


def divisions_of(captures: Iterable[Capture]) -> dict[Edge, str | None]:
    """What the partitions of each line of ``captures`` mean, where that is known; None without partitions.

    Without the losses: a run that began before a loss writes no rows of other partitions.
    """
    known = (each for each in captures if each.division is not None or each.edge.partition is None)
    return {each.edge.line: None if each.division is None else without_losses(each.division) for each in known}


def _is_divided_by(division: str | None, stamp: str) -> bool:
    """Searches the stamp's text, as it may list thousands of partitions. A stamp of an earlier release fits any.

    ``division`` and what the stamp says are compared without their losses.
    """
    has_partitions = '"partitions":' in stamp
    if division is None or not has_partitions:
        return has_partitions == (division is not None)
    said = f'"{_DIVISION}":'
    return said not in stamp or says(stamp, said + json.dumps(division, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class BranchStamps:
    """What a branch is stamped with for an edge: its first number, and the newest snapshot with a stamp of the edge.

    By that stamp, the branch holds the upstream up to ``to_inclusive``, and ``division`` is what its partition key
    means.
    """

    first_number: int
    newest_snapshot_id: int
    to_inclusive: Watermark
    division: str | None = None


def stamps_on_branch(
    metadata: TableMetadata, branch: str, lines: Iterable[Edge], *, from_snapshot_id_exclusive: int
) -> dict[Edge, BranchStamps]:
    """The stamps of ``lines`` on ``branch`` since it was created, by edge; none if there is no such branch."""
    found: dict[Edge, BranchStamps] = {}
    of_lines = list(lines)
    for snapshot in metadata.ancestry(branch).snapshots:
        if snapshot.snapshot_id == from_snapshot_id_exclusive:
            break
        for line in of_lines:
            wanted = stamped_partitions(snapshot, line)
            for edge, stamp in (_stamps(snapshot, metadata.uuid, line, wanted) if wanted else {}).items():
                own = BranchStamps(stamp.number, snapshot.snapshot_id, stamp.to_inclusive, stamp.division)
                newest = found.get(edge, own)
                found[edge] = replace(newest, first_number=stamp.number)
    return found


def last_consumed(metadata: TableMetadata, line: Edge) -> int | None:
    """The snapshot up to which the newest stamp of ``line``, of any partition, has read; None if there is no stamp."""
    stamps = (s.summary.get(EDGE + line.id) for s in metadata.ancestry().snapshots)
    newest = next((stamp for stamp in stamps if stamp), None)
    return int(json.loads(newest)["to"]) if newest else None


def bears_stamp(metadata: TableMetadata, edge: Edge) -> bool:
    """Whether any snapshot has a stamp of ``edge``, even one that is no longer in ``main``'s history."""
    return any(EDGE + edge.id in snapshot.summary for snapshot in metadata.snapshots.values())


def has_attempt(snapshot: Snapshot) -> bool:
    """Whether the snapshot says which attempt wrote it; a commit that only drops whole files can't."""
    return ATTEMPT in snapshot.summary


def is_of_attempt(snapshot: Snapshot, attempt: str) -> bool:
    """Whether the snapshot was written by the attempt."""
    return snapshot.summary.get(ATTEMPT) == attempt


def is_of_same_attempt(snapshot: Snapshot, other: Snapshot) -> bool:
    """Whether the same attempt of a run wrote both."""
    return has_attempt(snapshot) and is_of_attempt(other, snapshot.summary[ATTEMPT])


def _value(line: Edge, captures: Sequence[Capture]) -> str:
    # A run's captures end at one snapshot; when a backfill is taken back, each ends where its partition was before it.
    by_end: dict[Watermark, list[str]] = {}
    for capture in captures:
        assert capture.to_inclusive is not None  # noqa: S101  # stamp_properties leaves such captures out
        by_end.setdefault(capture.to_inclusive, []).append(capture.edge.key)
    to = min(by_end, key=lambda end: end.position)
    first = next(capture for capture in captures if capture.to_inclusive == to)
    numbers = {capture.edge.partition: capture.number for capture in captures if capture.edge.partition is not None}
    division = first.division
    if division and any(capture.division != division for capture in captures):
        division = without_losses(division)  # What is restored may be from before a loss; then all is recomputed.
    value: dict[str, object] = {
        **({"partitions": numbers} if numbers else {"n": first.number}),
        "edge": str(line),
        **({_DIVISION: division} if division else {}),
        "mode": first.mode.value,
        "uuid": to.table_uuid,
        "ref": to.ref,
        "from": first.from_exclusive.snapshot_id if first.from_exclusive else None,
        "to": to.snapshot_id,
        "seq": to.sequence_number,
        "ts": to.timestamp_ms,
        "schema": to.schema_id,
    }
    if len(by_end) > 1:
        value["elsewhere"] = [[list(astuple(end)), keys] for end, keys in by_end.items() if end != to]
    if first.bite and not first.bite.is_last:
        start = first.from_exclusive
        value["bite"] = [first.bite.first, first.bite.end, first.bite.total]
        value["from_mark"] = list(astuple(start)) if start else None
    if left_out := _left_out(captures):
        value["left_out"] = left_out
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _left_out(captures: Sequence[Capture]) -> list[tuple[list[str] | None, list[str]]]:
    """The keys that are left out, and by which partitions; None for keys that are unknown or too many for a stamp."""
    partitions: dict[frozenset[str] | None, list[str]] = {}
    for capture in captures:
        if capture.left_out is None or capture.left_out:
            partitions.setdefault(capture.left_out, []).append(capture.edge.key)
    are_listed = sum(len(keys or ()) for keys in partitions) <= _MOST_LISTED
    return [(sorted(keys) if keys and are_listed else None, of) for keys, of in partitions.items()]


def _read_up_to(value: Mapping[str, Any]) -> Watermark:
    return Watermark(value["uuid"], value["ref"], value["to"], value["seq"], value["ts"], value.get("schema"))


def _read_by_partition(value: Mapping[str, Any]) -> dict[str, Watermark]:
    """Up to where each partition that a stamp names has read; empty without partitions."""
    read: dict[str, Watermark] = dict.fromkeys(value.get("partitions", ()), _read_up_to(value))
    for end, keys in value.get("elsewhere", ()):
        read |= dict.fromkeys(keys, Watermark(*end))
    return read


def _stamps(snapshot: Snapshot, table_uuid: str, line: Edge, wanted: Container[str | None]) -> dict[Edge, Stamp]:
    value = json.loads(snapshot.summary[EDGE + line.id])
    to, ends = _read_up_to(value), _read_by_partition(value)
    bite = Bite(*value["bite"]) if "bite" in value else None
    start = Watermark(*value["from_mark"]) if bite and value["from_mark"] else None
    numbers = value.get("partitions") or {None: value["n"]}
    left_out = {
        partition: None if keys is None else frozenset(keys)
        for keys, partitions in value.get("left_out", ())
        for partition in partitions
    }
    return {
        Edge(line.consumer, line.upstream, partition): Stamp(
            int(number),
            Mode(value["mode"]),
            to if partition is None else ends[partition],
            TargetMark.at(snapshot, table_uuid),
            start,
            bite,
            REVERTED in snapshot.summary,
            left_out.get(partition or "", frozenset()),
            snapshot.summary.get(RUN),
            value.get(_DIVISION),
        )
        for partition, number in numbers.items()
        if partition in wanted
    }
