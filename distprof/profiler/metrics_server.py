"""Serves a job's metrics over HTTP from rank 0, on a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import ClassVar

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_LIMIT_S = 2.0
"""A client that says nothing for so long is left."""
POLL_S = 0.1
"""How soon it notices that it is to end."""


class MetricsServer:
    """Answers ``GET /metrics``, one request at a time."""

    def __init__(self, render: Callable[[], str], *, address: str, port: int) -> None:
        """Opens the port and starts the thread.

        Args:
            render: Makes the text.
            address: Where to listen.
            port: Of 1 to 65535; 0: any free one.

        Raises:
            OSError: It cannot listen there.
        """
        handler = type("Handler", (_Handler,), {"render": staticmethod(render)})
        self._server = (_ServerV6 if ":" in address else _Server)((address, port), handler)
        shown = f"[{address}]" if ":" in address else address
        self.url = f"http://{shown}:{self._server.server_address[1]}{PATH}"
        """Where the metrics are."""
        serve = partial(self._server.serve_forever, poll_interval=POLL_S)
        self._thread = threading.Thread(target=serve, name="distprof-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops answering, and closes the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(TCPServer):
    """Unlike http.server's own, it does not ask for its host's name, which may take seconds."""

    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of clients that leave."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    render: ClassVar[Callable[[], str]]
    timeout = REQUEST_LIMIT_S
    server_version, sys_version = "distprof", ""

    def do_GET(self) -> None:
        """Answers with the metrics."""
        if self.path.partition("?")[0] != PATH:
            self.send_error(404)
            return
        body = type(self).render().encode(errors="replace")
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing: the terminal belongs to training."""
