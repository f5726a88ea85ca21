"""From a recorded step to its row of numbers."""

from __future__ import annotations

import numpy as np

from distprof.facts.run import COLUMN, PHASES
from distprof.facts.segments import Segments
from distprof.record.step.step_record import SeenCollective, StepRecord
from distprof.record.step.step_row import pack_row


def make_record(**changes: object) -> StepRecord:
    values: dict[str, object] = {
        "step": 3, "warmup": True, "failed": False, "micro_steps": 2, "tokens": 64, "step_host_ns": 36,
        "phase_host_ns": [1, 2, 3, 4, 5, 6, 7, 8], "segments_lost": 0, "scalars": (2.5, float("inf")),
        "segments": Segments(begin_ns=1000, codes=(7,), durations_ns=(36,)), "collectives": [],
    }  # fmt: skip
    return StepRecord(**{**values, **changes})  # type: ignore[arg-type]


def test_a_row_holds_what_was_measured_and_nan_elsewhere() -> None:
    row = pack_row(make_record(), memory_bytes=7, memory_peak_bytes=None)
    facts = {name: row[index] for name, index in COLUMN.items()}
    expected = {"step": 3, "warmup": 1, "failed": 0, "micro_steps": 2, "tokens": 64, "begin_host_ns": 1000}
    assert {name: facts[name] for name in expected} == expected
    assert [facts[f"{phase}_host_ns"] for phase in PHASES] == [1, 2, 3, 4, 5, 6, 7, 8]
    for name in ("step_device_ns", "data_device_ns", "memory_peak_bytes", "grad_norm"):  # an infinite norm is no number
        assert np.isnan(facts[name]), name
    assert facts["loss"] == 2.5 and facts["memory_bytes"] == 7 and facts["all_gather_count"] == 0


def test_collectives_are_counted_and_their_union_is_busy() -> None:
    facts = [(0, 10, 100, 200), (0, 20, 150, 260), (2, 5, 0, 50), (2, 5, 60, None)]
    collectives = [SeenCollective(kind, 0, 2, size, arrival, end, None) for kind, size, arrival, end in facts]
    record = make_record(collectives=collectives, exposed_host_ns=[30, 0, None, 0, 0], wait_host_ns=[0, 0, 0, 7, 0, 0])
    row = pack_row(record, memory_bytes=None, memory_peak_bytes=None)
    assert [row[COLUMN[f"all_reduce_{fact}"]] for fact in ("count", "bytes", "busy_host_ns")] == [2, 30, 160]
    assert [row[COLUMN[f"all_gather_{fact}"]] for fact in ("count", "bytes")] == [2, 10]
    assert np.isnan(row[COLUMN["all_gather_busy_host_ns"]])  # one end was not seen: the union is unknown
    assert row[COLUMN["all_reduce_exposed_host_ns"]] == 30 and np.isnan(row[COLUMN["all_gather_exposed_host_ns"]])
    assert row[COLUMN["grad_norm_wait_host_ns"]] == 7 and row[COLUMN["forward_wait_host_ns"]] == 0
    assert np.isnan(row[COLUMN["all_reduce_exposed_device_ns"]])  # there was no device clock
    assert row[COLUMN["reduce_scatter_busy_host_ns"]] == 0  # none was issued: measured, and zero


def test_at_level_off_nothing_is_said_about_phases_and_collectives() -> None:
    row = pack_row(make_record(phase_host_ns=None), memory_bytes=None, memory_peak_bytes=None)
    assert row[COLUMN["step_host_ns"]] == 36
    assert np.isnan(row[COLUMN["data_host_ns"]]) and np.isnan(row[COLUMN["all_reduce_count"]])
