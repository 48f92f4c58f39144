"""A lake without Spark, for commands that only read: its one consumer has consumed everything, as after a run."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import dagster as dg
import pyarrow as pa
from click.testing import CliRunner, Result
from dagster._daemon.types import DaemonHeartbeat

from dagster_ips.cli.main import main
from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc import icdc_names
from dagster_ips.iceberg.stamps import attempt_properties, computed_properties, owner_properties
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.cursor import Copy
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PROGRESS, mark_of
from tests.support.lake import BY_DATE, SCHEMA, Lake, events

EDGE = Edge("daily", "playback")
DEFINITIONS = """
import dagster as dg
from pyspark.sql import DataFrame

import dagster_ips as ips


@dg.asset(ins={{"playback": ips.incremental()}}, metadata=ips.append() | ips.table("media.daily"))
def daily(playback: ips.IcdcView) -> DataFrame: ...


catalog = ips.IcebergCatalog(folder={lake!r})
io_manager = ips.IcdcIOManager(catalog=catalog, spark=ips.LocalSparkConnect(server_folder={spark!r}))
playback = ips.iceberg_asset("playback", table="media.playback")
defs = ips.with_incremental(dg.Definitions(assets=[playback, daily], resources={{"io_manager": io_manager}}))
"""


class IdleLake(Lake):
    """A lake without Spark whose only consumer has consumed everything, and an instance with a living daemon."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder = folder / "lake"
        self.spark = folder / "spark"
        self.instance = instance
        self.catalog = LakeCatalog.embedded("lake", self.folder)
        self.file = folder / "its_definitions.py"
        self.define(DEFINITIONS)
        self.create_playback(events(range(3)))
        self.catalog.client.create_table("media.daily", SCHEMA, partition_spec=BY_DATE)
        self.consume()
        for daemon in instance.get_required_daemon_types():
            instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), daemon, "a daemon", []))

    def define(self, text: str) -> None:
        self.file.write_text(text.format(lake=str(self.folder), spark=str(self.spark)))

    def head(self) -> Watermark:
        """What a run would consume up to now."""
        source = self.catalog.load("media.playback", asset="test")
        head = source.ancestry().head
        assert head is not None
        return source.watermark_at(head, "main")

    def consume(self) -> None:
        """Leave what a run leaves that consumed everything: a publication, a copy of its progress, an ICDC table."""
        self.catalog.create_namespace("ips")
        self.capture(1, "a run")
        progress = Progress(1, {"playback": InputProgress(self.head())})
        self.publish(progress)
        mark = mark_of(self.catalog.load("media.daily", asset="test"))
        CursorStore(self.instance).set_copy("daily", Copy(progress, mark))

    def capture(self, number: int, run_id: str) -> Capture:
        """Leave the ICDC table of a run's capture."""
        name, at = f"ips.{icdc_names.new_name(EDGE, number)}", self.head()
        capture = Capture(EDGE, number, Mode.FULL, "test", None, at, name, run_id)
        location = icdc_names.location(self.catalog.load("media.playback", asset="test"), name)
        properties = {**icdc_names.properties([capture], number), "gc.enabled": "false"}
        assert self.catalog.client.create_table(name, SCHEMA, location=location, properties=properties)
        return capture

    def publish(self, progress: Progress, *, asset: str = "daily") -> None:
        """Commit to the asset's table, as a run that has written no row."""
        stamp = attempt_properties(uuid.uuid4().hex, "a run") | owner_properties(asset, None)
        stamp |= computed_properties(Mode.FULL, ()) | {PROGRESS: progress_text(progress)}
        nothing = pa.table({field.name: [] for field in SCHEMA.fields}).cast(SCHEMA.as_arrow())
        self.catalog.client.load_table(f"media.{asset}").append(nothing, stamp)

    def icdc_names(self) -> list[str]:
        return list(self.catalog.metadata_locations_by_prefix("ips", ""))

    def run(self, *words: str, answer: str = "") -> Result:
        """Run a command on this lake."""
        return CliRunner().invoke(main, [words[0], "-f", str(self.file), *words[1:]], input=answer)

    def says(self, *words: str) -> str:
        """The output of a command that succeeds."""
        result = self.run(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    def findings(self) -> list[dict[str, str]]:
        """The doctor's findings. Its exit code must fit them."""
        result = CliRunner().invoke(main, ["doctor", "-f", str(self.file), "--json"])
        assert result.exit_code in (0, 1), result.output
        found: list[dict[str, str]] = json.loads(result.stdout)
        assert result.exit_code == (1 if found else 0)
        return found
