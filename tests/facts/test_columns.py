"""Columns are written out; here they are compared with what they are made of."""

from __future__ import annotations

from distprof.facts.columns import COLUMN, LOADER_FIELDS, ROW_FIELDS
from distprof.facts.run import KINDS, OWN_PHASES, PHASES, Clock, Phase, Stretch

FIRST = ("step", "warmup", "failed", "shadow", "window", "micro_steps", "tokens", "squared_lengths", "begin_host_ns")
KIND_FACTS = ("count", "bytes", "busy_host_ns", "exposed_host_ns", "busy_device_ns", "exposed_device_ns")
LAST = ("memory_bytes", "memory_peak_bytes", "loss", "grad_norm", "segments_lost")
BETWEEN = ("between_count", "between_wait_host_ns", "between_after_host_ns", "between_data_host_ns")
COMPILING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
DEVICE_CLOCK = ["begin_device_ns", "anchor_device_ns", "anchor_host_ns", "anchor_bound_ns"]


def test_columns_are_every_phase_on_every_clock_and_every_fact_of_every_kind() -> None:
    phases = [
        name
        for clock in Clock
        for name in (
            f"step_{clock}_ns",
            *(f"{phase}_{clock}_ns" for phase in PHASES),
            *(f"{phase}_wait_{clock}_ns" for phase in OWN_PHASES),
        )
    ]
    kinds = [f"{kind}_{fact}" for kind in KINDS for fact in KIND_FACTS]
    stretches = [f"{stretch}_host_ns" for stretch in Stretch if stretch is not Stretch.BETWEEN]
    collected = [f"{part}_gc_host_ns" for part in (*OWN_PHASES, "between_data", "between")]
    pauses = [*collected, *(f"{phase}_compile_host_ns" for phase in COMPILING)]
    last = (*pauses, "core_wait_ns", *LOADER_FIELDS, *DEVICE_CLOCK)
    assert list(ROW_FIELDS) == [*FIRST, *phases, *kinds, *LAST, *BETWEEN, *stretches, *last]
    assert len(COLUMN) == len(ROW_FIELDS)
