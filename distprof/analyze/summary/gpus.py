"""How much energy do the GPUs take for a step and a token, how fast do they run, and what limits their clocks?

What the driver says of a GPU is a row of spans on its host's monotonic clock. A step is placed on that clock, by the
device's own time where it was timed there, and gets of each span as much as it overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.clocks.device_clock import map_to_host
from distprof.analyze.stats.measured_steps import MeasuredSteps, counts_between
from distprof.analyze.stats.statistics import as_number
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.gpu import LIMIT_BITS, ClockLimit, RankGpu
from distprof.facts.run import Clock, RankInfo
from distprof.report.gpu_report import GpuReport, GpusReport

MIN_SPANS = 10
"""Steps must take as long as so many spans together: at either end, half a span is divided by time alone."""
WHOLE_RATIO = 1 - 1e-6
"""Share of a step that spans must cover."""
MOST_RATIO = 0.5
"""Share of the time in which a clock must be limited for that to be said."""


class GpuSteps(Struct, frozen=True, kw_only=True):
    """One rank's GPU over some steps."""

    gpu: RankGpu
    begin_ns: FloatArray
    """``[num_steps]``, host's monotonic clock; NaN: the step does not count, or is not placed."""
    end_ns: FloatArray

    def integrate(self, values: FloatArray) -> FloatArray:
        """The integral over each step of what is constant in each span, in ns times the unit, ``[num_steps]``.

        Args:
            values: ``[num_spans]``; NaN: not known there, which counts as 0.
        """
        known = np.isfinite(values)
        first_ns, length_ns = self.gpu.column("begin_ns")[known], self.gpu.column("length_ns")[known]
        if not len(first_ns):
            return np.where(np.isfinite(self.begin_ns), 0.0, np.nan)
        knots_ns = np.stack([first_ns, first_ns + length_ns], axis=1).reshape(-1) - first_ns[0]
        areas = np.repeat(np.cumsum(values[known] * length_ns), 2)
        areas[::2] -= values[known] * length_ns
        at = [np.interp(times_ns - first_ns[0], knots_ns, areas) for times_ns in (self.begin_ns, self.end_ns)]
        return np.where(np.isfinite(self.begin_ns), at[1] - at[0], np.nan)

    def average(self, values: FloatArray) -> float | None:
        """The mean over all steps of what is constant in each span; None: known in too little of them."""
        known_ns = float(np.nansum(self.integrate(np.where(np.isfinite(values), 1.0, np.nan))))
        if not self.is_long(known_ns):
            return None
        return float(np.nansum(self.integrate(values))) / known_ns

    def is_long(self, known_ns: float) -> bool:
        """Whether so much of the steps' time is enough for a number."""
        lengths_ns = self.gpu.column("length_ns")[self.find_spans()]
        return bool(len(lengths_ns)) and known_ns >= MIN_SPANS * float(lengths_ns.mean())

    def find_spans(self) -> BoolArray:
        """The spans between the begin of the first step and the end of the last, ``[num_spans]``."""
        first_ns, length_ns = self.gpu.column("begin_ns"), self.gpu.column("length_ns")
        if not np.isfinite(self.begin_ns).any():
            return np.zeros(len(first_ns), dtype=bool)
        inside: BoolArray = (first_ns < np.nanmax(self.end_ns)) & (first_ns + length_ns > np.nanmin(self.begin_ns))
        return inside

    def measure_energy(self) -> FloatArray:
        """Energy of each step, J, ``[num_steps]``; NaN: not known all through it."""
        length_ns = self.gpu.column("length_ns")
        power = self.gpu.column("energy_mj") / 1e3 / length_ns
        covered_ns = self.integrate(np.where(np.isfinite(power), 1.0, np.nan))
        whole = covered_ns >= WHOLE_RATIO * (self.end_ns - self.begin_ns)
        return np.where(whole, self.integrate(power), np.nan)


def place_steps(measured_steps: MeasuredSteps, position: int, steps: BoolArray) -> GpuSteps | None:
    """A rank's GPU over those of its steps that are given; with each goes the time since the step before, if that
    counts as well. None: its GPU was not sampled.

    Args:
        measured_steps: The ranks and steps that count.
        position: Of the rank, in ``Run.ranks``.
        steps: Which of the counted steps, ``[num_steps]``.
    """
    run = measured_steps.run
    gpu = run.gpus[position] if run.gpus else None
    if gpu is None:
        return None
    on_device = bool(np.isfinite(run.step_ns(Clock.DEVICE)[position]).any())
    clock = Clock.DEVICE if on_device else Clock.HOST
    begin_ns = run.column(f"begin_{clock}_ns")[position]
    end_ns = begin_ns + run.step_ns(clock)[position]
    if on_device:
        begin_ns, end_ns = (map_to_host(run, position, times_ns) for times_ns in (begin_ns, end_ns))
    counted, numbers = measured_steps.counted & steps, run.column("step")[position]
    begin_ns = np.array(begin_ns)
    if counts_between(run.meta):
        follows = (
            counted[1:] & measured_steps.timed[:-1] & (numbers[1:] == numbers[:-1] + 1) & (end_ns[:-1] <= begin_ns[1:])
        )
        begin_ns[1:][follows] = end_ns[:-1][follows]
    used = counted & (end_ns > begin_ns)
    return GpuSteps(gpu=gpu, begin_ns=np.where(used, begin_ns, np.nan), end_ns=np.where(used, end_ns, np.nan))


