"""The streams of a run folder, read in several processes where they are many, with their progress told."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from distprof.storage.run_folder import ReadEach, ReadOne, StreamOrError, try_read
from distprof.traces.reduce_sources import Progress, run_each

MIN_PARALLEL_BYTES = 20_000_000
"""Below this total size, starting worker processes takes longer than reading."""


def read_in_processes(on_progress: Progress) -> ReadEach:
    """Reads streams in as many processes as there are cores; ``on_progress`` is told how many are read, and of how
    many."""

    def read_each(read: ReadOne, paths: Sequence[Path], inside: int) -> Iterator[tuple[int, StreamOrError]]:
        workers = _count_workers(paths, inside)
        tasks = [(read, path, inside) for path in paths]
        return run_each(try_read, tasks, on_progress, "local" if workers > 1 else None, workers)

    return read_each


def _count_workers(paths: Sequence[Path], inside: int) -> int:
    # A worker that is not forked does not have the descriptor of the folder.
    if {"torch", "fsspec"} & sys.modules.keys() or not hasattr(os, "fork"):
        return 1
    size = 0
    for path in paths:
        with contextlib.suppress(OSError):  # it is gone: reading it will say so
            size += os.stat(path.name, dir_fd=inside, follow_symlinks=False).st_size
    return 1 if size < MIN_PARALLEL_BYTES else min(len(paths), len(os.sched_getaffinity(0)))
