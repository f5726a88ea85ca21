"""How did a job of a sweep end? From its exit code and its output."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from distprof.cli.sweep.process import Ended
from distprof.config.redact import mask
from distprof.facts.sweep import SweepStatus
from distprof.render.units import clean_text

TAIL_BYTES = 200_000
REASON_LIMIT = 300
_NO_MEMORY = re.compile(
    r"OutOfMemoryError|out of memory|MemoryError|bad_alloc|(can't|cannot) allocate memory|need at least [\d,]+ GiB",
    re.I,
)
_OURS = re.compile(r"^distprof: (?!stopped early)(.+)$", re.M)
_RANK = re.compile(r"^distprof: (rank (\d+) failed: .+)$", re.M)
_ERROR = re.compile(r"^(?!torch\.distributed\.elastic)(\w[\w.]*(?:Error|Exception)\b.*)$", re.M)
_ROOT, _ROOT_RANK, _ROOT_CODE = (
    re.compile(line, re.M) for line in (r"^Root Cause", r"^ *rank *: (\d+)", r"^ *exitcode *: (-?\d+)")
)
"""Lines at the end of torchrun's output: which rank failed first, and its exit code."""


def judge(ended: Ended, log: Path, timeout_s: float | None, secrets: Sequence[str]) -> tuple[SweepStatus, str | None]:
    """The job's status, and why it did not complete.

    Args:
        ended: How its processes ended.
        log: Their output.
        timeout_s: The job's time limit.
        secrets: Values to mask.
    """
    if ended.exit_code == 0:
        return "completed", None
    if ended.exit_code is None:
        return "timed out", f"not ended after {timeout_s:g} s (sweep.timeout_s)"
    text = _read_tail(log)
    reason = clean_text(mask(_find_reason(text, ended.exit_code), secrets), REASON_LIMIT)
    return ("out of memory" if _NO_MEMORY.search(text) else "failed"), reason


def _find_reason(text: str, exit_code: int) -> str:
    """What torchrun saw first, else the first rank that says so, else distprof's last line, else the last error."""
    root = _find_root(text)
    if root is not None and root[1] < 0:
        return f"rank {root[0]} was ended by {_name_signal(-root[1])}"
    ranks = [(found[2], found[1]) for found in _RANK.finditer(text)]
    first = [said for rank, said in ranks if root is not None and rank == root[0]]
    if ranks:
        return str((first or [ranks[0][1]])[0])
    if said := [*_OURS.findall(text), *_ERROR.findall(text)[-1:]]:
        return str(said[-1])
    return f"exit code {exit_code}" if exit_code >= 0 else f"torchrun was ended by {_name_signal(-exit_code)}"


def _find_root(text: str) -> tuple[str, int] | None:
    """The rank that failed first according to torchrun, and its exit code."""
    start = _ROOT.search(text)
    rank = start and _ROOT_RANK.search(text, start.end())
    code = rank and _ROOT_CODE.search(text, rank.end())
    return (rank[1], int(code[1])) if rank and code else None


def _name_signal(number: int) -> str:
    name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
    return name + (", as by the kernel when memory runs out" if number == signal.SIGKILL else "")


def _read_tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
