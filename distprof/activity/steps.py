"""When did each step of a traced process begin and end, on the host and on the device?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distprof.activity.device import code_collectives, find_device
from distprof.activity.phase_names import OWN_DOMAIN, NameMap, is_warmup
from distprof.trace import UNKNOWN, Activities, IntArray, Ranges, Trace

BoolArray = npt.NDArray[np.bool_]
MAX_STEPS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of one trace in order of time, none inside another, ``[num_steps]`` each; host times, ns."""

    number: IntArray
    begin_ns: IntArray
    end_ns: IntArray
    warmup: BoolArray
    thread: int
    """The thread that runs them; -1: there are none."""

    def windows(self) -> IntArray | None:
        """Begin and end of the measured steps, ``[num_measured, 2]``; None: no steps are known."""
        if not len(self.number):
            return None
        measured = ~self.warmup
        return np.stack([self.begin_ns[measured], self.end_ns[measured]], axis=1)


def find_steps(trace: Trace, names: NameMap) -> Steps:
    """Finds the ranges that are steps: distprof's own if there are any, else the profiler's, else by usual names.

    Steps come from the one thread with most of them. A step inside another is left out, and so is one whose number came
    before. Without numbers they are counted from 0.
    """
    ranges = trace.ranges
    found = np.array([_number(trace, names, code, domain) for code, domain in _pairs(ranges)], dtype=np.int64)
    picked = found[_pair_codes(ranges)] if len(found) else np.empty(0, dtype=np.int64)
    rows = np.flatnonzero((picked != _NO_STEP) & (ranges.end_ns != UNKNOWN))[:MAX_STEPS]
    rows = _prefer(trace, rows)
    if not len(rows):
        return Steps(number=rows, begin_ns=rows, end_ns=rows, warmup=np.zeros(0, dtype=bool), thread=-1)
    threads, counts = np.unique(ranges.thread[rows], return_counts=True)
    thread = int(threads[counts.argmax()])
    rows = rows[ranges.thread[rows] == thread]
    reached = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], ranges.end_ns[rows][:-1]]))
    rows = rows[ranges.begin_ns[rows] >= reached]
    number = picked[rows]
    if names.step is None and all(trace.names[code] == OWN_DOMAIN for code in np.unique(ranges.domain[rows]).tolist()):
        number = ranges.payload[rows]
    if (number < 0).any() or len(np.unique(number)) < len(number):
        number = np.arange(len(rows))
    begin_ns, end_ns = ranges.begin_ns[rows], ranges.end_ns[rows]
    return Steps(
        number=number, begin_ns=begin_ns, end_ns=end_ns, warmup=_find_warmup(trace, begin_ns, end_ns), thread=thread
    )


_NO_STEP = -2


def _pair_codes(ranges: Ranges) -> IntArray:
    """For each range the place of its (name, domain) among the distinct ones."""
    return np.unique(_keys(ranges), return_inverse=True)[1].reshape(-1)