def measure_limits(placed: GpuSteps) -> dict[ClockLimit, float]:
    """Share of the time in which each limit held the clock down. Empty: not known."""
    bits = placed.gpu.column("limits")
    known = np.isfinite(bits)
    held = np.where(known, bits, 0).astype(np.int64)
    shares = {limit: placed.average(np.where(known, (held & mask) != 0, np.nan)) for limit, mask in LIMIT_BITS.items()}
    return {limit: share for limit, share in shares.items() if share is not None}


def report_gpus(measured_steps: MeasuredSteps) -> GpusReport | None:
    """The GPUs of the job. None: none was sampled."""
    ranks = measured_steps.run.ranks
    every = np.ones(len(measured_steps.counted), dtype=bool)
    placed = [place_steps(measured_steps, position, every) for position in range(len(ranks))]
    energies = [None if item is None else _measure_rank(item) for item in placed]
    devices = [
        _report_gpu(measured_steps, position, item, energy_j)
        for position, (item, energy_j) in enumerate(zip(placed, energies, strict=True))
        if item is not None and energy_j is not None
    ]
    return _add_up(measured_steps, placed, energies, devices) if devices else None


def _measure_rank(placed: GpuSteps) -> FloatArray:
    """Energy of each step, J; all NaN: too short a time is known."""
    energy_j = placed.measure_energy()
    known_ns = (placed.end_ns - placed.begin_ns)[np.isfinite(energy_j)].sum()
    return energy_j if placed.is_long(float(known_ns)) else np.full(len(energy_j), np.nan)


def _add_up(
    measured_steps: MeasuredSteps,
    placed: Sequence[GpuSteps | None],
    energies: Sequence[FloatArray | None],
    devices: Sequence[GpuReport],
) -> GpusReport:
    """Each GPU once, in the steps in which the energy of all is known."""
    run, there = measured_steps.run, np.flatnonzero(measured_steps.present).tolist()
    firsts = {info.device_uuid: position for position, info in reversed([(at, run.ranks[at]) for at in there])}
    known = [energies[position] for position in firsts.values()]
    unknown = np.full(run.rows.shape[1], np.nan)
    energy_j = np.sum([unknown if item is None else item for item in known], axis=0) if known else unknown
    if measured_steps.num_missing or None in firsts:
        energy_j = unknown
    used = np.isfinite(energy_j)
    total_j = float(energy_j[used].sum())
    lengths_s = [
        float((item.end_ns - item.begin_ns)[used].sum()) / 1e9
        for position in firsts.values() if (item := placed[position]) is not None
    ]  # fmt: skip
    tokens = float(run.column("tokens")[there][:, used].sum())
    return GpusReport(
        num_gpus=len(firsts), steps_used=int(used.sum()), energy_per_step_j=_divide(total_j, float(used.sum())),
        energy_per_token_j=_divide(total_j, tokens),
        power_w=_divide(total_j, float(np.mean(lengths_s))) if used.any() else None,
        integrated=any(item is not None and not item.gpu.caps.counts_energy for item in placed),
        devices=tuple(devices),
    )  # fmt: skip


def _report_gpu(measured_steps: MeasuredSteps, position: int, placed: GpuSteps, energy_j: FloatArray) -> GpuReport:
    run, caps, spans = measured_steps.run, placed.gpu.caps, placed.find_spans()
    info, used = run.ranks[position], np.isfinite(energy_j)
    shared = _list_sharing(run.ranks, info)
    total_j, length_ns = float(energy_j[used].sum()), float((placed.end_ns - placed.begin_ns)[used].sum())
    own_j = np.nan if shared or info.device_uuid is None else total_j
    limits = measure_limits(placed)
    generation, lanes = (_read_highest(placed.gpu.column(name)[spans]) for name in ("pcie_generation", "pcie_lanes"))
    return GpuReport(
        rank=info.rank, shared_with=shared, steps_used=int(used.sum()),
        energy_per_step_j=_divide(own_j, float(used.sum())),
        energy_per_token_j=_divide(own_j, float(run.column("tokens")[position, used].sum())),
        power_w=_divide(total_j, length_ns / 1e9), power_cap_w=_scale(caps.power_mw, 1e-3),
        sm_clock_hz=_scale(placed.average(placed.gpu.column("sm_clock_mhz")), 1e6),
        sm_clock_max_hz=_scale(caps.sm_clock_mhz, 1e6),
        limited_by=tuple(limit.value for limit, share in limits.items() if share >= MOST_RATIO),
        temperature_c=_read_highest(placed.gpu.column("temperature_c")[spans]),
        pcie_generation=None if generation is None else int(generation), pcie_generation_max=caps.pcie_generation,
        pcie_lanes=None if lanes is None else int(lanes), pcie_lanes_max=caps.pcie_lanes,
    )  # fmt: skip


def _list_sharing(ranks: Sequence[RankInfo], own: RankInfo) -> tuple[int, ...]:
    """The other ranks on a rank's GPU."""
    same = [info.rank for info in ranks if own.device_uuid is not None and info.device_uuid == own.device_uuid]
    return tuple(rank for rank in same if rank != own.rank)


def _read_highest(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else None


def _divide(value: float, count: float) -> float | None:
    """None: one of them is not known, or there is nothing to divide by."""
    return as_number(value / count) if count > 0 else None


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
