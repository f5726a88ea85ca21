"""Is a rank late because its training thread was ready to run, and had no core?

Each rank reads how long its training thread waited for a core: in each recorded step, and once a window together with
how long it ran. A rank that has more to do, on a host where all wait, waits longer because it runs longer: what its
waiting exceeds the others' by counts only as far as it also exceeds theirs for the time that it runs.

Where others use the cores, each rank is off the CPU at some time. A rank that was in some steps, and in the run as a
whole no longer than others, is not to blame for that: see `is_shared`.
"""

from __future__ import annotations

import math

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import CandidateCause
from distprof.analyze.stats.lateness import MIDMEAN_FACTOR
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.scheduling import Scheduling, read_scheduling
from distprof.analyze.stats.significance import t_quantile
from distprof.analyze.stats.statistics import fast_median, median_of_others
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, Phase
from distprof.report.scheduling_report import OffCpu, OffCpuReason
from distprof.report.wait_report import LATE_KINDS, Cause, VerdictKind

ALPHA = 0.01
"""Probability that a thread that waits as long as the others seems to wait longer by chance."""
EXPLAINED_RATIO = 0.5
"""Of what a rank is late by: waiting for a core must explain so much to be named."""
BLAMED_RATIO = 0.5
"""Of what the thread waits: a cgroup that is throttled for so long is the reason, or other threads of the ranks that
are on these cores for so long, or other guests that take its core for so long."""
MIN_STEPS = 4
"""In which a rank is late: fewer tell nothing."""
SPAN_NS, BLOCKS = 2e9, 8
"""Whether a rank waits longer than others is asked about so long a time at least, in so many parts: other programs
take a core for some tenths of a second at a time."""
_HOST_CAUSES = (Cause.HOST, Cause.INPUT, Cause.BETWEEN)
_RUN, _WAIT = 0, 1


def explain_off_cpu(
    measured_steps: MeasuredSteps, cycles: SyncCycles, item: CandidateCause, cause: Cause | None
) -> OffCpu | None:
    """Why the ranks of a candidate wait for a core. None: they do not, or that does not explain most of their lateness.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: The waits between which the candidate was found.
        item: The candidate.
        cause: What its ranks do where they lose the time: a device may not wait for its host, and backward of a model
            on a device runs on other threads than the training thread.
    """
    acts = np.flatnonzero(item.acts)
    on_others = cause not in _HOST_CAUSES or item.part is Phase.BACKWARD
    if item.kind not in LATE_KINDS or not len(acts) or (cycles.clock is Clock.DEVICE and on_others):
        return None
    waits_ns = _read_waits(measured_steps, cycles, item)
    if waits_ns is not None and not _explains(cycles, item, *waits_ns):
        return None
    first, end = int(cycles.steps[acts[0]]), int(cycles.steps[acts[-1]]) + 1
    found = [read_scheduling(measured_steps.run, int(position), first, end) for position in cycles.positions]
    own = [each for row, each in enumerate(found) if row in item.rows and each is not None]
    others = [each for row, each in enumerate(found) if row not in item.rows and each is not None]
    numbers = [position for row, position in enumerate(cycles.positions.tolist()) if row in item.rows]
    if waits_ns is not None:
        own_ns, others_ns = (float(np.nanmean(each[item.acts])) for each in waits_ns)
        return _describe(measured_steps, own, own_ns, others_ns, numbers)
    if len(own) < len(item.rows) or 2 * len(others) < len(found) - len(own) or not others:
        return None
    late_ns = item.taken_ns / len(item.rows) / (acts[-1] - acts[0] + 1)
    excess_ns = float(np.median([_measure_excess(each, others) for each in own]))
    if not excess_ns >= EXPLAINED_RATIO * late_ns:
        return None
    own_ns, others_ns = (float(np.median([each.usual[_WAIT] for each in group])) for group in (own, others))
    return _describe(measured_steps, own, own_ns, others_ns, numbers)


def is_shared(measured_steps: MeasuredSteps, cycles: SyncCycles, item: CandidateCause) -> bool:
    """Whether ranks are late only because they had no core in some steps, for which others had none at other times: in
    the time around these steps they wait for one no longer than the others, beyond chance."""
    if item.kind not in (*LATE_KINDS, VerdictKind.STALLS) or not len(item.rows) or cycles.clock is Clock.DEVICE:
        return False
    waits_ns = _read_waits(measured_steps, cycles, item)
    if waits_ns is None or not _explains(cycles, item, *waits_ns):
        return False
    acts, ends_ns = np.flatnonzero(item.acts), np.cumsum(cycles.cycle_ns)
    around_ns = max(0.0, SPAN_NS - float(ends_ns[acts[-1]] - ends_ns[acts[0]])) / 2
    first, end = np.searchsorted(ends_ns, [ends_ns[acts[0]] - around_ns, ends_ns[acts[-1]] + around_ns])
    more_ns = (waits_ns[0] - waits_ns[1])[first : end + 1]
    blocks = [float(np.nanmean(block)) for block in np.array_split(more_ns, BLOCKS) if np.isfinite(block).any()]
    return len(blocks) >= 2 and not _is_more(np.array(blocks))


