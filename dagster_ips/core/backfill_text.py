"""Backfill plans and records of launched backfills, as versioned JSON; a long text is compressed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedRead, PlannedStage, PlannedTable
from dagster_ips.core.packed_text import packed, unpacked
from dagster_ips.errors import BackfillRecordError

_VERSION = 1


def plan_as_json(plan: BackfillPlan) -> dict[str, Any]:
    """A plan as it is saved and shown; snapshot ids as text, because JavaScript would round them."""
    tables = [
        {**asdict(each), "snapshot_id": None if each.snapshot_id is None else str(each.snapshot_id)}
        for each in plan.tables
    ]
    return {"version": _VERSION, **asdict(plan), "tables": tables}


def plan_from_json(value: Any, *, where: str) -> BackfillPlan:  # noqa: ANN401  # what JSON may hold
    """The plan that ``plan_as_json`` gave; ``where`` is the place where it was found.

    Raises:
        BackfillRecordError: it isn't a plan, or a newer version wrote it.
    """
    try:
        if int(value["version"]) > _VERSION:
            cause = f"its version is {value['version']}, but {_VERSION} is the newest supported"
            raise BackfillRecordError(where=where, cause=cause)
        return BackfillPlan(
            id=str(value["id"]),
            made_at_ms=int(value["made_at_ms"]),
            stages=tuple(_stage(each) for each in value["stages"]),
            tables=tuple(_table(each) for each in value["tables"]),
            not_started={asset: tuple(names) for asset, names in value["not_started"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BackfillRecordError(where=where, cause=f"{type(error).__name__}: {error}") from error


def encode_backfill(backfill: BackfillPlan | LaunchedBackfill) -> str:
    """A plan or a launched backfill, as text."""
    if isinstance(backfill, BackfillPlan):
        value: dict[str, Any] = {"plan": plan_as_json(backfill)}
    else:
        value = {"plan": plan_as_json(backfill.plan), "launched": {**asdict(backfill), "plan": None}}
    return packed(json.dumps(value, separators=(",", ":")))


def decode_backfill(text: str, *, where: str) -> BackfillPlan | LaunchedBackfill:
    """The plan or launched backfill that ``encode_backfill`` wrote as ``text``.

    Raises:
        BackfillRecordError: it isn't such a text, or a newer version wrote it.
    """
    try:
        value = json.loads(unpacked(text))
        plan = plan_from_json(value["plan"], where=where)
        launched: Mapping[str, Any] | None = value.get("launched")
        if launched is None:
            return plan
        return LaunchedBackfill(
            plan,
            who=str(launched["who"]),
            launched_at_ms=int(launched["launched_at_ms"]),
            before={table: int(at) for table, at in launched["before"].items()},
            is_staged=bool(launched["is_staged"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BackfillRecordError(where=where, cause=f"{type(error).__name__}: {error}") from error


def _stage(value: Mapping[str, Any]) -> PlannedStage:
    partitions = value["partitions"]
    return PlannedStage(
        **{
            **value,
            "upstreams": tuple(value["upstreams"]),
            "partitions": None if partitions is None else tuple(partitions),
            "reads": tuple(PlannedRead(**each) for each in value["reads"]),
            "unknown": tuple(value["unknown"]),
            "code_changes": tuple(value["code_changes"]),
        }
    )


def _table(value: Mapping[str, Any]) -> PlannedTable:
    at = value["snapshot_id"]
    return PlannedTable(**{**value, "snapshot_id": None if at is None else int(at)})
