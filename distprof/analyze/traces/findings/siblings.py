"""Does one of several similar parts, such as the layers of a model, differ from the others?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from distprof.analyze.stats.statistics import mad_sigma
from distprof.analyze.traces.findings.evidence import Result, divide
from distprof.analyze.traces.findings.traced_time import sum_steps_ns
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, RangeTotal, TraceSummary
from distprof.report.finding_report import Figure, Finding, Lack, NotChecked, RuleName

MIN_SIBLINGS = 5
"""With fewer, there is no telling which one is odd."""
APART_RATIO = 0.2
"""Of the siblings' median: layers that do the same work differ by less."""
CHANCE = (8.0, 60.0)
"""How many deviations are more than chance: the first number, plus the second divided by the number of siblings. Normal
noise exceeds it in fewer than 1 of 100 families, whether of 5 or of 100 siblings; heavy-tailed noise in about 1."""
MAX_ODD_RATIO = 0.1
"""Of the siblings: if more of them differ, there are two kinds of siblings rather than an odd one."""

_NUMBER = re.compile(r"\d{1,6}")
_COUNTED = re.compile(
    r"(step|iter|iteration|batch|epoch|micro_?batch|micro_?step|seq|bucket|rank|stage|id|size|dim|stream|ms|us)s?"
    r"[ #_:=.\-]*$"
    r"|(?<![a-z])(linear|conv[123]d|embedding(bag)?|dropout|identity|relu|gelu|silu)_$"
    r"|(norm([123]d)?|activation)_$",
    re.IGNORECASE,
)
"""What precedes numbers that count instances or sizes rather than similar parts. The profiler numbers the elementary
modules of a whole model, which differ in shape (Linear_25 is the head)."""
_SPARSE = 1.5
"""How far apart the numbers of siblings may be on average."""
_SEARCHED_NAME, _SEARCHED_WORD = 400, 64
_MAX_SHOWN = 5


def check_unlike_siblings(run: Run) -> Result:
    """Ranges whose names differ in one number only and whose times differ by more than chance, rank by rank."""
    rule = RuleName.UNLIKE_SIBLINGS
    families = {item.rank: list(_find_families(item.ranges)) for item in run.activity}
    if not any(families.values()):
        return NotChecked(rule=rule, lack=Lack.NO_SIBLINGS)
    odd = [
        figure
        for item in run.activity
        for family, members in families[item.rank]
        for figure in _find_odd(run, item, family, members)
    ]
    if not odd:
        return None
    by_range: dict[tuple[str | None, str | None], list[Figure]] = defaultdict(list)
    for figure in sorted(odd, key=lambda figure: (-figure.numbers["excess_ratio"], figure.ranks)):
        by_range[figure.family, figure.name].append(figure)
    worst_first = list(by_range.values())
    return Finding(
        rule=rule,
        share_ratio=min(1.0, worst_first[0][0].numbers["excess_ratio"]),
        ranks=tuple(dict.fromkeys(rank for figure in worst_first[0] for rank in figure.ranks)),
        ranks_checked=len(run.activity),
        figures=tuple(figures[0] for figures in worst_first[:_MAX_SHOWN]),
    )


def _find_families(ranges: Sequence[RangeTotal]) -> Iterator[tuple[str, list[RangeTotal]]]:
    """Ranges of one domain whose names differ in one number only, with the name that they share."""
    found: dict[tuple[str, str], dict[int, RangeTotal]] = defaultdict(dict)
    for part in ranges:
        if not part.count:
            continue
        for match in _NUMBER.finditer(part.name[:_SEARCHED_NAME]):
            before, after = part.name[: match.start()], part.name[match.end() :]
            if not _COUNTED.search(before[-_SEARCHED_WORD:]):
                found[part.domain, f"{before}#{after}"].setdefault(int(match[0]), part)
    for (_, family), members in found.items():
        wide = max(members) - min(members) + 1
        if len(members) >= MIN_SIBLINGS and wide <= _SPARSE * len(members):
            yield family, [members[number] for number in sorted(members)]


def _find_odd(run: Run, item: TraceSummary, family: str, members: Sequence[RangeTotal]) -> Iterator[Figure]:
    on_device = all(part.gpu_ns is not None and part.activities for part in members)
    times = [(part.gpu_ns if on_device else part.host_ns) or 0 for part in members]
    counts = np.array([part.count for part in members], dtype=np.float64)
    own_ns = np.array(times, dtype=np.float64) / counts
    median_ns = float(np.median(own_ns))
    if median_ns <= 0:
        return
    apart_ns = np.abs(own_ns - median_ns)
    deviation_ns = float(mad_sigma(own_ns))
    least = CHANCE[0] + CHANCE[1] / len(members)
    odd = np.flatnonzero((apart_ns > APART_RATIO * median_ns) & (apart_ns > least * deviation_ns))
    if len(odd) > max(1, MAX_ODD_RATIO * len(members)):
        return
    span_ns = item.device.span_ns if on_device and item.device is not None else sum_steps_ns(run, item)
    for index in odd.tolist():
        excess_ns = float(apart_ns[index]) * members[index].count
        yield Figure(
            sign="GPU" if on_device else "host",
            name=members[index].name[:LONGEST_NAME],
            family=family[:LONGEST_NAME],
            ranks=(item.rank,),
            numbers={
                "own_ns": float(own_ns[index]),
                "median_ns": median_ns,
                "own_factor": float(own_ns[index]) / median_ns,
                "excess_ratio": divide(excess_ns, span_ns or 0.0),
                "siblings_count": len(members),
            },
        )
