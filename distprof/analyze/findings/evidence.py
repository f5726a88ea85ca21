"""What the rules share: which ranks they look at, and evidence by rank, the worst rank first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from distprof.facts.rank_names import name_ranks
from distprof.facts.run import Run
from distprof.facts.trace_summary import Category, KernelTotal, TraceSummary
from distprof.report.trace_report import Figure, Finding, NotChecked

Result = Finding | NotChecked | None
"""What a rule says: something, that it lacks its data, or nothing."""

NO_DEVICE = "no device activity was traced"
NO_CALLS = "no calls of the device's API were traced"
NO_STEPS = "no steps are known, so nobody can tell what lies inside them"
MAX_RANK_LINES = 3
"""Ranks that get a line of evidence of their own."""
MAX_NAMED = 60
"""Characters of a list of ranks."""


def say_untraced(run: Run, what: str) -> str:
    """``what``, which says that something was not traced; where there are events that nobody understands, just that."""
    strange = find_strange(run)
    return what if strange is None else f"{what.replace('traced', 'understood')} (the coverage says what there is)"


def find_strange(run: Run) -> str | None:
    """Events in the traces that nobody understands, counted; of several ranks those of the first that has any."""
    return next((item.head.not_understood for item in run.activity if item.head.not_understood), None)


def list_on_device(run: Run) -> list[TraceSummary]:
    """The ranks whose device was seen working."""
    return [item for item in run.activity if item.device is not None and item.device.span_ns > 0]


def divide(part: float, whole: float) -> float:
    """A share; 0 of nothing is 0."""
    return part / whole if whole > 0 else 0.0


def sum_kernels(kernels: Iterable[KernelTotal], *categories: Category) -> int:
    """Device time of all kernels of some categories, or of all there are, ns; what ran side by side counts twice."""
    return sum(kernel.total_ns for kernel in kernels if not categories or kernel.category in categories)


def find_idle_ratio(item: TraceSummary) -> float:
    """What the device waited for the host, of the span. 1: it is not known, and cannot be more."""
    return 1.0 if item.device is None else divide(item.device.idle_host_ns, item.device.span_ns)


def per_step(value: float, item: TraceSummary) -> float:
    """A sum over the window per measured step, or the sum where no steps are known; see `say_window`."""
    return value / max(item.num_steps, 1)


def say_window(items: Iterable[TraceSummary]) -> str:
    """What sums are of: ``per step``, or the whole trace."""
    return "per step" if all(item.num_steps > 0 for item in items) else "in the whole trace"


def say_span(items: Iterable[TraceSummary]) -> str:
    """What shares of time are shares of."""
    return "the step" if all(item.num_steps > 0 for item in items) else "the traced time"


def say_ranks(fired: Iterable[int], everyone: Iterable[int]) -> str:
    """`` on rank 3``; empty where it is so on all."""
    concerned = set(fired)
    return "" if concerned == set(everyone) else f" on {name_some(concerned)}"


def name_some(ranks: Iterable[int]) -> str:
    """Ranks in few words, however many and scattered they are."""
    numbers = sorted(set(ranks))
    named = name_ranks(numbers)
    return named if len(named) <= MAX_NAMED else f"{len(numbers):,} ranks"


def list_figures(
    what: str, values: Mapping[int, float], show: Callable[[float], str], *, worst_is_least: bool = False
) -> list[Figure]:
    """A line for each of the worst ranks, and one for all the others; one line where all are shown alike.

    Args:
        what: What the values are.
        values: By rank.
        show: A value as text.
        worst_is_least: Small values are the bad ones.
    """
    order = sorted(values, key=lambda rank: (values[rank] if worst_is_least else -values[rank], rank))
    if len({show(value) for value in values.values()}) == 1:
        return [Figure(what=what, value=show(values[order[0]]), where=name_some(order))]
    worst, others = order[:MAX_RANK_LINES], order[MAX_RANK_LINES:]
    if len(others) == 1:
        worst, others = order, []
    lines = [Figure(what=what, value=show(values[rank]), where=f"rank {rank}") for rank in worst]
    if others:
        ends = [show(values[others[-1]]), show(values[others[0]])]
        text = ends[0] if ends[0] == ends[1] else " to ".join(ends if not worst_is_least else ends[::-1])
        lines.append(Figure(what=what, value=text, where=name_some(others)))
    return lines


def find_worst(values: Mapping[int, float]) -> int:
    """The rank with the largest value, of equals the first."""
    return min(values, key=lambda rank: (-values[rank], rank))


def find_worst_item(items: Iterable[TraceSummary], fired: Mapping[int, float]) -> TraceSummary:
    """The trace of the rank that `find_worst` finds."""
    worst = find_worst(fired)
    return next(item for item in items if item.rank == worst)
