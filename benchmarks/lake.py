"""A benchmark's own lake: an embedded catalog, a Spark that uses it, and a consumer that follows tables."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField
from pyspark.sql import SparkSession

from dagster_ips.core.policy import InputPolicies
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.local_spark.connect_server import ensure_connect_server, stop_connect_server
from dagster_ips.progress.cursor import Copy
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.table_progress import mark_of
from dagster_ips.run_view import RunView
from tests.support.memory_store import MemoryCursors, consume

NAME = "lake"


@contextlib.contextmanager
def temporary_lake() -> Iterator[tuple[LakeCatalog, SparkSession]]:
    """A catalog with a namespace ``db``, and a session of a Spark that is stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        server_folder = Path(folder) / "spark"
        server = ensure_connect_server(server_folder)
        try:
            lake = LakeCatalog.embedded(NAME, Path(folder) / "lake")
            for namespace in ("db", "ips"):
                lake.create_namespace(namespace)
            yield lake, server.session(lake.spark_configuration())
        finally:
            stop_connect_server(server_folder)


@dataclass
class Consumer:
    """Follows one table of ``lake``, and keeps its cursor in memory."""

    lake: LakeCatalog
    session: SparkSession | None
    table: str
    policies: InputPolicies = field(default_factory=InputPolicies)

    def __post_init__(self) -> None:
        self._capturer = Capturer(self.lake, MemoryCursors())
        if self.lake.find("db.target") is None:
            self.lake.client.create_table("db.target", Schema(NestedField(1, "number", IntegerType())))

    def capture(self) -> CapturedInput:
        """Capture what changed, without consuming it."""
        tracked = TrackedInput("upstream", self.table, policies=self.policies)
        (captured,) = self._capturer.capture(
            CaptureRequest("consumer", [tracked], target="db.target"), run_id="benchmark"
        )
        return captured

    def consume(self) -> None:
        """Capture and consume everything up to now."""
        consume(self._capturer.store, self.lake, "db.target", [self.capture()])

    def skip_to_head(self) -> int:
        """Continue as if everything had been consumed; a first capture of very many files would take long."""
        source = self.lake.load(self.table, asset="consumer")
        head = source.ancestry().head
        if head is None:
            raise ValueError(self.table, "has no snapshot")
        progress = Progress(1, {"upstream": InputProgress(source.watermark_at(head, "main"))})
        target = self.lake.load("db.target", asset="consumer")
        self._capturer.store.set_copy("consumer", Copy(progress, mark_of(target), is_reported=True))
        return head.snapshot_id

    def view(self) -> RunView:
        """Capture what changed, as a view with frames."""
        if self.session is None:
            raise ValueError(self.table, "is followed without Spark")
        return RunView(self.capture(), self.session, NAME)
