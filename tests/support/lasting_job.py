"""A job for spark-submit that goes on: it does what each JSON value that appears in a folder asks for.

Starting a Spark for each of hundreds of values would take too long. It gets nothing of a run but the value.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

BY_VALUE = """
    MERGE INTO {target} t USING (
        SELECT account, sum(n) AS plays, sum(s) AS seconds
        FROM (
            SELECT account, 1 AS n, seconds AS s FROM {added}
            UNION ALL SELECT account, -1, -seconds FROM {removed}
        ) GROUP BY account
    ) c ON t.account = c.account
    WHEN MATCHED THEN UPDATE SET plays = t.plays + c.plays, seconds = t.seconds + c.seconds
    WHEN NOT MATCHED THEN INSERT *
"""
BY_SETTINGS = BY_VALUE.replace("{", "${spark.icdc.")
NO_PLAYS = "DELETE FROM {target} WHERE plays = 0"


def main() -> None:
    folder, spark = Path(sys.argv[1]), SparkSession.builder.getOrCreate()
    (folder / "ready").touch()
    for number in range(1_000_000):
        value = folder / f"{number}.json"
        while not value.exists():
            time.sleep(0.02)
        job = json.loads(value.read_text())
        session = spark.newSession()
        for key, setting in job["spark_conf"].items():
            session.conf.set(key, setting)
        session.sql(BY_SETTINGS if number % 2 else BY_VALUE.format_map(job))
        if job.get("dies"):
            raise SystemExit
        session.sql(NO_PLAYS.format_map(job))
        (folder / f"{number}.done").touch()


if __name__ == "__main__":
    main()
