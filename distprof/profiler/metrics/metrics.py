"""Live metrics of a job as Prometheus text: what rank 0 gathers anyway, in a few series whatever the number of ranks.

A gauge is the mean of the steps of the last window (``profile.window_s``), without those of a profiler's window, which
slows them down; counters hold everything since the start. What was not measured has no line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from distprof.analyze.live.lately import LatestSteps
from distprof.analyze.live.live_metric_means import ElapsedSteps
from distprof.analyze.live.live_metrics import is_in_window, make_point
from distprof.analyze.stats.measured_steps import counts_between
from distprof.facts.arrays import FloatArray
from distprof.facts.gpu import LIMIT_BITS, UNREAD, GpuReading
from distprof.facts.run import COLUMN, PHASES, Clock, RankInfo, RunMeta

Labels = Mapping[str, str]
GAUGES = {
    "step/time_ms": ("step_seconds", 1e-3, "Elapsed time over steps."),
    "step/tokens_per_s": ("tokens_per_second", 1.0, "Tokens of all ranks."),
    "step/loss": ("loss", 1.0, "Mean loss of the ranks that know one."),
    "step/grad_norm": ("grad_norm", 1.0, "Norm of the gradients."),
    "straggler/excess_ms": ("straggler_excess_seconds", 1e-3, "Own time of the busiest rank above the others' median."),
    "straggler/rank": ("straggler_rank", 1.0, "The rank that the report would name by the last steps."),
    "flops/achieved_per_device": ("flops_per_second", 1.0, "Model FLOP/s of a device."),
    "flops/mfu_ratio": ("mfu_ratio", 1.0, "Model FLOPs utilisation."),
}
"""By key of a point of `make_point`: the name of the metric, the factor to its unit, and its description."""
BY_CLOCK = {
    "phase_seconds": "Mean time of a phase in a step.",
    "exposed_communication_ratio": "Share of a step that waits for communication.",
}
"""Metrics that each clock has."""


class Metrics:
    """The job's metrics; any thread may read them."""

    def __init__(
        self,
        meta: RunMeta,
        ranks: Sequence[RankInfo],
        *,
        now_s: Callable[[], float] = time.time,
        read_gpus: Callable[[], Sequence[GpuReading]] = tuple,
    ) -> None:
        """Begins without a step.

        Args:
            meta: Of the job.
            ranks: Every rank, in order. Empty: no MFU, and none is named.
            now_s: Seconds since 1970.
            read_gpus: What the ranks have said of their GPUs last, by rank.
        """
        self._meta, self._peaks, self._now_s = meta, [info.peak.flops_per_s for info in ranks], now_s
        self._uuids, self._read_gpus = [info.device_uuid for info in ranks], read_gpus
        self._latest = LatestSteps(meta, ranks)
        self._elapsed = ElapsedSteps(between=counts_between(meta))
        self._lock = threading.Lock()
        self._point: Mapping[str, float] = {}
        self._steps = 0
        self._tokens = self._step_s = 0.0
        self._memory_bytes = self._at_s = self._step = float("nan")

    def add(self, rows: FloatArray) -> None:
        """Takes new whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        elapsed_ns = self._elapsed.add(rows)
        self._latest.add(rows)
        usual = ~is_in_window(rows)
        point = self._point
        if usual.any():
            usual_ns = {clock: times_ns[usual] for clock, times_ns in elapsed_ns.items()}
            point = make_point(rows[:, usual], usual_ns, self._meta, self._peaks)
        rank = self._latest.rank
        point = {**point, "straggler/rank": np.nan if rank is None else float(rank)}
        step_s = float(np.nansum(elapsed_ns[Clock.HOST])) / 1e9
        memory_bytes = np.fmax.reduce(rows[:, :, COLUMN["memory_peak_bytes"]], axis=None)
        with self._lock:
            self._point, self._at_s, self._memory_bytes = point, self._now_s(), float(memory_bytes)
            self._step = float(rows[0, -1, COLUMN["step"]])
            self._steps += rows.shape[1]
            self._step_s += step_s
            self._tokens += float(np.nansum(rows[:, :, COLUMN["tokens"]]))

    def render(self) -> str:
        """The metrics in Prometheus' text format, version 0.0.4."""
        with self._lock:
            lines = list(self._list_lines())
        return "\n".join(lines) + "\n"

    def _list_lines(self) -> Iterator[str]:
        about = {"name": self._meta.name, "run_id": self._meta.run_id}
        yield from _list_metric("run_info", "gauge", "The run.", [(about, 1.0)])
        yield from _list_metric("ranks", "gauge", "Ranks of the job.", [({}, float(self._meta.world_size))])
        yield from _list_metric("steps_total", "counter", "Steps that every rank has ended.", [({}, self._steps)])
        yield from _list_metric("steps_seconds_total", "counter", "Their time.", [({}, self._step_s)])
        tokens = self._tokens or float("nan")  # a loop that does not say how many has no line
        yield from _list_metric("tokens_total", "counter", "Tokens of all ranks.", [({}, tokens)])
        yield from _list_metric(
            "last_step_timestamp_seconds", "gauge", "When the last steps arrived, since 1970.", [({}, self._at_s)]
        )
        yield from _list_metric("last_step", "gauge", "Number of the last step.", [({}, self._step)])
        yield from _list_metric(
            "memory_peak_bytes", "gauge", "Peak memory of the rank that has most.", [({}, self._memory_bytes)]
        )
        gauges = list(list_gauges(self._point))
        for name, text in {**{name: text for name, _, text in GAUGES.values()}, **BY_CLOCK}.items():
            values = [(labels, value) for each, labels, value in gauges if each == name]
            yield from _list_metric(name, "gauge", text, values)
        yield from _list_gpus(self._uuids, self._read_gpus())


