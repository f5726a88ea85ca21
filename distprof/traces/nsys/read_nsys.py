"""Captures of Nsight Systems: an SQLite export becomes one trace per rank in it."""

from __future__ import annotations

from pathlib import Path

from distprof.errors import DataError
from distprof.facts.trace import Trace
from distprof.storage.opening import open_file
from distprof.traces.limits import USUAL_LIMITS, Limits
from distprof.traces.nsys.capture import read_capture
from distprof.traces.nsys.database import MAGIC, Database
from distprof.traces.nsys.processes import split_capture


def looks_like_sqlite(path: Path) -> bool:
    """Whether a file begins as SQLite's do."""
    try:
        with open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except DataError:
        return False


def read_nsys(
    path: Path, limits: Limits = USUAL_LIMITS, *, all_processes: bool = False, only_times: bool = False
) -> list[Trace]:
    """One trace per process that is a rank, by rank: every process with device activity, CUDA calls or NVTX ranges,
    or, where processes carry the mark of distprof, those that do. What concerns the file as a whole, such as rows that
    were dropped, stands in the notes of the first.

    Ranks without a mark are counted by process number, in which order a launcher starts them.

    Args:
        path: What `nsys export --type sqlite` made.
        limits: What is read of it at most.
        all_processes: Also a trace of every other process, without a rank, behind the ranks: nsys' own tables are
            over all of them.
        only_times: Leave out what those tables do not show, which is faster: devices, streams, launching calls, kinds
            of memory and payloads are not known then.

    Raises:
        DataError: The file is no such export, is damaged or too large, or holds nothing of a rank.
    """
    database = Database(path, limits)
    return split_capture(database, read_capture(database, only_times=only_times), all_processes=all_processes)
