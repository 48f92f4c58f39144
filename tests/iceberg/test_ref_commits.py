"""Several refs move in one commit, whatever the catalog and the format, and nothing else of a table changes."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws
from pyiceberg.exceptions import CommitFailedException

from dagster_ips.errors import PublishError, RefMovedError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.ref_commits import RefCommit, branching, commit_refs, dropping, publication
from dagster_ips.local_spark.connect_server import ConnectServer
from tests.iceberg.sources import SCHEMA, TABLE, duckdb_with_iceberg
from tests.support.lake import Lake
from tests.support.lake_catalog import choose_catalog
from tests.support.rest_catalog import RestCatalog

REFS = ("refs", "current-snapshot-id", "snapshot-log", "metadata-log", "last-updated-ms")
"""What a commit of refs may change in a table's metadata."""

DAY_MS = 86_400_000


@dataclass
class Target:
    """A table that a run has written a branch of."""

    lake: LakeCatalog
    name: str = TABLE

    @property
    def now(self) -> TableMetadata:
        return self.lake.load(self.name, asset="test")

    @property
    def refs(self) -> dict[str, int]:
        return {name: ref["snapshot-id"] for name, ref in self.now.raw["refs"].items()}

    def publish(self, branch: str = "run", pin: str = "pin_2", **changed: Any) -> None:  # noqa: ANN401  # of publication
        refs = self.refs
        asked = {"head": refs.get(branch), "expected": refs.get("main"), "pin": pin, "drops": ["pin_1"]}
        self.commit(publication(branch, **{**asked, **changed}))

    def commit(self, change: RefCommit) -> None:
        commit_refs(self.lake, self.name, change, asset="test")

    def others(self) -> Any:  # noqa: ANN401  # PyIceberg's
        """The table as another process sees it."""
        return self.lake.client.load_table(self.name)

    def branch(self, name: str = "run") -> None:
        """A branch with one more row."""
        table = self.others()
        table.manage_snapshots().create_branch(table.refs()["main"].snapshot_id, name).commit()
        table.append(table.scan().to_arrow().slice(0, 1), branch=name)


@pytest.fixture(scope="module")
def glue_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeCatalog]:
    """A catalog in AWS's Glue, as moto shows it, with tables in local files."""
    folder = tmp_path_factory.mktemp("glue")
    properties = {"type": "glue", "glue.region": "eu-west-1", "warehouse": f"file://{folder}"}
    login = {"glue.access-key-id": "nobody", "glue.secret-access-key": "nobody"}
    with mock_aws():
        lake = LakeCatalog("lake", {**properties, **login})
        client: Any = lake.client
        update, lock = client.glue.update_table, threading.Lock()

        def update_if_same(**said: Any) -> Any:  # noqa: ANN401  # boto's
            # As AWS does it: https://docs.aws.amazon.com/glue/latest/webapi/API_UpdateTable.html. Moto doesn't compare.
            with lock:
                found = client.glue.get_table(DatabaseName=said["DatabaseName"], Name=said["TableInput"]["Name"])
                if found["Table"]["VersionId"] != said["VersionId"]:
                    answer = {"Error": {"Code": "ConcurrentModificationException"}}
                    raise client.glue.exceptions.ConcurrentModificationException(answer, "UpdateTable")
                return update(**said)

        client.glue.update_table = update_if_same
        yield lake


@pytest.fixture
def glue(glue_catalog: LakeCatalog) -> LakeCatalog:
    """The same without tables."""
    glue_catalog.create_namespace("media")
    for table in glue_catalog.client.list_tables("media"):
        glue_catalog.client.drop_table(table)
    return glue_catalog


