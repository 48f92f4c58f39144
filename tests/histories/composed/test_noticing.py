"""The checks of random lives notice the wrong results of a broken library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame

from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture import capturer
from dagster_ips.exactly_once.publish import publisher, result_writer
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress import cursor as cursor_module
from dagster_ips.progress.advance import Advance, Standing
from dagster_ips.progress.cursor import Cursor
from dagster_ips.progress.progress import ChangedKeys, InputProgress
from dagster_ips.progress.table_progress import TableProgress
from dagster_ips.spark.branches import Branch
from dagster_ips.view import IcdcView
from tests.histories.checks import WrongCaptureError
from tests.histories.composed.life import Life, Step
from tests.histories.composed.runs import Assets
from tests.support.variants import mostly_slow

Break = Callable[[pytest.MonkeyPatch], None]


def _nothing(*_: Any, **__: Any) -> None:  # noqa: ANN401  # any arguments of the guard
    """A guard that checks nothing."""


def unfollowed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(result_writer, "require_followed", _nothing)


def untouched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IcdcView, "is_empty", True)


def believing_the_cursor(patch: pytest.MonkeyPatch) -> None:
    def believed(found: TableProgress | None, cursor: Cursor, _: TableMetadata | None) -> TableProgress | None:
        copy = cursor.copy
        return TableProgress(copy.progress, copy.mark) if copy and copy.mark else found

    patch.setattr(cursor_module, "known_progress", believed)


def published_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Advance, "standing", lambda *_: Standing.MAY_PUBLISH)


def not_asked_who_wrote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publisher, "require_known_writes", _nothing)
    patch.setattr(capturer, "accepted_writes", lambda *_: capturer.Accepted())


def not_asked_what_columns_stand_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publisher, "require_same_columns", _nothing)


def not_asked_what_sources_columns_stand_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableMetadata, "columns_of_other_meaning", lambda *_: ())


def taking_others_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(result_writer.Result, "_require_no_live_rows", _nothing)


def forgetting_a_partition(patch: pytest.MonkeyPatch) -> None:
    pending = InputProgress.pending

    def forgetful(self: InputProgress, slicing: Slicing, changed: ChangedKeys) -> dict[str, Watermark | None]:
        found = pending(self, slicing, changed)
        return dict(sorted(found.items())[1:]) if self.at else found

    patch.setattr(InputProgress, "pending", forgetful)


def leaving_rows_of_keys(patch: pytest.MonkeyPatch) -> None:
    def appended(frame: DataFrame, branch: Branch, *_: Any, **__: Any) -> None:  # noqa: ANN401  # like ``_nothing``
        frame.writeTo(branch.sql_name).append()

    patch.setattr(result_writer, "replace_keys", appended)


def rows(table: str, *numbers: int) -> Step:
    return Step.of("change", table=table, operation="append_by_spark", rows=numbers)


def swapped(table: str) -> Step:
    return Step.of("change", table=table, operation="swap_names", one="title", other="_change_type")


def run(asset: str, *keys: str) -> Step:
    return Step.of("run", asset=asset, keys=keys)


NOTICED: Sequence[tuple[Break, str, tuple[Step, ...], tuple[Step, ...]]] = [
    (unfollowed, "joined", (rows("fact", 0), rows("dimension", 4)), (rows("dimension", 8), run("joined"))),
    (untouched, "per_genre", (rows("fact", 0, 1), rows("dimension", 4)), (rows("dimension", 5), run("per_genre"))),
    (
        believing_the_cursor,
        "united",
        (rows("fact", 0), rows("other", 4)),
        (rows("other", 5), Step.of("kill", asset="united", at="after:publish"), run("united")),
    ),
    (
        believing_the_cursor,
        "counted",
        (rows("fact", 0), rows("other", 4)),
        (rows("other", 5), Step.of("kill", asset="counted", at="after:publish"), run("counted")),
    ),
    (
        leaving_rows_of_keys,
        "queried_joins",
        (rows("fact", 0), rows("dimension", 4)),
        (rows("dimension", 8), run("queried_joins")),
    ),
    (
        published_twice,
        "looked_up",
        (rows("fact", 0), rows("dimension", 4)),
        (
            rows("fact", 4),
            Step.of("begin", asset="looked_up", slot="a"),
            Step.of("begin", asset="looked_up", slot="b"),
            Step.of("end", slot="b"),
            Step.of("end", slot="a"),
        ),
    ),
    (
        not_asked_who_wrote,
        "running",
        (rows("fact", 0), rows("other", 4)),
        (
            Step.of("target", asset="running", what="foreign append"),
            rows("fact", 6),
            run("running"),
            Step.of("catch_up"),
        ),
    ),
    (
        not_asked_what_columns_stand_for,
        "united",
        (rows("fact", 0), rows("other", 4)),
        (Step.of("target", asset="united", what="swap names"), rows("fact", 6), run("united")),
    ),
    (
        not_asked_what_sources_columns_stand_for,
        "per_genre",
        (rows("fact", 0, 4), rows("dimension", 0, 1)),
        (swapped("dimension"), rows("fact", 5), run("per_genre")),
    ),
    (
        believing_the_cursor,
        "once",
        (rows("fact", 0), rows("other", 4), run("once"), rows("other", 5)),
        (Step.of("target", asset="once", what="roll back"), rows("fact", 6), run("once")),
    ),
    (
        taking_others_rows,
        "kept",
        (rows("fact", 4, 1), rows("other", 4)),
        (Step.of("change", table="fact", operation="delete_copy_on_write", where=("number", 0)), run("kept")),
    ),
    (
        forgetting_a_partition,
        "by_day",
        (rows("fact", 0, 4), rows("other", 0)),
        (Step.of("catch_up"), rows("other", 1, 5), Step.of("catch_up")),
    ),
]


@pytest.mark.parametrize(
    ("break_it", "asset", "before", "after"),
    mostly_slow(NOTICED, quick=0),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_wrong_results_of_a_broken_library_are_noticed(  # noqa: PLR0913, PLR0917  # each parameter is a separate thing
    assets: Assets,
    monkeypatch: pytest.MonkeyPatch,
    break_it: Break,
    asset: str,
    before: Sequence[Step],
    after: Sequence[Step],
) -> None:
    life = Life(assets, (asset,))
    for name in ("fact", "other", "dimension"):
        life.take(Step.of("change", table=name, operation="append_no_row"))
    _take(life, before)
    life.take(Step.of("run", asset=asset, keys=life.followers[asset].expected.partitions))
    break_it(monkeypatch)
    with pytest.raises(WrongCaptureError):
        _take(life, after)


def _take(life: Life, steps: Sequence[Step]) -> None:
    for step in steps:
        life.take(step)


def test_rows_doubled_after_a_kill_in_one_table_of_a_step_are_noticed(
    assets: Assets, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ("paid_rows", "day_totals")
    life = Life(assets, both)
    together = Step.of("run_together", assets=both)
    _take(life, (rows("fact", 0), together))
    believing_the_cursor(monkeypatch)
    killed = Step.of("run_together", assets=both, at="after:publish")
    with pytest.raises(WrongCaptureError):
        _take(life, (rows("fact", 1), killed, together))
