"""Where in its steps does a rank that is late outside the phases lose that time: between which two of them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.run import COLUMN, COMMUNICATION_PHASES, PHASES, Clock, Phase
from distprof.facts.segments import Segments
from distprof.report.late_reasons import UnmarkedPlace
from distprof.report.wait_report import Cause, Verdict, VerdictKind

MOST_RATIO = 0.75
"""Of what the rank takes longer there in all: one place must have so much of it."""
MAX_STEPS, MAX_OTHERS = 400, 15
"""Of longer runs and larger jobs so many steps and ranks are looked at, the steps drawn at random: a cause may come at
every fifth."""
_OTHER, _COMMUNICATION = PHASES.index(Phase.OTHER), {PHASES.index(phase) for phase in COMMUNICATION_PHASES}
_Place = tuple[str | None, str | None]


def find_unmarked_place(measured_steps: MeasuredSteps, verdict: Verdict) -> UnmarkedPlace | None:
    """The two phases between which the rank that is named loses the time. None: it loses it in a phase or between
    steps, not in one such place, or the order of its phases was not kept.

    Args:
        measured_steps: The ranks and steps that count.
        verdict: Names the rank.
    """
    about_rank = verdict.kind in (VerdictKind.SLOW_RANK, VerdictKind.STALLS) and verdict.rank is not None
    if not about_rank or verdict.cause is not Cause.OUTSIDE or verdict.clock != Clock.HOST:
        return None
    run = measured_steps.run
    present = np.flatnonzero(measured_steps.present).tolist()
    mine = measured_steps.numbers.index(verdict.rank)
    others = [position for position in present if position != mine]
    others = others[:: max(1, -(-len(others) // MAX_OTHERS))]
    steps = np.flatnonzero(measured_steps.counted)
    steps = np.random.default_rng(0).permutation(steps)[:MAX_STEPS]

    def read(position: int) -> dict[_Place, float] | None:
        numbers = run.rows[position, steps, COLUMN["step"]].tolist()
        kept = [run.segments.get((run.ranks[position].rank, int(number))) for number in numbers if number == number]
        whole = [each for each in kept if each is not None and not each.truncated]
        return measure_places(whole) if whole else None

    own, theirs = read(mine), [found for found in map(read, others) if found is not None]
    if own is None or not theirs:
        return None
    more_ns = {
        place: lasts_ns - float(np.median([each.get(place, 0.0) for each in theirs])) for place, lasts_ns in own.items()
    }
    place = max(more_ns, key=lambda each: more_ns[each], default=(None, None))
    total_ns = sum(each for each in more_ns.values() if each > 0)
    if total_ns <= 0 or more_ns[place] < MOST_RATIO * total_ns:
        return None
    return UnmarkedPlace(after=place[0], before=place[1], share_ratio=more_ns[place] / total_ns)


def measure_places(steps: Sequence[Segments]) -> dict[_Place, float]:
    """Mean time outside the phases, by the phases before and after it, ns per step; waits between them are passed
    over."""
    total_ns = Counter[_Place]()
    for kept in steps:
        before: str | None = None
        here_ns = 0
        for code, lasts_ns in zip(kept.codes, kept.durations_ns, strict=True):
            if code == _OTHER:
                here_ns += lasts_ns
            elif code not in _COMMUNICATION:
                total_ns[before, PHASES[code].value] += here_ns
                before, here_ns = PHASES[code].value, 0
        total_ns[before, None] += here_ns
    return {place: lasts_ns / len(steps) for place, lasts_ns in total_ns.items() if lasts_ns}
