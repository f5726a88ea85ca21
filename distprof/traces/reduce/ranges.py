"""Host time and GPU time of every named range: how long it was open, and how long the device worked for it.

GPU time of a name is the union of the intervals of all activities that were launched in any of its instances: what runs
in parallel counts once. A launch is in a range if the call that made it (for a graph's kernels, the call that launched
the graph) began while the range was open on its thread. The main thread's open ranges also contain what other threads
launch (`nesting.choose_longest_thread`), because PyTorch's backward launches from other threads. An activity without a
known call belongs to no range. For start/end ranges see `nesting`: their exclusive times equal the inclusive ones.

Names that contain an instance number are folded: ``ProfilerStep#7``, ``#8``, ... become one name. Only what
distinguishes instances is folded: counters of steps and the like, ids, addresses, hashes. Numbers that distinguish the
parts of a program, such as layers, buckets, ranks and sizes, stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.intervals import locate_windows, measure, unite
from distprof.facts.run import PHASE_CODE, Phase
from distprof.facts.trace import UNKNOWN, Ranges, RangeStyle, Trace
from distprof.facts.trace_summary import RangeTotal
from distprof.traces.codes import drop_repeats, sum_groups
from distprof.traces.reduce.device_work import TracedWork
from distprof.traces.reduce.nesting import Nest, Spots, choose_longest_thread, mark_closed, mark_holders, nest_ranges
from distprof.traces.reduce.phase_names import USUAL_NAMES, NameMap
from distprof.traces.reduce.range_contents import (
    RangeNames,
    Slices,
    expand_slices,
    locate_owners,
    name_ranges,
    slice_ranges,
    spot_launches,
)

MAX_RANGES = 200
"""Names to keep per trace."""
FOLDED = "*"
LONGEST_FOLDED = 1_000
"""Characters of a name to look at; longer names are data, and stay unchanged."""
_COUNTER = re.compile(
    r"(?P<word>(?:steps?|iter(?:ation)?s?|epochs?|batch(?:es)?)"
    r"|(?<![a-z])(?:u?id|seq(?:uence)?|req(?:uest)?|nonce))"
    r"(?P<gap>[ _]?[#:=][ ]?|[ _.-]?)\d+(?![a-z0-9])",
    re.IGNORECASE,
)
"""A word for something that is counted, and the number right after it."""
_MARK = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # a UUID
    r"|\b0x[0-9a-f]+\b"
    r"|(?<![a-z0-9])(?=[a-f]*\d)[0-9a-f]{16,}(?![a-z0-9])"  # a hash
    r"|(?<![a-z0-9.])\d{10,}(?![a-z0-9.])",  # a timestamp, or a random number
    re.IGNORECASE,
)

Window = Sequence[tuple[int, int]] | IntArray | None
"""Begins and ends of the measured steps, host ns, in any order; None: no steps are known, so everything counts."""


def total_ranges(
    work: TracedWork, *, window: Window, usual: NameMap = USUAL_NAMES, other_threads: bool = True
) -> tuple[RangeTotal, ...]:
    """Sums up the instances of each name, folded by `fold_names`, longest host time first.

    Args:
        work: What the device of the process did.
        window: An instance is measured if it begins in one of these. Before the first it is warm-up, otherwise outside
            the steps.
        usual: Which names stand for loading data.
        other_threads: False: ranges of the main thread contain only what that thread launched.
    """
    trace = work.trace
    ranges, names, nest = trace.ranges, fold_names(name_ranges(trace)), nest_ranges(trace.ranges)
    closed = mark_closed(ranges)
    measured = closed & mark_measured(ranges.begin_ns, window)
    early = closed & ~measured & mark_early(ranges.begin_ns, window)
    host_ns, own_ns = ranges.end_ns - ranges.begin_ns, compute_exclusive(ranges, nest)
    count, open_count, warm_count, outside_count = (
        _count(names, rows) for rows in (measured, ~closed, early, closed & ~measured & ~early)
    )
    host, own, warm = (
        sum_groups(names.code[rows], values[rows], len(names.labels))
        for rows, values in ((measured, host_ns), (measured, own_ns), (early, host_ns))
    )
    order = sorted(range(len(names.labels)), key=lambda code: (-host[code], -warm[code], names.labels[code]))
    device = _attribute_device(work, names, nest, measured, other_threads=other_threads)
    totals = []
    for code in order[:MAX_RANGES]:
        domain, name = names.labels[code]
        gpu_ns, communication_ns, exclusive_ns, activities = device.measure(code) or (None, None, None, 0)
        totals.append(
            RangeTotal(
                domain=domain, name=name, count=count[code], host_ns=host[code], host_exclusive_ns=own[code],
                gpu_ns=gpu_ns, gpu_communication_ns=communication_ns, gpu_exclusive_ns=exclusive_ns,
                activities=activities, open_count=open_count[code], warmup_count=warm_count[code],
                warmup_host_ns=warm[code], outside_count=outside_count[code],
                loads=usual.match_phase(domain, name) == PHASE_CODE[Phase.DATA],
            )
        )  # fmt: skip
    return tuple(totals)


def fold_name(name: str) -> str:
    """The name without what distinguishes its instances: ``layer_17 id=123`` becomes ``layer_17 id=*``."""
    if len(name) > LONGEST_FOLDED:
        return name
    return _COUNTER.sub(rf"\g<word>\g<gap>{FOLDED}", _MARK.sub(FOLDED, name))


def fold_names(names: RangeNames) -> RangeNames:
    """The same ranges with folded names."""
    found: dict[tuple[str, str], int] = {}
    codes = [found.setdefault((domain, fold_name(name)), len(found)) for domain, name in names.labels]
    return RangeNames(labels=tuple(found), code=np.array(codes, dtype=np.int64)[names.code])


def mark_measured(begin_ns: IntArray, window: Window) -> BoolArray:
    """Which begins lie in the window, ``[num]``: at or after a step's begin, before its end."""
    if window is None:
        return np.ones(len(begin_ns), dtype=bool)
    pairs = np.asarray(window, dtype=np.int64).reshape(-1, 2)
    return locate_windows(begin_ns, unite(pairs[:, 0], pairs[:, 1])) >= 0


