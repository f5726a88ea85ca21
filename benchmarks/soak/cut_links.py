"""The connections between ranks on this machine, and how they are cut."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.soak.leftovers import list_sockets
from distprof.errors import DistprofError

_ESTABLISHED = "01"


class _Socket(NamedTuple):
    """One end of a TCP connection, as the kernel lists it."""

    own: str
    """Address and port, in hexadecimal digits."""
    peer: str
    inode: str


def cut_links(process: int, others: list[int]) -> int:
    """Ends every TCP connection between a process and some others, for both sides at once. Needs root and iproute2.

    Returns:
        How many there were.

    Raises:
        DistprofError: Some are still there.
    """
    found = list(_list_links(process, others))
    if found:
        pairs = [f"( sport = :{_read_port(end.own)} and dport = :{_read_port(end.peer)} )" for end in found]
        subprocess.run(["ss", "-K", "-t", "-n", " or ".join(pairs)], capture_output=True, text=True, check=False)
    if left := set(found) & set(_list_links(process, others)):
        raise DistprofError(f"{len(left)} of {len(found)} connections of process {process} cannot be cut")
    return len(found)


def _list_links(process: int, others: list[int]) -> Iterator[_Socket]:
    """The process' own ends."""
    own, far, ends = list_sockets([process]), list_sockets(others), list(_list_established())
    peers = {(end.peer, end.own) for end in ends if end.inode in far}
    return (end for end in ends if end.inode in own and (end.own, end.peer) in peers)


def _list_established() -> Iterator[_Socket]:
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _ESTABLISHED:
                yield _Socket(words[1], words[2], words[9])


def _read_port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def can_cut() -> bool:
    """Whether this machine lets a connection be cut: tries it with one of its own."""
    if shutil.which("ss") is None:
        return False
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        near, far = client.getsockname()[1], server.getsockname()[1]
        subprocess.run(
            ["ss", "-K", "-t", "-n", f"sport = :{near} and dport = :{far}"], capture_output=True, check=False
        )
        with contextlib.suppress(OSError):
            client.settimeout(0)
            client.send(b".")
            return False
    return True
