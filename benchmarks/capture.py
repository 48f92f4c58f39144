"""What a capture costs with long histories, very many files and many columns: ``python -m benchmarks.capture``.

There is no Spark and no data: the tables are only metadata, see ``benchmarks.made_tables``. What each capture finds is
compared with what PyIceberg reads from the manifests of the snapshots since.
"""

import dataclasses
import tempfile
import time
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from benchmarks.lake import NAME, Consumer
from benchmarks.made_tables import FILES_PER_MANIFEST, MadeTable, Shape
from benchmarks.report import Best, Report, best, require_same, said, table
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.manifests import read_manifest_list

MOST_LISTED = 10_000
"""The most files that PyIceberg lists for comparison; more would take minutes."""
HISTORIES = (Shape(10), Shape(100), Shape(1_000), Shape(5_000))
TABLES = (Shape(files=1_000), Shape(files=10_000), Shape(files=100_000))
AIM = Shape(5_000, 100_000)
COMMITS = (10, 100)
FULL_HISTORIES, FULL_TABLES = (Shape(10_000),), (Shape(files=1_000_000),)
WIDE = (Shape(files=100, columns=1_000),)


@dataclasses.dataclass(frozen=True)
class Found:
    """One table's figures: captures of a new file, of its deletion, and of an old file's deletion; and two parts."""

    shape: Shape
    append: Best
    delete_new: Best
    delete_old: Best
    manifest_list: Best
    listing: Best | None

    @property
    def beyond_list(self) -> float:
        """The CPU milliseconds of capturing an append, without reading metadata.json and the manifest list."""
        return self.append.cpu_ms - self.manifest_list.cpu_ms

    def row(self) -> list[str]:
        listed = str(self.listing) if self.listing else ""
        sizes = [f"{self.shape.snapshots:,}", f"{self.shape.files:,}", f"{self.shape.columns:,}"]
        captures = [f"{each} ({each.cpu_ms:,.0f})" for each in (self.append, self.delete_new, self.delete_old)]
        return [*sizes, *captures, str(self.manifest_list), listed]


def measure(lake: LakeCatalog, shape: Shape) -> Found:
    made = MadeTable(lake, f"db.t_{shape.snapshots}_{shape.files}_{shape.columns}", shape)
    started = time.perf_counter()
    made.create()
    said(f"{shape}: made in {time.perf_counter() - started:.0f} s")
    consumer = Consumer(lake, None, made.name)

    def captured(since: int, what: str, *, changed: int) -> dict[str, Best]:
        """Milliseconds of a capture since then; it must find ``changed`` files, and the same ones as PyIceberg."""
        changes = consumer.capture().files.changes
        came, went = ({file.path for file in files} for files in (changes.added, changes.removed))
        require_same((came, went), made.changed_since(since), of=f"{what} of {shape}")
        require_same(len(came) + len(went), changed, of=f"files of {what} of {shape}")
        return best({"capture": consumer.capture, "list": lambda: manifests(lake, made.name)})

    since = consumer.skip_to_head()
    made.append(-2)
    append = captured(since, "an append", changed=1)
    since = consumer.skip_to_head()
    made.table.delete("p = -2")
    delete_new = captured(since, "a delete", changed=1)
    since = consumer.skip_to_head()
    made.table.delete(f"p = {shape.files // 2}")
    delete_old = captured(since, "a delete of an old file", changed=1)
    listing = None
    if shape.files <= MOST_LISTED:
        listing = best({"list": lambda: list(made.table.scan().plan_files())}, rounds=2)["list"]
    found = Found(shape, append["capture"], delete_new["capture"], delete_old["capture"], append["list"], listing)
    said(f"{shape}: {found.append}, {found.delete_new}, {found.delete_old}")
    return found


