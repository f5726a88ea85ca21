"""Runs a job like its launcher, but forks the ranks from a process that has imported everything.

Tests of the launcher itself, or of Python's start, use `tests.ranks` instead.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.faults.forked import Command, make_rank, run
from tests.ranks import find_ports


def fork_alone(arguments: Sequence[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``distprof ARGUMENTS``."""
    return _run([Command(arguments=arguments, environment=environment)], cwd)


def fork_ranks(
    number: int, arguments: Sequence[str], cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``distprof ARGUMENTS`` as several ranks of one host, with what a launcher tells each."""
    (port,) = find_ports(1)
    return _run([make_rank(rank, number, port, arguments, **environment) for rank in range(number)], cwd)


def _run(commands: Sequence[Command], cwd: Path) -> subprocess.CompletedProcess[str]:
    ended = run(*commands, cwd=cwd)
    return subprocess.CompletedProcess(
        list(commands[0].arguments), next((done.code for done in ended if done.code), 0),
        "".join(done.out for done in ended), "".join(done.err for done in ended),
    )  # fmt: skip
