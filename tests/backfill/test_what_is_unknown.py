"""What a plan, a diff or a revert can't know, it says; nothing unknown is taken for nothing. Looking needs no Spark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import dagster_ips as ips
from dagster_ips._compat import requested_backfill
from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage, PlannedTable
from dagster_ips.core.backfill_text import plan_as_json, plan_from_json
from dagster_ips.core.capture import Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.core.code_of_rows import Making
from dagster_ips.core.file_set import FileSet
from dagster_ips.core.time_text import moment
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import BackfillError, DeclarationError, InstanceError, RevertError, StagedBranchGoneError
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.exactly_once.publish.restorer import restored_progress
from dagster_ips.iceberg import cascade_stamps
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.stamps import REVERTED, attempt_properties, computed_properties, owner_properties
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from dagster_ips.orchestration.backfill.differing import before_snapshot
from dagster_ips.orchestration.backfill.launching import BackfillLauncher
from dagster_ips.orchestration.backfill.reports import (
    ShownTable,
    difference_report,
    plan_report,
    progress_report,
    publication_report,
    revert_report,
)
from dagster_ips.orchestration.backfill.reverting import BackfillReverter
from dagster_ips.orchestration.backfill.staging import BranchStanding, StagedBackfill
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PIN, PROGRESS, newest_progress
from dagster_ips.spark.branches import Branch
from tests.support.lake import FIRST_DAY, SCHEMA, Lake, events
from tests.support.without_spark import manager_of

PARTITIONS = dg.StaticPartitionsDefinition(["a", "b"])
OUTSIDE = ("playback", "plans")


def definitions(
    folder: Path, *, code: str, inputs: tuple[str, ...], is_partitioned: bool, policy: dg.BackfillPolicy | None = None
) -> dg.Definitions:
    @dg.asset(
        name="first",
        partitions_def=PARTITIONS if is_partitioned else None,
        code_version=code,
        backfill_policy=policy,
        ins={name: ips.incremental(name) for name in inputs},
        metadata=ips.replace() | ips.table("media.first") | {"partition_expr": "account"},
    )
    def made(**views: ips.IcdcView) -> object:
        return views["playback"].source

    @dg.asset(
        partitions_def=PARTITIONS,
        ins={"first": ips.incremental()},
        backfill_policy=policy,
        metadata=ips.replace() | ips.table("media.second") | {"partition_expr": "account"},
    )
    def second(first: ips.IcdcView) -> object:
        return first.source

    manager = manager_of(folder)
    outside = [ips.iceberg_asset(name, table=f"media.{name}") for name in OUTSIDE]
    return ips.with_incremental(dg.Definitions(assets=[*outside, made, second], resources={"io_manager": manager}))


class QuietLake(Lake):
    """A lake without Spark, with two outside tables and a stage that reads some of them.

    Runs of the stage only leave what they record.
    """

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance = folder, instance
        self.code, self.inputs, self.is_partitioned = "1", ("playback",), True
        self.policy: dg.BackfillPolicy | None = None
        self.catalog = LakeCatalog.embedded("lake", folder)
        for name in OUTSIDE:
            self.create_playback(events(range(3)), f"media.{name}")
        self.catalog.client.create_table("media.first", SCHEMA)

    @property
    def definitions(self) -> dg.Definitions:
        return definitions(
            self.folder, code=self.code, inputs=self.inputs, is_partitioned=self.is_partitioned, policy=self.policy
        )

    @property
    def desk(self) -> BackfillDesk:
        return BackfillDesk.of([self.definitions], self.instance)

    def at(self, name: str) -> Watermark:
        source = self.catalog.load(f"media.{name}", asset="test")
        head = source.ancestry().head
        assert head is not None
        return source.watermark_at(head, "main")

    def compute(self, *partitions: str, backfill: str = "other") -> None:
        """Leave what a full run of the stage leaves."""
        table = self.catalog.client.load_table("media.first")
        said = attempt_properties(uuid.uuid4().hex, "run") | computed_properties(Mode.FULL, partitions)
        said |= owner_properties("first", None) | cascade_stamps.properties(Cascade((backfill,)))
        said |= {PROGRESS: progress_text(self.progress_with(*partitions))}
        table.append(self.catalog.client.load_table("media.playback").scan().to_arrow(), said)
        change = table.manage_snapshots()
        if PIN in table.refs():
            change = change.remove_tag(PIN)
        change.create_tag(table.metadata.current_snapshot_id or 0, PIN).commit()

    def progress_with(self, *partitions: str) -> Progress:
        """That of the stage's table once these partitions are computed."""
        target = self.catalog.load("media.first", asset="test")
        found = newest_progress(target)
        known, inputs = found.progress if found else Progress(), {}
        for tracked in self.desk.lineage.inputs("first").values():
            before = known.inputs.get(tracked.upstream, InputProgress())
            others = set(PARTITIONS.get_partition_keys()).difference(partitions)
            behind = {key: before.position(key) for key in others}
            division = tracked.known_slicing.division
            inputs[tracked.upstream] = InputProgress(self.at(tracked.upstream), behind, division=division)
        made = {**known.made, **dict.fromkeys(partitions, Making((self.code,), target.current_schema_id, "so"))}
        return Progress(known.number + 1, inputs, made, self.code)

    def compute_without_inputs(
        self, account: str, backfill: str, said: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Leave what a run of one partition leaves if the stage has no incremental inputs."""
        rows = [(number, FIRST_DAY, account, number) for number in range(3)]
        made = pa.table([pa.array(list(each)) for each in zip(*rows, strict=True)], names=SCHEMA.column_names)
        properties = owner_properties("first", None) | cascade_stamps.properties(Cascade((backfill,))) | dict(said)
        self.catalog.client.load_table("media.first").append(made, properties)

    def expire(self) -> None:
        """Expire all snapshots of the stage's table but the newest."""
        table = self.catalog.client.load_table("media.first")
        *old, _ = [each.snapshot_id for each in table.snapshots()]
        table.maintenance.expire_snapshots().by_ids(old).commit()

    def launch(self, *, is_staged: bool = False) -> str:
        """Leave what the launch of a backfill leaves; returns its id."""
        target = self.catalog.load("media.first", asset="test")
        before = target.head_snapshot_id()
        stage = PlannedStage("first", "media.first", self.inputs, ("a", "b"))
        plan = BackfillPlan("planned1", 0, (stage,), (PlannedTable("first", "media.first", target.uuid, before),))
        if before is not None:
            table = self.catalog.client.load_table("media.first")
            table.manage_snapshots().create_tag(before, plan.before_tag).commit()
        tagged = {} if before is None else {"media.first": before}
        CursorStore(self.instance).set_backfill(LaunchedBackfill(plan, "me", 0, tagged, is_staged))
        return plan.id

    def request(self, backfill: str, status: str) -> None:
        """Leave Dagster's own backfill of both partitions."""
        assets = {dg.AssetKey("first"): PARTITIONS.subset_with_partition_keys(["a", "b"])}
        made = requested_backfill(self.instance, backfill, assets, tags={}, title="", description="", at=0.0)
        self.instance.add_backfill(made.with_status(type(made.status)[status]))


@pytest.fixture
def quiet(tmp_path: Path, instance: dg.DagsterInstance) -> QuietLake:
    return QuietLake(tmp_path, instance)


def test_partitions_of_older_code_are_found_although_their_snapshots_have_expired(quiet: QuietLake) -> None:
    quiet.compute("a")
    quiet.compute("b")
    quiet.expire()
    quiet.code = "2"
    assert quiet.desk.of_older_code("first") == ["a", "b"]
    quiet.compute("b")
    quiet.expire()
    assert quiet.desk.of_older_code("first") == ["a"]


def test_a_plan_has_no_numbers_for_what_follows_rows_that_were_never_computed(quiet: QuietLake) -> None:
    first, second = quiet.desk.plan("first", ["a"]).stages
    assert first.rows == 3
    assert (second.reads, second.seconds) == ((), None)
    assert "its reads of first, which has no rows in these partitions yet" in second.unknown
    quiet.compute("a", "b")
    _, second = quiet.desk.plan("first", ["a"]).stages
    assert [(read.rows, read.at_most) for read in second.reads] == [(3, True)]
    assert any("upper limits as long as no earlier stage gets more rows" in each for each in second.unknown)


def test_what_is_unknown_of_several_stages_is_said_once() -> None:
    unknown = {"day": (), "by_account": ("its rows", "its reads"), "week": ("its rows.",)}
    stages = tuple(PlannedStage(name, f"media.{name}", (), None, unknown=of) for name, of in unknown.items())
    *_, said, _ = plan_report(BackfillPlan("planned1", 0, stages, ()))
    assert said == "Unknown until it runs:\n  by_account, week: its rows.\n  by_account: its reads."


def test_rows_from_before_an_input_was_added_are_not_taken_for_new_ones(quiet: QuietLake) -> None:
    quiet.compute("a", "b")
    quiet.code, quiet.inputs = "2", OUTSIDE
    backfill = quiet.launch()
    quiet.compute("a", "b", backfill=backfill)
    with pytest.raises(RevertError, match="were made without reading plans"):
        quiet.desk.reverter(backfill).plan(None)
    quiet.code, quiet.inputs = "1", ("playback",)
    assert quiet.desk.reverter(backfill).plan(None).restored == ("a", "b")


def test_rows_are_not_restored_by_code_that_does_not_read_what_they_were_made_of(quiet: QuietLake) -> None:
    """Nothing would say up to where they were made of it, and the next code that reads it has to know."""
    quiet.inputs = OUTSIDE
    quiet.compute("a", "b")
    backfill = quiet.launch()
    quiet.compute("a", "b", backfill=backfill)
    quiet.inputs = ("playback",)
    with pytest.raises(RevertError, match="made by reading plans, which first doesn't read now"):
        quiet.desk.reverter(backfill).plan(None)
    quiet.inputs = OUTSIDE
    assert quiet.desk.reverter(backfill).plan(None).restored == ("a", "b")


def test_a_location_for_which_a_stage_is_an_outside_table_neither_launches_nor_publishes_nor_reverts_it(
    quiet: QuietLake,
) -> None:
    """It doesn't know what the rows consumed."""
    quiet.compute("a", "b")
    backfill = quiet.launch()
    quiet.compute("a", "b", backfill=backfill)
    first = ips.iceberg_asset(
        "first", table="media.first", partitions_def=PARTITIONS, metadata={"partition_expr": "account"}
    )
    elsewhere = ips.with_incremental(dg.Definitions(assets=[first], resources={"io_manager": manager_of(quiet.folder)}))
    desk = BackfillDesk.of([elsewhere], quiet.instance)
    plan = desk.planned(backfill)

    def launch(_: str) -> None:
        desk.launch(plan, who="me", staged=False, although_moved=False, keep_days=1)

    for act in (launch, desk.publish, desk.reverter):
        with pytest.raises(BackfillError, match="first, which it computes, is an outside table in these definitions"):
            act(backfill)
    assert quiet.desk.reverter(backfill).plan(None).restored == ("a", "b")


def test_what_was_consumed_in_part_is_restored_so(quiet: QuietLake) -> None:
    quiet.is_partitioned = False
    before = quiet.at("playback")
    quiet.append(events(range(3, 6)), "media.playback")
    taken = FileSet(quiet.at("playback"), taken=1, total=2)
    then = Progress(2, {"playback": InputProgress(before, files=taken)})
    table = quiet.catalog.client.load_table("media.first")
    rows = quiet.catalog.client.load_table("media.playback").scan().to_arrow()
    table.append(rows, owner_properties("first", None) | {PROGRESS: progress_text(then)})
    stage = PlannedStage("first", "media.first", ("playback",), None)
    plan = BackfillPlan("planned1", 0, (stage,), ())
    head = table.metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_tag(head, plan.before_tag).commit()
    reverter = BackfillReverter(quiet.desk.lineage, LaunchedBackfill(plan, "me", 0, {"media.first": head}))
    restored = restored_progress(None, reverter._restoration(("",)))
    assert restored.inputs == then.inputs
    # The other files of that change are read from its own snapshot.
    quiet.append(events(range(6, 9)), "media.playback")
    source = quiet.catalog.client.load_table("media.playback")
    *old, _ = [each.snapshot_id for each in source.snapshots()]
    source.maintenance.expire_snapshots().by_ids(old).commit()
    with pytest.raises(RevertError, match="have expired"):
        reverter._restoration(("",))


def test_what_was_consumed_is_known_although_the_snapshot_that_says_it_has_left_the_history(quiet: QuietLake) -> None:
    """A compaction came after the last publication, whose snapshot expired then."""
    quiet.compute("a", "b")
    says = quiet.catalog.client.load_table("media.first").metadata.current_snapshot_id or 0
    quiet.append(events(range(3)), "media.first")
    backfill = quiet.launch()
    table = quiet.catalog.client.load_table("media.first")
    table.manage_snapshots().create_tag(says, quiet.desk.planned(backfill).progress_tag).commit()
    then = quiet.progress_with("a", "b")
    quiet.compute("a", "b", backfill=backfill)
    lost = quiet.catalog.load("media.first", asset="test")
    kept = [raw for raw in lost.raw["snapshots"] if raw["snapshot-id"] != says]
    cut_off = [{key: value for key, value in raw.items() if raw.get(key) != says} for raw in kept]
    said = next(raw for raw in lost.raw["snapshots"] if raw["snapshot-id"] == says)
    found = BackfillReverter(quiet.desk.lineage, quiet.desk.launched(backfill))._then(
        replace(lost, raw={**lost.raw, "snapshots": [*cut_off, said]})
    )
    assert found is not None
    assert found.progress.inputs == then.inputs


def test_what_is_published_while_it_is_cancelled_can_still_be_reverted(
    quiet: QuietLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.compute("a", "b")
    backfill = quiet.launch(is_staged=True)
    staged = quiet.desk.staged(backfill)
    assert staged is not None
    # Another process publishes just before the branches are dropped.
    monkeypatch.setattr(BackfillLauncher, "drop_branches", lambda *_: quiet.compute("a", backfill=backfill))
    released: list[BackfillPlan] = []
    monkeypatch.setattr(BackfillLauncher, "release", lambda _, plan: released.append(plan))
    assert not staged.discard()
    assert released == []


def test_rows_that_were_staged_with_other_columns_are_not_published(quiet: QuietLake) -> None:
    quiet.compute("a", "b")
    staged = quiet.desk.staged(quiet.launch(is_staged=True))
    assert staged is not None
    table = quiet.catalog.client.load_table("media.first")
    table.manage_snapshots().create_branch(quiet.at("first").snapshot_id, staged.plan.staged_branch).commit()
    table.append(table.scan().to_arrow(), branch=staged.plan.staged_branch)
    assert [each.standing for each in staged.tables()] == [BranchStanding.STAGED]
    table.update_schema().delete_column("seconds").commit()
    table.update_schema().add_column("seconds", LongType()).commit()
    with pytest.raises(BackfillError, match=r"seconds of media\.first were dropped and added again"):
        staged.publish([])


@pytest.mark.parametrize(
    ("is_staged", "status"), [(False, "CANCELED"), (True, "CANCELED"), (True, "COMPLETED_SUCCESS")]
)
def test_a_backfill_that_was_cancelled_is_not_said_to_be_launched(
    quiet: QuietLake, *, is_staged: bool, status: str
) -> None:
    quiet.compute("a", "b")
    plan = quiet.desk.planned(quiet.launch(is_staged=is_staged))
    quiet.request(plan.id, status)
    with pytest.raises(BackfillError, match="cancelled"):
        quiet.desk.launch(plan, who="me", staged=is_staged, although_moved=False, keep_days=1)


def test_a_backfill_that_was_reverted_is_not_said_to_be_launched_when_it_is_launched_again(quiet: QuietLake) -> None:
    quiet.inputs = ()
    quiet.compute_without_inputs("a", "other")
    plan = quiet.desk.planned(quiet.launch())
    quiet.request(plan.id, "COMPLETED_SUCCESS")
    quiet.compute_without_inputs("a", plan.id)
    again = quiet.desk.launch(plan, who="someone else", staged=False, although_moved=False, keep_days=1)
    assert again == quiet.desk.launched(plan.id)
    quiet.compute_without_inputs("a", f"{plan.id}-revert", {REVERTED: plan.id})
    with pytest.raises(BackfillError, match=r"reverted.*Plan again: dagster-ips backfill plan first"):
        quiet.desk.launch(plan, who="me", staged=False, although_moved=False, keep_days=1)


def test_a_plan_that_was_edited_after_its_launch_is_not_said_to_be_launched(quiet: QuietLake) -> None:
    quiet.compute("a", "b")
    plan = quiet.desk.planned(quiet.launch())
    quiet.request(plan.id, "REQUESTED")
    launched = quiet.desk.launch(plan, who="me", staged=False, although_moved=False, keep_days=1)
    assert launched.plan == plan_from_json(plan_as_json(plan), where="its file")
    edited = replace(plan, stages=(replace(plan.root, partitions=("a",)),))
    with pytest.raises(BackfillError, match="with another plan"):
        quiet.desk.launch(edited, who="me", staged=False, although_moved=False, keep_days=1)


def test_a_table_that_was_dropped_since_the_launch_is_not_said_to_be_unchanged(quiet: QuietLake) -> None:
    quiet.compute("a", "b")
    backfill = quiet.launch()
    quiet.catalog.client.drop_table("media.first")
    with pytest.raises(BackfillError, match=r"media\.first was dropped"):
        list(quiet.desk.compare(backfill, against="before", examples=1))


def test_a_previous_state_is_what_the_launch_found_even_if_the_plan_found_no_table(quiet: QuietLake) -> None:
    found = quiet.desk.launched(quiet.launch())
    (table,) = found.plan.tables
    quiet.compute("a", "b")
    now = quiet.catalog.load("media.first", asset="test")
    assert before_snapshot(found, found.plan.root, now) is None
    launched = replace(found, plan=replace(found.plan, tables=(replace(table, uuid=None),)), before={"media.first": 1})
    with pytest.raises(BackfillError, match="is no longer kept"):
        before_snapshot(launched, launched.plan.root, now)
    quiet.catalog.client.load_table("media.first").manage_snapshots().create_tag(
        now.head_snapshot_id() or 0, found.plan.before_tag
    ).commit()
    with pytest.raises(BackfillError, match="was moved"):
        before_snapshot(launched, launched.plan.root, quiet.catalog.find("media.first"))


def test_partitions_of_which_nothing_is_published_are_not_said_to_equal_a_recompute(quiet: QuietLake) -> None:
    (found,) = quiet.desk.compare(quiet.launch(), against="full", examples=1)
    assert difference_report(found) == ["first: not compared: a, b, because nothing of it is known to be published."]


def test_stages_that_cannot_be_recomputed_are_named_and_the_others_are_compared(quiet: QuietLake) -> None:
    quiet.compute("a", "b")
    quiet.append(events(range(3, 6)), "media.playback")
    found = quiet.desk.launched(quiet.launch())
    raw = PlannedStage("playback", "media.playback", (), None)
    second = PlannedStage("second", "media.second", (), ("a",))
    plan = replace(found.plan, stages=(raw, *found.plan.stages, second))
    CursorStore(quiet.instance).set_backfill(replace(found, plan=plan))
    source = quiet.catalog.client.load_table("media.playback")
    source.maintenance.expire_snapshots().by_id(source.snapshots()[0].snapshot_id).commit()
    of = {each.asset: each for each in quiet.desk.compare(plan.id, against="full", examples=1)}
    assert list(of) == ["playback", "first", "second"]
    assert "it reads nothing incrementally" in of["playback"].uncompared[""]
    assert all("media.playback" in why and "has expired" in why for why in of["first"].uncompared.values())
    assert of["first"].uncompared.keys() == {"a", "b"}
    assert of["second"].uncompared == {"a": "nothing of it is known to be published."}


def test_a_revert_of_some_partitions_is_refused_once_the_asset_has_none(quiet: QuietLake) -> None:
    """It would restore all rows, and say that it restored these."""
    quiet.inputs = ()
    quiet.compute_without_inputs("a", "other")
    backfill = quiet.launch()
    quiet.compute_without_inputs("a", backfill)
    assert quiet.desk.reverter(backfill).plan(["a"]).restored == ("a",)
    quiet.is_partitioned = False
    with pytest.raises(RevertError, match="is no longer partitioned as it was"):
        quiet.desk.reverter(backfill).plan(["a"])


def test_a_revert_that_is_refused_leaves_what_is_staged_and_not_published_yet(
    quiet: QuietLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.compute("a", "b")
    backfill = quiet.launch(is_staged=True)
    quiet.compute("a", "b", backfill=backfill)
    quiet.compute("a")
    dropped: list[BackfillPlan] = []
    monkeypatch.setattr(BackfillLauncher, "drop_branches", lambda _, plan: dropped.append(plan))
    monkeypatch.setattr(ips.IcdcIOManager, "session", lambda _: None)
    with pytest.raises(RevertError, match="a: it has been recomputed since"):
        quiet.desk.revert(backfill, None, leave_out_changed=False)
    assert dropped == []


def test_an_asset_that_dagster_computes_only_together_with_others_is_not_planned_alone(
    quiet: QuietLake, instance: dg.DagsterInstance
) -> None:
    def desk(*, can_subset: bool) -> BackfillDesk:
        outs = {name: dg.AssetOut(metadata=ips.append() | ips.table(f"media.{name}")) for name in ("one", "other")}

        @dg.multi_asset(outs=outs, ins={"playback": ips.incremental()}, can_subset=can_subset)
        def both(playback: ips.IcdcView) -> tuple[object, object]:
            return playback.added, playback.added

        assets = [ips.iceberg_asset("playback", table="media.playback"), both]
        made = ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager_of(quiet.folder)}))
        return BackfillDesk.of([made], instance)

    with pytest.raises(InstanceError, match="one is computed in one step with other"):
        desk(can_subset=False).plan("one", None)
    assert [stage.asset for stage in desk(can_subset=True).plan("one", None).stages] == ["one"]


