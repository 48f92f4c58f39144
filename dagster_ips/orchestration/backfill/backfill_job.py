"""A job in Dagster's UI that does what ``dagster-ips backfill`` does, and shows its tables on the run's page.

No ``from __future__ import annotations`` here: Dagster reads the annotation of ``context`` without resolving it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from dagster_ips.orchestration.backfill.reports import (
    Report,
    ShownTable,
    cancel_report,
    difference_report,
    launch_report,
    plan_head,
    plan_report,
    progress_report,
    publication_report,
    release_report,
    revert_report,
    reverted_report,
)

BACKFILL_JOB = "ips_backfill"
_Config = Mapping[str, Any]
_DESCRIPTION = """Managed backfills: recompute partitions of an asset and everything downstream of them.

Each run performs one action; its output is in the run's log and, as tables, on the asset's page. Step by step:

1. `ops: {backfill: {config: {plan: {asset: ASSET, partitions: [A..B]}}}}` shows what will be done, and an ID.
2. `launch: {id: ID, staged: true}` computes all stages on branches that readers don't see yet.
3. `status: {id: ID}` shows the progress, and `diff: {id: ID}` which rows differ, stage by stage.
4. `publish: {id: ID}` makes the results visible; `cancel: {id: ID}` drops them instead.
5. `revert: {id: ID}` restores the previous rows; `release: {id: ID}` stops keeping them.
"""


@dataclass(frozen=True)
class _Act:
    """One action: its description, its config fields, and the function that performs it and returns its report."""

    description: str
    fields: Mapping[str, Any]
    done: Callable[[BackfillDesk, _Config, str], Report]

    @property
    def field(self) -> dg.Field:
        return dg.Field(dict(self.fields), description=self.description)


def backfill_job(definitions: Callable[[], dg.Definitions]) -> dg.JobDefinition:
    """The job for the assets of ``definitions``, which is called only within a run. Only users start the job."""

    @dg.op(
        name="backfill",
        description="Performs one action of a managed backfill and reports the result.",
        config_schema=dg.Selector({name: act.field for name, act in _ACTS.items()}),  # type: ignore[no-untyped-call]
        out=dg.Out(dg.Nothing),
    )
    def backfill(context: dg.OpExecutionContext) -> Iterator[Any]:
        ((name, config),) = context.op_config.items()
        desk = BackfillDesk.of([definitions()], context.instance)
        report = _ACTS[name].done(desk, config, f"run {context.run_id}")
        for each in report:
            if isinstance(each, str):
                context.log.info("%s", each)
        asset = config["asset"] if name == "plan" else desk.planned(config["id"]).root.asset
        key = dg.AssetKey.from_user_string(asset)
        yield dg.AssetObservation(key, description=f"backfill {name}", metadata=_metadata(report))
        yield dg.Output(None)

    @dg.job(
        name=BACKFILL_JOB,
        description=_DESCRIPTION,
        executor_def=dg.in_process_executor,
        config={"ops": {"backfill": {"config": {"plan": {"asset": "ASSET"}}}}},  # The launchpad's initial config.
    )
    def ips_backfill() -> None:
        backfill()

    return ips_backfill


def _plan(desk: BackfillDesk, config: _Config, _: str) -> Report:
    asset, named, is_older = config["asset"], _partitions(config), config.get("older_code", False)
    if named is not None and is_older:
        problem = "its run config has both partitions and older_code."
        raise DeclarationError(asset=BACKFILL_JOB, problem=problem, remedy="Leave out one of them.")
    if is_older:
        return plan_report(desk.plan(asset, desk.of_older_code(asset)))
    keys = None if named is None else [key for each in named for key in desk.span(asset, each)]
    return plan_report(desk.plan(asset, keys))


def _launch(desk: BackfillDesk, config: _Config, who: str) -> Report:
    plan = desk.planned(config["id"])
    keep_days = _at_least(1, "keep_days", config, unless_told=30)
    moved = config.get("although_moved", False)
    done = desk.launch(plan, who=who, staged=config["staged"], although_moved=moved, keep_days=keep_days)
    return [*plan_head(plan), *launch_report(done)]


def _status(desk: BackfillDesk, config: _Config, _: str) -> Report:
    backfill = config["id"]
    follower = desk.follower(backfill)
    staged, reverted = desk.staged(backfill), desk.reverted(backfill)
    return progress_report(backfill, follower.status(), follower.progress(), staged, reverted)


def _diff(desk: BackfillDesk, config: _Config, _: str) -> Report:
    examples = _at_least(0, "examples", config, unless_told=10)
    found = desk.compare(config["id"], against=config.get("against", "before"), examples=examples)
    return [line for each in found for line in difference_report(each)]


def _publish(desk: BackfillDesk, config: _Config, _: str) -> Report:
    backfill = config["id"]
    return publication_report(desk.publishable(backfill), desk.publish(backfill))


def _cancel(desk: BackfillDesk, config: _Config, _: str) -> Report:
    ended, is_dropped = desk.cancel(config["id"])
    return cancel_report(config["id"], ended, is_dropped=is_dropped)


def _revert(desk: BackfillDesk, config: _Config, _: str) -> Report:
    backfill, partitions = config["id"], _partitions(config)
    reverter = desk.reverter(backfill)
    wanted = revert_report(reverter, reverter.plan(partitions))
    if config.get("dry_run", False):
        return wanted
    leaves_out = config.get("leave_out_changed", False)
    done, published = desk.revert(backfill, partitions, leave_out_changed=leaves_out)
    return [*wanted, *reverted_report(backfill, done, published)]


def _release(desk: BackfillDesk, config: _Config, _: str) -> Report:
    return release_report(desk.release(config["id"]))


def _partitions(config: _Config) -> Sequence[str] | None:
    """The partitions that the config names; None for all."""
    named: Sequence[str] | None = config.get("partitions")
    if named is not None and not named:
        problem = "the partitions in its run config are an empty list. Nothing was done."
        raise DeclarationError(asset=BACKFILL_JOB, problem=problem, remedy="Name some, or leave the field out for all.")
    return named


def _at_least(least: int, name: str, config: _Config, *, unless_told: int) -> int:
    value: int = config.get(name, unless_told)
    if value < least:
        problem = f"{name} is {value} in its run config."
        raise DeclarationError(asset=BACKFILL_JOB, problem=problem, remedy=f"Give {least} or more.")
    return value


def _metadata(report: Report) -> dict[str, Any]:
    """Metadata with all sentences in one text, and each table under its title."""
    said = "\n".join(each for each in report if isinstance(each, str))
    tables = {each.title: _table(each) for each in report if isinstance(each, ShownTable) and each.rows}
    return {"says": dg.MetadataValue.text(said), **tables}


def _table(shown: ShownTable) -> dg.TableMetadataValue:
    names = [heading.lower() for heading in shown.headings]
    records = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in shown.rows]
    columns: Sequence[dg.TableColumn] = [dg.TableColumn(name) for name in names]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns))


def _text(description: str) -> dg.Field:
    return dg.Field(str, description=description)


def _texts(description: str) -> dg.Field:
    return _optional([str], description)


def _switch(description: str) -> dg.Field:
    return _optional(bool, description)


def _optional(kind: object, description: str) -> dg.Field:
    """A field without a default: the launchpad would fill defaults in for every action, but only one is allowed."""
    return dg.Field(kind, is_required=False, description=description)


_ID = {"id": _text("The id that the plan printed.")}
_AGAINST = dg.Enum("BackfillComparedWith", [dg.EnumValue("before"), dg.EnumValue("full")])
_ACTS = {
    "plan": _Act(
        "Show which stages and partitions will be recomputed, what they read and how long it takes. No table changes.",
        {
            "asset": _text("The key of the asset to recompute."),
            "partitions": _texts("Keys, or inclusive spans A..B. Default: all partitions."),
            "older_code": _switch("Instead: the partitions with rows from an older code version."),
        },
        _plan,
    ),
    "launch": _Act(
        "Keep the current state of every table that the plan writes, then let Dagster's daemon run the plan.",
        {
            "id": _text("The id of the plan."),
            "staged": dg.Field(
                bool,
                description="true: on branches that readers don't see before publish. false: live, stage by stage.",
            ),
            "although_moved": _switch("Launch even if tables or code have changed since it was planned."),
            "keep_days": _optional(int, "How many days to keep the previous state. Default: 30."),
        },
        _launch,
    ),
    "status": _Act("Show the progress of each stage.", _ID, _status),
    "diff": _Act(
        "Show how each stage, published or staged, differs: by partition, by column, and example rows.",
        {
            **_ID,
            "against": _optional(
                _AGAINST, "before (default): its previous state. full: a recompute with the assets' own functions."
            ),
            "examples": _optional(int, "How many rows to show for each stage. Default: 10."),
        },
        _diff,
    ),
    "publish": _Act("Make the staged results of all stages visible.", _ID, _publish),
    "cancel": _Act("Cancel it and all of its runs. Staged results are dropped; published results stay.", _ID, _cancel),
    "revert": _Act(
        "Restore the previous rows in a new commit, which later stages follow. First deploy the code you want.",
        {
            **_ID,
            "partitions": _texts("Only these keys. Default: all that it computed."),
            "leave_out_changed": _switch("Leave out partitions that someone else has changed since."),
            "dry_run": _switch("Only show what would be done."),
        },
        _revert,
    ),
    "release": _Act(
        "Stop keeping the previous state: the backfill can then no longer be compared or reverted.", _ID, _release
    ),
}
