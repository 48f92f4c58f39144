"""What a run of each write mode asks of Spark for a small change, and what Spark does for it.

    python -m benchmarks.jobs

A run needs a certain number of queries; Spark decides into how many jobs it splits each. Neither depends on how busy
the machine is, and the executors' CPU time hardly does. Prints the section with which ``benchmarks.cost`` ends.
"""

import tempfile
from pathlib import Path

import dagster as dg

from dagster_ips.local_spark.connect_server import WITH_UI, ConnectServer, ensure_connect_server, stop_connect_server
from tests.support.backends import dagster_home
from tests.support.lake import Lake, events
from tests.support.modes import MODES
from tests.support.partitioned import SENSOR, key, run
from tests.support.pipeline import materialize, pipeline
from tests.support.spark_requests import Request, watched

ROWS = 20_000
LATE, NEW = 60, 600

PURPOSES = {
    "replace_rows": "write the rows",
    "_touched": "touched partitions",
    "append_rows": "append",
    "replace_partitions": "overwrite",
    "overwrite_matching": "overwrite",
    "refuse_repeated_keys": "one row per key?",
    "_survey": "compute the rows",
    "_survey_matched": "which keys are there?",
    "update_matched": "MERGE",
    "merge_rows": "append the rest",
    "by": "compute the groups",
    "combine_rows": "what becomes of each?",
    "_add_all": "MERGE",
    "_add_by_one_query": "append the rest",
    "_add_to_many": "MERGE",
    "_append": "append the rest",
    "found": "which values match?",
    "sql": "the statement",
    "has_no_change": "did any row change?",
    "_require_no_live_rows": "rows of a removed one's key?",
    "remove_rows": "remove",
}


def section() -> str:
    with tempfile.TemporaryDirectory() as folder:
        spark_folder = Path(folder) / "spark"
        server = ensure_connect_server(spark_folder, conf=WITH_UI)
        try:
            dagster_home(Path(folder) / "home", None)
            lake = Lake(Path(folder) / "lake", spark_folder, server)
            with dg.DagsterInstance.from_config(str(Path(folder) / "home")) as instance:
                return f"{HEAD}\n\n{_measured(lake, instance, server)}"
        finally:
            stop_connect_server(spark_folder)


def _measured(lake: Lake, instance: dg.DagsterInstance, server: ConnectServer) -> str:
    definitions = pipeline(lake.folder, lake.spark_folder, *MODES)
    lake.create_playback(events(range(ROWS)) + events(range(ROWS, 2 * ROWS), day=1))
    lines = []

    def once(asset: dg.AssetsDefinition) -> None:
        name = asset.key.to_user_string()
        if asset.partitions_def is None:
            materialize(definitions, instance, name)
        else:
            run(definitions, instance, name, key(0), key(2), **SENSOR)

    for asset in MODES:
        once(asset)
    for ids in (range(2 * ROWS, 2 * ROWS + LATE + NEW), range(3 * ROWS, 3 * ROWS + LATE + NEW)):
        lake.append(events(ids[:LATE]) + events(ids[LATE:], day=2))
        lines = []
        for asset in MODES:  # Measured twice: the first round warms up what the full runs didn't use.
            with watched(server) as requests:
                once(asset)
            lines.append(_line(asset.key.to_user_string(), requests.with_jobs()))
    return "\n".join([TABLE, *lines])


def _line(name: str, queries: list[Request]) -> str:
    jobs, tasks, cpu = (sum(each) for each in zip(*[(q.jobs, q.tasks, q.cpu_seconds) for q in queries], strict=True))
    shown = ", ".join(PURPOSES.get(each.purpose, each.purpose) for each in queries)
    return f"| {name} | {shown} | {len(queries)} | {jobs} | {tasks} | {cpu:.2f} s |"


