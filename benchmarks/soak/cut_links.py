"""The connections between ranks on this machine, and how they are cut."""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import subprocess

from benchmarks.soak.leftovers import ESTABLISHED, TcpEnd, list_ends, list_sockets, read_port
from distprof.errors import DistprofError


def cut_links(process: int, others: list[int]) -> int:
    """Ends every TCP connection between a process and some others, for both sides at once. Needs root and iproute2.

    Returns:
        How many there were.

    Raises:
        DistprofError: Some are still there.
    """
    found = _list_links(process, others)
    if found:
        _cut([(read_port(end.own), read_port(end.peer)) for end in found])
    if left := found & _list_links(process, others):
        raise DistprofError(f"{len(left)} of {len(found)} connections of process {process} cannot be cut")
    return len(found)


def _list_links(process: int, others: list[int]) -> set[TcpEnd]:
    """The process' own ends."""
    own, far, ends = list_sockets([process]), list_sockets(others), list_ends(ESTABLISHED)
    peers = {(end.peer, end.own) for end in ends if end.inode in far}
    return {end for end in ends if end.inode in own and (end.own, end.peer) in peers}


def _cut(ports: list[tuple[int, int]]) -> None:
    pairs = [f"( sport = :{own} and dport = :{peer} )" for own, peer in ports]
    subprocess.run(["ss", "-K", "-t", "-n", " or ".join(pairs)], capture_output=True, check=False)


@functools.cache
def can_cut() -> bool:
    """Whether this machine lets a connection be cut: tries it with one of its own."""
    if shutil.which("ss") is None:
        return False
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        _cut([(client.getsockname()[1], server.getsockname()[1])])
        with contextlib.suppress(OSError):
            client.settimeout(0)
            client.send(b".")
            return False
    return True
