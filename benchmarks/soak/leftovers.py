"""What a job has on this machine, and has left behind: processes and their CPU time, ports, files in shared memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

ESTABLISHED, LISTENS = "01", "0A"


class TcpEnd(NamedTuple):
    """One end of a TCP connection, as the kernel lists it."""

    own: str
    """Address and port, in hexadecimal digits."""
    peer: str
    inode: str


def list_processes(mark: str) -> list[int]:
    """The living processes that have this text in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            alive = entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0")
            found += [int(entry.name)] if alive else []
    return found


def list_sockets(processes: list[int]) -> set[str]:
    """The sockets, by inode, that any of these processes has open."""
    found: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(link)
                    found |= {target[8:-1]} if target.startswith("socket:[") else set()
    return found


def list_ends(state: str) -> list[TcpEnd]:
    """The ends of TCP connections that are in this state, as the kernel numbers it."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [TcpEnd(own=line[1], peer=line[2], inode=line[9]) for line in lines if line[3] == state]


def list_ports(sockets: set[str]) -> list[int]:
    """Ports on which one of these sockets listens."""
    return sorted({read_port(end.own) for end in list_ends(LISTENS) if end.inode in sockets})


def read_port(address: str) -> int:
    """The port of an end's address."""
    return int(address.rpartition(":")[2], 16)


def list_shared() -> set[str]:
    """The names of all files in shared memory."""
    return set(os.listdir("/dev/shm"))


def list_unused(names: set[str]) -> list[str]:
    """Those of these files in shared memory that no living process maps."""
    maps = ""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            maps += (entry / "maps").read_text() if entry.name.isdigit() else ""
    return sorted(name for name in names & list_shared() if f"/dev/shm/{name}" not in maps)


def read_other_cpu_s(processes: list[int]) -> float:
    """CPU time, s, that this machine has spent on anything but these processes, since it runs."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    busy = sum(ticks[:8]) - sum(ticks[3:5])  # neither idle nor waiting for a disk; guests are counted in user
    for process in processes:
        with contextlib.suppress(OSError):
            busy -= sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return busy / os.sysconf("SC_CLK_TCK")
