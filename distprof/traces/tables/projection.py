"""Domain > range > the device work it launched and the calls it made: projects activities onto ranges.

A row sums up one name: the instances of a range, the activities of one name launched in them, or the calls of one name
made in them. `distprof.traces.reduce.nesting` defines which calls a range contains, including those of nested ranges;
*exclusive* leaves the nested ranges out, and shows how long the range was open without them. What lies in two nested
ranges of the same name counts once. Nested calls, such as runtime into driver, count separately. Host time and device
time come from two clocks: shares are relative to rows of the same type in the same range. Times are ns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.trace import UNKNOWN, RangeStyle, Trace
from distprof.traces.codes import drop_repeats, factorize
from distprof.traces.reduce.nesting import Nest, Spots, choose_longest_thread, mark_closed, nest_ranges
from distprof.traces.reduce.range_contents import (
    RangeNames,
    Slices,
    expand_in_parts,
    locate_owners,
    name_ranges,
    slice_ranges,
    spot_calls,
    spot_launches,
)
from distprof.traces.reduce.ranges import Window, compute_exclusive, mark_measured
from distprof.traces.tables.groups import round_quotient, summarize_groups
from distprof.traces.tables.range_tables import sum_gpu_projection, sum_range_kernels
from distprof.traces.tables.six_tables import Cells, Table

HEADS = (
    "Domain", "Range", "Type", "Time (%)", "Total Time (ns)", "Calls", "Avg (ns)", "Min (ns)", "Max (ns)", "Name",
)  # fmt: skip
MAX_SHOWN = 1000
"""Ranges in a table, longest host time first; the last row says how many more there are."""
RANGE, DEVICE, CALLS, OPEN = "Range", "GPU activities", "API calls", "never closed"
DEFAULT_DOMAIN = "(default)"
NO_DOMAIN = "(none)"
OUTSIDE = "outside every closed range"
LOST = "launch not in the trace"

_VERSION = re.compile(r"_v\d{4,}$")
"""The CUDA release suffix of an API call."""

Label = tuple[str, str]
"""Domain and name."""
Totals = list[int]
"""Count, sum, minimum, maximum."""


class _ProjectionBlock(Struct):
    """The data of one range's rows: totals by type and name."""

    sums: dict[str, dict[str, Totals]] = field(default_factory=lambda: {RANGE: {}, DEVICE: {}, CALLS: {}})
    open_count: int = 0

    def add(self, kind: str, name: str, count: int, total: int, minimum: int, maximum: int) -> None:
        """Adds one trace's totals of a name."""
        old = self.sums[kind].setdefault(name, [0, 0, minimum, maximum])
        old[:] = [old[0] + count, old[1] + total, min(old[2], minimum), max(old[3], maximum)]

    @property
    def host_ns(self) -> int:
        """How long its instances were open."""
        return sum(totals[1] for totals in self.sums[RANGE].values())


Blocks = dict[Label, _ProjectionBlock]


def project(
    traces: Sequence[Trace],
    *,
    windows: Sequence[Window] | None = None,
    exclusive: bool = False,
    other_threads: bool = True,
) -> Table:
    """Makes one table of all traces; ranges of the same domain and name are combined.

    Args:
        traces: Of one rank, or of several.
        windows: Times to count, per trace: instances that begin in none are left out. None: all count.
        exclusive: Leave out what nested ranges contain.
        other_threads: The main thread's ranges also contain what other threads do meanwhile (`ranges.total_ranges`).
    """
    blocks: Blocks = {}
    for trace, window in zip(traces, windows or [None] * len(traces), strict=True):
        _add_trace(blocks, trace, window, exclusive=exclusive, other_threads=other_threads)
    specials = [label for label in ((NO_DOMAIN, OUTSIDE), (NO_DOMAIN, LOST)) if label in blocks]
    longest: dict[str, int] = {}
    for (domain, _), block in blocks.items():
        longest[domain] = max(longest.get(domain, 0), block.host_ns)
    ranked = sorted(blocks.keys() - specials, key=lambda label: (-blocks[label].host_ns, label))
    shown = sorted(ranked[:MAX_SHOWN], key=lambda label: (-longest[label[0]], label[0], -blocks[label].host_ns, label))
    rows = [row for label in [*shown, *specials] for row in _show(label, blocks[label])]
    if len(ranked) > MAX_SHOWN:
        rows.append(("", f"{len(ranked) - MAX_SHOWN} more ranges, not shown", *[None] * 7, ""))
    return Table(name="projection", heads=HEADS, rows=tuple(rows))


