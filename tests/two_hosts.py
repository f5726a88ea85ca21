"""Two hosts on this machine: network namespaces joined by a cable, each with ranks of its own.

Needs root, iproute2 and util-linux. The second host can be made to differ like a real one: with a slow link, and with
another monotonic clock. A job is started by forks; `tests/test_slurm_launch.py` has launchers on two hosts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.links.two_namespaces import ADDRESSES, DEVICE, join_hosts, stop_processes
from tests.faults.forked import Command, Started, start
from tests.ranks import find_ports, tell_rank

RANKS_PER_HOST = 2
TIMEOUT_S = 120.0


class TwoHostsJob(Struct, frozen=True, kw_only=True):
    """A finished job."""

    folder: Path
    """Its run folder, which both hosts share."""
    exits: tuple[int, ...]
    """Of the two hosts."""
    outputs: tuple[str, ...]
    """What their ranks printed."""


def fork_on_two_hosts(
    arguments: Sequence[str],
    tmp_path: Path,
    *,
    mbit_per_s: float | None = None,
    same_name: bool = False,
    clock_ahead_s: int = 0,
    timeout_s: float = TIMEOUT_S,
) -> TwoHostsJob:
    """Runs ``distprof ARGUMENTS``: ranks 0 and 1 on host a, 2 and 3 on host b.

    Args:
        arguments: The job's arguments; its run folder is chosen here.
        tmp_path: An empty folder.
        mbit_per_s: The bandwidth limit of host b.
        same_name: Of both hosts.
        clock_ahead_s: How far host b's monotonic clock is ahead of host a's, to the nanosecond.
        timeout_s: When the job is given up.
    """
    folder = tmp_path / "run"
    (port,) = find_ports(1)
    with join_hosts(mbit_per_s, both_ways=False) as names, contextlib.ExitStack() as stack:
        hosts: list[Started] = []
        for host, name in enumerate(names):
            ranks = [_tell_rank(host, local, port) for local in range(RANKS_PER_HOST)]
            before = _BECOME_HOST.format(
                netns=f"/run/netns/{name}", host="host-a" if same_name else f"host-{'ab'[host]}", ranks=ranks,
                ahead_s=clock_ahead_s if host else 0,
            )  # fmt: skip
            command = Command(arguments=[*arguments, f"run_dir={folder}"], before=before)
            hosts += start(command, cwd=tmp_path)
            stack.callback(stop_processes, name)
        outputs = tuple("".join(each.communicate(timeout_s)) for each in hosts)
    return TwoHostsJob(folder=folder, exits=tuple(each.returncode or 0 for each in hosts), outputs=outputs)


_BECOME_HOST = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
NEWTIME, NEWUTS, NEWNET = 0x80, 0x4000000, 0x40000000
with open("{netns}") as network:
    assert libc.setns(network.fileno(), NEWNET) == 0, os.strerror(ctypes.get_errno())
assert libc.unshare(NEWUTS | (NEWTIME if {ahead_s} else 0)) == 0, os.strerror(ctypes.get_errno())
socket.sethostname("{host}")
if {ahead_s}:
    with open("/proc/self/timens_offsets", "w") as offsets:
        offsets.write("monotonic {ahead_s} 0")
forked = []
for told in {ranks}:
    forked.append(os.fork())
    if forked[-1] == 0:
        os.environ.update(told)
        break
else:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forked]
    os._exit(next((abs(code) for code in codes if code), 0))
"""
"""Makes a forked process a host: in its network and with its name and clock, it forks its ranks and waits for them."""


def _tell_rank(host: int, local: int, port: int) -> dict[str, str]:
    told = tell_rank(RANKS_PER_HOST * host + local, RANKS_PER_HOST * len(ADDRESSES), port)
    here = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(RANKS_PER_HOST), "MASTER_ADDR": ADDRESSES[0]}
    return {**told, **here, "GLOO_SOCKET_IFNAME": DEVICE}
