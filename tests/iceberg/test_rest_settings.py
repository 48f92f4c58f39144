"""What a REST server tells its clients counts for everything that is read through its catalog."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dagster_ips.iceberg.catalog import LakeCatalog

SAYS = {"defaults": {"s3.endpoint": "http://store", "s3.region": "eu"}, "overrides": {"s3.access-key-id": "theirs"}}


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(SAYS).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def uri() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_files_are_read_with_the_settings_of_the_server(uri: str) -> None:
    own = {"type": "rest", "uri": uri, "s3.region": "us", "s3.access-key-id": "ours"}
    used = LakeCatalog("lake", own).storage.properties
    assert (used["s3.endpoint"], used["s3.region"], used["s3.access-key-id"]) == ("http://store", "us", "theirs")
