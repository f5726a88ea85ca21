"""How long would the cycles take with other own times or transfers? Replays the recorded steps by their rules.

How well it knows them shows where nothing is changed: they must then be what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct, field

from distprof.analyze.cycles.sync_cycles import SyncCycles, lower_median, take_sample
from distprof.analyze.cycles.transfers import measure_lead
from distprof.analyze.stats.statistics import fast_median
from distprof.facts.arrays import FloatArray, IntArray
from distprof.report.wait_report import ReplayError

MAX_ROUNDS = 4
"""Cycles after which a change is no longer followed to the next one."""
WORST = 0.9
"""The quantile of the replay's error that is shown besides the median."""
UNLIKE = "replayed without a change, the steps differ too much from the recorded ones to say what a change would save"


class Counterfactual(Struct, frozen=True, kw_only=True):
    """What a cause adds to the ranks' own times and to transfers, ns. Below 0: what takes its place is longer."""

    work_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    """Own time before each arrival by row of the cycles' axis 0, ``[num_cycles, num_collectives]``."""
    transfer_ns: FloatArray | None = None
    """``[num_ranks, num_cycles, num_collectives]``"""


def replay_without(
    cycles: SyncCycles,
    counterfactuals: Iterable[Counterfactual],
    *,
    median_arrivals: bool = False,
    instant_transfers: bool = False,
) -> FloatArray:
    """Length of each cycle without some causes, ns, ``[num_cycles]``; nothing takes less than no time.

    Args:
        cycles: As recorded.
        counterfactuals: What goes.
        median_arrivals: Besides, ranks arrive when the median rank does; see `replay`.
        instant_transfers: Besides, transfers take no time.
    """
    work_ns, transfer_ns = cycles.work_ns, cycles.transfer_ns
    for item in counterfactuals:
        if item.work_ns and work_ns is cycles.work_ns:
            work_ns = np.copy(work_ns)
        for row, taken_ns in item.work_ns.items():
            work_ns[row] = np.maximum(work_ns[row] - taken_ns, 0)
        if item.transfer_ns is not None:
            transfer_ns = np.maximum(transfer_ns - item.transfer_ns, 0)
    if instant_transfers:
        transfer_ns = np.broadcast_to(np.zeros(()), transfer_ns.shape)
    return replay(cycles, work_ns=work_ns, transfer_ns=transfer_ns, median_arrivals=median_arrivals)


def replay(
    cycles: SyncCycles,
    *,
    work_ns: FloatArray | None = None,
    transfer_ns: FloatArray | None = None,
    median_arrivals: bool = False,
) -> FloatArray:
    """Replays every cycle from when its ranks left the wait before.

    A collective starts when its last member has arrived and those before it, of its group or on its stream, have ended.
    It takes its transfer time, and ranks that wait for it, there or later, go on when it ends. What the others have
    moved before the last one arrives takes its time after all if that one comes earlier. So less own time, shorter
    transfers or earlier arrivals never make a cycle longer.

    Args:
        cycles: The cycles as they were.
        work_ns: Other own times, ``[num_ranks, num_cycles, num_collectives]``. None: as recorded.
        transfer_ns: Other transfer times, same shape. None: as recorded.
        median_arrivals: Every collective starts when its median member arrives, and the ranks that wait for it go on
            as if they had arrived then.

    Returns:
        Length of each cycle, ns, ``[num_cycles]``: as in ``SyncCycles.cycle_ns``.
    """
    recorded = work_ns is None and transfer_ns is None and not median_arrivals
    work_ns = cycles.work_ns if work_ns is None else work_ns
    transfer_ns = cycles.transfer_ns if transfer_ns is None else transfer_ns
    through_ns = _play(cycles, cycles.start_ns, work_ns, transfer_ns, median_arrivals=median_arrivals)
    if recorded or len(cycles.groups[-1]) == 1 or not cycles.knows_starts:
        return cycles.measure_length(through_ns)  # all leave the last wait together
    usual_ns = _play(cycles, cycles.start_ns, cycles.work_ns, cycles.transfer_ns, median_arrivals=False)
    start_ns = cycles.start_ns
    for _ in range(MAX_ROUNDS):
        before_ns, start_ns = start_ns, _carry_over(cycles, through_ns - usual_ns)
        if np.abs(start_ns - before_ns).max() < 1.0:
            break
        through_ns = _play(cycles, start_ns, work_ns, transfer_ns, median_arrivals=median_arrivals)
    return cycles.measure_length(through_ns)