def _add_trace(blocks: Blocks, trace: Trace, window: Window, *, exclusive: bool, other_threads: bool) -> None:
    ranges, names, nest = trace.ranges, name_ranges(trace), nest_ranges(trace.ranges)
    closed = mark_closed(ranges)
    measured = closed & mark_measured(ranges.begin_ns, window)
    labels = [(domain or DEFAULT_DOMAIN, name) for domain, name in names.labels]
    main_thread = choose_longest_thread(trace.ranges, nest) if other_threads else None
    open_ns = compute_exclusive(ranges, nest) if exclusive else ranges.end_ns - ranges.begin_ns
    rows = np.flatnonzero(measured)
    own_names = [name for _, name in labels]
    _add(blocks, labels, RANGE, own_names, names.code[rows], names.code[rows], open_ns[rows])
    for code, count in enumerate(np.bincount(names.code[~closed], minlength=len(labels)).tolist()):
        if count:
            blocks.setdefault(labels[code], _ProjectionBlock()).open_count += count
    contents = _Contents(trace, names, nest, measured, main_thread, exclusive)
    gpu, calls = trace.gpu, trace.calls
    long_ns = gpu.end_ns - gpu.begin_ns
    launches = spot_launches(trace, main_thread)
    call = np.append(calls.begin_ns, UNKNOWN)[gpu.call], np.append(calls.thread, UNKNOWN)[gpu.call]
    for owner, row in contents.pair(launches, call[1], call[0]):
        _add(blocks, labels, DEVICE, trace.names, owner, gpu.name[row], long_ns[row])
    called_ns = calls.end_ns - calls.begin_ns
    shown = tuple(_VERSION.sub("", name) for name in trace.names)
    for owner, row in contents.pair(spot_calls(calls, main_thread), calls.thread, calls.begin_ns):
        _add(blocks, labels, CALLS, shown, owner, calls.name[row], called_ns[row])
    lost = gpu.call == UNKNOWN
    outside = ~lost & ~contents.mark_covered(launches, len(lost)) & mark_measured(call[0], window)
    for label, chosen in (((NO_DOMAIN, OUTSIDE), outside), ((NO_DOMAIN, LOST), lost)):
        row = np.flatnonzero(chosen)
        _add(blocks, [label], DEVICE, trace.names, np.zeros_like(row), gpu.name[row], long_ns[row])


class _Contents(Struct, frozen=True):
    """What the measured ranges of a trace contain."""

    trace: Trace
    names: RangeNames
    nest: Nest
    measured: BoolArray
    main_thread: int | None
    exclusive: bool

    def pair(self, spots: Spots, thread: IntArray, at_ns: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
        """Pairs of a name's code and a row that it contains, each pair once.

        Args:
            spots: Where the rows were called.
            thread: Of each row's call, ``[num_rows]``.
            at_ns: When each row's call began, ``[num_rows]``.
        """
        ranges = self.trace.ranges
        wanted, inner = self.measured, np.full(len(thread), UNKNOWN)
        if self.exclusive:
            wanted = wanted & (ranges.style == RangeStyle.START_END)
            row = locate_owners(ranges, self.nest, thread, at_ns, self.main_thread)
            inner = np.where(np.append(self.measured, False)[row], np.append(self.names.code, UNKNOWN)[row], UNKNOWN)
            owned = np.flatnonzero(inner != UNKNOWN)
            yield inner[owned], owned
        slices: Slices = slice_ranges(ranges, spots, wanted, self.names.code)
        for owner, index in expand_in_parts(slices):
            row = spots.row[index]
            if spots.doubled:
                owner, row = np.divmod(drop_repeats(owner * len(thread) + row), len(thread))
            fresh = inner[row] != owner
            yield owner[fresh], row[fresh]

    def mark_covered(self, spots: Spots, num_rows: int) -> BoolArray:
        """Which rows lie in some closed range, measured or not, ``[num_rows]``."""
        everything = np.ones(len(self.names.code), dtype=bool)
        slices = slice_ranges(self.trace.ranges, spots, everything, np.zeros_like(self.names.code))
        found = np.zeros(num_rows, dtype=bool)
        for _, index in expand_in_parts(slices):
            found[spots.row[index]] = True
        return found


def _add(
    blocks: Blocks,
    labels: Sequence[Label],
    kind: str,
    texts: Sequence[str],
    owner: IntArray,
    name: IntArray,
    values: IntArray,
) -> None:
    """Sums values by owner and name, and adds them to the owners' blocks."""
    wide = len(texts) + 1
    keys, group = factorize(owner * wide + name + 1)
    sums = summarize_groups(group, values, len(keys))
    for index, key in enumerate(keys.tolist()):
        code, text = divmod(key, wide)
        block = blocks.setdefault(labels[code], _ProjectionBlock())
        block.add(
            kind, texts[text - 1] if text else "",
            sums.count[index], sums.total[index], sums.minimum[index], sums.maximum[index],
        )  # fmt: skip


def _show(label: Label, block: _ProjectionBlock) -> Iterator[Cells]:
    """A range's rows; domain, range and type are shown only where they change."""
    head: tuple[str, str] = label
    for kind, sums in block.sums.items():
        whole = sum(totals[1] for totals in sums.values())
        shown_kind = kind
        for name, (count, total, minimum, maximum) in sorted(sums.items(), key=lambda item: (-item[1][1], item[0])):
            share = round_quotient(100 * total, whole)
            yield (*head, shown_kind, share, total, count, round_quotient(total, count), minimum, maximum, name)
            head, shown_kind = ("", ""), ""
    if block.open_count:
        yield (*head, OPEN, None, None, block.open_count, None, None, None, label[1])


PROJECTIONS: Mapping[str, Callable[..., Table]] = {
    "projection": project,
    "nvtx_gpu_proj_sum": sum_gpu_projection,
    "nvtx_kern_sum": sum_range_kernels,
}
"""The tables that combine ranges and the device, by name; each takes traces, and ``windows`` or None."""
