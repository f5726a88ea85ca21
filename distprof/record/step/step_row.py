"""Packs a recorded step into the row that is written and gathered. Runs on the background thread."""

from __future__ import annotations

import math

import numpy as np

from distprof.facts.arrays import FloatArray
from distprof.facts.columns import LOADER_FIELDS
from distprof.facts.intervals import measure_union
from distprof.facts.run import COLUMN, COMPILED_PHASES, KINDS, OWN_PHASES, PHASE_CODE, PHASES, ROW_WIDTH
from distprof.record.step.between_steps import STRETCH_CODE
from distprof.record.step.step_record import SeenCollective, StepRecord

_FACTS = [
    COLUMN[name]
    for name in (
        "step", "warmup", "failed", "shadow", "window", "micro_steps", "tokens", "squared_lengths",
        "begin_host_ns", "step_host_ns",
        "begin_device_ns", "step_device_ns", "memory_bytes", "memory_peak_bytes", "loss", "grad_norm", "segments_lost",
    )
]  # fmt: skip
_PHASES_HOST, _PHASES_DEVICE = (COLUMN[f"{PHASES[0]}_{clock}_ns"] for clock in ("host", "device"))
_WAITS_HOST, _WAITS_DEVICE = (COLUMN[f"{OWN_PHASES[0]}_wait_{clock}_ns"] for clock in ("host", "device"))

_COLLECTIVES = [
    [COLUMN[f"{kind}_{fact}"] for fact in ("count", "bytes", "busy_host_ns", "exposed_host_ns", "exposed_device_ns")]
    for kind in KINDS
]
_COLLECTED = [(PHASE_CODE[phase], COLUMN[f"{phase}_gc_host_ns"]) for phase in OWN_PHASES]
_COMPILED = [(PHASE_CODE[phase], COLUMN[f"{phase}_compile_host_ns"]) for phase in COMPILED_PHASES]
_LOADER, _LOADER_BATCHES = [COLUMN[name] for name in LOADER_FIELDS], LOADER_FIELDS.index("loader_batches")
_CORE_WAIT = COLUMN["core_wait_ns"]
_BETWEEN = [
    *(COLUMN[f"between_{name}"] for name in ("count", "wait_host_ns", "after_host_ns", "data_host_ns")),
    *(COLUMN[f"between_{name}gc_host_ns"] for name in ("", "data_")),
    *(COLUMN[f"{stretch}_host_ns"] for stretch in STRETCH_CODE),
]


def pack_row(
    record: StepRecord, *, memory_bytes: int | None, memory_peak_bytes: int | None, window: bool = False
) -> FloatArray:
    """One step as a row, ``[ROW_WIDTH]``; NaN: not measured.

    Args:
        record: The step.
        memory_bytes: Memory in use, read when the step was packed.
        memory_peak_bytes: The largest amount so far, read when the step was packed.
        window: Whether the step ran in a profiler's window.
    """
    facts: tuple[float | None, ...] = (
        record.step, record.warmup, record.failed, record.shadow, window, record.micro_steps, record.tokens,
        record.squared_lengths or None,
        record.segments.begin_ns, record.step_host_ns, record.begin_device_ns, record.step_device_ns,
        memory_bytes, memory_peak_bytes, *record.scalars, None if record.shadow else record.segments_lost,
    )  # fmt: skip
    row = [math.nan] * ROW_WIDTH  # filling an array one by one takes several times as long
    for column, value in zip(_FACTS, facts, strict=True):
        if value is not None and math.isfinite(value):
            row[column] = value
    if record.anchor is not None and record.anchor.device_ns >= 0:  # below 0: the device had not begun the first step
        for name, value in record.anchor._asdict().items():
            row[COLUMN[f"anchor_{name}"]] = value
    for first, totals in (
        (_PHASES_HOST, record.phase_host_ns), (_PHASES_DEVICE, record.phase_device_ns),
        (_WAITS_HOST, record.wait_host_ns), (_WAITS_DEVICE, record.wait_device_ns),
    ):  # fmt: skip
        if totals is not None:
            row[first : first + len(totals)] = totals
    if record.between is not None:
        *facts_between, collected, stretches_ns = record.between
        for column, value in zip(_BETWEEN, (*facts_between, *collected, *stretches_ns), strict=True):
            row[column] = value
    if record.pauses is not None:
        collected_ns, compiled_ns, batches, core_wait_ns = record.pauses
        row[_CORE_WAIT] = math.nan if core_wait_ns is None else core_wait_ns
        for columns, totals in ((_COLLECTED, collected_ns), (_COMPILED, compiled_ns)):
            for code, column in columns:
                row[column] = totals[code]
        if batches[_LOADER_BATCHES]:
            for column, value in zip(_LOADER, batches, strict=True):
                row[column] = value
    if record.phase_host_ns is not None and record.collectives is not None:
        _pack_collectives(row, record)
    return np.array(row, dtype=np.float64)


def _pack_collectives(row: list[float], record: StepRecord) -> None:
    of_kind: dict[int, list[SeenCollective]] = {}
    for item in record.collectives or ():
        of_kind.setdefault(item.kind, []).append(item)
    for code, (count, size_bytes, busy, on_host, on_device) in enumerate(_COLLECTIVES):
        own = of_kind.get(code)
        if own is None:
            row[count] = row[size_bytes] = row[busy] = 0
        else:
            row[count], row[size_bytes] = len(own), sum([item.size_bytes for item in own])
            ends_ns = [item.end_ns for item in own if item.end_ns is not None]
            if len(ends_ns) == len(own):  # a single unseen end makes the union unknown
                row[busy] = int(measure_union([item.arrival_ns for item in own], ends_ns))
        for column, totals in ((on_host, record.exposed_host_ns), (on_device, record.exposed_device_ns)):
            value = None if totals is None else totals[code]
            if value is not None:
                row[column] = value
