"""What a run of each write mode asks of Spark on a small change, and what Spark does for it.

    python -m benchmarks.jobs

Queries are what a run needs; how many jobs Spark makes of one is its own choice. Neither depends on how busy the
machine is, nor does the executors' CPU, much. It prints the section that ``benchmarks.cost`` ends with.
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
        for asset in MODES:  # twice, as the first round warms what the full runs didn't use
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
            "in the same query, rows outside the run's partitions, an Overwrite's condition or the changed "
            "partitions are counted; if there are any the branch is dropped"
        ),
        "",
    ),
    (
        "one row per key?",
        "`merge`, full",
        "a full run must refuse what any later one would; reads back the keys alone",
        "",
    ),
    (
        "compute the rows",
        "`merge`",
        (
            "once, kept: is there one row per key, all of them in the run's partitions, and which partitions "
            "do they touch? Keys that may be gone come with it"
        ),
        "",
    ),
    (
        "which keys are there?",
        "`merge`",
        "a join with the touched partitions alone: how many differ, tie or are new",
        "the manifest list shows that no touched partition is in the table",
    ),
    (
        "compute the groups",
        "`combine`",
        "once, kept: which partitions do they touch, are they all of the run's, and did any lose a row?",
        "",
    ),
    (
        "append the parts",
        '`combine(storage="partials")`',
        "the only query, unless a removed row may have been a least or greatest value",
        "",
    ),
    (
        "what becomes of each?",
        "`combine`",
        "which groups are empty, as they were, or have lost their least or greatest value",
        "no group lost a row: each is another than it was, and is added to as it is found",
    ),
    (
        "MERGE",
        "`merge`, `combine`",
        "rows that differ, as matched rows, and rows that are gone",
        "none differs, none is gone; no touched partition is in the table",
    ),
    (
        "append the rest",
        "`merge`, `combine`",
        "new keys; the source of a MERGE that inserts is never broadcast",
        (
            "every key is there; a `combine` inserts them by its MERGE if the touched partitions have at most a "
            "million rows each and ten million in all (a million if a key is null, or no column of the key partitions "
            "the table)"
        ),
    ),
    ("touched partitions", "`append(dedup_on)`", "what to look for the keys in", ""),
    (
        "which values match?",
        "`Overwrite`",
        "Spark says what the condition matches, for one commit",
        "the condition isn't on partition columns: then matching rows are looked for and deleted",
    ),
    (
        "changed keys",
        "`overwrite_partitions` of `affected`",
        "which partitions to replace, also those that are empty now",
        "of `scope`: metadata tells",
    ),
    (
        "did any row change?",
        "all",
        "files were removed or rewritten, perhaps with the same rows",
        "nothing was removed upstream",
    ),
    (
        "rows of a removed one's key?",
        "`append(remove_on)`, `merge` of single rows",
        "which row goes must be known",
        "nothing was removed upstream",
    ),
    (
        "remove",
        "`append(remove_on)`",
        "three: the removed keys, whether they identify rows, their deletion",
        "no row was removed",
    ),
    (
        "delete what is there",
        "of partitions computed for the first time",
        "it is no result of earlier runs",
        "the table is empty",
    ),
    ("stamp", "own SQL", "the last commit says what was consumed, whatever the statements were", ""),
]
LISTED = "\n".join(f"| {' | '.join(each)} |" for each in QUERIES).replace("|  |", "| |")
HEAD = f"""## What a run asks of Spark

A query is one question to Spark, which makes several jobs of it. A test (`test_jobs_of_runs.py`) holds each
write mode to these:

| query | of | why | not where |
| --- | --- | --- | --- |
{LISTED}

Measured by `python -m benchmarks.jobs`: {LATE} late rows of a day of {ROWS:,} and a new day of {NEW}. The executors'
CPU is what Spark computes; the rest of a run is planning, commits and Dagster."""
TABLE = """| asset | queries, in order | queries | jobs | tasks | executors' CPU |
| --- | --- | ---: | ---: | ---: | ---: |"""

if __name__ == "__main__":
    print(section())
