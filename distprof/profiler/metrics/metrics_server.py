"""Serves a job's metrics and its live page over HTTP from rank 0, on a thread that no client can hold up."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from ipaddress import ip_address
from types import MappingProxyType
from urllib.parse import urlsplit

PATH = "/metrics"
Page = tuple[str, Callable[[], bytes]]
"""The type of its content, and what makes it, without waiting for anything."""
NO_PAGES: Mapping[str, Page] = MappingProxyType({})
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_LIMIT_S = 2.0
"""How long a connection may last, from being accepted to the last byte of the answer."""
MAX_CONNECTIONS = 32
"""At once; for one more, the oldest is closed."""
MAX_REQUEST_BYTES = 16 << 10
ACCEPTED_AT_ONCE = 16
"""Clients that are there already are looked at before more are accepted."""
REFUSED_REST_S = 1.0
"""How long no client is accepted after the system has refused one, for want of descriptors for example."""
CLOSE_LIMIT_S = 1.0
"""How long `MetricsServer.close` waits for its own thread, which waits for nobody."""


class MetricsServer:
    """Answers ``GET`` of the metrics and of a few pages, one request per connection, without waiting for a client."""

    def __init__(
        self, render: Callable[[], str], *, address: str, port: int, pages: Mapping[str, Page] = NO_PAGES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Opens the port and starts the thread.

        Args:
            render: Makes the text.
            address: Where to listen.
            port: Of 1 to 65535; 0: any free one.
            pages: By their paths.
            now_s: A monotonic clock.

        Raises:
            OSError: It cannot listen there.
        """
        self._pages: dict[str, Page] = {PATH: (CONTENT_TYPE, lambda: render().encode(errors="replace")), **pages}
        self._now_s, self._is_local = now_s, _is_loopback(address)
        self._listener = _listen(address, port)
        shown = f"[{address}]" if ":" in address else address
        self.url = f"http://{shown}:{self._listener.getsockname()[1]}{PATH}"
        """Where the metrics are."""
        self._clients: list[_Client] = []  # the oldest first
        self._accepts_from_s = 0.0
        self._ending, self._end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ending, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="distprof-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops answering, closes the port, and leaves clients that are not answered yet."""
        self._end.close()  # which the thread reads as an end
        self._thread.join(CLOSE_LIMIT_S)

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            for client in tuple(self._clients):
                self._leave(client)
            _close(self._listener)
            self._ending.close()
            self._selector.close()

    def _turn(self) -> bool:
        """Waits until something can be done, and does it. Returns whether the server goes on."""
        self._listen_again()
        ready = [key.fileobj for key, _ in self._selector.select(self._compute_timeout_s())]
        if self._ending in ready:
            return False
        for client in tuple(self._clients):
            if client.socket in ready:
                self._attend(client)
        if self._listener in ready:
            self._accept()
        now_s = self._now_s()
        for client in [client for client in self._clients if client.until_s <= now_s]:
            self._leave(client)
        return True

    def _compute_timeout_s(self) -> float | None:
        """How long nothing can happen by itself. None: for ever."""
        times_s = [client.until_s for client in self._clients[:1]]  # the oldest is the first to be left
        if self._accepts_from_s:
            times_s.append(self._accepts_from_s)
        return max(0.0, min(times_s) - self._now_s()) if times_s else None

    def _listen_again(self) -> None:
        """Accepts clients at first, and again when the rest after a refusal is over."""
        if self._listener not in self._selector.get_map() and self._now_s() >= self._accepts_from_s:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._accepts_from_s = 0.0

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:  # it would be as ready as before, and asked again at once
                self._selector.unregister(self._listener)
                self._accepts_from_s = self._now_s() + REFUSED_REST_S
                return
            if len(self._clients) >= MAX_CONNECTIONS:
                self._leave(self._clients[0])
            accepted.setblocking(False)
            client = _Client(accepted, until_s=self._now_s() + REQUEST_LIMIT_S)
            self._clients.append(client)
            self._selector.register(accepted, selectors.EVENT_READ)
            self._attend(client)  # most have asked already

    def _attend(self, client: _Client) -> None:
        """Reads what there is of the request, and writes what there is room for of the answer."""
        try:
            if client.answer is None and client.read():
                client.answer = self._answer(client.request)
                self._selector.modify(client.socket, selectors.EVENT_WRITE)
            if client.answer is None or client.write():
                return
        except BlockingIOError:
            return
        except Exception:  # the client is gone, or its answer cannot be made: the others are served
            pass
        self._leave(client)

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\n", 1)[0].split()
        if len(words) not in (2, 3):
            return _make_answer(HTTPStatus.BAD_REQUEST)
        if words[0] != b"GET":
            return _make_answer(HTTPStatus.METHOD_NOT_ALLOWED)
        path = words[1].partition(b"?")[0].decode(errors="replace")
        if path not in self._pages:
            return _make_answer(HTTPStatus.NOT_FOUND)
        if path != PATH and self._is_local and not _asks_loopback(request):
            return _make_answer(HTTPStatus.MISDIRECTED_REQUEST)
        kind, make = self._pages[path]
        return _make_answer(HTTPStatus.OK, make(), kind)

    def _leave(self, client: _Client) -> None:
        self._clients.remove(client)
        self._selector.unregister(client.socket)
        _close(client.socket)


