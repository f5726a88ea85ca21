"""What the PyTorch profiler's events are, by category in any spelling; unknown categories are counted."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

from distprof.facts.trace import ActivityKind

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


@lru_cache(maxsize=MAX_CATEGORIES)
def find_role(category: str | None) -> str | None:
    """What to do with the events of a category; None: the category is unknown."""
    return _ROLES.get(_plain(category)) if category else None


def find_activity_kind(category: str) -> ActivityKind:
    """What the device did in events of a category whose role is "gpu"."""
    return _KINDS[_plain(category)]


def is_old(category: str) -> bool:
    """Whether the category is from a profiler that wrote annotations as operators: up to torch 1.9."""
    return _plain(category) == "operator"


def _plain(category: str) -> str:
    return _NOT_LETTERS.sub("", category[:200].lower())


class Strangers:
    """Counts events of unknown categories."""

    def __init__(self) -> None:
        self._counts: Counter[str | None] = Counter()

    def add(self, category: str | None, count: int) -> None:
        """Counts more events of a category; None: events without one."""
        known = category in self._counts or len(self._counts) < MAX_CATEGORIES
        self._counts[category if known else _MORE] += count

    @property
    def num_events(self) -> int:
        """How many were counted."""
        return self._counts.total()

    def say(self) -> str | None:
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