def test_a_span_has_the_keys_between_both_ends_in_each_dimension(instance: dg.DagsterInstance) -> None:
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-05")
    keys = dg.MultiPartitionsDefinition({"account": dg.StaticPartitionsDefinition(["a", "b", "c"]), "day": days})

    @dg.asset(partitions_def=keys)
    def made() -> None: ...

    desk = BackfillDesk.of([dg.Definitions(assets=[made])], instance)
    assert desk.span("made", "a|2026-01-02..b|2026-01-03") == [
        "a|2026-01-02",
        "a|2026-01-03",
        "b|2026-01-02",
        "b|2026-01-03",
    ]
    assert desk.span("made", "b|2026-01-02") == ["b|2026-01-02"]
    for nothing in ("b|2026-01-02..a|2026-01-03", "a|2026-01-02..d|2026-01-03"):
        with pytest.raises(InstanceError, match="has no partitions from"):
            desk.span("made", nothing)


def test_the_estimate_counts_the_runs_that_the_backfill_policy_asks_for(quiet: QuietLake) -> None:
    quiet.compute("a", "b")
    spent = {"bytes captured": 100, "capture seconds": 1.0, "write and publish seconds": 2.0}
    for asset in ("first", "second"):
        quiet.instance.report_runless_asset_event(dg.AssetMaterialization(asset, metadata=spent))
    assert [stage.seconds for stage in quiet.desk.plan("first", None).stages] == [3.0, 3.0]
    quiet.policy = dg.BackfillPolicy.multi_run()
    assert [stage.seconds for stage in quiet.desk.plan("first", None).stages] == [6.0, 6.0]


