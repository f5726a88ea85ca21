"""A folder of synthetic traces, one per rank of a job in which one rank comes late."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from benchmarks.synthetic_traces import Generation, make_kineto

LATE_NS = 20_000_000
STEPS = 12
HEAD_BYTES = 1 << 16
LEVEL = 6
"""Of the compression, as a profiler's user has it; the files are not made while anything is timed."""
_RANK = re.compile(rb'"rank": \d+')


def make_job(folder: Path, *, ranks: int, events: int, generation: Generation) -> int:
    """Writes ``rank-N.json.gz`` for every rank, and returns the late one.

    Two traces are played, that of the late rank and that of another; the others' are that one under their own ranks.

    Args:
        folder: Where they go.
        ranks: Of the job.
        events: About how many are in each file.
        generation: How the files are written.
    """
    late = ranks // 2
    played = folder / "played.json"
    packed: dict[bool, tuple[bytes, bytes]] = {}
    for is_late in (False, True):
        make_kineto(
            played, rank=late if is_late else late + 1, world_size=ranks, num_events=events, num_steps=STEPS,
            generation=generation, slow_rank=late, late_ns=LATE_NS,
        )  # fmt: skip
        text = played.read_bytes()
        packed[is_late] = text[:HEAD_BYTES], gzip.compress(text[HEAD_BYTES:], LEVEL, mtime=0)
    played.unlink()
    for rank in range(ranks):
        head, body = packed[rank == late]
        named, count = _RANK.subn(b'"rank": %d' % rank, head, count=1)
        assert count == 1
        (folder / f"rank-{rank}.json.gz").write_bytes(gzip.compress(named, LEVEL, mtime=0) + body)
    return late
