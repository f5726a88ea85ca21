"""The metrics port answers whoever asks, and no client holds it, the others or the end of the job up."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.profiler.metrics.metrics_server import (
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    REQUEST_LIMIT_S,
    MetricsServer,
)

TEXT = "metric 1\n"
LIMIT_S = 10.0


@contextlib.contextmanager
def serving(
    render: Callable[[], str] = lambda: TEXT, *, address: str = "127.0.0.1", **options: Any
) -> Iterator[MetricsServer]:
    server = MetricsServer(render, address=address, port=0, **options)
    try:
        yield server
    finally:
        server.close()
        assert "distprof-metrics" not in [thread.name for thread in threading.enumerate()]


def connect(url: str) -> socket.socket:
    port = int(url.rpartition(":")[2].split("/")[0])
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def ask(server: MetricsServer, path: str = "") -> str:
    with urllib.request.urlopen(server.url + path, timeout=LIMIT_S) as answer:
        text: str = answer.read().decode()
    return text


def is_left(client: socket.socket) -> bool:
    """Whether the server leaves the connection, sooner or later."""
    with contextlib.suppress(ConnectionError):
        return client.recv(1) == b""
    return True


def test_a_port_answers_until_it_is_closed() -> None:
    with serving(lambda: "metric \ud800 1\n") as server:
        with urllib.request.urlopen(server.url, timeout=LIMIT_S) as answer:
            assert answer.read() == b"metric ? 1\n" and answer.headers["Content-Type"].startswith("text/plain; version")
        assert ask(server, "?since=1") == "metric ? 1\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(server, "/other")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(server.url, data=b"body", timeout=LIMIT_S)
    with pytest.raises(ConnectionRefusedError):
        connect(server.url)


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:9400", 200), ("localhost", 200), ("[::1]:9400", 200), ("rebound.example:9400", 421), ("[x", 421)],
)
def test_a_page_is_for_who_asks_this_host_by_its_own_name(host: str, status: int) -> None:
    """A page of another host may point its own name here, and then read what it gets."""
    page = ("text/html; charset=utf-8", lambda: b"<p>job</p>")
    with serving(pages={"/": page}) as server:
        for path, expected in (("/", status), ("/metrics", 200)):
            with connect(server.url) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                answer = client.makefile("rb").read()
            assert answer.startswith(f"HTTP/1.0 {expected} ".encode())
            assert (b"<p>job" in answer) == (path == "/" and expected == 200)
            assert b"\r\nX-Content-Type-Options: nosniff\r\n" in answer and b"frame-ancestors 'none'" in answer


def test_it_listens_on_ipv6_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        with serving(address="::1") as server:
            assert server.url.startswith("http://[::1]:") and ask(server) == TEXT
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
        pytest.skip("no IPv6 on this machine")


def test_a_request_in_pieces_is_one_and_an_endless_or_empty_one_is_none() -> None:
    with serving() as server:
        with connect(server.url) as client:
            for piece in (b"GET /met", b"rics HTTP/1.1\r\n", b"Host: here\r\n\r", b"\n"):
                client.sendall(piece)
            assert client.makefile("rb").read().endswith(TEXT.encode())
        with connect(server.url) as client:
            client.sendall(b"\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.0 400 ")
        with connect(server.url) as client, contextlib.suppress(ConnectionError):
            client.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x" * (MAX_REQUEST_BYTES + 1))
            assert is_left(client)
        assert ask(server) == TEXT


def test_fault_46_idle_clients_are_left_after_a_while_and_others_are_answered_meanwhile() -> None:
    at_s = [0.0]
    with serving(now_s=lambda: at_s[0]) as server, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(server.url)) for _ in range(6)]
        assert ask(server) == TEXT
        at_s[0] = REQUEST_LIMIT_S / 2
        slow = stack.enter_context(connect(server.url))
        slow.sendall(b"G")
        assert ask(server) == TEXT
        at_s[0] = REQUEST_LIMIT_S
        slow.sendall(b"E")  # bytes that come do not make its time longer
        assert all(is_left(client) for client in idle)
        at_s[0] = 1.5 * REQUEST_LIMIT_S
        slow.sendall(b"T")
        assert is_left(slow) and ask(server) == TEXT


def test_fault_46_a_client_that_never_reads_is_left_and_others_are_answered_meanwhile() -> None:
    at_s, text = [0.0], "metric 1\n" * (2 << 20)  # more than buffers of connections take
    with serving(lambda: text, now_s=lambda: at_s[0]) as server, connect(server.url) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert len(ask(server)) == len(text)
        at_s[0] = REQUEST_LIMIT_S
        with contextlib.suppress(urllib.error.HTTPError):
            ask(server, "/other")  # the server looks at its clients
        with contextlib.suppress(ConnectionError):
            assert len(client.makefile("rb").read()) < len(text)


def test_fault_46_of_a_thousand_clients_a_bounded_number_is_kept_and_the_next_is_answered() -> None:
    with serving(now_s=lambda: 0.0) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server.url)) for _ in range(1000)]
        assert ask(server) == TEXT
        assert all(is_left(client) for client in clients[:-MAX_CONNECTIONS])


def test_no_client_is_accepted_for_a_while_where_the_system_refuses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    at_s, tried, accept, rest_s = [0.0], list[float](), socket.socket.accept, 0.01

    def now_s() -> float:
        at_s[0] += rest_s / 8
        return at_s[0]

    def count(listener: socket.socket) -> object:
        tried.append(at_s[0])
        if len(tried) < 4:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", count)
    monkeypatch.setattr("distprof.profiler.metrics.metrics_server.REFUSED_REST_S", rest_s)
    with serving(now_s=now_s) as server, connect(server.url) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert client.makefile("rb").read().endswith(TEXT.encode())
    assert min(later - earlier for earlier, later in pairwise(tried[:4])) >= rest_s


def test_an_answer_that_cannot_be_made_costs_its_client_only() -> None:
    answers = iter([ValueError("none"), TEXT])

    def render() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with serving(render) as server:
        with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
            ask(server)
        assert ask(server) == TEXT


def test_fault_46_a_job_ends_whatever_the_clients_of_its_metrics_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with distprof.start("warm-up", run_dir=str(tmp_path / "warm-up"), find=False) as session, session.step():
        pass  # what the end of a job imports is imported now
    capsys.readouterr()
    with contextlib.ExitStack() as stack:
        with distprof.start("a", run_dir=str(tmp_path / "a"), metrics_port=0, find=False) as session:
            with session.step():
                pass
            url = capsys.readouterr().err.split("live metrics: ")[1].split()[0]
            clients = [stack.enter_context(connect(url)) for _ in range(20)]
            for client in clients[:10]:
                client.sendall(b"GET /metrics HTTP/1.1\r\n")
            ended_s = time.monotonic()
        assert time.monotonic() - ended_s < 5.0
        assert all(is_left(client) for client in clients)
