"""Where in its steps does a rank that is late outside the phases lose that time: between which two of them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

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
_PASSED_OVER = {PHASES.index(phase) for phase in (Phase.OTHER, *COMMUNICATION_PHASES)}
_OTHER = PHASES.index(Phase.OTHER)
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

    def read(position: int) -> dict[_Place, float]:
        numbers = run.rows[position, steps, COLUMN["step"]].tolist()
        kept = (run.segments.get((run.ranks[position].rank, int(number))) for number in numbers if number == number)
        return measure_places([each for each in kept if each is not None and not each.truncated])

    own, theirs = read(mine), [found for found in map(read, others) if found]
    if not own or not theirs:
        return None
    more_ns = {
        place: lasts_ns - float(np.median([each.get(place, 0.0) for each in theirs])) for place, lasts_ns in own.items()
    }
    place = max(more_ns, key=lambda each: more_ns[each])
    total_ns = sum(each for each in more_ns.values() if each > 0)
    if more_ns[place] <= 0 or more_ns[place] < MOST_RATIO * total_ns:
        return None
    return UnmarkedPlace(after=place[0], before=place[1], share_ratio=more_ns[place] / total_ns)


def measure_places(steps: Iterable[Segments]) -> dict[_Place, float]:
    """Mean time outside the phases, by the phases before and after it, ns per step; waits between them are passed over.
    Empty: there are no steps."""
    total_ns, num_steps = Counter[_Place](), 0
    for kept in steps:
        num_steps += 1
        named = [(at, code) for at, code in enumerate(kept.codes) if code not in _PASSED_OVER]
        for at, (code, lasts_ns) in enumerate(zip(kept.codes, kept.durations_ns, strict=True)):
            if code == _OTHER:
                earlier = next((PHASES[code].value for place, code in reversed(named) if place < at), None)
                later = next((PHASES[code].value for place, code in named if place > at), None)
                total_ns[earlier, later] += lasts_ns
    return {place: lasts_ns / num_steps for place, lasts_ns in total_ns.items()} if num_steps else {}