def mark_early(begin_ns: IntArray, window: Window) -> BoolArray:
    """Which begins lie before the first measured step, ``[num]``; all if none is measured."""
    pairs = np.zeros((0, 2), np.int64) if window is None else np.asarray(window, dtype=np.int64).reshape(-1, 2)
    early: BoolArray = begin_ns < (pairs[:, 0].min() if len(pairs) else np.iinfo(np.int64).max)
    return early


def compute_exclusive(ranges: Ranges, nest: Nest) -> IntArray:
    """How long each range was open without the ranges nested in it, ns, ``[num_ranges]``; 0 for unclosed ranges."""
    return np.where(nest.stacked, nest.exclusive_ns, ranges.end_ns - ranges.begin_ns)


def _count(names: RangeNames, rows: BoolArray) -> list[int]:
    return np.bincount(names.code[rows], minlength=len(names.labels)).tolist()  # type: ignore[no-any-return]


class _Device(Struct, frozen=True, kw_only=True):
    """Which activities belong to each name, all indexed by the names' codes."""

    trace: Trace
    spots: Spots
    slices: Slices
    """The contents of all measured ranges."""
    loose: Slices
    """The contents of those that are on no stack."""
    innermost: Slices
    """Stretches of ``rows``."""
    rows: IntArray
    """Activities sorted by the code of their innermost range."""
    works: BoolArray
    """Which activities are not collectives."""
    unable: frozenset[int]
    """Names whose ranges were all closed by other threads."""

    def measure(self, code: int) -> tuple[int, int, int, int] | None:
        """GPU time, the part of it filled only by collectives, the exclusive GPU time, and the number of activities.
        None: unknown."""
        if code in self.unable or not len(self.spots.row):
            return None
        contained, loose = self.spots.row[_indexes(self.slices, code)], self.spots.row[_indexes(self.loose, code)]
        if self.spots.doubled:
            contained = drop_repeats(contained)
        own = np.concatenate([loose, self.rows[_indexes(self.innermost, code)]])
        gpu_ns, working = self._unite(contained), self.works[contained]
        alone_ns = 0 if working.all() else gpu_ns - self._unite(contained[working])
        return gpu_ns, alone_ns, self._unite(own), len(contained)

    def _unite(self, rows: IntArray) -> int:
        return measure(unite(self.trace.gpu.begin_ns[rows], self.trace.gpu.end_ns[rows]))


def _attribute_device(
    work: TracedWork, names: RangeNames, nest: Nest, measured: BoolArray, *, other_threads: bool
) -> _Device:
    trace, ranges = work.trace, work.trace.ranges
    main_thread = choose_longest_thread(trace.ranges, nest) if other_threads else None
    spots = spot_launches(trace, main_thread)
    rows = np.flatnonzero(trace.gpu.call != UNKNOWN)
    call = trace.gpu.call[rows]
    inner = locate_owners(ranges, nest, trace.calls.thread[call], trace.calls.begin_ns[call], main_thread)
    owned = inner != UNKNOWN
    owned[owned] = measured[inner[owned]]
    code = names.code[inner[owned]]
    order = np.argsort(code, kind="stable")
    marks = np.searchsorted(code, np.arange(len(names.labels) + 1), sorter=order)
    holders = mark_holders(ranges)
    unable = set(names.code[measured & ~holders].tolist()) - set(names.code[measured & holders].tolist())
    return _Device(
        trace=trace, spots=spots, slices=slice_ranges(ranges, spots, measured, names.code),
        loose=slice_ranges(ranges, spots, measured & (ranges.style == RangeStyle.START_END), names.code),
        innermost=Slices(owner=np.arange(len(names.labels)), low=marks[:-1], high=marks[1:]),
        rows=rows[owned][order], works=work.kinds < 0, unable=frozenset(unable),
    )  # fmt: skip


def _indexes(slices: Slices, code: int) -> IntArray:
    first, last = np.searchsorted(slices.owner, (code, code + 1))
    return expand_slices(
        Slices(owner=slices.owner[first:last], low=slices.low[first:last], high=slices.high[first:last])
    )[1]
