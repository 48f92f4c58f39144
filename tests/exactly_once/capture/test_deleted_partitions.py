"""Someone deletes an upstream's dynamic partition: what was made of it is recomputed without its rows, exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.partitions.mapping import UpstreamPartitionsResult
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from dagster_ips._compat import knowing_partitions
from dagster_ips.core.policy import InputPolicies, OnRemoved, OnUnmapped
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import DeclarationError, UnmappedRowsError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import MappedKeys
from tests.exactly_once.capture.test_partitions_to_come import (
    DAYS,
    REGIONS,
    TARGET,
    TITLES,
    PartitionsToCome,
    Row,
    days_up_to,
)

BY_DAY_AND_TITLE = dg.MultiPartitionsDefinition({"day": days_up_to(0), "title": TITLES})
BY_REGION_AND_TITLE = dg.MultiPartitionsDefinition({"region": REGIONS, "title": TITLES})


@pytest.fixture
def lives() -> Iterator[PartitionsToCome]:
    """Two regions, each made of all titles, of which there are a and b, each with a row."""
    found = PartitionsToCome()
    found.begin(made="all titles", spec=UNPARTITIONED_PARTITION_SPEC)
    found.instance.add_dynamic_partitions("titles", ["b"])
    for title in ("a", "b"):  # each in a file of its own
        found.rows_come([(DAYS[0], title)])
    yield found
    found.teardown()


def goes(lives: PartitionsToCome, title: str = "b") -> None:
    lives.instance.delete_dynamic_partition("titles", title)


def is_back(lives: PartitionsToCome, title: str = "b") -> None:
    lives.instance.add_dynamic_partitions("titles", [title])


@pytest.mark.parametrize("rows_go", ["before", "after", "later", "never"])
def test_the_rows_of_a_deleted_partition_are_removed_from_all_that_was_made_of_them(
    lives: PartitionsToCome, rows_go: str
) -> None:
    lives.all_that_waits_is_run()
    if rows_go == "before":
        lives.delete(DAYS[0], "b")
    goes(lives)
    if rows_go == "after":
        lives.delete(DAYS[0], "b")
    assert lives.pending() == {"eu", "us"}
    lives.all_that_waits_is_run()
    if rows_go == "later":
        lives.delete(DAYS[0], "b")
    assert lives.pending() == frozenset()
    lives.rows_come([(DAYS[0], "a"), (DAYS[1], "b")])
    lives.all_that_waits_is_run()
    is_back(lives)
    lives.all_that_waits_is_run()


def test_they_are_recomputed_once_by_whatever_run_comes_first(lives: PartitionsToCome) -> None:
    lives.all_that_waits_is_run()
    goes(lives)
    (work,) = lives.capture(["eu"])
    assert work.is_whole
    assert lives.publish((work,))
    lives.commit()
    assert lives.pending() == {"us"}
    lives.all_that_waits_is_run()
    lives.rows_come([(DAYS[1], "a")])
    assert not any(each.is_whole for each in lives.capture(["eu", "us"]))


@pytest.mark.parametrize("is_first", [True, False], ids=["the first run", "a later run"])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed before it copies", "undisturbed"])
def test_a_run_at_work_when_it_is_deleted(lives: PartitionsToCome, *, is_first: bool, is_killed: bool) -> None:
    if not is_first:
        lives.all_that_waits_is_run()
        lives.rows_come([(DAYS[1], "b")])
    work = lives.capture(["eu", "us"])
    goes(lives)
    assert lives.publish(work)
    if not is_killed:
        lives.commit()
    assert lives.pending() == {"eu", "us"}
    lives.all_that_waits_is_run()


def test_a_run_that_captured_before_does_not_publish_over_the_recompute(lives: PartitionsToCome) -> None:
    lives.all_that_waits_is_run()
    lives.rows_come([(DAYS[1], "b")])
    slow = lives.capture(["eu"])
    goes(lives)
    lives.all_that_waits_is_run()
    assert not lives.publish(slow)
    lives.all_that_waits_is_run()


def test_a_run_of_all_rows_that_captured_before_does_not_bring_them_back(lives: PartitionsToCome) -> None:
    lives.all_that_waits_is_run()
    slow = lives.capture(["eu"], named_by_person=True)
    goes(lives)
    lives.all_that_waits_is_run()
    if lives.publish(slow):
        lives.commit()
    lives.all_that_waits_is_run()


def test_the_recompute_is_killed_before_it_copies(lives: PartitionsToCome) -> None:
    lives.all_that_waits_is_run()
    goes(lives)
    work = lives.capture(["eu", "us"])
    assert lives.publish(work)
    assert lives.pending() == frozenset()
    lives.rows_come([(DAYS[1], "a")])
    again = lives.capture(["eu", "us"])
    assert not any(each.is_whole for each in again)
    assert lives.publish(again)
    lives.commit()
    lives.all_that_waits_is_run()


@pytest.mark.parametrize("title", ["a", "b"])
def test_the_recompute_is_killed_before_it_publishes(lives: PartitionsToCome, title: str) -> None:
    lives.all_that_waits_is_run()
    goes(lives, title)
    lives.capture(["us"])
    assert lives.pending() == {"eu", "us"}
    lives.all_that_waits_is_run()


def test_the_recompute_is_killed_before_it_publishes_what_is_then_made_of_nothing(lives: PartitionsToCome) -> None:
    goes(lives)
    lives.all_that_waits_is_run()
    goes(lives, "a")
    lives.capture(["us"])
    lives.rows_come([(DAYS[0], "b")])
    assert lives.pending() == {"eu", "us"}
    lives.all_that_waits_is_run()


def test_a_partition_added_after_the_last_look_captured_and_deleted_before_the_next_one(
    lives: PartitionsToCome,
) -> None:
    lives.all_that_waits_is_run()
    is_back(lives, "c")
    lives.rows_come([(DAYS[0], "c")])
    lives.run_of(["eu", "us"])
    goes(lives, "c")
    assert lives.pending() == {"eu", "us"}
    lives.all_that_waits_is_run()


@pytest.mark.parametrize("is_lost", [True, False], ids=["cursor lost", "cursor kept"])
@pytest.mark.parametrize("expires", [True, False], ids=["expired", "retained"])
def test_neither_a_lost_cursor_nor_expired_snapshots_of_the_target_matter(
    lives: PartitionsToCome, *, is_lost: bool, expires: bool
) -> None:
    lives.all_that_waits_is_run()
    if expires:
        table = lives.lake.client.load_table(TARGET)
        table.append(table.scan().to_arrow())  # a newer snapshot, as the head can't expire
        kept = {table.refs()["ips_progress"].snapshot_id, table.current_snapshot().snapshot_id}
        old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in kept]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    goes(lives)
    if is_lost:
        lives.the_backup_is_restored_or_there_is_none(is_lost=True)
    assert lives.pending() == {"eu", "us"}
    assert all(each.is_whole for each in lives.capture(["eu", "us"]))
    lives.all_that_waits_is_run()


def test_the_only_partition_is_deleted(lives: PartitionsToCome) -> None:
    goes(lives)
    lives.all_that_waits_is_run()
    goes(lives, "a")
    assert lives.pending() == {"eu", "us"}
    lives.all_that_waits_is_run()
    assert lives.held == {"eu": Counter(), "us": Counter()}
    is_back(lives, "a")
    lives.all_that_waits_is_run()


def test_nothing_that_is_added_recomputes_anything(lives: PartitionsToCome) -> None:
    lives.all_that_waits_is_run()
    is_back(lives, "c")
    assert lives.pending() == frozenset()
    lives.rows_come([(DAYS[0], "c")])
    assert not any(each.is_whole for each in lives.capture(["eu", "us"]))


class Keeping(PartitionsToCome):
    """With a policy by which rows that were removed upstream stay."""

    @property
    def tracked(self) -> TrackedInput:
        return replace(super().tracked, policies=InputPolicies(on_removed=OnRemoved.IGNORE))


@pytest.mark.parametrize("is_lost", [True, False], ids=["cursor lost", "cursor kept"])
def test_nothing_is_recomputed_if_removed_rows_are_to_stay(*, is_lost: bool) -> None:
    lives = Keeping()
    lives.begin(made="all titles", spec=UNPARTITIONED_PARTITION_SPEC)
    is_back(lives)
    lives.rows_come([(DAYS[0], "a"), (DAYS[0], "b")])
    lives.all_that_waits_is_run()
    goes(lives)
    if is_lost:
        lives.the_backup_is_restored_or_there_is_none(is_lost=True)
    assert lives.pending() == frozenset()
    assert not any(each.is_whole for each in lives.capture(["eu", "us"]))
    lives.teardown()


def test_nothing_is_recomputed_without_a_person_because_rows_came_before_their_partition() -> None:
    lives = Keeping()
    lives.begin(made="all titles", spec=UNPARTITIONED_PARTITION_SPEC)
    lives.rows_come([(DAYS[0], "a"), (DAYS[0], "b")])
    lives.all_that_waits_is_run()
    is_back(lives)
    assert lives.pending() == {"eu", "us"}
    with pytest.raises(DeclarationError, match="had rows of b before Dagster had such a partition"):
        lives.capture(["eu"])
    lives.teardown()


class Mapped(PartitionsToCome):
    """Plays by day and title or by title, and a consumer whose partitions are mapped to these by ``mapping``."""

    mapping: dg.PartitionMapping
    upstream_definition: dg.PartitionsDefinition[str]
    consumer_definition: dg.PartitionsDefinition[str]

    @property
    def consumer(self) -> dg.PartitionsDefinition[str]:
        return self.consumer_definition

    @property
    def slicing(self) -> MappedKeys:
        upstream = self.upstream_definition
        is_multi = isinstance(upstream, dg.MultiPartitionsDefinition)
        columns = {"day": "day", "title": "title"} if is_multi else "title"
        keys = partition_keys(upstream, columns, self.instance, asset="plays")
        return MappedKeys(keys, self.mapping, upstream, self.consumer, self.instance, "of the test")

    @property
    def tracked(self) -> TrackedInput:
        return TrackedInput("plays", "media.plays", slicing=self.slicing)

    def taken(self, key: str, at: Watermark | None) -> Counter[Row]:
        slicing = self.slicing
        keys = slicing.taken_by(key) & slicing.upstream_keys.known()
        is_multi = isinstance(self.upstream_definition, dg.MultiPartitionsDefinition)
        rows = self.rows_at[at.snapshot_id] if at else Counter[Row]()
        return Counter({row: n for row, n in rows.items() if (f"{row[0]}|{row[1]}" if is_multi else row[1]) in keys})


def mapped(
    mapping: dg.PartitionMapping, upstream: dg.PartitionsDefinition[str], consumer: dg.PartitionsDefinition[str]
) -> Mapped:
    found = Mapped()
    found.mapping, found.upstream_definition, found.consumer_definition = mapping, upstream, consumer
    found.begin(made="all titles", spec=UNPARTITIONED_PARTITION_SPEC)
    found.instance.add_dynamic_partitions("titles", ["b"])
    found.rows_come([(DAYS[0], "a"), (DAYS[0], "b"), (DAYS[1], "a")])
    found.all_that_waits_is_run()
    return found


def test_days_of_all_titles_are_recomputed() -> None:
    lives = mapped(dg.MultiToSingleDimensionPartitionMapping(), BY_DAY_AND_TITLE, days_up_to(0))
    goes(lives)
    assert {str(DAYS[0]), str(DAYS[1])} <= lives.pending()
    lives.all_that_waits_is_run()
    lives.teardown()


@pytest.mark.parametrize("definition", [TITLES, BY_DAY_AND_TITLE], ids=["title", "title and day"])
@pytest.mark.parametrize("is_known_to_dagster", [True, False])
def test_partitions_that_take_only_their_own_keys_are_not_recomputed(
    definition: dg.PartitionsDefinition[str], *, is_known_to_dagster: bool
) -> None:
    lives = mapped(dg.IdentityPartitionMapping(), definition, definition)
    goes(lives)
    with knowing_partitions(lives.instance) if is_known_to_dagster else nullcontext():
        assert lives.pending() == frozenset()
    own = [key for key in lives.keys_of(definition) if lives.held.get(key)]
    assert not any(each.is_whole for each in lives.capture(own))
    is_back(lives)
    lives.all_that_waits_is_run()
    lives.teardown()


@pytest.mark.parametrize(
    ("mapping", "consumer"),
    [
        (dg.MultiToSingleDimensionPartitionMapping(), TITLES),
        (
            dg.MultiPartitionMapping({"title": dg.DimensionPartitionMapping("title", dg.IdentityPartitionMapping())}),
            BY_REGION_AND_TITLE,
        ),
    ],
    ids=["title of days", "title by dimension"],
)
def test_partitions_that_may_share_keys_are_all_recomputed(
    mapping: dg.PartitionMapping, consumer: dg.PartitionsDefinition[str]
) -> None:
    """Which of them took the rows is no longer known."""
    lives = mapped(mapping, BY_DAY_AND_TITLE, consumer)
    goes(lives)
    assert lives.pending() == set(lives.keys_of(consumer))
    lives.all_that_waits_is_run()
    is_back(lives)
    lives.all_that_waits_is_run()
    lives.teardown()


def test_a_run_after_it_is_deleted_hides_no_row_that_another_partition_has_read_and_that_is_gone() -> None:
    """The run looks at the upstream before the sensor does."""
    lives = mapped(dg.IdentityPartitionMapping(), TITLES, TITLES)
    is_back(lives, "c")
    lives.rows_come([(DAYS[0], "c")])
    lives.all_that_waits_is_run()
    lives.rows_come([(DAYS[2], "a")])
    lives.run_of(["a"])
    lives.delete(DAYS[2], "a")
    goes(lives, "c")
    lives.run_of(["b"])
    assert lives.pending() == {"a"}
    lives.all_that_waits_is_run()
    lives.teardown()


class _Groups(dg.PartitionMapping):
    """A mapping of one's own: which titles a region has is kept elsewhere, and forgotten with the title."""

    def __init__(self, titles: dict[str, set[str]]) -> None:
        self.titles = titles

    def get_upstream_mapped_partitions_result_for_partitions(
        self,
        downstream_partitions_subset: Any,  # noqa: ANN401  # it isn't public
        downstream_partitions_def: Any,  # noqa: ANN401, ARG002  # as above
        upstream_partitions_def: Any,  # noqa: ANN401  # as above
        **_: object,
    ) -> UpstreamPartitionsResult:
        keys = downstream_partitions_subset.get_partition_keys()
        taken = set[str]().union(*(self.titles[key] for key in keys))
        return UpstreamPartitionsResult(
            partitions_subset=upstream_partitions_def.subset_with_partition_keys(sorted(taken)),
            required_but_nonexistent_subset=upstream_partitions_def.empty_subset(),
        )

    def get_downstream_partitions_for_partitions(
        self,
        upstream_partitions_subset: Any,  # noqa: ANN401  # as above
        upstream_partitions_def: Any,  # noqa: ANN401, ARG002  # as above
        downstream_partitions_def: Any,  # noqa: ANN401  # as above
        **_: object,
    ) -> Any:  # noqa: ANN401  # as above
        keys = set(upstream_partitions_subset.get_partition_keys())
        made = [region for region, titles in self.titles.items() if titles & keys]
        return downstream_partitions_def.subset_with_partition_keys(made)

    def validate_partition_mapping(self, *_: object) -> None:
        pass

    @property
    def description(self) -> str:
        return "regions"