def test_a_revert_of_rows_whose_columns_are_gone_is_refused_before_anything_is_dropped(
    quiet: QuietLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.compute("a", "b")
    backfill = quiet.launch(is_staged=True)
    quiet.compute("a", "b", backfill=backfill)
    quiet.catalog.client.load_table("media.first").update_schema().delete_column("seconds").commit()
    dropped: list[BackfillPlan] = []
    monkeypatch.setattr(BackfillLauncher, "drop_branches", lambda _, plan: dropped.append(plan))
    monkeypatch.setattr(ips.IcdcIOManager, "session", lambda _: None)
    with pytest.raises(RevertError, match="column seconds has since been dropped"):
        quiet.desk.reverter(backfill).plan(None)
    with pytest.raises(RevertError, match="column seconds has since been dropped"):
        quiet.desk.revert(backfill, None, leave_out_changed=False)
    assert dropped == []


def test_partitions_of_an_asset_without_incremental_inputs_are_reverted_although_other_ones_were_computed_since(
    quiet: QuietLake,
) -> None:
    quiet.inputs = ()
    quiet.compute_without_inputs("a", "other")
    backfill = quiet.launch()
    quiet.compute_without_inputs("a", backfill)
    quiet.compute_without_inputs("b", "later")
    planned = quiet.desk.reverter(backfill).plan(["a"])
    assert (planned.restored, planned.changed) == (("a",), {})
    quiet.compute_without_inputs("a", "later")
    assert "recomputed since" in quiet.desk.reverter(backfill).plan(["a"]).changed["a"]


def test_a_revert_of_one_partition_of_an_asset_without_incremental_inputs_is_not_one_of_all(quiet: QuietLake) -> None:
    quiet.inputs = ()
    for account in ("a", "b"):
        quiet.compute_without_inputs(account, "other")
    backfill = quiet.launch()
    quiet.compute_without_inputs("a", backfill)
    assert quiet.desk.reverter(backfill).plan(None).restored == ("a",)
    quiet.compute_without_inputs("b", backfill)
    quiet.compute_without_inputs("a", f"{backfill}-revert", {REVERTED: backfill})
    planned = quiet.desk.reverter(backfill).plan(None)
    assert (planned.restored, planned.already) == (("b",), ("a",))
    quiet.compute_without_inputs("b", f"{backfill}-revert", {REVERTED: backfill})
    reverter = quiet.desk.reverter(backfill)
    said = revert_report(reverter, reverter.plan(None))
    assert said[:2] == ["media.first: nothing is left to revert.", "Already restored: a, b."]


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_status_says_what_was_reverted_and_when(quiet: QuietLake, *, is_staged: bool) -> None:
    quiet.inputs = ()
    for account in ("a", "b"):
        quiet.compute_without_inputs(account, "other")
    backfill = quiet.launch(is_staged=is_staged)

    def standing() -> list[str | ShownTable]:
        staged, reverted = quiet.desk.staged(backfill), quiet.desk.reverted(backfill)
        _, *said, _ = progress_report(backfill, "COMPLETED_SUCCESS", [], staged, reverted)
        return said

    published = ["It is fully published."] if is_staged else []
    for account in ("a", "b"):
        quiet.compute_without_inputs(account, backfill)
    assert standing() == published
    for account, told, still in (("a", "a", published), ("b", "a, b", [])):
        quiet.compute_without_inputs(account, f"{backfill}-revert", {REVERTED: backfill})
        head = quiet.catalog.load("media.first", asset="test").ancestry().head
        assert head is not None
        said = f"Reverted at {moment(head.timestamp_ms)}: {told}, in snapshot {head.snapshot_id}."
        assert standing() == [*still, said]


def test_staged_results_are_not_released_before_a_person_publishes_or_cancels_them(
    quiet: QuietLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ips.IcdcIOManager, "session")
    quiet.compute("a", "b")
    backfill = quiet.launch(is_staged=True)
    table = quiet.catalog.client.load_table("media.first")
    table.manage_snapshots().create_branch(quiet.at("first").snapshot_id, f"ips-staged-{backfill}").commit()
    with pytest.raises(BackfillError, match=f"media.first still has its branch ips-staged-{backfill}"):
        quiet.desk.release(backfill)


def test_publishing_again_does_nothing_and_says_so(quiet: QuietLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ips.IcdcIOManager, "session")
    quiet.compute("a", "b")
    backfill = quiet.launch(is_staged=True)
    quiet.compute("a", "b", backfill=backfill)
    staged = quiet.desk.publishable(backfill)
    done = staged.publish([])
    assert publication_report(staged, done) == [
        "media.first was published before. Nothing was left to publish, so nothing was done."
    ]
    assert quiet.instance.get_latest_materialization_event(dg.AssetKey("first")) is None


def test_a_stage_that_reads_its_own_earlier_partitions_does_not_wait_for_itself_to_be_published(
    quiet: QuietLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.compute("a", "b")
    found = quiet.desk.launched(quiet.launch(is_staged=True))
    (first,) = found.plan.stages
    plan = replace(found.plan, stages=(replace(first, upstreams=("first", "playback")),))
    CursorStore(quiet.instance).set_backfill(replace(found, plan=plan))
    table = quiet.catalog.client.load_table("media.first")
    table.manage_snapshots().create_branch(quiet.at("first").snapshot_id, plan.staged_branch).commit()
    table.append(table.scan().to_arrow(), branch=plan.staged_branch)
    monkeypatch.setattr(StagedBackfill, "_publish_one", lambda *_: True)
    monkeypatch.setattr(BackfillLauncher, "drop_branches", lambda *_: [])
    monkeypatch.setattr(ips.IcdcIOManager, "session", lambda _: None)
    assert quiet.desk.publishable(plan.id).publish([]).published == ("first",)


def test_a_backfill_whose_stage_is_in_no_definitions_is_refused_before_anything_is_ended(quiet: QuietLake) -> None:
    quiet.compute("a", "b")
    found = quiet.desk.launched(quiet.launch())
    renamed = PlannedStage("renamed", "media.renamed", ("first",), None)
    plan = replace(found.plan, stages=(*found.plan.stages, renamed))
    CursorStore(quiet.instance).set_backfill(replace(found, plan=plan))
    for act in (quiet.desk.cancel, quiet.desk.follower):
        with pytest.raises(BackfillError, match="renamed, which it computes, isn't in these definitions"):
            act(plan.id)
    with pytest.raises(BackfillError, match="renamed, which it computes, isn't in these definitions"):
        quiet.desk.launch(plan, who="me", staged=False, although_moved=False, keep_days=1)


def test_a_backfill_is_not_reverted_while_dagster_starts_runs_that_would_put_its_rows_back(
    quiet: QuietLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ips.IcdcIOManager, "session", lambda _: None)
    quiet.compute("a", "b")
    backfill = quiet.launch()
    quiet.compute("a", backfill=backfill)
    quiet.request(backfill, "REQUESTED")
    with pytest.raises(BackfillError, match=f"First cancel it: dagster-ips backfill cancel {backfill}"):
        quiet.desk.revert(backfill, None, leave_out_changed=False)
    quiet.desk.cancel(backfill)
    job, first = quiet.definitions.resolve_implicit_global_asset_job_def(), frozenset([dg.AssetKey("first")])
    tags = {"dagster/backfill": backfill}
    slow = quiet.instance.create_run_for_job(job, asset_selection=first, tags=tags)
    run = quiet.instance.create_run_for_job(job, asset_selection=first)
    with pytest.raises(BackfillError, match=f"its run {slow.run_id} isn't finished and could still publish rows"):
        quiet.desk.revert(backfill, None, leave_out_changed=False)
    quiet.instance.report_run_canceled(slow)
    with pytest.raises(BackfillError, match=f"run {run.run_id} of first is working or about to start"):
        quiet.desk.revert(backfill, None, leave_out_changed=False)


def test_a_plan_counts_the_ref_that_is_read_and_leaves_out_assets_that_read_another_one_than_main(
    quiet: QuietLake, instance: dg.DagsterInstance
) -> None:
    table = quiet.catalog.client.load_table("media.playback")
    table.manage_snapshots().create_branch(quiet.at("playback").snapshot_id, "audit").commit()
    quiet.append(events(range(3, 8)), "media.playback")

    def reader(name: str, upstream: str, ref: str) -> dg.AssetsDefinition:
        read = {"rows": ips.incremental(upstream, ref=ref)}

        @dg.asset(name=name, ins=read, metadata=ips.append() | ips.table(f"media.{name}"))
        def made(rows: ips.IcdcView) -> object:
            return rows.added

        return made

    readers = [reader("first", "playback", "audit"), reader("next", "first", "main"), reader("other", "first", "audit")]
    assets = [ips.iceberg_asset("playback", table="media.playback"), *readers]
    made = ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager_of(quiet.folder)}))
    plan = BackfillDesk.of([made], instance).plan("first", None)
    assert [(stage.asset, stage.rows) for stage in plan.stages] == [("first", 3), ("next", 0)]
    assert plan.not_started == {}


