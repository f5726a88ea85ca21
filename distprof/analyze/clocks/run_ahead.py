"""Does a rank's device wait for its host? How far the host is ahead of it, where they come closest in a step.

A host that runs ahead waits too, for room in the queue of launches, so that its phases take as long as the device's:
their lengths do not tell who waits for whom. Both clocks together do: a device that works on what its host launched
long ago does not wait for it.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.clocks.device_clock import find_host_times
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.run import COLUMN, PHASES, Clock, FloatArray, IntArray, Phase

CLOSE_RATIO = 0.1
"""Of the phase: a device that is no further behind waits for its host."""
AS_LONG_RATIO = 0.95
"""Of the device's time in the phase: a host that takes less is not what the device waits for."""
_IN_ORDER = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER)
_OF_BOTH = (Phase.FORWARD, Phase.BACKWARD)


def waits_for_host(measured_steps: MeasuredSteps, position: int, steps: IntArray, phase: Phase) -> bool | None:
    """Whether a rank's device waits for its host in a phase of some steps.

    Args:
        measured_steps: The ranks and steps that count.
        position: Of the rank, in ``Run.ranks``.
        steps: Positions on axis 1 of ``Run.rows``.
        phase: One of forward and backward.

    Returns:
        None: the host takes as long as the device, but the two clocks were not compared.
    """
    host_ns, device_ns = (
        float(np.nanmedian(measured_steps.run.column(f"{phase}_{clock}_ns")[position, steps])) for clock in Clock
    )
    if not host_ns >= AS_LONG_RATIO * device_ns:
        return False
    ahead_ns = _measure_ahead(measured_steps, position, steps)
    if not np.isfinite(ahead_ns).any():
        return None
    return float(np.nanmedian(ahead_ns)) <= CLOSE_RATIO * device_ns


def _measure_ahead(measured_steps: MeasuredSteps, position: int, steps: IntArray) -> FloatArray:
    """How far the host is ahead where it comes closest, of a step's begin, its end and the ends of its phases, ns.

    ``[num_steps]``; NaN: the clocks were not compared. Waits that the device has in forward and backward are shared
    between them by their lengths. Steps of several micro-steps go through their phases several times: of those, only
    begin and end are known.
    """
    run = measured_steps.run
    rows = run.rows[position, steps]
    begin_ns = find_host_times(run, position, rows[:, COLUMN["begin_device_ns"]])
    first_ns = begin_ns - rows[:, COLUMN["begin_host_ns"]]
    last_ns = first_ns + rows[:, COLUMN["step_device_ns"]] - rows[:, COLUMN["step_host_ns"]]
    lengths_ns = {clock: _share_waits(run.phase_ns(clock)[position, steps]) for clock in Clock}
    between_ns = first_ns[:, None] + np.cumsum(lengths_ns[Clock.DEVICE] - lengths_ns[Clock.HOST], axis=1)
    between_ns[rows[:, COLUMN["micro_steps"]] > 1] = np.nan
    closest_ns: FloatArray = np.fmin(np.fmin.reduce(between_ns, axis=1), np.minimum(first_ns, last_ns))
    return closest_ns


def _share_waits(phase_ns: FloatArray) -> FloatArray:
    """Time by phase in order, ``[num_steps, len(_IN_ORDER)]``, with the waits for communication as parts of them."""
    taken = np.stack([phase_ns[:, PHASES.index(phase)] for phase in _IN_ORDER], axis=1)
    waits = sum(phase_ns[:, PHASES.index(phase)] for phase in PHASES if phase in (Phase.ALL_GATHER, Phase.ALL_REDUCE))
    both = [_IN_ORDER.index(phase) for phase in _OF_BOTH]
    whole = taken[:, both].sum(axis=1, keepdims=True)
    share = np.divide(taken[:, both], whole, out=np.full((len(taken), 2), 0.5), where=whole > 0)
    taken[:, both] += share * np.asarray(waits)[:, None]
    return taken