def test_with_a_mapping_of_ones_own_that_forgets_what_was_deleted() -> None:
    titles = {"eu": {"a", "b"}, "us": {"a"}}
    lives = mapped(_Groups(titles), TITLES, REGIONS)
    goes(lives)
    titles["eu"].remove("b")
    assert "eu" in lives.pending()
    lives.all_that_waits_is_run()
    lives.teardown()


class StaticTitles(PartitionsToCome):
    """The titles are named in the code."""

    titles = ("a", "b")
    on_unmapped = OnUnmapped.IGNORE

    @property
    def upstream(self) -> dg.PartitionsDefinition[str]:
        return dg.StaticPartitionsDefinition(self.titles)

    @property
    def tracked(self) -> TrackedInput:
        return replace(super().tracked, policies=InputPolicies(on_unmapped=self.on_unmapped))


@pytest.mark.parametrize("on_unmapped", list(OnUnmapped))
@pytest.mark.parametrize("rows_come", [False, True])
@pytest.mark.parametrize("rows_go", [True, False])
def test_the_rows_of_a_static_partition_that_is_no_longer_defined_are_removed_as_well(
    on_unmapped: OnUnmapped, *, rows_come: bool, rows_go: bool
) -> None:
    lives = StaticTitles()
    lives.begin(made="all titles", spec=UNPARTITIONED_PARTITION_SPEC)
    try:
        lives.on_unmapped = on_unmapped
        lives.rows_come([(DAYS[0], "a"), (DAYS[0], "b")])
        lives.all_that_waits_is_run()
        if rows_go:
            lives.delete(DAYS[0], "b")
        lives.titles = ("a",)
        if rows_come:
            lives.rows_come([(DAYS[0], "a")])
        assert lives.pending() == {"eu", "us"}
        if not rows_go and on_unmapped is OnUnmapped.ERROR:
            with pytest.raises(UnmappedRowsError):
                lives.all_that_waits_is_run()
            return
        lives.all_that_waits_is_run()
        lives.titles = ("a", "b")
        lives.all_that_waits_is_run()
    finally:
        lives.teardown()