def list_gauges(point: Mapping[str, float]) -> Iterator[tuple[str, Labels, float]]:
    """The name, the labels and the value of each metric in a point, in seconds and shares."""
    for key, (name, factor, _) in GAUGES.items():
        if key in point:
            yield name, {}, point[key] * factor
    for clock in Clock:
        if (ratio := point.get(f"comm/exposed_{clock}_ratio")) is not None:
            yield "exposed_communication_ratio", {"clock": clock}, ratio
    for phase in PHASES:
        for clock in Clock:
            if (time_ms := point.get(f"phase/{phase}/{clock}_ms")) is not None:
                yield "phase_seconds", {"phase": phase, "clock": clock}, time_ms / 1e3


def _list_gpus(uuids: Sequence[str | None], readings: Sequence[GpuReading]) -> Iterator[str]:
    """All GPUs of the job in a few series, each GPU once, whatever number of ranks share it. Sums and counts only while
    every GPU of the job is read."""
    gpus = [*dict(zip(uuids, readings, strict=False)).items()] if len(uuids) == len(readings) else []

    def read(name: str) -> list[int]:
        return [value for _, reading in gpus if (value := getattr(reading, name)) != UNREAD]

    power, energy, clock, hot, limits = map(read, GpuReading._fields)
    whole = bool(gpus) and all(uuid is not None for uuid, _ in gpus)

    def add_up(known: Sequence[int]) -> Iterator[tuple[Labels, float]]:
        if whole and len(known) == len(gpus):
            yield {}, sum(known) / 1e3

    yield from _list_metric("gpu_power_watts", "gauge", "Power of all GPUs of the job.", [*add_up(power)])
    yield from _list_metric(
        "gpu_energy_joules_total", "counter", "Energy of all GPUs while sampled.", [*add_up(energy)]
    )
    lowest: list[tuple[Labels, float]] = [({}, min(clock) * 1e6)] if clock else []
    yield from _list_metric("gpu_sm_clock_hertz", "gauge", "SM clock of the GPU whose is lowest.", lowest)
    hottest: list[tuple[Labels, float]] = [({}, float(max(hot)))] if hot else []
    yield from _list_metric("gpu_temperature_celsius", "gauge", "Temperature of the hottest GPU.", hottest)
    held: list[tuple[Labels, float]] = [
        ({"by": limit}, float(sum(bool(value & bits) for value in limits))) for limit, bits in LIMIT_BITS.items()
    ]
    yield from _list_metric("gpus_limited", "gauge", "GPUs whose clock is limited.", held if limits else [])


def _list_metric(name: str, kind: str, text: str, values: Sequence[tuple[Labels, float]]) -> Iterator[str]:
    """The lines of one metric; none if nothing was measured."""
    measured = [(labels, value) for labels, value in values if np.isfinite(value)]
    if measured:
        yield f"# HELP distprof_{name} {text}"
        yield f"# TYPE distprof_{name} {kind}"
    for labels, value in measured:
        listed = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
        yield f"distprof_{name}{{{listed}}} {float(value)!r}" if listed else f"distprof_{name} {float(value)!r}"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
