"""What the cursors of ten thousand assets cost: reading all for a tick, one write, and bytes per asset.

    python -m benchmarks.edges

Dagster on SQLite and on PostgreSQL. Each figure is the best of three, because other processes disturb the measurement.
"""

import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import dagster as dg
import sqlalchemy as db

from benchmarks.report import Report, table
from dagster_ips.core.capture import TargetMark
from dagster_ips.core.code_of_rows import Making
from dagster_ips.core.watermark import Watermark
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.cursor import Copy, Cursor
from dagster_ips.progress.progress import InputProgress, Progress
from tests.support.backends import dagster_home
from tests.support.postgres import running_postgres

EDGES = 10_000
ROUNDS = 3
SOME = 100


def asset(number: int) -> str:
    return f"analytics/team_{number % 50:02}/daily_activity_{number:05}"


def copy(number: int) -> Copy:
    """The copy of an asset's progress after some months: large numbers, real ids."""
    source, target = str(uuid.uuid4()), str(uuid.uuid4())
    at = Watermark(source, "main", 5_781_947_118_336_215_154 + number, 41_234, 1_767_225_600_123, "3-0d5e7a12")
    mark = TargetMark(target, 8_744_736_658_442_914_487 - number, 9_120, 1_767_225_700_789, "1-3f2a91bc")
    made = {None: Making(("1+plan:connect:0123456789ab",), "1-3f2a91bc", "append() of events/playback")}
    return Copy(Progress(4_320, {f"events/playback_{number % 400:03}": InputProgress(at)}, made), mark)


@dataclass(frozen=True)
class Figures:
    """The figures of one backend: seconds (all cursors, one read, one write), and bytes."""

    at_once: float
    read: float
    write: float
    stored_bytes: float


def measure(instance: dg.DagsterInstance, stored: Callable[[], int]) -> Figures:
    store, assets = CursorStore(instance), [asset(number) for number in range(EDGES)]
    store.set_copy(asset(0), copy(0))
    before = stored()
    for number in range(1, EDGES):
        store.set_copy(asset(number), copy(number))
    grown = stored() - before
    some = [(asset(number), copy(number)) for number in range(SOME)]
    return Figures(
        at_once=best(lambda: require_all(list(store.get_many(assets).values()))),
        read=best(lambda: [store.get(each) for each, _ in some]) / SOME,
        write=best(lambda: [store.set_copy(each, of) for each, of in some]) / SOME,
        stored_bytes=grown / EDGES,
    )


def require_all(cursors: list[Cursor]) -> None:
    if len(cursors) != EDGES or any(each.copy is None for each in cursors):
        message = "a cursor is missing"
        raise AssertionError(message)


def best(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def on_sqlite(folder: Path) -> Figures:
    with dg.DagsterInstance.from_config(dagster_home(folder / "sqlite", None)) as instance:
        return measure(instance, lambda: sum(f.stat().st_size for f in folder.rglob("runs.db*")))


def on_postgres(folder: Path) -> Figures:
    def stored() -> int:
        with instance.run_storage.connect() as connection:
            return int(connection.execute(db.text("SELECT pg_total_relation_size('kvs')")).scalar())

    with (
        running_postgres(folder) as server,
        dg.DagsterInstance.from_config(dagster_home(folder / "postgres", server)) as instance,
    ):
        return measure(instance, stored)


def main() -> None:
    report = Report.from_arguments("edges", __doc__)
    with tempfile.TemporaryDirectory() as folder:
        found = {"SQLite": on_sqlite(Path(folder)), "PostgreSQL": on_postgres(Path(folder))}
    lines = [
        [
            name,
            f"{each.at_once:.2f} s",
            f"{each.read * 1000:.1f} ms",
            f"{each.write * 1000:.1f} ms",
            f"{each.stored_bytes:,.0f}",
        ]
        for name, each in found.items()
    ]
    heads = ["", "all cursors at once", "one read", "one write", "stored bytes per asset"]
    report.publish(
        f"""# The cursors of {EDGES:,} assets

What the copies of the progress of {EDGES:,} assets cost: `python -m benchmarks.edges`. Dagster's database is on the
same machine; the best of {ROUNDS}. A tick reads all cursors by one query per 500 assets. What is written is read back.

{report.conditions()}

{table(heads, lines)}

The number of partitions matters little: only those that are behind the others are listed.

What a tick costs is in [ticks.md](ticks.md).""",
        {"assets": EDGES, **{name: asdict(each) for name, each in found.items()}},
    )


if __name__ == "__main__":
    main()
