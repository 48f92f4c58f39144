"""A proxy before an object store that makes requests fail the way a network and a busy store do.

Signed requests pass through unchanged, with the ``Host`` for which they were signed.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

_SLOW_DOWN = (
    b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
)
_READS = ("GET", "HEAD")
_OF_ONE_HOP = {"connection", "transfer-encoding", "content-length"}


class Fault(StrEnum):
    """What can happen to a request."""

    SLOW_DOWN = "slow down"
    """The proxy refuses the request with 503, as S3 does."""
    CUT = "cut"
    """The connection ends before the store has the request."""
    LOST_ANSWER = "lost answer"
    """The store does what is requested, and the connection ends before the answer."""


@dataclass(eq=False)
class FaultyProxy:
    """A running proxy. ``shares`` gives the fraction of all requests for each fault, chosen with a fixed seed."""

    port: int
    shares: dict[Fault, float] = field(default_factory=dict)
    spares_reads: bool = False
    happened: Counter[Fault] = field(default_factory=Counter)
    _chance: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def endpoint(self) -> str:
        """The proxy's address, for use instead of the store's."""
        return f"http://127.0.0.1:{self.port}"

    def fault(self, method: str) -> Fault | None:
        """The fault for the next request."""
        if self.spares_reads and method in _READS:
            return None
        number = self._chance.random()
        for fault, share in self.shares.items():
            if number < share:
                self.happened[fault] += 1
                return fault
            number -= share
        return None


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, store_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store_port = store_port
        self.proxy = FaultyProxy(self.server_port)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def pass_on(self) -> None:
        body = self.body()
        match self.server.proxy.fault(self.command):
            case Fault.CUT:
                self.cut()
            case Fault.SLOW_DOWN:
                self.answer(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
            case Fault.LOST_ANSWER:
                self.asked(body)
                self.cut()
            case None:
                self.answer(*self.asked(body))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on  # noqa: N815  # the base class's names

    def body(self) -> bytes:
        """The body as received; chunks keep their lengths."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while True:
            parts.append(self.rfile.readline())
            if not (length := int(parts[-1].partition(b";")[0], 16)):
                break
            parts.append(self.rfile.read(length + 2))
        while parts[-1] != b"\r\n":  # Trailers, up to an empty line.
            parts.append(self.rfile.readline())
        return b"".join(parts)

    def asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        store = http.client.HTTPConnection("127.0.0.1", self.server.store_port)
        store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "expect":
                store.putheader(name, value)
        store.endheaders(body)
        answer = store.getresponse()
        found = answer.status, answer.getheaders(), answer.read()
        store.close()
        return found

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in _OF_ONE_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:  # Nothing is logged.
        pass


@contextlib.contextmanager
def running_faulty_proxy(store_port: int) -> Iterator[FaultyProxy]:
    """A proxy before the store on ``store_port``. It passes everything on until ``shares`` are set."""
    server = _Server(store_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.proxy
    finally:
        server.shutdown()
        server.server_close()