@pytest.fixture(params=["sql", "glue"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """A table of format 2 with a row, an older pin, and a branch."""
    is_glue = request.param == "glue"
    found = Target(request.getfixturevalue("glue") if is_glue else LakeCatalog.embedded("lake", tmp_path))
    _create(found)
    return found


def _create(target: Target, **properties: str) -> None:
    target.lake.create_namespace("media")
    table = target.lake.client.create_table(TABLE, SCHEMA, properties=properties)
    table.append(SCHEMA.as_arrow().empty_table().from_pylist([{"number": 1}], schema=SCHEMA.as_arrow()))
    table.manage_snapshots().create_tag(table.refs()["main"].snapshot_id, "pin_1").commit()
    target.branch()


def meanwhile(monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], object]) -> list[str]:
    """Have each of ``changes`` happen after a commit has read the table, and before it is made. Returns the tries."""
    commit, left, tries = LakeCatalog.commit, list(changes), []

    def late(self: LakeCatalog, table: TableMetadata, *rest: Any) -> None:  # noqa: ANN401  # its own
        tries.append(table.metadata_location)
        if left:
            left.pop(0)()
        commit(self, table, *rest)

    monkeypatch.setattr(LakeCatalog, "commit", late)
    return tries


def unchanged(metadata: TableMetadata) -> dict[str, Any]:
    return {key: value for key, value in metadata.raw.items() if key not in REFS}


def test_main_the_pin_and_the_dropped_refs_move_in_one_commit(target: Target) -> None:
    before = target.now
    target.publish()
    head = before.head_snapshot_id("run")
    assert target.refs == {"main": head, "pin_2": head}
    assert target.now.tags == ("pin_2",)
    assert unchanged(target.now) == unchanged(before)
    assert [each["metadata-file"] for each in target.now.raw["metadata-log"]][-1] == before.metadata_location
    assert target.others().scan().to_arrow().num_rows == 2


def test_a_pin_is_kept_for_ever_whatever_age_the_table_gives_to_refs(target: Target) -> None:
    target.publish()
    pin = {"snapshot-id": target.refs["main"], "type": "tag", "max-ref-age-ms": 2**63 - 1}
    assert target.now.raw["refs"]["pin_2"] == pin


def test_main_keeps_its_own_retention(tmp_path: Path) -> None:
    target = Target(LakeCatalog.embedded("lake", tmp_path))
    _create(target)
    main = {"max-snapshot-age-ms": 5, "min-snapshots-to-keep": 3}
    edit(target, refs={**target.now.raw["refs"], "main": {**target.now.raw["refs"]["main"], **main}})
    target.publish()
    assert target.now.raw["refs"]["main"] == {"snapshot-id": target.refs["pin_2"], "type": "branch", **main}


def edit(target: Target, **fields: Any) -> None:  # noqa: ANN401  # JSON
    """Change the table's metadata as only its owner may."""
    now = target.now
    path = now.metadata_location.replace(".metadata.json", "-edited.metadata.json")
    edited = {**now.raw, **{key.replace("_", "-"): value for key, value in fields.items()}}
    target.lake.storage.write(path, json.dumps(edited).encode(), table=target.name)
    target.lake.commit(now, [], [], lambda: path)


