"""A small Iceberg REST catalog in the test's own process, which vends what a test wants it to for each table."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.object_store import ObjectStore

_SEPARATOR = "\x1f"


@dataclass
class VendingCatalog:
    """Tables by name, and ``vend``: what a table's answer has beside its metadata, by the table's name and location."""

    store: ObjectStore
    vend: Callable[[str, str], dict[str, Any]]
    tables: dict[str, str] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    endpoints: list[str] | None = None
    uri: str = ""

    def answer(self, method: str, path: list[str], said: dict[str, Any]) -> tuple[HTTPStatus, dict[str, Any]]:
        """The status and the content of the answer to one request."""
        match method, path:
            case "GET", ["config"]:
                return HTTPStatus.OK, {"defaults": {}, "overrides": {}, "endpoints": self.endpoints}
            case "GET" | "POST", ["namespaces", *_] if len(path) <= 2:
                return HTTPStatus.OK, {"namespace": ["any"]}
            case "POST", ["namespaces", namespace, "register"]:
                name = _name(namespace, said["name"])
                self.tables[name] = said["metadata-location"]
                return HTTPStatus.OK, self._loaded(name)
            case "GET", ["namespaces", _, "tables"]:
                listed = [name.rpartition(".") for name in self.tables]
                return HTTPStatus.OK, {"identifiers": [{"namespace": [ns], "name": name} for ns, _, name in listed]}
            case _, ["namespaces", namespace, "tables", name] if (known := _name(namespace, name)) in self.tables:
                return HTTPStatus.OK, self._loaded(known) if method == "GET" else {"dropped": self.tables.pop(known)}
        missing = {"message": "there is none", "type": "NoSuchTableException", "code": 404}
        return HTTPStatus.NOT_FOUND, {"error": missing}

    def _loaded(self, name: str) -> dict[str, Any]:
        self.loads.append(name)
        address = urlsplit(self.tables[name])
        metadata = json.loads(self.store.content(address.netloc, address.path.removeprefix("/")))
        vended = self.vend(name, metadata["location"])
        return {"metadata-location": self.tables[name], "metadata": metadata, **vended}


def _name(namespace: str, name: str) -> str:
    return ".".join((*namespace.split(_SEPARATOR), name))


@contextlib.contextmanager
def running_vending_catalog(store: ObjectStore, vend: Callable[[str, str], dict[str, Any]]) -> Iterator[VendingCatalog]:
    """A new, empty catalog of tables in ``store``."""
    catalog = VendingCatalog(store, vend)

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            said = json.loads(self.rfile.read(length)) if length else {}
            path = [unquote(part) for part in urlsplit(self.path).path.split("/")[2:]]
            status, content = catalog.answer(self.command, path, said)
            self.send_response(status)
            body = json.dumps(content).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _respond  # noqa: N815  # the names that the standard library looks for

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        catalog.uri = f"http://127.0.0.1:{server.server_port}"
        try:
            yield catalog
        finally:
            server.shutdown()
