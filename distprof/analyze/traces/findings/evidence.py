"""What the rules share: which ranks they look at, and which of them is the worst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, Category, HostState, KernelTotal, TraceSummary
from distprof.report.finding_report import Finding, NotChecked

Result = Finding | NotChecked | None
"""What a rule returns: a finding, the data that it lacked, or nothing to report."""

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


def find_idle_ratio(item: TraceSummary) -> float:
    """Share of the span in which the device waited for the host; 1, the most it can be, where it is not known."""
    return 1.0 if item.device is None else divide(item.device.idle_host_ns, item.device.span_ns)


def find_launching_ratio(item: TraceSummary) -> float:
    """The same without the time in which the host loaded data, so that no launch could have come earlier."""
    if item.device is None:
        return 1.0
    return divide(item.device.idle_host_ns - item.idle_host_in.get(HostState.DATA, 0), item.device.span_ns)


def find_loader(item: TraceSummary) -> str | None:
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


def find_rank(items: Iterable[TraceSummary], rank: int) -> TraceSummary:
    """The trace of a rank."""
    return next(item for item in items if item.rank == rank)
