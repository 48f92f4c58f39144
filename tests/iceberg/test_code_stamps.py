"""The newest snapshot records which code made a table's rows, and what is unknown is never claimed."""

from __future__ import annotations

import json
from typing import Any

from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.code_of_rows import Making
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg.code_stamps import makings, older_rows_of, properties
from dagster_ips.iceberg.metadata import TableMetadata

EDGE = Edge("daily", "playback")
SOMEWHERE = Watermark("uuid", "main", 1, 1, 1)


class History:
    """A table's snapshots, each written by the asset with a version of its code and of the table's columns."""

    def __init__(self) -> None:
        self.snapshots: list[dict[str, Any]] = []
        self.schemas = [{"schema-id": 0, "fields": [{"id": 1, "name": "day", "type": "int", "required": False}]}]

    def column(self, name: str) -> None:
        fields = [*self.schemas[-1]["fields"], {"id": len(self.schemas) + 1, "name": name, "type": "int"}]  # type: ignore[misc]
        self.schemas.append({"schema-id": len(self.schemas), "fields": fields})

    def widen(self) -> None:
        first, *others = self.schemas[-1]["fields"]  # type: ignore[misc]
        self.schemas.append({"schema-id": len(self.schemas), "fields": [{**first, "type": "long"}, *others]})

    def wrote(self, mode: Mode, code: str | None, *partitions: str, replaces_all: bool = False) -> None:
        captures = [
            Capture(EDGE.of(key) if key else EDGE, 1, mode, "", SOMEWHERE, SOMEWHERE, "", "run", None)
            for key in partitions or [""]
        ]
        self.commit(properties(self.metadata(), captures, code, replaces_all=replaces_all))

    def commit(self, summary: dict[str, str]) -> None:
        number = len(self.snapshots) + 1
        parent = {"parent-snapshot-id": number - 1} if number > 1 else {}
        self.snapshots.append(
            {"snapshot-id": number, "timestamp-ms": number, "schema-id": len(self.schemas) - 1, **parent}
            | {"summary": {"operation": "append", **summary}}
        )

    def metadata(self, *, expired: int = 0) -> TableMetadata:
        raw = {
            "format-version": 2,
            "table-uuid": "u",
            "location": "l",
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "schemas": self.schemas,
            "current-schema-id": len(self.schemas) - 1,
            "snapshots": self.snapshots[expired:],
            "current-snapshot-id": len(self.snapshots) or -1,
        }
        return TableMetadata.parse("media.daily", "m", json.dumps(raw).encode())

    def says(self, code: str | None, *partitions: str | None) -> str | None:
        older = older_rows_of(self.metadata(), code, partitions or None)
        return str(older) if older else None


def test_rows_of_an_earlier_code_version_are_reported_until_everything_is_recomputed() -> None:
    history = History()
    history.wrote(Mode.FULL, "1")
    assert history.says("1") is None
    assert history.says("2") == (
        "it has rows from code version 1, and the current version is 2. To recompute everything: dagster-ips run "
        "media.daily --full; or run it in Dagster's UI with the run tag dagster_ips/mode=full."
    )
    history.wrote(Mode.INCREMENTAL, "2")
    assert str(history.says("2")).startswith("it has rows from code version 1, and the current version is 2")
    assert str(history.says("1")).startswith("it has rows from code version 2, and the current version is 1")
    history.wrote(Mode.FULL, "2")
    assert history.says("2") is None


def test_rows_of_other_aggregates_are_reported_in_words() -> None:
    history = History()
    history.wrote(Mode.FULL, "+combine:ac174f41")
    assert history.says("+combine:11111111") == (
        "it has rows computed with other aggregates or keys than the asset has now. The next run computes everything "
        "anew."
    )
    history.wrote(Mode.FULL, "1+query:ac174f41")
    assert "it has rows computed with another query than" in str(history.says("1+query:11111111"))
    assert "it has rows from code version 1+query:ac174f41" in str(history.says("2+query:ac174f41"))


def test_a_write_that_replaces_every_row_leaves_none_of_an_earlier_version() -> None:
    history = History()
    history.wrote(Mode.FULL, "1")
    history.wrote(Mode.INCREMENTAL, "2", replaces_all=True)
    assert history.says("2") is None


def test_code_versions_are_known_even_after_expiry_and_compaction() -> None:
    history = History()
    history.wrote(Mode.FULL, "1")
    history.column("more")
    history.wrote(Mode.INCREMENTAL, "2")
    history.commit({"operation": "replace"})
    older = older_rows_of(history.metadata(expired=1), "2")
    assert older is not None
    assert (older.codes, older.columns.added) == (("1",), ("more",))


def test_an_unknown_code_version_is_not_reported() -> None:
    history = History()
    history.commit({})
    assert history.says("2") is None
    history.wrote(Mode.INCREMENTAL, "2")
    assert history.says("2") is None
    history.wrote(Mode.INCREMENTAL, None)
    assert history.says("2") is None
    assert history.says(None) is None
    assert history.says("3") is not None


def test_columns_that_were_added_or_widened_later_are_reported_whoever_altered_the_table() -> None:
    history = History()
    history.wrote(Mode.FULL, None)
    history.column("more")
    history.widen()
    assert str(history.says(None)).startswith(
        "rows from before more was added have NULL in it; rows from before day was widened hold only values that fit "
        "the old type."
    )
    history.wrote(Mode.INCREMENTAL, None)
    assert history.says(None) is not None
    history.wrote(Mode.FULL, None)
    assert history.says(None) is None


def test_code_versions_are_known_for_each_partition() -> None:
    history = History()
    history.wrote(Mode.FULL, "1", "a", "b", "c")
    history.wrote(Mode.FULL, "2", "b")
    history.wrote(Mode.INCREMENTAL, "2", "a", "b")
    assert history.says("2") == (
        "it has rows from code version 1, and the current version is 2, in 2 partitions (a, c). To recompute them, "
        "launch a backfill of these partitions."
    )
    assert history.says("2", "b") is None
    made = makings(history.metadata())
    assert {key: each.codes for key, each in made.items()} == {"a": ("1", "2"), "b": ("2",), "c": ("1",)}


def test_enough_of_very_many_code_versions_are_kept_to_recognize_a_different_one() -> None:
    made = Making()
    for number in range(100):
        made = made.gone_on_by(str(number))
    assert made.codes == ("0", "1", "2", "3", "99")