def _read_waits(
    measured_steps: MeasuredSteps, cycles: SyncCycles, item: CandidateCause
) -> tuple[FloatArray, FloatArray] | None:
    """How long the ranks of a candidate, and the others, waited for a core in each cycle, ``[num_cycles]``, ns; medians
    of several. NaN: not known of both. None: not known of enough cycles in which the candidate acts, or it is about all
    ranks."""
    if cycles.span > 1 or len(item.rows) == len(cycles.positions):
        return None
    waits_ns = measured_steps.run.column("core_wait_ns")[cycles.positions][:, cycles.steps]
    own_ns, others_ns = fast_median(waits_ns[item.rows], axis=0), median_of_others(waits_ns, item.rows)
    known = np.isfinite(own_ns) & np.isfinite(others_ns)
    num_known = (item.acts & known).sum()
    if num_known < MIN_STEPS or 2 * num_known < item.acts.sum():
        return None
    return np.where(known, own_ns, np.nan), np.where(known, others_ns, np.nan)


def _explains(cycles: SyncCycles, item: CandidateCause, own_ns: FloatArray, others_ns: FloatArray) -> bool:
    """Whether waiting for a core is most of what the ranks are late by in the cycles in which they are."""
    known = item.acts & np.isfinite(own_ns)
    own_ns, others_ns = own_ns[known], others_ns[known]
    late_ns = item.taken_ns / len(item.rows) / item.acts.sum()
    more_ns = own_ns - others_ns
    work_ns = float(median_of_others(cycles.work_ns.sum(axis=2), item.rows)[item.acts].mean())
    while_running = others_ns.mean() / max(work_ns - others_ns.mean(), 1.0)
    beyond_ns = more_ns.mean() - while_running * max(0.0, late_ns - more_ns.mean())
    return bool(beyond_ns >= EXPLAINED_RATIO * late_ns) and _is_more(more_ns)


def _is_more(more_ns: FloatArray) -> bool:
    """Whether they are above 0 on average, beyond chance."""
    error_ns = float(more_ns.std(ddof=1)) / math.sqrt(len(more_ns))
    return bool(more_ns.mean() > t_quantile(ALPHA, len(more_ns) - 1) * error_ns)


def _measure_excess(own: Scheduling, others: list[Scheduling]) -> float:
    """How much longer a thread waits per step than the others do, and than they would if they ran as long, ns; 0 if
    that is within chance, by Student's t of its windows."""
    usual = np.array([each.usual for each in others])
    run_ns, wait_ns = own.usual[[_RUN, _WAIT]]
    while_running = usual[:, _WAIT] / np.maximum(usual[:, _RUN], 1.0)
    usual_ns = max(float(np.median(usual[:, _WAIT])), float(run_ns * np.median(while_running)))
    excess_ns, count = float(wait_ns) - usual_ns, len(own.windows)
    spreads_ns = [float(each.windows[:, _WAIT].std(ddof=1)) for each in (own, *others)]
    spread_ns = max(spreads_ns[0], float(np.median(spreads_ns[1:])))
    sure = excess_ns > t_quantile(ALPHA, count - 1) * MIDMEAN_FACTOR * spread_ns / math.sqrt(count)
    return excess_ns if sure else 0.0


def _describe(
    measured_steps: MeasuredSteps, own: list[Scheduling], wait_ns: float, others_ns: float, positions: list[int]
) -> OffCpu:
    sharing = _list_sharing(measured_steps, own, positions)
    cores = sharing[0].find_last("cores") if sharing else None
    counts = [each.find_median("threads") for each in sharing]
    threads = None if None in counts or not counts else round(sum(filter(None, counts)))
    return OffCpu(
        wait_ns=wait_ns, others_ns=others_ns, cores=cores, threads=threads,
        ranks=len(sharing) or len(positions),
        reason=_find_reason(own, sharing, cores, threads) if len(own) == len(positions) else None,
    )  # fmt: skip


def _list_sharing(measured_steps: MeasuredSteps, own: list[Scheduling], positions: list[int]) -> list[Scheduling]:
    """All ranks that may run on the cores of these ranks and on no others; empty: these ranks have different cores."""
    sets = {each.find_last("core_set") for each in own}
    if len(sets) > 1 or None in sets:
        return []
    run = measured_steps.run
    host, end = run.ranks[positions[0]].host, run.rows.shape[1]
    here = [position for position, info in enumerate(run.ranks) if info.host == host]
    found = [read_scheduling(run, position, 0, end) for position in here]
    return [each for each in found if each is not None and each.find_last("core_set") in sets]


def _find_reason(
    own: list[Scheduling], sharing: list[Scheduling], cores: float | None, threads: int | None
) -> OffCpuReason | None:
    run, wait, stolen, throttled = (
        float(np.median([each.find_share(*names) or 0.0 for each in own]))
        for names in (("run_ns", "at_ns"), ("wait_ns", "at_ns"), ("steal_ns", "busy_ns"), ("throttled_ns", "at_ns"))
    )
    used = sum(each.find_share("used_ns", "at_ns") or 0.0 for each in sharing)
    if throttled >= BLAMED_RATIO * wait:
        return OffCpuReason.QUOTA
    if cores is not None and threads is not None and threads > cores and used - run >= BLAMED_RATIO * wait * cores:
        return OffCpuReason.THREADS
    if stolen > 0 and stolen * (run + wait) >= BLAMED_RATIO * wait:
        return OffCpuReason.STEAL
    return None if cores is None or threads is None else OffCpuReason.OTHERS
