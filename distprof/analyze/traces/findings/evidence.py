"""What the rules share: what a rule is, which ranks it looks at, which is the worst, and what shares are shares of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, Run
from distprof.facts.trace_summary import LONGEST_NAME, Category, HostState, KernelTotal, TraceSummary
from distprof.report.finding_report import Finding, NotChecked

Result = Finding | NotChecked | None
"""What a rule returns: a finding, the data that it lacked, or nothing to report."""


class Rule(Struct, frozen=True, kw_only=True):
    """One rule: its check, and its row in the documentation. `distprof.render.finding_texts` has the words for what it
    finds, under the same name."""

    name: str
    check: Callable[[Run], Result]
    looks_at: str
    threshold: str
    """From when on it reports, and why from then on."""
    thresholds: Mapping[str, float]
    """The numbers that these two texts name in braces, in the units that their names give."""
    needs: str
    traits: tuple[str, ...] = ()
    """What its findings may conclude besides their numbers, and what their words depend on."""
    costs_time: bool = True
    """False: what it finds costs nothing, but makes the numbers misleading."""
    has_share: bool = True
    """False: what it finds is no part of the step's time."""


_NO_WORKERS = "_SingleProcessDataLoaderIter"


def has_strange(run: Run) -> bool:
    """Whether some trace holds events that could not be interpreted."""
    return any(item.head.unknown_events for item in run.activity)


def list_on_device(run: Run) -> list[TraceSummary]:
    """The ranks with device activity."""
    return [item for item in run.activity if item.device is not None and item.device.span_ns > 0]


def divide(part: float, whole: float) -> float:
    """A share; 0 where the whole is 0."""
    return part / whole if whole > 0 else 0.0


def sum_kernels(kernels: Iterable[KernelTotal], *categories: Category) -> int:
    """Device time of all kernels of some categories, or of all kernels, ns; overlapping kernels count twice."""
    return sum(kernel.total_ns for kernel in kernels if not categories or kernel.category in categories)


def compute_idle_ratio(item: TraceSummary) -> float:
    """Share of the span in which the device waited for the host; 1, the most it can be, where it is not known."""
    return 1.0 if item.device is None else divide(item.device.idle_host_ns, item.device.span_ns)


def compute_launching_ratio(item: TraceSummary) -> float:
    """The same without the time in which the host loaded data, so that no launch could have come earlier."""
    if item.device is None:
        return 1.0
    return divide(item.device.idle_host_ns - item.idle_host_in.get(HostState.DATA, 0), item.device.span_ns)


def name_longest_loader(item: TraceSummary) -> str | None:
    """The range in which the host loads data longest; None: there is none."""
    loading = [part for part in item.ranges if part.loads]
    return max(loading, key=lambda part: part.host_ns).name[:LONGEST_NAME] if loading else None


def has_no_workers(item: TraceSummary) -> bool:
    """Whether PyTorch's data loader works in the training process."""
    return any(part.loads and _NO_WORKERS in part.name for part in item.ranges)


def have_steps(items: Iterable[TraceSummary]) -> bool:
    """Whether the steps of all these ranks are known, so that sums can be given per step."""
    return all(item.num_steps > 0 for item in items)


def average(total: float, item: TraceSummary, *, per_step: bool = True) -> float:
    """A sum over the window per measured step; the sum itself without ``per_step`` or without steps."""
    return total / max(item.num_steps, 1) if per_step else total


def order_ranks(values: Mapping[int, float], *, worst_is_least: bool = False) -> tuple[int, ...]:
    """The ranks with the largest value first, of equals the lower rank; with ``worst_is_least`` the smallest first."""
    return tuple(sorted(values, key=lambda rank: (values[rank] if worst_is_least else -values[rank], rank)))


def pick(values: Mapping[int, float], ranks: Sequence[int]) -> tuple[float, ...]:
    """The values of some ranks, in the ranks' order."""
    return tuple(float(values[rank]) for rank in ranks)


def look_up_rank(items: Iterable[TraceSummary], rank: int) -> TraceSummary:
    """The trace of a rank."""
    return next(item for item in items if item.rank == rank)


def sum_steps_ns(run: Run, item: TraceSummary) -> float | None:
    """Host time of the steps in a rank's trace, ns: their mean times their number. None: no step is known.

    The mean is over the steps in the traces or, without such, those under a kernel window, else all measured ones.
    Steps in which modules were profiled are in no trace of ours.
    """
    rows = _look_up_rows(run, item)
    if rows is None:
        return None
    step_ns = rows[:, COLUMN["step_host_ns"]]
    counted = np.isfinite(step_ns) & (rows[:, COLUMN["warmup"]] == 0) & (rows[:, COLUMN["failed"]] == 0)
    in_window = rows[:, COLUMN["window"]] == 1
    under_window = counted & in_window & (not run.modules)
    chosen = step_ns[under_window if under_window.any() else counted & ~in_window]
    return float(chosen.mean()) * item.num_steps if len(chosen) else None


def sum_all_steps_ns(run: Run, item: TraceSummary) -> float | None:
    """The same for all steps in a rank's trace, warm-up included."""
    rows, measured_ns = _look_up_rows(run, item), sum_steps_ns(run, item)
    if rows is None or measured_ns is None:
        return None
    step_ns = rows[:, COLUMN["step_host_ns"]]
    return measured_ns + float(step_ns[np.isfinite(step_ns) & (rows[:, COLUMN["warmup"]] == 1)].sum())


def fits_steps(range_ns: float, count: int, steps_ns: float) -> bool:
    """Whether a range can have a share of the steps: on average its instances last no longer than all steps together.

    One that began in a step and stayed open after the last has no share that means anything.
    """
    return range_ns <= count * steps_ns


def _look_up_rows(run: Run, item: TraceSummary) -> FloatArray | None:
    row = next((row for row, info in enumerate(run.ranks) if info.rank == item.rank), None)
    if row is None or not item.num_steps:
        return None
    rows: FloatArray = (run.rows if run.traced_rows is None else run.traced_rows)[row]
    return rows


def measure_busy_ns(item: TraceSummary) -> int:
    """How long anything ran on a rank's device in the window, ns; 0 without a device."""
    device = item.device
    return 0 if device is None else device.compute_ns + device.memory_ns + device.idle_communication_ns