def _pairs(ranges: Ranges) -> list[tuple[int, int]]:
    """The distinct (name, domain), in the order that `_pair_codes` counts."""
    return [(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in np.unique(_keys(ranges)).tolist()]


def _keys(ranges: Ranges) -> IntArray:
    return (ranges.name << 32) | np.maximum(ranges.domain, 0)


def _number(trace: Trace, names: NameMap, code: int, domain: int) -> int:
    found = names.find_step(trace.names[domain], trace.names[code])
    return _NO_STEP if found is None else found


def _prefer(trace: Trace, rows: IntArray) -> IntArray:
    """Of steps of several makes those of the first that is there: distprof's, the profiler's, anybody's."""
    ranges = trace.ranges
    own = np.array([trace.names[code] == OWN_DOMAIN for code in ranges.domain[rows].tolist()], dtype=bool)
    profiler = np.array([trace.names[code].startswith("ProfilerStep#") for code in ranges.name[rows].tolist()], bool)
    for chosen in (own, profiler):
        if chosen.any():
            preferred: IntArray = rows[chosen]
            return preferred
    return rows


def _find_warmup(trace: Trace, begin_ns: IntArray, end_ns: IntArray) -> BoolArray:
    """Steps inside a range called warm-up; with distprof's range over the measured steps, those outside of it."""
    ranges = trace.ranges
    codes = np.unique(ranges.name)
    named = np.array([code for code in codes.tolist() if is_warmup(trace.names[code])], dtype=np.int64)
    over = np.flatnonzero(np.isin(ranges.name, named) & (ranges.end_ns >= 0))
    warm = _reach(ranges.begin_ns[over], ranges.end_ns[over], begin_ns) >= end_ns
    own = np.array([code for code in codes.tolist() if trace.names[code] == "measured"], dtype=np.int64)
    rows = np.array([
        row for row in np.flatnonzero(np.isin(ranges.name, own)).tolist()
        if trace.names[int(ranges.domain[row])] == OWN_DOMAIN
    ], dtype=np.int64)  # fmt: skip
    over_ns = np.where(ranges.end_ns[rows] >= 0, ranges.end_ns[rows], np.iinfo(np.int64).max)
    measured = _reach(ranges.begin_ns[rows], over_ns, begin_ns) > begin_ns
    return warm | ~measured if len(rows) else warm


def _reach(begin_ns: IntArray, end_ns: IntArray, times_ns: IntArray) -> IntArray:
    """How far the ranges last that have begun at each time; the smallest number there is where none has. The ranges
    come in order of begin."""
    reached = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end_ns)])
    return reached[np.searchsorted(begin_ns, times_ns, side="right")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClock:
    """When the compute stream comes to what the host does at a time: as an event recorded there would say.

    An event waits for everything launched before it, and cannot be earlier than its own record:
    ``max(t, latest end of the compute launched before t)``.
    """

    launch_ns: IntArray
    """When the host launched each of the stream's activities, ascending; its own begin where nobody knows."""
    reached_ns: IntArray
    """The latest end of all launched so far."""

    def read(self, times_ns: IntArray) -> IntArray:
        """Times of the host's program on the device's timeline; same shape, and never going back."""
        if not len(self.launch_ns):
            return times_ns
        place = np.searchsorted(self.launch_ns, times_ns, side="left")
        return np.where(place > 0, np.maximum(times_ns, self.reached_ns[np.maximum(place - 1, 0)]), times_ns)


def find_device_clock(trace: Trace) -> DeviceClock | None:
    """The clock of the stream that computes longest; None: no launch on it is known, so nobody can tell."""
    gpu = trace.gpu
    compute = find_device(trace) & ~find_collectives(trace)
    streams, place = np.unique(gpu.stream[compute], return_inverse=True)
    if not len(streams):
        return None
    busy_ns = np.bincount(place.reshape(-1), weights=(gpu.end_ns - gpu.begin_ns)[compute])
    compute &= gpu.stream == streams[busy_ns.argmax()]
    if not (compute & (gpu.call != UNKNOWN)).any():
        return None
    launch_ns = launch_times(trace)[compute]
    order = np.argsort(launch_ns, kind="stable")
    return DeviceClock(launch_ns=launch_ns[order], reached_ns=np.maximum.accumulate(gpu.end_ns[compute][order]))


def launch_times(trace: Trace) -> IntArray:
    """When the host called for each activity; its own begin where the call is not known, ``[num_activities]``."""
    gpu: Activities = trace.gpu
    if not len(trace.calls.begin_ns):
        return gpu.begin_ns
    return np.where(gpu.call >= 0, trace.calls.begin_ns[np.maximum(gpu.call, 0)], gpu.begin_ns)


def find_collectives(trace: Trace) -> BoolArray:
    """Which activities are collectives, ``[num_activities]``."""
    found: BoolArray = code_collectives(trace) >= 0
    return found
