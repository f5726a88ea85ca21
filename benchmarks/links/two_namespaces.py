"""Two hosts on this machine: network namespaces joined by a cable, which may be as slow as a real one.

Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence

ADDRESSES = ("10.199.77.1", "10.199.77.2")
DEVICE = "veth0"
"""The end of the cable, on either host."""
LEAST_BURST_BYTES = 125_000
BURST_S = 0.01
"""What may pass at once is worth so long, or a timer that is late on a busy machine slows the link."""


@contextlib.contextmanager
def join_hosts(mbit_per_s: float | None, *, both_ways: bool = True) -> Iterator[tuple[str, str]]:
    """The names of two network namespaces, which are deleted afterwards, with all that still runs there.

    Args:
        mbit_per_s: What the cable carries. None: as much as the machine can.
        both_ways: Whether both hosts send so slowly, or the second one alone.
    """
    first, second = names = f"distprof-{os.getpid()}-a", f"distprof-{os.getpid()}-b"
    with contextlib.ExitStack() as stack:
        for name in names:
            do("ip", "netns", "add", name)
            stack.callback(do, "ip", "netns", "delete", name)
            stack.callback(stop_processes, name)
        do("ip", "-n", first, "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", second)
        for name, address in zip(names, ADDRESSES, strict=True):
            do("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                do("ip", "-n", name, "link", "set", device, "up")
        for name in names[0 if both_ways else 1 :] if mbit_per_s is not None else ():
            assert mbit_per_s is not None
            burst_bytes = max(LEAST_BURST_BYTES, round(mbit_per_s * 1e6 / 8 * BURST_S))
            limit = ("tbf", "rate", f"{mbit_per_s:g}mbit", "burst", str(burst_bytes), "latency", "400ms")
            do("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", *limit)
        yield names


def enter(namespace: str, host_name: str | None, shift: Sequence[str] = ()) -> list[str]:
    """Begins a command that runs on a host.

    Args:
        namespace: The host's.
        host_name: What the host calls itself. None: what this machine does.
        shift: Further options of ``unshare``, such as those of another clock.
    """
    inside = ["ip", "netns", "exec", namespace]
    if host_name is None:
        return [*inside, "unshare", *shift] if shift else inside
    rename = f'echo {host_name} > /proc/sys/kernel/hostname && exec "$@"'
    return [*inside, "unshare", "--uts", *shift, "sh", "-c", rename, "sh"]


def stop_processes(namespace: str) -> None:
    """Ends what still runs on a host; after a finished job, nothing does."""
    for pid in do("ip", "netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def do(*command: str) -> str:
    """Runs a command of the system, which must succeed, and returns what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout
