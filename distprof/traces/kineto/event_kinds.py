"""What the PyTorch profiler's events are: by category in any spelling, and annotations by their names.

Up to torch 1.9 the profiler's steps and the user's ``record_function`` ranges have the operators' category. Steps of
newer profilers are found by name as well, whatever their category. Events of unknown categories are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

import numpy as np

from distprof.facts.arrays import IntArray
from distprof.facts.trace import ActivityKind
from distprof.traces.codes import select_names

MAX_CATEGORIES = 1_000
"""Categories that are counted separately; a profiler has about thirty."""
NAMED_CATEGORIES = 5
NAME_LETTERS = 40
LEFT_OUT = "left out"
_MORE = "(other categories)"
_NOT_LETTERS = re.compile(r"[^a-z0-9]")

_KINDS = {
    "kernel": ActivityKind.KERNEL, "concurrentkernel": ActivityKind.KERNEL,
    "gpumemcpy": ActivityKind.MEMCPY, "memcpy": ActivityKind.MEMCPY,
    "gpumemset": ActivityKind.MEMSET, "memset": ActivityKind.MEMSET,
}  # fmt: skip
_CALLS = (
    "runtime", "driver", "cudaruntime", "cudadriver", "hipruntime", "hipdriver", "xpuruntime", "xpudriver",
    "privateuse1runtime", "privateuse1driver",
)  # fmt: skip
_KNOWN = ("gpuuserannotation", "overhead", "trace", "externalcorrelation", "cudasync", "cudaevent")
_COUNTERS = ("cudaprofilerrange", "collectivecomm", "ac2g", "fwdbwd", "async")
_ROLES = {
    **dict.fromkeys(_KINDS, "gpu"), **dict.fromkeys(_CALLS, "calls"), **dict.fromkeys(("cpuop", "operator"), "ops"),
    "userannotation": "ranges", "pythonfunction": "modules", "cpuinstantevent": "memory",
    **dict.fromkeys((*_KNOWN, *_COUNTERS), LEFT_OUT),
}  # fmt: skip
"""By category in lower case, letters and digits only; `LEFT_OUT`: known, but of no use here."""
STEP = re.compile(r"ProfilerStep#\s*(\d{1,18})")
_OPERATOR = re.compile(
    r".*::.*|.*Backward\d*|detach_?|_grad_sum_to_size|record_param_comms|<(forward|backward) op>", re.DOTALL
)
"""Names that PyTorch itself uses: namespaced ones, autograd nodes, and a few others."""


@lru_cache(maxsize=MAX_CATEGORIES)
def look_up_role(category: str | None) -> str | None:
    """What to do with the events of a category; None: the category is unknown."""
    return _ROLES.get(_plain(category)) if category else None


def look_up_activity_kind(category: str) -> ActivityKind:
    """What the device did in events of a category whose role is "gpu"."""
    return _KINDS[_plain(category)]


def is_old(category: str) -> bool:
    """Whether the category is from a profiler that wrote annotations as operators: up to torch 1.9."""
    return _plain(category) == "operator"


def _plain(category: str) -> str:
    return _NOT_LETTERS.sub("", category[:200].lower())


class UnknownEvents:
    """Counts events of unknown categories."""

    def __init__(self) -> None:
        self._counts: Counter[str | None] = Counter()

    def add(self, category: str | None, count: int) -> None:
        """Counts more events of a category; None: events without one."""
        known = category in self._counts or len(self._counts) < MAX_CATEGORIES
        self._counts[category if known else _MORE] += count

    @property
    def num_events(self) -> int:
        return self._counts.total()

    def describe(self) -> str | None:
        """The counts by category, the largest first. None: there are none."""
        counts = sorted(self._counts.items(), key=lambda item: (-item[1], item[0] or ""))
        if not counts:
            return None
        named = [f"{count:,} {_name(category)}" for category, count in counts[:NAMED_CATEGORIES]]
        if more := counts[NAMED_CATEGORIES:]:
            kinds = "category" if len(more) == 1 else "categories"
            named.append(f"{sum(count for _, count in more):,} of {len(more):,} more {kinds}")
        return ", ".join(named)


def _name(category: str | None) -> str:
    if category is None:
        return "without a category"
    return ascii(category if len(category) <= NAME_LETTERS else f"{category[:NAME_LETTERS]}...")


def is_step(name: str) -> bool:
    """Whether this is the name of a profiler step."""
    return STEP.fullmatch(name) is not None


def move_annotations(
    ops: dict[str, IntArray], ranges: dict[str, IntArray], names: tuple[str, ...], domain: int, *, old: bool
) -> None:
    """Moves annotations from the operators to the ranges.

    Args:
        ops: Rows of operators; those that are moved are removed here.
        ranges: Rows of annotations; those that are moved are added here.
        names: Names by code.
        domain: The code of the default domain.
        old: Whether the profiler wrote no annotations: then all rows without an operator's name move, else only steps.
    """
    has_steps = select_names(ranges["name"], names, is_step).any()
    moved = np.zeros(len(ops["name"]), dtype=bool)
    if not has_steps:
        moved |= select_names(ops["name"], names, is_step)
    if old and not (ranges["domain"] == domain).any():
        moved |= select_names(ops["name"], names, lambda name: _OPERATOR.fullmatch(name) is None)
    if not moved.any():
        return
    for column in ("begin_ns", "end_ns", "name", "thread"):
        ranges[column] = np.concatenate([ranges[column], ops[column][moved]])
    ops.update({column: values[~moved] for column, values in ops.items()})
    ranges["domain"] = np.concatenate([ranges["domain"], np.full(int(moved.sum()), domain, np.int64)])
