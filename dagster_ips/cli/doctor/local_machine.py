"""What the local Spark needs on this machine: Java, its jars, and a server that answers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

from dagster_ips.cli.doctor.finding import Finding, Severity
from dagster_ips.local_spark.connect_server import connect_server_problem
from dagster_ips.local_spark.jars import missing_jars
from dagster_ips.local_spark.launch import cache_folder, default_server_folder
from dagster_ips.orchestration.platform.resources import LocalSparkConnect
from dagster_ips.orchestration.run.io_manager import IcdcIOManager

OLDEST_JAVA = 17
_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')


def java() -> Iterator[Finding]:
    """Whether there is a Java with which Spark can start."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    fix = f"Install Java {OLDEST_JAVA} (for example openjdk-17-jre-headless), or point JAVA_HOME to one."
    if path is None:
        yield Finding("java", "PATH", "Java isn't installed.", fix)
        return
    said = _said(path, "-version")
    version = _VERSION.search(said)
    if version is None:
        yield Finding("java", path, "it doesn't report a Java version, so Spark can't use it.", fix)
    elif int(version[1]) < OLDEST_JAVA:
        yield Finding("java", path, f"it is Java {version[1]}, but Spark 4.1 needs {OLDEST_JAVA} or newer.", fix)
    elif _MODULE not in _said(path, "--list-modules"):
        yield Finding("java", path, f"it lacks the module {_MODULE}, which Spark needs to start.", fix)


def jars(extras: Collection[str]) -> Iterator[Finding]:
    """Whether Spark's jars for Iceberg are present; otherwise the next run downloads them, which needs the network."""
    if missing := missing_jars(extras=extras):
        command = " ".join(["python -m dagster_ips.local_spark.jars", *extras])
        yield Finding(
            "jars",
            str(cache_folder() / "jars"),
            f"missing: {', '.join(missing)}. The next run that needs Spark downloads them.",
            f"To download them now: {command}",
            Severity.WARNING,
        )


def extra_jars(manager: IcdcIOManager) -> Iterator[Finding]:
    """Whether the local Spark is configured with the jars that its catalog needs."""
    if not isinstance(manager.spark, LocalSparkConnect) or "spark.jars" in manager.spark.server_config:
        return
    if missing := sorted({*manager.catalog.open().spark_extras()} - {*manager.spark.extra_jars}):
        wanted = ", ".join(f'"{each}"' for each in [*manager.spark.extra_jars, *missing])
        what = f"the local Spark lacks the jars for it: {', '.join(missing)}."
        where = f"catalog {manager.catalog.shown_name}"
        yield Finding("jars", where, what, f"LocalSparkConnect(extra_jars=[{wanted}])")


def spark_server(spark: LocalSparkConnect) -> Iterator[Finding]:
    """Whether runs can use the local Spark Connect server, if there is one."""
    options = spark.server_options()
    problem = connect_server_problem(**options)
    if problem is not None:
        where = str(options["folder"] or default_server_folder())
        option = f" --folder {shlex.quote(where)}" if options["folder"] else ""
        fix = f"Stop it; the next run starts a new one: python -m dagster_ips.local_spark.connect_server stop{option}"
        yield Finding("spark server", where, problem, fix)


def _said(java: str, option: str) -> str:
    try:
        done = subprocess.run([java, option], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
