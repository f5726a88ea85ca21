"""Other processes on this machine: nsys copies the environment of every process that it may read into its report.

So a clean environment for the job is not enough. If another process holds keys, such as the shell from which the job
was started or the first process of a container, the job gets its own process namespace, in which nsys sees no others.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.cli.capture.environment import clean_environment
from distprof.config.redact import MASK

_TRY_TIMEOUT_S = 10.0
_RUN = '"$@"; exit $?'  # two commands, so that the shell stays as the first process of the namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A process with secrets in its environment."""

    pid: int
    name: str
    variables: tuple[str, ...]


def find_neighbours(proc: Path = Path("/proc")) -> list[Neighbour]:
    """The processes with secrets in an environment that this user may read, ordered by process id."""
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # another user's, or it has ended
                dropped = clean_environment(_read_block((folder / "environ").read_bytes().decode(errors="replace")))[1]
                if dropped:
                    name = (folder / "comm").read_text(errors="replace").strip()
                    found.append(Neighbour(pid=int(folder.name), name=name, variables=dropped))
    return sorted(found, key=lambda each: each.pid)


def find_wall() -> list[str] | None:
    """The command prefix that hides other processes. None: this user, or this machine, does not allow it.

    Process ids differ inside; devices, files, network and shared memory are the same.
    """
    wall = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        wall += ["--user", "--map-current-user"]
    wall += ["/bin/sh", "-c", _RUN, "sh"]
    try:
        tried = subprocess.run([*wall, "true"], capture_output=True, timeout=_TRY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return wall if tried.returncode == 0 else None


def describe(neighbours: Sequence[Neighbour], limit: int = 3) -> str:
    """Which processes hold which variables: ``bash (pid 12): HF_TOKEN``."""
    named = [f"{each.name} (pid {each.pid}): {', '.join(each.variables)}" for each in neighbours[:limit]]
    more = len(neighbours) - limit
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


def mask_secrets(export: Path) -> tuple[str, ...]:
    """Masks the secrets in the environments in an export, in place.

    Args:
        export: An SQLite export; its strings are untrusted.

    Returns:
        The names of the masked variables.

    Raises:
        sqlite3.Error: It cannot be read or written.
    """
    masked: set[str] = set()
    with contextlib.closing(sqlite3.connect(export)) as base:
        base.execute("PRAGMA trusted_schema = OFF")
        base.execute("PRAGMA secure_delete = ON")  # otherwise the old bytes stay in the file
        blocks = base.execute("SELECT rowid, value FROM StringIds WHERE instr(value, char(0)) > 0").fetchall()
        for row, text in blocks:
            variables = _read_block(str(text))
            dropped = clean_environment(variables)[1]
            if dropped:
                masked.update(dropped)
                kept = {**variables, **dict.fromkeys(dropped, MASK)}
                block = "\0".join(f"{name}={value}" for name, value in kept.items())
                base.execute("UPDATE StringIds SET value = ? WHERE rowid = ?", (block, row))
        base.commit()
    return tuple(sorted(masked))


def _read_block(block: str) -> dict[str, str]:
    """An environment in the kernel's format."""
    return {name: value for name, _, value in (entry.partition("=") for entry in block.split("\0")) if name}