def interval(lake: LakeCatalog, commits: int) -> Best:
    """Measure a capture of that many commits, of which every other one deletes what the one before added."""
    made = MadeTable(lake, f"db.interval_{commits}", Shape())
    made.create()
    consumer = Consumer(lake, None, made.name)
    since = consumer.skip_to_head()
    for number in range(commits // 2):
        made.append(-2 - number)
        made.table.delete(f"p = {-1 - number}")
    changes = consumer.capture().files.changes
    found = ({file.path for file in files} for files in (changes.added, changes.removed))
    require_same(tuple(found), made.changed_since(since), of=f"{commits} commits")
    said(f"{commits} commits in the interval")
    return best({"capture": consumer.capture})["capture"]


def manifests(lake: LakeCatalog, name: str) -> int:
    """Read the head's manifest list, as a capture does; returns how many manifests it names."""
    source = lake.load(name, asset="benchmark")
    head = source.ancestry().head
    return len(read_manifest_list(lake.storage, head, table=name)) if head else 0


def main() -> None:
    report = Report.from_arguments("capture", __doc__)
    with tempfile.TemporaryDirectory() as folder:
        lake = LakeCatalog.embedded(NAME, Path(folder))
        for namespace in ("db", "ips"):
            lake.create_namespace(namespace)
        lake.client.create_table("db.target", Schema(NestedField(1, "x", LongType())))
        measure(lake, Shape(2))  # Warms up, because some modules are imported late.
        groups = {
            HISTORY: [measure(lake, shape) for shape in HISTORIES + FULL_HISTORIES * report.is_full],
            GROWTH: [measure(lake, shape) for shape in (*TABLES, *FULL_TABLES * report.is_full)],
            WIDTH: [measure(lake, shape) for shape in WIDE],
            BOTH: [measure(lake, AIM)],
        }
        inside = {commits: interval(lake, commits) for commits in COMMITS}
    report.publish(markdown(report, groups, inside), figures(groups, inside))


def figures(groups: dict[str, list[Found]], inside: dict[int, Best]) -> dict[str, object]:
    found = {head: [dataclasses.asdict(each) for each in of] for head, of in groups.items()}
    return {**found, "commits in the interval": {n: dataclasses.asdict(ms) for n, ms in inside.items()}}


def markdown(report: Report, groups: dict[str, list[Found]], inside: dict[int, Best]) -> str:
    parts = [HEAD.format(conditions=report.conditions())]
    for head, found in groups.items():
        parts += [f"## {head}", table(COLUMNS, [each.row() for each in found], words=0)]
    parts += [INSIDE, table(["commits", "capture"], [[f"{n:,}", str(ms)] for n, ms in inside.items()], words=0)]
    smallest, largest = groups[GROWTH][0], groups[GROWTH][-1]
    ratio = largest.beyond_list / smallest.beyond_list
    aim = groups[BOTH][0].append
    parts.append(
        f"From {smallest.shape.files:,} to {largest.shape.files:,} old files, the CPU time of a capture grows by a\n"
        f"factor of {ratio:.1f}, not counting metadata.json and the manifest list. With {AIM.snapshots:,} snapshots\n"
        f"and {AIM.files:,} files, a capture takes {aim.wall_ms:.0f} ms, of which {aim.cpu_ms:.0f} ms are CPU time."
    )
    parts.append(WHY)
    return "\n\n".join(parts)


HISTORY, GROWTH, WIDTH = "As the history grows", "As the table grows", "As the table gets wide"
BOTH = "A long history and many files"
INSIDE = """## As the interval grows

Commits between two captures; every other commit deletes the file that the previous one added."""
COLUMNS = (
    "snapshots",
    "old files",
    "columns",
    "one new file",
    "it is deleted",
    "an old file is deleted",
    "reading metadata.json and manifest list",
    "listing all files by PyIceberg",
)
HEAD = """# What a capture costs

Written by `python -m benchmarks.capture`. The time to capture a single changed file, as the table's history gets longer
and the number of files consumed earlier grows, on a local disk with SQLite. Each figure is the best of seven, with the
process's CPU time in parentheses. Every capture found exactly the files that PyIceberg finds in the manifests of the
snapshots since.

{conditions}"""
WHY = f"""## Where the time goes

- A capture reads the whole metadata.json, which grows with the number of retained snapshots: see the column for
  metadata.json. Only the snapshots since the last capture are examined.
- It reads one manifest list, which grows with the number of manifests: here one per {FILES_PER_MANIFEST:,} files.
- It opens the manifests that changed. An append writes one manifest with a single entry. Deleting an old file rewrites
  the manifest that lists it, so the capture has to compare all of its entries with those of the previous manifest. That
  takes about 20 µs for each of twice {FILES_PER_MANIFEST:,} entries, and much more if files have statistics for very
  many columns.
- The rest is constant: two catalog requests, the ICDC table's files, and its registration."""

if __name__ == "__main__":
    main()
