"""A benchmark's own lake: an embedded catalog, a Spark that uses it, and a consumer that follows tables."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.policy import InputPolicies
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.local_spark.connect_server import ensure_connect_server, stop_connect_server
from dagster_ips.run_view import RunView
from tests.support.memory_store import MemoryEdgeStore

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
        self._capturer = Capturer(self.lake, MemoryEdgeStore())

    def capture(self) -> CapturedInput:
        """Capture what changed, without consuming it."""
        tracked = TrackedInput("upstream", self.table, policies=self.policies)
        (captured,) = self._capturer.capture(
            CaptureRequest("consumer", [tracked], target="db.target"), run_id="benchmark"
        )
        return captured

    def consume(self) -> None:
        """Capture and consume everything up to now."""
        store, captured = self._capturer.store, self.capture()
        store.set(store.get(Edge("consumer", "upstream")).with_committed(captured.capture, None))

    def skip_to_head(self) -> int:
        """Continue as if everything had been consumed; a first capture of very many files would take long."""
        source, edge = self.lake.load(self.table, asset="consumer"), Edge("consumer", "upstream")
        head = source.ancestry().head
        if head is None:
            raise ValueError(self.table, "has no snapshot")
        mark = source.watermark_at(head, "main")
        self._capturer.store.set(EdgeState(edge, committed=mark, number=self._capturer.store.get(edge).number + 1))
        return head.snapshot_id

    def view(self) -> RunView:
        """Capture what changed, as a view with frames."""
        if self.session is None:
            raise ValueError(self.table, "is followed without Spark")
        return RunView(self.capture(), self.session, NAME)
