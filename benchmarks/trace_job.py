"""A folder of synthetic traces, one per rank of a job in which one rank comes late."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from benchmarks.synthetic_traces import TraceGeneration, make_kineto

LATE_NS = 20_000_000
STEPS = 12
HEAD_BYTES = 1 << 16
LEVEL = 6
"""Compression level of a typical profiler user; writing the files is never timed."""
_RANK = re.compile(rb'"rank": \d+')


def make_job(folder: Path, *, ranks: int, events: int, generation: TraceGeneration) -> int:
    """Writes ``rank-N.json.gz`` for every rank, and returns the late one.

    Two traces are generated: the late rank's and another one's, which the other ranks share under their own numbers.

    Args:
        folder: Where to write them.
        ranks: Ranks in the job.
        events: The approximate number of events in each file.
        generation: The profiler generation to imitate.
    """
    late = ranks // 2
    shared = folder / "shared.json"
    packed: dict[bool, tuple[bytes, bytes]] = {}
    for is_late in (False, True):
        make_kineto(
            shared, rank=late if is_late else late + 1, world_size=ranks, num_events=events, num_steps=STEPS,
            generation=generation, slow_rank=late, late_ns=LATE_NS,
        )  # fmt: skip
        text = shared.read_bytes()
        packed[is_late] = text[:HEAD_BYTES], gzip.compress(text[HEAD_BYTES:], LEVEL, mtime=0)
    shared.unlink()
    for rank in range(ranks):
        head, body = packed[rank == late]
        named, count = _RANK.subn(b'"rank": %d' % rank, head, count=1)
        assert count == 1
        (folder / f"rank-{rank}.json.gz").write_bytes(gzip.compress(named, LEVEL, mtime=0) + body)
    return late
