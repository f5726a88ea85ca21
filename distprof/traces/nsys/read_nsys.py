"""Reads an SQLite export of an Nsight Systems capture: one trace per rank in it."""

from __future__ import annotations

from pathlib import Path

from distprof.facts.trace import Trace
from distprof.traces.limits import USUAL_LIMITS, Limits
from distprof.traces.nsys.capture import read_capture
from distprof.traces.nsys.database import Database
from distprof.traces.nsys.processes import split_capture


def read_nsys(
    path: Path, limits: Limits = USUAL_LIMITS, *, all_processes: bool = False, only_times: bool = False
) -> list[Trace]:
    """One trace per process that is a rank, ordered by rank: every process with device activity, CUDA calls or NVTX
    ranges or, if some processes carry distprof's mark, only those. Notes about the file as a whole, such as dropped
    rows, are those of the first trace.

    Ranks without a mark are numbered by process number, the order in which launchers start them.

    Args:
        path: Output of `nsys export --type sqlite`.
        limits: When to refuse the file.
        all_processes: Add a trace for every other process, without a rank, after the ranks: nsys' own tables include
            them all.
        only_times: Leave out what those tables do not show, which is faster: devices, streams, launching calls, kinds
            of memory and payloads are then unknown.

    Raises:
        DataError: The file is not such an export, is damaged or too large, or contains no rank.
    """
    database = Database(path, limits)
    return split_capture(database, read_capture(database, only_times=only_times), all_processes=all_processes)