def test_a_staged_run_does_not_create_its_branch_again_that_was_dropped_while_it_was_checked(
    quiet: QuietLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.compute("a", "b")
    table, staged = quiet.catalog.client.load_table("media.first"), "ips-staged-planned1"
    table.manage_snapshots().create_branch(quiet.at("first").snapshot_id, staged).commit()
    published: list[str] = []

    def create(branch: Branch, _: object, *, head: Snapshot) -> None:
        table.manage_snapshots().create_branch(head.snapshot_id, branch.name).commit()

    def seal(_: Publisher, branch: Branch, stamp: Mapping[str, str]) -> None:
        table.refresh().append(table.scan().to_arrow()[:0], dict(stamp), branch=branch.name)

    monkeypatch.setattr(Branch, "create", create)
    monkeypatch.setattr(Publisher, "seal", seal)
    monkeypatch.setattr(Publisher, "make_main", lambda *_, **__: published.append("main"))
    monkeypatch.setattr(Branch, "drop", lambda *_: None)
    monkeypatch.setattr("dagster_ips.exactly_once.publish.publisher.stamped", lambda *_: nullcontext())
    session: Any = None
    publisher = Publisher(quiet.catalog.on_branch(staged), CursorStore(quiet.instance), session, "a run")

    def check(_: Branch) -> None:
        table.refresh().manage_snapshots().remove_branch(staged).commit()

    with pytest.raises(StagedBranchGoneError):
        publisher.publish("media.first", [], lambda *_: None, consumer="first", check=check)
    assert published == []


@pytest.mark.parametrize(("act", "names"), [("plan", {"asset": "first"}), ("revert", {"id": "planned1"})])
def test_an_empty_list_of_partitions_in_the_ui_does_not_stand_for_all_of_them(
    quiet: QuietLake, monkeypatch: pytest.MonkeyPatch, act: str, names: dict[str, str]
) -> None:
    monkeypatch.delattr(ips.IcdcIOManager, "session")
    quiet.compute("a", "b")
    quiet.compute("a", "b", backfill=quiet.launch())
    job = quiet.definitions.resolve_job_def("ips_backfill")
    config = {"ops": {"backfill": {"config": {act: {**names, "partitions": []}}}}}
    with pytest.raises(DeclarationError, match="are an empty list"):
        job.execute_in_process(instance=quiet.instance, run_config=config)


def test_the_states_before_a_staged_backfill_are_said_to_be_gone_with_its_cancellation(quiet: QuietLake) -> None:
    quiet.compute("a", "b")
    plan = quiet.desk.planned(quiet.launch(is_staged=True))
    quiet.catalog.client.load_table("media.first").manage_snapshots().remove_tag(plan.before_tag).commit()
    with pytest.raises(BackfillError, match="If it was cancelled, that dropped what it had staged"):
        list(quiet.desk.compare(plan.id, against="before", examples=1))
