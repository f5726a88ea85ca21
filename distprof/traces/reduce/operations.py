"""Which operation does a collective's kernel perform, if its own name does not tell?

NCCL's send and receive kernels, and its generic ones, serve many operations. The tool may record which one; else the
annotation or operator tells that was open on the launching thread at the launch.
"""

from __future__ import annotations

import numpy as np

from distprof.facts.trace import UNKNOWN, BoolArray, Calls, IntArray, Ranges, Trace
from distprof.traces.reduce.kernel_names import names_operation


def find_operations(trace: Trace, rows: IntArray) -> IntArray:
    """The operation names of some activities, as codes of ``Trace.names``, ``[num_rows]``; -1: unknown."""
    gpu = trace.gpu
    found = np.full(len(rows), UNKNOWN) if gpu.collective is None else gpu.collective[rows].copy()
    left = np.flatnonzero((found < 0) & (gpu.call[rows] >= 0))
    if not len(left):
        return found
    call = gpu.call[rows[left]]
    thread, launch_ns = trace.calls.thread[call], trace.calls.begin_ns[call]
    for table in (trace.ops, trace.ranges):  # an annotation inside an operator is more specific
        told = _find_last(trace, table, thread, launch_ns)
        found[left[told >= 0]] = table.name[told[told >= 0]]
    return found


def _find_last(trace: Trace, table: Calls | Ranges, thread: IntArray, time_ns: IntArray) -> IntArray:
    """The last row of the table that names an operation, began on the thread before each time, and was still open
    then; -1: none. Collectives are not nested in each other."""
    rows = np.flatnonzero(_find_named(trace, table.name))
    found = np.full(len(thread), UNKNOWN)
    for own in np.unique(thread).tolist():
        here, mine = rows[table.thread[rows] == own], np.flatnonzero(thread == own)
        index = np.searchsorted(table.begin_ns[here], time_ns[mine], side="right") - 1
        mine, last = mine[index >= 0], here[index[index >= 0]]
        is_open = (table.end_ns[last] == UNKNOWN) | (time_ns[mine] < table.end_ns[last])
        found[mine[is_open]] = last[is_open]
    return found


def _find_named(trace: Trace, codes: IntArray) -> BoolArray:
    good = [code for code in np.unique(codes).tolist() if code >= 0 and names_operation(trace.names[code])]
    return np.isin(codes, good)
