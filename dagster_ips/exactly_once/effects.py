"""Every durable effect, by name, so that a test can stop the process before and after each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from enum import StrEnum


class Effect(StrEnum):
    """What runs change outside their process, in the order in which it happens; then what sensors and people change."""

    WRITE_ICDC_FILES = "write_icdc_files"
    REGISTER_ICDC_TABLE = "register_icdc_table"
    CREATE_TARGET = "create_target"
    ORDER_TARGET = "order_target"
    ALTER_TARGET = "alter_target"
    CREATE_BRANCH = "create_branch"
    WRITE_BRANCH = "write_branch"
    PUBLISH = "publish"
    COPY_PROGRESS = "copy_progress"
    DROP_BRANCH = "drop_branch"
    DROP_ICDC_TABLE = "drop_icdc_table"
    TRY_CURSORS = "try_cursors"
    TRY_STORAGE = "try_storage"
    INTERVENE = "intervene"
    REPORT_EVENT = "report_event"
    TIDY_UP = "tidy_up"
    RECORD_BACKFILL = "record_backfill"
    TAG_BEFORE = "tag_before"
    LAUNCH_BACKFILL = "launch_backfill"
    END_BACKFILL = "end_backfill"


_OF_OTHERS = (
    Effect.INTERVENE,
    Effect.REPORT_EVENT,
    Effect.TRY_CURSORS,
    Effect.TRY_STORAGE,
    Effect.TIDY_UP,
    Effect.RECORD_BACKFILL,
    Effect.TAG_BEFORE,
    Effect.LAUNCH_BACKFILL,
    Effect.END_BACKFILL,
)
OF_RUNS = [each for each in Effect if each not in _OF_OTHERS]
"""What any run causes. A person or a sensor causes the others, or only the first run of an instance does."""

Observer = Callable[[Effect, str], None]
"""Called with the effect and ``"before"`` or ``"after"``, in the process and thread that causes it."""

observers: list[Observer] = []


@contextlib.contextmanager
def effect(name: Effect) -> Iterator[None]:
    """Tell the observers before the effect and, if it didn't fail, after it."""
    for observer in observers:
        observer(name, "before")
    yield
    for observer in observers:
        observer(name, "after")
