"""How many steps are recorded: all, unless recording them would take more of the host than `MAX_COST_RATIO`.

What recording takes cannot be measured while it records: reading a clock around each call costs as much as the call.
So it is counted: so many changes of phase, collectives and operations in a step, each at what it takes on a slow
machine whose caches the step's own work has filled. `ShadowPlan` leaves out what is too much, in bursts of steps.
Where steps become longer or shorter, some more are recorded, so that the report can tell why.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from distprof.profiler.rank.recorded_steps import AGAIN_STEPS, BURST, FIRST_STEPS
from distprof.profiler.rank.step_change import StepChange
from distprof.record.gather.thinning import Thinner, Thinning
from distprof.record.step.step_record import StepRecord
from distprof.storage.collective_records import round_up_stride

MAX_COST_RATIO = 0.01
"""Of the time from one step's begin to the next one's: what recording may take of the host on average."""
MAX_STRIDE = 32
"""At least one burst of so many is recorded, whatever it takes."""
MIN_STEPS = 16
"""Recorded steps, before anything is left out."""
FIRST_COST_NS, LEAST_FIRST_STEPS = 150_000_000, 32
"""Of the first `FIRST_STEPS`, as many are all recorded as take so long, but no fewer than these: of a job of minutes,
the dozens of operations of each of a pipeline's steps would otherwise be what is felt."""
KEPT_STEPS = 64
"""Newest steps whose costs and times count."""
STEP_NS, SEGMENT_NS, COLLECTIVE_NS, OPERATION_NS = 40_000, 4_000, 25_000, 80_000
"""What a step takes by itself, and each change of phase, collective, and send, receive or stage of a pipeline in it,
with the background thread: `python -m benchmarks cost` and `attach-pipeline` measure them."""
AGREED_NS = 500_000_000
"""By then all ranks know what is agreed."""
SLACK = 2.5
"""By so much recording must be cheaper than the stride allows before more steps are recorded again."""
LEFT_OUT = (
    f"to record every step would take more than {100 * MAX_COST_RATIO:.0f} % of a host's time, so after the first "
    f"steps some bursts of {BURST} are recorded, and only the step time of the others (profile.record=all records all)"
)


class Pace:
    """Of how many bursts of steps a rank would record one, from what its steps so far hold. Used by the background
    thread."""

    def __init__(self, thinner: Thinner, note: Callable[[str], None], ranks_per_core: float = 1.0) -> None:
        """Begins with all steps.

        Args:
            thinner: Agrees with the other ranks on it.
            note: Adds a note for the coverage of this rank, unless it has it.
            ranks_per_core: So many ranks share a core of this host: what one takes, each of them waits for.
        """
        self._thinner, self._note, self._ranks_per_core = thinner, note, ranks_per_core
        self._costs_ns: deque[int] = deque(maxlen=KEPT_STEPS)
        self._intervals_ns: deque[int] = deque(maxlen=KEPT_STEPS)
        self._newest: tuple[int, bool] | None = None  # when the newest step began, and whether it is a shadow step
        self._change = StepChange()

    def add(self, records: Sequence[StepRecord]) -> None:
        """Takes finished steps, in order."""
        changed = False
        for record in records:
            begin_ns = record.segments.begin_ns
            if self._newest is not None:
                interval_ns = begin_ns - self._newest[0]
                self._intervals_ns.append(interval_ns)
                changed |= self._newest[1] and self._change.add(interval_ns)
            self._newest = begin_ns, record.shadow
        self._costs_ns.extend(estimate_cost_ns(record) for record in records if not record.shadow)
        if len(self._costs_ns) < MIN_STEPS or not self._intervals_ns:
            return
        cost_ns = median(self._costs_ns) * self._ranks_per_core
        needed = find_needed(cost_ns, median(self._intervals_ns))
        wish, agreed = self._thinner.wish, self._thinner.agreed
        if needed > wish.stride or needed * SLACK < wish.stride:
            stride = limit_stride(needed)
            if stride != wish.stride:
                self._thinner.wish = wish = Thinning(stride, count_first(cost_ns), wish.again)
        if agreed.stride > 1 and records and records[-1].step >= agreed.first_steps:  # none is left out before
            self._note(LEFT_OUT)
            if changed and (agreed.again < 0 or records[-1].step >= agreed.again + AGAIN_STEPS * agreed.stride):
                soon = math.ceil(AGREED_NS / max(median(self._intervals_ns), 1))
                self._thinner.wish = wish._replace(again=records[-1].step + max(soon, BURST))


def find_needed(cost_ns: float, interval_ns: float) -> float:
    """Of how many steps one may be recorded, if that takes so long and one begins after every interval."""
    return cost_ns / (MAX_COST_RATIO * max(interval_ns, 1))


def count_first(cost_ns: float) -> int:
    """How many steps at the begin of a job are all recorded, if recording one takes so long."""
    return max(LEAST_FIRST_STEPS, min(FIRST_STEPS, int(FIRST_COST_NS / max(cost_ns, 1))))


def limit_stride(needed: float) -> int:
    """The power of two that is no less than what is needed, but no more than `MAX_STRIDE`."""
    return min(round_up_stride(needed), MAX_STRIDE)


def estimate_cost_ns(record: StepRecord) -> int:
    """What recording a step has taken of the host, all threads together, about."""
    collectives = 0 if record.issued is None else len(record.issued.flags)
    operations = 0 if record.operations is None else len(record.operations.order)
    operations += 0 if record.logged is None else len(record.logged.facts)
    return STEP_NS + len(record.segments.codes) * SEGMENT_NS + collectives * COLLECTIVE_NS + operations * OPERATION_NS