QUERIES = [
    (
        "write the rows",
        "all but `merge`",
        (
            "the same query counts rows outside the run's partitions, an Overwrite's condition or the changed "
            "partitions; if there are any, the branch is dropped"
        ),
        "",
    ),
    (
        "one row per key?",
        "`merge`, full",
        "a full run must refuse what a later run would refuse; reads back only the keys",
        "",
    ),
    (
        "compute the rows",
        "`merge`",
        (
            "computed once and kept. Is there one row per key, are all rows in the run's partitions, and which "
            "partitions do they touch? Includes keys that may be gone"
        ),
        "",
    ),
    (
        "which keys are there?",
        "`merge`",
        "joins only the touched partitions: how many rows differ, tie or are new",
        "the manifest list shows that the table has none of the touched partitions",
    ),
    (
        "compute the groups",
        "`combine`",
        (
            "computed once and kept. Which partitions do the groups touch, are they all the run's own, and did any "
            "group lose a row?"
        ),
        (
            "rows were only added, the partition columns of the key are the upstream's own, and the upstream's "
            "metadata names their values; the next query then computes the groups"
        ),
    ),
    (
        "append the parts",
        '`combine(storage="partials")`',
        "the only query, unless a removed row may have been a group's minimum or maximum",
        "",
    ),
    (
        "what becomes of each?",
        "`combine`",
        "which groups are empty, unchanged, or have lost their minimum or maximum",
        "no group lost a row: each group changes, and can be added to directly",
    ),
    (
        "MERGE",
        "`merge`, `combine`",
        "updates rows that differ, and deletes rows that are gone",
        "no row differs and none is gone; the table has none of the touched partitions",
    ),
    (
        "append the rest",
        "`merge`, `combine`",
        "new keys, appended because Spark never broadcasts the source of a MERGE that inserts",
        (
            "there are no new keys; `combine` inserts them with its MERGE if the touched partitions have at most a "
            "million rows each and ten million in all (a million if a key is null, or no column of the key partitions "
            "the table)"
        ),
    ),
    ("touched partitions", "`append(dedup_on)`", "finds the partitions in which to look for existing keys", ""),
    (
        "which values match?",
        "`Overwrite`",
        "Spark determines what the condition matches, so that a single commit can replace it",
        "the condition isn't on partition columns; matching rows are then searched for and deleted",
    ),
    (
        "changed keys",
        "`overwrite_partitions` of `affected`",
        "finds the partitions to replace, including those that are now empty",
        "the frame is `scope`, for which metadata is enough",
    ),
    (
        "did any row change?",
        "all",
        "files were removed or rewritten, possibly with the same rows",
        "nothing was removed upstream",
    ),
    (
        "rows of a removed one's key?",
        "`append(remove_on)`, `merge` of single rows",
        "checks that it is clear which row to remove",
        "nothing was removed upstream",
    ),
    (
        "remove",
        "`append(remove_on)`",
        "three queries: find the removed keys, check that they identify rows, delete those rows",
        "no row was removed",
    ),
    (
        "delete what is there",
        "partitions computed for the first time",
        "existing rows are not the result of earlier runs",
        "the table is empty",
    ),
    ("stamp", "own SQL", "the last commit records what was consumed, independent of the statements", ""),
]
LISTED = "\n".join(f"| {' | '.join(each)} |" for each in QUERIES).replace("|  |", "| |")
HEAD = f"""## What a run asks of Spark

A query is one request to Spark, which splits it into several jobs. A test (`test_jobs_of_runs.py`) checks that each
write mode makes no other queries than these:

| query | made by | purpose | left out if |
| --- | --- | --- | --- |
{LISTED}

Measured by `python -m benchmarks.jobs`: {LATE} late rows for a day of {ROWS:,} and a new day of {NEW}. The executors'
CPU time is Spark's computation; the rest of a run is planning, commits and Dagster."""
TABLE = """| asset | queries, in order | queries | jobs | tasks | executors' CPU |
| --- | --- | ---: | ---: | ---: | ---: |"""

if __name__ == "__main__":
    print(section())
