"""Is one of several equal parts, such as the layers of a model, unlike the others?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.analyze.findings.evidence import Result, divide, name_some
from distprof.analyze.findings.wording import say_factor, say_name, say_share, say_time
from distprof.analyze.statistics import find_spread
from distprof.analyze.traced_time import sum_steps_ns
from distprof.facts.run import Run
from distprof.facts.trace_summary import RangeTotal, TraceSummary
from distprof.report.trace_report import Figure, Finding, NotChecked

MIN_SIBLINGS = 5
"""Of fewer, nobody can tell who is the odd one."""
APART_RATIO = 0.2
"""Of the siblings' median: layers that do the same differ by less."""
CHANCE = (8.0, 60.0)
"""How many deviations apart is more than chance: the first number, and the second over the number of siblings. Of
normal noise it is passed in less than one family in 100, be it of 5 or of 100 siblings, and of heavy-tailed noise in
about one."""
MAX_ODD_RATIO = 0.1
"""Of the siblings: if more of them differ, there are two kinds of them, and none is the odd one."""

_NUMBER = re.compile(r"\d{1,6}")
_COUNTED = re.compile(
    r"(step|iter|iteration|batch|epoch|micro_?batch|micro_?step|seq|bucket|rank|stage|id|size|dim|stream|ms|us)s?"
    r"[ #_:=.\-]*$"
    r"|(?<![a-z])(linear|conv[123]d|embedding(bag)?|\w*norm([123]d)?|dropout|identity|relu|gelu|silu|\w*activation)_$",
    re.IGNORECASE,
)
"""What stands before numbers that count instances, or sizes, and not parts that are alike; the profiler numbers the
elementary modules of a whole model, which have all shapes (Linear_25 is the head)."""
_SPARSE = 1.5
"""How far apart the numbers of siblings may be, on average."""
_LONGEST_NAME, _LONGEST_WORD = 400, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Odd:
    """A range unlike its siblings on one rank."""

    rank: int
    name: str
    family: str
    clock: str
    """"GPU" or "host": of the times."""
    own_ns: float
    """Mean per instance."""
    median_ns: float
    """Of all siblings."""
    siblings: int
    share_ratio: float
    """What it takes more or less than the median, of the window."""


def check_unlike_siblings(run: Run) -> Result:
    """Ranges whose names differ in one number only, and whose times differ by more than chance, rank by rank."""
    rule = "unlike_siblings"
    families = {item.rank: list(_find_families(item.ranges)) for item in run.activity}
    if not any(families.values()):
        return NotChecked(rule=rule, why=f"no {MIN_SIBLINGS} ranges have names that differ in a number only")
    odd = [
        found
        for item in run.activity
        for family, members in families[item.rank]
        for found in _find_odd(run, item, family, members)
    ]
    if not odd:
        return None
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    for found in odd:
        ranks[found.family, found.name].add(found.rank)
    odd.sort(key=lambda found: (-found.share_ratio, found.rank))
    first = odd[0]
    everywhere = ranks[first.family, first.name]
    more = "more" if first.own_ns > first.median_ns else "less"
    by = abs(first.own_ns / first.median_ns - 1)
    return Finding(
        rule=rule,
        title=f"{say_name(first.name)} takes {say_share(by)} {more} {first.clock} time than the median of its "
        f"{first.siblings} siblings" + (f" on {name_some(everywhere)}" if len(run.activity) > 1 else ""),
        share_ratio=min(1.0, first.share_ratio),
        evidence=tuple(_show(found) for found in _keep_worst_ranks(odd)),
        consequence="Parts that should be alike are not: this one does other work, or is held up where it stands."
        if first.clock == "GPU"
        else "Host times: the part may be launched more slowly, or the host may have waited there for the device; what "
        "the device did for it is not known.",
        remedy="Compare its kernels and shapes with a sibling's: another dtype or layout, a recompilation, a hook, "
        "checkpointing, or a synchronising call in this part only.",
    )


def _show(found: _Odd) -> Figure:
    return Figure(
        what=say_name(found.name),
        value=f"{say_time(found.own_ns)} of {found.clock} time per instance, median of {found.siblings}: "
        f"{say_time(found.median_ns)} ({say_factor(found.own_ns / found.median_ns)})",
        where=f"rank {found.rank}, among {say_name(found.family)}",
    )


def _keep_worst_ranks(odd: Sequence[_Odd]) -> list[_Odd]:
    """The worst rank of each odd range, at most five of them."""
    kept: dict[tuple[str, str], _Odd] = {}
    for found in odd:
        kept.setdefault((found.family, found.name), found)
    return list(kept.values())[:5]


def _find_families(ranges: Sequence[RangeTotal]) -> Iterator[tuple[str, list[RangeTotal]]]:
    """Ranges of one domain whose names are alike but for one number, with the name that they share."""
    found: dict[tuple[str, str], dict[int, RangeTotal]] = defaultdict(dict)
    for part in ranges:
        if not part.count:
            continue
        for match in _NUMBER.finditer(part.name[:_LONGEST_NAME]):
            before, after = part.name[: match.start()], part.name[match.end() :]
            if not _COUNTED.search(before[-_LONGEST_WORD:]):
                found[part.domain, f"{before}#{after}"].setdefault(int(match[0]), part)
    for (_, family), members in found.items():
        wide = max(members) - min(members) + 1
        if len(members) >= MIN_SIBLINGS and wide <= _SPARSE * len(members):
            yield family, [members[number] for number in sorted(members)]


def _find_odd(run: Run, item: TraceSummary, family: str, members: Sequence[RangeTotal]) -> Iterator[_Odd]:
    on_device = all(part.gpu_ns is not None and part.activities for part in members)
    times = [(part.gpu_ns if on_device else part.host_ns) or 0 for part in members]
    counts = np.array([part.count for part in members], dtype=np.float64)
    own_ns = np.array(times, dtype=np.float64) / counts
    median_ns = float(np.median(own_ns))
    if median_ns <= 0:
        return
    apart_ns = np.abs(own_ns - median_ns)
    deviation_ns = float(find_spread(own_ns))
    least = CHANCE[0] + CHANCE[1] / len(members)
    odd = np.flatnonzero((apart_ns > APART_RATIO * median_ns) & (apart_ns > least * deviation_ns))
    if len(odd) > max(1, MAX_ODD_RATIO * len(members)):
        return
    span_ns = item.device.span_ns if on_device and item.device is not None else sum_steps_ns(run, item)
    for place in odd.tolist():
        excess_ns = float(apart_ns[place]) * members[place].count
        yield _Odd(
            rank=item.rank, name=members[place].name, family=family, clock="GPU" if on_device else "host",
            own_ns=float(own_ns[place]), median_ns=median_ns,
            siblings=len(members), share_ratio=divide(excess_ns, span_ns or 0.0),
        )  # fmt: skip