def test_a_main_that_moved_is_left_where_it_is(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = target.refs["main"]
    rows = target.others().scan().to_arrow()
    meanwhile(monkeypatch, lambda: target.others().append(rows))
    with pytest.raises(RefMovedError, match=r"media\.playback: main is at snapshot \d+, but must be at snapshot"):
        target.publish()
    assert set(target.refs) == {"main", "run", "pin_1"}
    assert target.refs["main"] not in (expected, target.refs["run"])


@pytest.mark.parametrize("left", ["nothing", "a newer head"])
def test_a_branch_that_is_not_what_was_checked_is_not_published(
    target: Target, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    def change() -> None:
        if left == "nothing":
            target.others().manage_snapshots().remove_branch("run").commit()
        else:
            target.others().append(target.others().scan().to_arrow(), branch="run")

    before = target.refs
    meanwhile(monkeypatch, change)
    with pytest.raises(RefMovedError, match="run is"):
        target.publish()
    assert (target.refs["main"], "pin_2" in target.refs) == (before["main"], False)


def test_what_others_commit_meanwhile_is_kept(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_column() -> None:
        with target.others().update_schema() as schema:
            schema.add_column("theirs", SCHEMA.find_type("number"))

    tries = meanwhile(
        monkeypatch,
        lambda: target.others().transaction().set_properties(theirs="yes").commit_transaction(),
        lambda: target.branch("of_another_run"),
        add_column,
    )
    target.publish()
    assert len(tries) == 4
    assert target.now.properties["theirs"] == "yes"
    assert "theirs" in target.now.column_names
    assert target.others().scan(snapshot_id=target.refs["of_another_run"]).to_arrow().num_rows == 2
    assert target.refs.keys() == {"main", "pin_2", "of_another_run"}
    logged = [each["metadata-file"] for each in target.now.raw["metadata-log"]]
    assert len(logged) == len(set(logged))
    assert logged[-1] == tries[-1]


def test_many_at_once_lose_nothing_of_each_other(target: Target) -> None:
    main = target.refs["main"]

    def work(number: int) -> None:
        target.commit(branching(f"run_{number}", at=main, age_ms=DAY_MS))
        target.commit(branching(f"gone_{number}", at=main, age_ms=DAY_MS))
        target.commit(dropping([f"gone_{number}"]))

    def publish(number: int) -> bool:
        try:
            target.commit(publication(f"run_{number}", head=main, expected=main, pin=f"pin_of_{number}"))
        except PublishError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
        assert target.refs.keys() == {"main", "run", "pin_1", *(f"run_{number}" for number in range(8))}
        assert all(pool.map(publish, range(8)))
    assert target.refs.keys() == {"main", "run", "pin_1", *(f"pin_of_{number}" for number in range(8))}
    assert len(target.now.raw["snapshot-log"]) == 1, "main hasn't moved"


def test_only_one_of_many_publishes_onto_the_same_main(target: Target) -> None:
    for number in range(6):
        target.branch(f"run_{number}")
    before = target.refs

    def publish(number: int) -> bool:
        branch = f"run_{number}"
        try:
            target.commit(publication(branch, head=before[branch], expected=before["main"], pin=f"pin_of_{number}"))
        except RefMovedError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        published = list(pool.map(publish, range(6)))
    (won,) = (number for number, done in enumerate(published) if done)
    lost = {name: at for name, at in before.items() if name not in {"main", f"run_{won}"}}
    assert target.refs == {**lost, "main": before[f"run_{won}"], f"pin_of_{won}": before[f"run_{won}"]}


def test_a_commit_whose_answer_was_lost_is_found_in_the_table(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = LakeCatalog.commit

    def answer_lost(self: LakeCatalog, *said: Any) -> None:  # noqa: ANN401  # its own
        commit(self, *said)
        raise CommitFailedException

    monkeypatch.setattr(LakeCatalog, "commit", answer_lost)
    head = target.refs["run"]
    target.publish()
    assert target.refs == {"main": head, "pin_2": head}


def test_a_kill_before_the_swap_leaves_only_a_file_that_nothing_uses(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, before = LakeCatalog.commit, target.now
    written: list[str] = []

    def killed(self: LakeCatalog, table: Any, requirements: Any, updates: Any, write: Callable[[], str]) -> None:  # noqa: ANN401  # its own
        def write_and_end() -> str:
            written.append(write())
            raise KeyboardInterrupt

        commit(self, table, requirements, updates, write_and_end)

    monkeypatch.setattr(LakeCatalog, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        target.publish()
    monkeypatch.undo()
    assert target.now == before
    target.publish()
    assert written[0] not in json.dumps(target.now.raw)


def test_a_branch_that_does_not_continue_main_is_not_published(target: Target) -> None:
    target.others().append(target.others().scan().to_arrow())
    with pytest.raises(PublishError, match="isn't an ancestor"):
        target.publish()


def test_a_table_of_format_1_is_refused(tmp_path: Path) -> None:
    target = Target(LakeCatalog.embedded("lake", tmp_path))
    _create(target, **{"format-version": "1"})
    before = target.now
    with pytest.raises(PublishError, match="format version 1"):
        target.publish()
    assert target.now == before


def test_a_branch_of_a_staged_backfill_moves_instead_of_main(target: Target) -> None:
    main = target.refs["main"]
    target.commit(branching("staged", at=main, age_ms=DAY_MS))
    staged = Target(target.lake.on_branch("staged"))
    head = target.refs["run"]
    staged.commit(publication("run", head=head, expected=main, pin="pin_2", onto="staged"))
    assert target.refs == {"main": main, "pin_1": main, "staged": head, "pin_2": head}
    assert target.now.raw["current-snapshot-id"] == main


def test_dropping_refs_that_are_gone_already_commits_nothing(target: Target) -> None:
    target.commit(dropping(["run", "pin_1"]))
    before = target.now
    target.commit(dropping(["run", "pin_1", "never"]))
    assert target.now == before


@pytest.mark.parametrize("ref", ["main", "pin_2"])
def test_what_a_commit_sets_it_does_not_drop(ref: str) -> None:
    with pytest.raises(ValueError, match=ref):
        publication("run", head=2, expected=1, pin="pin_2", drops=[ref])


def test_the_metadata_is_packed_and_placed_as_the_table_says(tmp_path: Path) -> None:
    target = Target(LakeCatalog.embedded("lake", tmp_path))
    elsewhere = f"file://{tmp_path}/elsewhere"
    _create(target, **{"write.metadata.path": elsewhere, "write.metadata.compression-codec": "gzip"})
    target.publish()
    path = target.now.metadata_location
    assert path.startswith(f"{elsewhere}/00005-")
    assert path.endswith(".gz.metadata.json")
    assert gzip.decompress(Path(path.removeprefix("file://")).read_bytes()).startswith(b"{")
    assert target.others().scan().to_arrow().num_rows == 2


def test_the_clock_of_a_table_does_not_go_back(tmp_path: Path) -> None:
    target = Target(LakeCatalog.embedded("lake", tmp_path))
    _create(target)
    ahead = target.now.raw["last-updated-ms"] + 3_600_000
    edit(target, last_updated_ms=ahead)
    target.publish()
    assert target.now.raw["last-updated-ms"] == ahead
    assert target.now.raw["snapshot-log"][-1] == {"snapshot-id": target.refs["main"], "timestamp-ms": ahead}


DAILY = "media.daily"


def spark_target(lake: Lake, version: int) -> Target:
    """A table written by Spark with deletes on ``main`` and on the branch, and a field of a later Iceberg."""
    lake.catalog.create_namespace("media")
    lake.sql(
        f"CREATE TABLE lake.{DAILY} (id BIGINT, day STRING) USING iceberg PARTITIONED BY (day) TBLPROPERTIES "
        f"('format-version'='{version}', 'write.delete.mode'='merge-on-read', "
        "'write.metadata.previous-versions-max'='3')"
    )
    lake.sql(f"INSERT INTO lake.{DAILY} SELECT id, 'a' FROM range(0, 4, 1, 1)")
    lake.sql(f"DELETE FROM lake.{DAILY} WHERE id = 0")
    lake.sql(f"ALTER TABLE lake.{DAILY} CREATE TAG pin_1")
    lake.sql(f"ALTER TABLE lake.{DAILY} CREATE BRANCH run")
    lake.sql(f"INSERT INTO lake.{DAILY}.branch_run SELECT id, 'b' FROM range(4, 8, 1, 1)")
    lake.sql(f"DELETE FROM lake.{DAILY}.branch_run WHERE id IN (1, 5)")
    return Target(lake.catalog, DAILY)


LEFT = [2, 3, 4, 6, 7]
"""The ids on the branch."""


def by_spark(lake: Lake, version: int, place: str = DAILY) -> list[tuple[Any, ...]]:
    """The rows of a table or ref; those of format 3 with what Iceberg keeps of each row."""
    of_row = ", _row_id, _last_updated_sequence_number" if version == 3 else ""
    return sorted(tuple(row) for row in lake.sql(f"SELECT id{of_row} FROM lake.{place}").collect())


def check_publication(lake: Lake, target: Target, version: int) -> None:
    before, rows = target.now, by_spark(lake, version, f"{DAILY} VERSION AS OF 'run'")
    assert [row[0] for row in rows] == LEFT

    target.publish()

    assert unchanged(target.now) == unchanged(before)
    assert by_spark(lake, version) == rows
    assert target.others().scan().to_arrow()["id"].sort().to_pylist() == LEFT
    found = duckdb_with_iceberg().execute(f"SELECT id FROM iceberg_scan('{target.now.metadata_location}') ORDER BY 1")
    assert [row for (row,) in found.fetchall()] == LEFT

    lake.sql(f"INSERT INTO lake.{DAILY} VALUES (100, 'a'), (101, 'b')")
    after = by_spark(lake, version)
    assert [row[0] for row in after] == [*LEFT, 100, 101]
    assert set(rows) < set(after)
    assert version == 2 or len({row[1] for row in after}) == len(after)
    assert target.now.ancestry().find(target.refs["pin_2"]) is not None


@pytest.mark.parametrize("version", [2, 3])
def test_every_engine_reads_and_continues_what_was_published(lake: Lake, version: int) -> None:
    target = spark_target(lake, version)
    edit(target, of_a_later_iceberg={"a": [1, None, 1.5, "\u00e9"]})
    lake.sql(f"CALL lake.system.register_table('media.twin', '{target.now.metadata_location}')")
    head = target.refs["run"]

    check_publication(lake, target, version)
    assert target.now.raw["metadata-log"]  # Spark has kept it, and not the field.

    # The same by Iceberg's own implementation.
    lake.sql("CALL lake.system.fast_forward('media.twin', 'main', 'run')")
    for change in (f"CREATE TAG pin_2 AS OF VERSION {head}", "DROP BRANCH run", "DROP TAG pin_1"):
        lake.sql(f"ALTER TABLE lake.media.twin {change}")
    published = TableMetadata.parse("", "", lake.catalog.storage.read(_published(target), table=DAILY))
    assert _comparable(published) == _comparable(lake.catalog.load("media.twin", asset="test"))


def _published(target: Target) -> str:
    """The metadata of the publication, which Spark's insert has followed."""
    return str(target.now.raw["metadata-log"][-1]["metadata-file"])


def _comparable(metadata: TableMetadata) -> dict[str, Any]:
    """The metadata without times and paths, and without the field that only a later Iceberg would keep."""
    logs = {
        "snapshot-log": [each["snapshot-id"] for each in metadata.raw["snapshot-log"]],
        "metadata-log": len(metadata.raw["metadata-log"]),
    }
    left_out = ("of-a-later-iceberg", "last-updated-ms")
    refs = {
        name: {key: value for key, value in ref.items() if key != "max-ref-age-ms"}
        for name, ref in metadata.raw["refs"].items()
    }
    return {key: value for key, value in metadata.raw.items() if key not in left_out} | logs | {"refs": refs}


def test_a_commit_of_spark_is_kept_or_stops_the_publication(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    target = spark_target(lake, 3)
    lake.sql(f"ALTER TABLE lake.{DAILY} ADD COLUMN note VARIANT")  # PyIceberg can't read the table any more.
    lake.sql(f"ALTER TABLE lake.{DAILY} CREATE BRANCH other")
    meanwhile(
        monkeypatch,
        lambda: lake.sql(f"INSERT INTO lake.{DAILY}.branch_other VALUES (50, 'a', parse_json('1'))"),
        lambda: lake.sql(f"ALTER TABLE lake.{DAILY} SET TBLPROPERTIES ('theirs' = 'yes')"),
    )
    target.publish()
    assert target.now.properties["theirs"] == "yes"
    assert [row[0] for row in by_spark(lake, 3, f"{DAILY} VERSION AS OF 'other'")] == [1, 2, 3, 50]
    assert [row[0] for row in by_spark(lake, 3)] == LEFT

    target.commit(branching("run", at=target.refs["main"], age_ms=DAY_MS))
    lake.sql(f"INSERT INTO lake.{DAILY}.branch_run VALUES (60, 'a', NULL)")
    meanwhile(monkeypatch, lambda: lake.sql(f"INSERT INTO lake.{DAILY} VALUES (70, 'a', NULL)"))
    with pytest.raises(RefMovedError, match="main is"):
        target.publish(pin="pin_3")
    rows = by_spark(lake, 3)
    assert [row[0] for row in rows] == [*LEFT, 70]
    assert len({row[1] for row in rows}) == len(rows)


def test_glue_publishes_a_table_of_format_3(lake: Lake, glue: LakeCatalog) -> None:
    target = spark_target(lake, 3)
    rows = by_spark(lake, 3, f"{DAILY} VERSION AS OF 'run'")
    in_glue = Target(glue, DAILY)
    in_glue.lake.register(DAILY, target.now.metadata_location)
    in_glue.publish()
    lake.catalog.register("media.of_glue", in_glue.now.metadata_location)
    assert by_spark(lake, 3, "media.of_glue") == rows


@pytest.mark.parametrize("version", [2, 3])
def test_the_first_snapshot_of_a_table_is_published(lake: Lake, version: int) -> None:
    lake.catalog.create_namespace("media")
    properties = (
        f"TBLPROPERTIES ('format-version'='{version}', 'write.metadata.previous-versions-max'='2', "
        "'write.metadata.delete-after-commit.enabled'='true')"
    )
    lake.sql(f"CREATE TABLE lake.{DAILY} (id BIGINT, day STRING) USING iceberg {properties}")
    lake.sql(f"ALTER TABLE lake.{DAILY} CREATE BRANCH run")
    lake.sql(f"INSERT INTO lake.{DAILY}.branch_run VALUES (1, 'a')")
    target = Target(lake.catalog, DAILY)
    assert "main" not in target.refs
    target.publish()
    lake.sql(f"INSERT INTO lake.{DAILY} VALUES (2, 'a')")
    assert [row[0] for row in by_spark(lake, version)] == [1, 2]
    folder = Path(target.now.location.removeprefix("file:").replace("//", "/"), "metadata")
    known = [each["metadata-file"] for each in target.now.raw["metadata-log"]] + [target.now.metadata_location]
    assert sorted(path.name for path in folder.glob("*.json")) == sorted(Path(path).name for path in known)
    assert len(known) == 3


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_a_rest_catalog_does_the_same(  # noqa: PLR0913, PLR0917  # fixtures
    rest_catalog: RestCatalog,
    tmp_path: Path,
    spark_server: ConnectServer,
    spark_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
) -> None:
    rest_catalog.clear()
    choose_catalog(tmp_path / "rest", rest_catalog.properties)
    lake = Lake(tmp_path / "rest", spark_folder, spark_server)
    target = spark_target(lake, version)
    check_publication(lake, target, version)

    lake.sql(f"ALTER TABLE lake.{DAILY} CREATE BRANCH run")
    lake.sql(f"INSERT INTO lake.{DAILY}.branch_run VALUES (50, 'a')")
    meanwhile(monkeypatch, lambda: lake.sql(f"ALTER TABLE lake.{DAILY} SET TBLPROPERTIES ('theirs' = 'yes')"))
    target.publish(pin="pin_b", drops=["pin_2"])
    assert target.now.properties["theirs"] == "yes"
    assert target.refs.keys() == {"main", "pin_b"}

    target.commit(branching("run", at=target.refs["main"], age_ms=DAY_MS))
    lake.sql(f"INSERT INTO lake.{DAILY}.branch_run VALUES (60, 'a')")
    meanwhile(monkeypatch, lambda: lake.sql(f"INSERT INTO lake.{DAILY} VALUES (70, 'a')"))
    with pytest.raises(RefMovedError, match="main is"):
        target.publish(pin="pin_3")
    assert [row[0] for row in by_spark(lake, version)] == [*LEFT, 50, 70, 100, 101]
    target.commit(dropping(["run", "pin_b", "gone"]))
    assert target.refs.keys() == {"main"}