class _Client:
    """A connection, with the part of its request that has been read and the part of the answer that has not gone."""

    def __init__(self, accepted: socket.socket, *, until_s: float) -> None:
        self.socket, self.until_s = accepted, until_s
        self.request = b""
        self.answer: bytes | None = None

    def read(self) -> bool:
        """Reads what there is; returns whether the request is whole.

        Raises:
            BlockingIOError: There is nothing to read.
            OSError: The client is gone, or says too much.
        """
        read = self.socket.recv(4096)
        self.request += read
        if not read or len(self.request) > MAX_REQUEST_BYTES:
            raise OSError(errno.ECONNABORTED, "no request")
        return b"\n\r\n" in self.request or b"\n\n" in self.request

    def write(self) -> bool:
        """Writes what there is room for; returns whether something is left."""
        assert self.answer is not None
        self.answer = self.answer[self.socket.send(self.answer) :]
        return bool(self.answer)


def _listen(address: str, port: int) -> socket.socket:
    """A listening socket. Unlike http.server, it does not ask for its host's name, which may take seconds."""
    with contextlib.ExitStack() as failing:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        failing.callback(listener.close)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        listener.setblocking(False)
        failing.pop_all()
    return listener


def _close(connection: socket.socket) -> None:
    """Closes it also where a forked process, such as a worker of a data loader, holds it open."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _asks_loopback(request: bytes) -> bool:
    """Whether a browser has been told to ask this host: a foreign page may give its own name this host's address."""
    heads = (line.partition(b":") for line in request.split(b"\n")[1:])
    hosts = [value.strip().decode(errors="replace") for name, _, value in heads if name.strip().lower() == b"host"]
    with contextlib.suppress(ValueError):
        return all(_is_loopback(urlsplit(f"//{host}").hostname or "") for host in hosts)
    return False


def _make_answer(status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> bytes:
    return b"\r\n".join([*(line.encode() for line in _list_head(status, kind, len(body))), body])


def _list_head(status: HTTPStatus, kind: str, num_bytes: int) -> Iterator[str]:
    yield f"HTTP/1.0 {status.value} {status.phrase}"
    yield f"Content-Type: {kind}"
    yield f"Content-Length: {num_bytes}"
    yield "Cache-Control: no-store"
    yield "X-Content-Type-Options: nosniff"
    yield "Content-Security-Policy: frame-ancestors 'none'"
    yield "Connection: close"
    yield ""
