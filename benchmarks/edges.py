"""What ten thousand edges cost: reading every cursor for a tick, one write, and bytes per edge.

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
from dagster_ips.core.capture import Capture, EdgeState, Mode, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg.icdc.icdc_names import new_name
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.state.codec import encode
from tests.support.backends import dagster_home
from tests.support.postgres import running_postgres

EDGES = 10_000
ROUNDS = 3
SOME = 100


def edge(number: int) -> Edge:
    return Edge(f"analytics/team_{number % 50:02}/daily_activity_{number:05}", f"events/playback_{number % 400:03}")


def state(number: int, *, in_flight: bool) -> EdgeState:
    """The state of an edge after some months: large numbers, real ids."""
    of, source, target = edge(number), str(uuid.uuid4()), str(uuid.uuid4())
    start = Watermark(source, "main", 5_781_947_118_336_215_154 + number, 41_234, 1_767_225_600_123)
    end = Watermark(source, "main", 3_051_729_675_574_597_004 + number, 41_290, 1_767_229_200_456)
    mark = TargetMark(target, 8_744_736_658_442_914_487 - number, 9_120, 1_767_225_700_789)
    capture = Capture(
        edge=of,
        number=4_321,
        mode=Mode.INCREMENTAL,
        reason=f"goes on from what was consumed of {of.upstream}",
        from_exclusive=start,
        to_inclusive=end,
        icdc_table=f"ips.{new_name(of, 4_321)}",
        run_id=str(uuid.uuid4()),
        after_stamp=mark.snapshot_id,
    )
    return EdgeState(of, start, 4_320, capture if in_flight else None, mark)


@dataclass(frozen=True)
class Figures:
    """The figures of one backend: seconds (all edges, one read, one write, some written together), and bytes."""

    at_once: float
    read: float
    write: float
    written_together: float
    stored_bytes: float


def measure(instance: dg.DagsterInstance, stored: Callable[[], int]) -> Figures:
    store, edges = CursorStore(instance), [edge(number) for number in range(EDGES)]
    store.set(state(0, in_flight=False))
    before = stored()
    store.set(*(state(number, in_flight=False) for number in range(1, EDGES)))
    grown = stored() - before
    some = [state(number, in_flight=True) for number in range(SOME)]
    return Figures(
        at_once=best(lambda: require_all(list(store.get_many(edges).values()))),
        read=best(lambda: [store.get(each.edge) for each in some]) / SOME,
        write=best(lambda: [store.set(each) for each in some]) / SOME,
        written_together=best(lambda: store.set(*some)),
        stored_bytes=grown / EDGES,
    )


def require_all(states: list[EdgeState]) -> None:
    if len(states) != EDGES or any(each.number == 0 for each in states):
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
    at_rest, in_flight = (len(encode(state(7, in_flight=each))) for each in (False, True))
    keys = f"{len(edge(7).consumer)} and {len(edge(7).upstream)}"
    lines = [
        [
            name,
            f"{each.at_once:.2f} s",
            f"{each.read * 1000:.1f} ms",
            f"{each.write * 1000:.1f} ms",
            f"{each.written_together * 1000:.0f} ms",
            f"{each.stored_bytes:,.0f}",
        ]
        for name, each in found.items()
    ]
    heads = ["", "all cursors at once", "one read", "one write", f"{SOME} written together", "stored bytes per edge"]
    report.publish(
        f"""# {EDGES:,} edges

What the cursors of {EDGES:,} edges cost: `python -m benchmarks.edges`. Dagster's database is on the same machine; the
best of {ROUNDS}. A tick reads all cursors by one query per 500 edges. A run writes the cursors of its partitions
together. What is written is read back.

{report.conditions()}

{table(heads, lines)}

The state of an edge takes {at_rest:,} bytes while nothing runs and {in_flight:,} bytes with a capture in flight, with
asset keys of {keys} characters. A test checks that the largest one that Dagster's tables can hold, with keys of 512
characters, stays below MySQL's limit of 65,535 bytes.

What a tick costs is in [ticks.md](ticks.md).""",
        {
            "edges": EDGES,
            "bytes at rest": at_rest,
            "bytes in flight": in_flight,
            **{name: asdict(each) for name, each in found.items()},
        },
    )


if __name__ == "__main__":
    main()