def measure_replay_error(cycles: SyncCycles) -> ReplayError | None:
    """By how much the cycles, replayed as they are, differ from what they took; of a large job, some of them. None: it
    is not known how long they took."""
    sample = take_sample(cycles)
    replayed_ns, recorded_ns = replay(sample), sample.cycle_ns
    known = np.isfinite(replayed_ns) & np.isfinite(recorded_ns)
    return compare_lengths(replayed_ns[known], recorded_ns[known]) if known.any() else None


def compare_lengths(replayed_ns: FloatArray, recorded_ns: FloatArray) -> ReplayError:
    """The same of any steps, ``[num_steps]`` each."""
    errors = np.abs(replayed_ns / np.maximum(recorded_ns, 1.0) - 1)
    return ReplayError(median_ratio=float(np.median(errors)), worst_ratio=float(np.quantile(errors, WORST)))


def _carry_over(cycles: SyncCycles, later_ns: FloatArray) -> FloatArray:
    """When the ranks start if they leave the waits before at other times, in the form of ``SyncCycles.start_ns``.

    Args:
        cycles: As recorded.
        later_ns: By how much later each rank leaves its last wait, ``[num_ranks, num_cycles]``. Where the cycle before
            is not there, the usual is taken.
    """
    follows = np.diff(cycles.steps, prepend=cycles.steps[0]) == 1
    before_ns = np.roll(later_ns, 1, axis=1)
    start_ns = cycles.start_ns + np.where(follows, before_ns, fast_median(later_ns, axis=1, keepdims=True))
    moved: FloatArray = start_ns - lower_median(start_ns)
    return moved


def _play(
    cycles: SyncCycles, start_ns: FloatArray, work_ns: FloatArray, transfer_ns: FloatArray, *, median_arrivals: bool
) -> FloatArray:
    """When each rank leaves its last wait, from the same moment as its start, ``[num_ranks, num_cycles]``."""
    now = start_ns.copy()
    group_free_ns: dict[str, FloatArray] = {}
    waited, over = cycles.waited, dict[int, FloatArray]()
    later = [indices for indices in (cycles.waits_for, cycles.predecessor) if indices is not None]
    needed = {index for indices in later for index in indices.tolist()}
    for index, groups in enumerate(cycles.groups):
        now += work_ns[:, :, index]
        ready = now
        if cycles.predecessor is not None and int(cycles.predecessor[index]) in over:
            ready = np.maximum(now, over[int(cycles.predecessor[index])])
        if index in needed:
            over[index] = now.copy()  # of ranks in none of the groups
        if cycles.waits_for is not None and cycles.is_waited_on[index] and int(cycles.waits_for[index]) in over:
            now = _wait(now, over[int(cycles.waits_for[index])], waited[index], median_arrivals=median_arrivals)
        for group, members in groups:
            here = _pick(ready, members)
            arrived = fast_median(here, axis=0) if median_arrivals else here.max(axis=0)
            took = _pick(transfer_ns[:, :, index], members)
            if cycles.ahead is not None and cycles.ahead.usual_ns[:, index].any():
                ahead_ns = cycles.ahead.usual_ns[:, index]
                left_ns = 0.0 if median_arrivals else np.minimum(ahead_ns, measure_lead(here))
                took = took + (ahead_ns - left_ns) * _scale_transfers(cycles, index, transfer_ns)
            ended = np.maximum(arrived, group_free_ns.get(group, arrived)) + took
            group_free_ns[group] = ended
            if index in needed:
                over[index][members] = ended
            if cycles.is_waited_on[index]:
                left = ended if median_arrivals else np.maximum(here, ended)
                absent = None if cycles.absent is None else cycles.absent[:, index]
                now[members] = left if absent is None or not absent.any() else np.where(absent, here, left)
    return now


def _wait(
    now: FloatArray, over_ns: FloatArray, groups: tuple[tuple[str, IntArray], ...], *, median_arrivals: bool
) -> FloatArray:
    """When ranks go on that come to a wait for an earlier collective, which ended at ``over_ns``. With
    ``median_arrivals``, nobody comes to it later than the median member."""
    if median_arrivals:
        now = now.copy()
        for _, members in groups:
            now[members] = np.minimum(now[members], fast_median(now[members], axis=0))
    return np.maximum(now, over_ns)


def _scale_transfers(cycles: SyncCycles, index: int, transfer_ns: FloatArray) -> FloatArray:
    """Transfers of one collective over the recorded ones, ``[num_ranks, num_cycles]``."""
    recorded_ns = cycles.transfer_ns[:, :, index]
    scale: FloatArray = np.divide(
        transfer_ns[:, :, index], recorded_ns, out=np.zeros(recorded_ns.shape), where=recorded_ns > 0
    )
    return scale


def _pick(values: FloatArray, members: IntArray) -> FloatArray:
    return values if len(members) == len(values) else values[members]
