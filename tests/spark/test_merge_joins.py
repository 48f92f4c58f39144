"""A MERGE's source is broadcast if it is small, unless the user has set a threshold."""

from __future__ import annotations

import contextlib

import pytest

from dagster_ips.core.installed_spark import minor_version
from dagster_ips.spark.settings import BROADCAST_THRESHOLD as KEY
from dagster_ips.spark.settings import with_settings
from dagster_ips.spark.writes.merge_joins import joined_by_partition, small_sources_broadcast
from tests.support.lake import Lake


def test_the_sessions_threshold_is_restored_when_the_merge_ends_or_fails(lake: Lake) -> None:
    conf = lake.session.conf
    before = conf.get(KEY)
    with contextlib.suppress(ZeroDivisionError), small_sources_broadcast(lake.session):
        assert conf.get(KEY) == "64m"
        _ = 1 / 0
    assert conf.get(KEY) == before


@pytest.mark.parametrize("chosen", ["-1", "1g"])
def test_a_users_own_threshold_is_kept(lake: Lake, chosen: str) -> None:
    lake.session.conf.set(KEY, chosen)
    try:
        with small_sources_broadcast(lake.session):
            assert lake.session.conf.get(KEY) == chosen
        assert lake.session.conf.get(KEY) == chosen
    finally:
        lake.session.conf.unset(KEY)


def test_a_source_above_sparks_own_threshold_is_broadcast_so_that_the_target_is_not_shuffled(lake: Lake) -> None:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.some USING iceberg AS SELECT id, id AS value FROM range(5)")

    def plan() -> str:
        merging = "MERGE INTO lake.media.some t USING (SELECT id FROM range(2000000)) s ON t.id <=> s.id"
        return str(lake.sql(f"EXPLAIN {merging} WHEN MATCHED THEN UPDATE SET value = 0").collect()[0][0])

    assert "SortMergeJoin" in plan()
    with small_sources_broadcast(lake.session):
        assert "BroadcastHashJoin" in plan()


def test_a_partitioned_target_is_not_shuffled_and_the_session_is_restored(lake: Lake) -> None:
    lake.catalog.create_namespace("media")
    lake.sql(
        "CREATE TABLE lake.media.days USING iceberg PARTITIONED BY (day) "
        "TBLPROPERTIES ('write.merge.mode' = 'merge-on-read') AS "
        "SELECT id % 7 AS day, id, 1 AS value FROM range(100)"
    )
    lake.sql("CREATE TABLE lake.media.change USING iceberg AS SELECT id % 9 AS day, id FROM range(50)")
    lake.session.conf.set(KEY, "-1")

    def shuffles() -> tuple[int, int]:
        """How often rows are shuffled after and before the join."""
        same = "t.day = s.day AND t.id = s.id"
        merging = (
            f"MERGE INTO lake.media.days t USING lake.media.change s ON {same} WHEN MATCHED THEN UPDATE SET value = 0"
        )
        plan = str(lake.sql(f"EXPLAIN {merging} WHEN NOT MATCHED THEN INSERT (day, id) VALUES (s.day, s.id)").collect())
        after, _, before = plan.partition("Join")
        return after.count("Exchange"), before.count("Exchange")

    can_stay = minor_version(lake.session.version) >= (4, 1)
    try:
        assert shuffles() == (1, 2)
        with joined_by_partition(lake.session):
            assert shuffles() == ((1, 1) if can_stay else (1, 2))
        with joined_by_partition(lake.session, is_written_in_place=True):
            assert shuffles() == ((0, 1) if can_stay else (1, 2))
        assert shuffles() == (1, 2)
    finally:
        lake.session.conf.unset(KEY)


def test_a_source_far_smaller_than_the_target_is_hashed_even_if_a_shuffle_has_few_partitions(lake: Lake) -> None:
    """Spark hashes up to the threshold for each of the shuffle's partitions."""
    if minor_version(lake.session.version) < (4, 1):
        return  # There, nothing is joined by partition.
    lake.catalog.create_namespace("media")
    lake.sql(
        "CREATE TABLE lake.media.many USING iceberg PARTITIONED BY (day) "
        "TBLPROPERTIES ('write.merge.mode' = 'merge-on-read') AS SELECT id % 7 AS day, id, 1 AS value FROM range(50000)"
    )
    settings = {KEY: "10k", "spark.sql.shuffle.partitions": "4"}
    merging = "MERGE INTO lake.media.many t USING (SELECT id % 9 AS day, id FROM range(3000)) s "
    merging += "ON t.day = s.day AND t.id = s.id WHEN MATCHED THEN UPDATE SET value = 0 "
    merging += "WHEN NOT MATCHED THEN INSERT (day, id) VALUES (s.day, s.id)"

    def plan() -> str:
        return str(lake.sql(f"EXPLAIN {merging}").collect()[0][0])

    with with_settings(lake.session, settings):
        assert "SortMergeJoin" in plan()
        with joined_by_partition(lake.session):
            assert "ShuffledHashJoin" in plan()
        assert lake.session.conf.get("spark.sql.shuffle.partitions") == "4"
    more = settings | {"spark.sql.shuffle.partitions": "40"}
    with with_settings(lake.session, more), joined_by_partition(lake.session):
        assert lake.session.conf.get("spark.sql.shuffle.partitions") == "40"
