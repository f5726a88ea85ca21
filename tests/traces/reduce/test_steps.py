"""Which ranges are steps, and where they lie on the device."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.facts.run import PHASE_CODE, Phase
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.phase_names import NO_STEP, NameMap, is_warmup
from distprof.traces.reduce.steps import detect_steps
from distprof.traces.reduce.traced_step_row import derive_device_clock
from tests.traces.reduce.synthetic_traces import SyntheticTrace

USUAL = NameMap()


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("## forward ##", Phase.FORWARD), ("forward_pass", Phase.FORWARD),
        ("DistributedDataParallel.forward", Phase.FORWARD),
        ("## backward ##", Phase.BACKWARD), ("loss.backward", Phase.BACKWARD), ("## data_load ##", Phase.DATA),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Phase.DATA), ("get_batch", Phase.DATA),
        ("Optimizer.step#AdamW.step", Phase.OPTIMIZER), ("Optimizer.zero_grad#SGD.zero_grad", Phase.OPTIMIZER),
        ("optimizer_step", Phase.OPTIMIZER), ("clip_grad_norm_", Phase.GRAD_NORM), ("grad_allreduce", Phase.ALL_REDUCE),
        ("distprof.all_gather", Phase.ALL_GATHER),
    ],
)  # fmt: skip
def test_usual_names_stand_for_phases(name: str, phase: Phase) -> None:
    assert USUAL.match_phase("", name) == PHASE_CODE[phase]


@pytest.mark.parametrize("name", ["layer_3", "attention", "aten::mm", "nccl:all_reduce", "forwards", "distprof.no", ""])
def test_other_names_stand_for_none(name: str) -> None:
    assert USUAL.match_phase("", name) == -1


def test_what_the_user_says_goes_before_the_usual_names() -> None:
    names = NameMap(phases=((Phase.DATA, "forward*"),), step="chunk*")
    assert names.match_phase("", "forward_pass") == PHASE_CODE[Phase.DATA]
    assert names.match_step("", "chunk 12 of 99") == 99
    assert names.match_step("", "ProfilerStep#3") == NO_STEP


def test_numbers_of_any_length_are_no_danger() -> None:
    assert USUAL.match_step("", "ProfilerStep#" + "9" * 5_000) in (NO_STEP, int("9" * 18))


def test_the_profilers_steps_go_before_anybodys_and_distprofs_before_both() -> None:
    made = SyntheticTrace()
    made.range("train_step", 0, 100)
    made.range("ProfilerStep#7", 10, 90)
    assert detect_steps(made.build(), USUAL).number.tolist() == [7]
    made.range("step", 20, 80, domain="distprof", payload=41)
    assert detect_steps(made.build(), USUAL).number.tolist() == [41]


@pytest.mark.parametrize(("last", "numbers"), [(2**53 - 1, [3, 2**53 - 1]), (2**53, [0, 1]), (2**63 - 1, [0, 1])])
def test_steps_whose_numbers_are_too_large_are_counted(last: int, numbers: list[int]) -> None:
    made = SyntheticTrace()
    made.range("step", 0, 100, domain="distprof", payload=3)
    made.range("step", 100, 200, domain="distprof", payload=last)
    assert detect_steps(made.build(), USUAL).number.tolist() == numbers


def test_steps_without_numbers_are_counted_and_warm_up_is_known_by_the_range_around_it() -> None:
    made = SyntheticTrace()
    made.range("warmup", 0, 100)
    made.range("profiled_step", 10, 90)
    made.range("profiled_step", 200, 300)
    made.range("profiled_step", 250, 260)  # inside another
    made.range("profiled_step", 400, None)  # never closed
    steps = detect_steps(made.build(), USUAL)
    assert (steps.number.tolist(), steps.warmup.tolist()) == ([0, 1], [True, False])
    windows = steps.windows()
    assert windows is not None and windows.tolist() == [[200, 300]]
    assert is_warmup("Warm-Up phase") and not is_warmup("warmer")


@pytest.mark.parametrize("seed", range(8))
def test_warm_up_is_what_lies_in_any_of_its_ranges_however_they_overlap(seed: int) -> None:
    made, draw = SyntheticTrace(), np.random.default_rng(seed)
    warm = [(int(begin), int(begin + lasts)) for begin, lasts in draw.integers(0, 300, (4, 2))]
    steps = [(begin, begin + 20) for begin in range(0, 600, 25)]
    for begin_ns, end_ns in warm:
        made.range("warmup", begin_ns, end_ns)
    for number, (begin_ns, end_ns) in enumerate(steps):
        made.range(f"ProfilerStep#{number}", begin_ns, end_ns)
    by_loops = [any(first <= begin and end <= last for first, last in warm) for begin, end in steps]
    assert detect_steps(made.build(), USUAL).warmup.tolist() == by_loops and True in by_loops


def test_steps_come_from_the_thread_with_most_of_them() -> None:
    made = SyntheticTrace()
    for number in range(3):
        made.range(f"ProfilerStep#{number}", 100 * number, 100 * number + 90, thread=5)
    made.range("ProfilerStep#0", 0, 90, thread=6)
    steps = detect_steps(made.build(), USUAL)
    assert (steps.thread, steps.number.tolist()) == (5, [0, 1, 2])


def test_a_step_without_length_is_none() -> None:
    made = SyntheticTrace()
    made.range("ProfilerStep#7", 10, 10)
    assert len(detect_steps(made.build(), USUAL).number) == 0
    made.range("ProfilerStep#8", 20, 21)
    assert detect_steps(made.build(), USUAL).number.tolist() == [8]


def test_no_step_is_no_window() -> None:
    steps = detect_steps(SyntheticTrace().build(), USUAL)
    assert (len(steps.number), steps.windows()) == (0, None)


def test_an_event_on_the_device_waits_for_what_was_launched_before_it() -> None:
    made = SyntheticTrace()
    made.launch("gemm", 0, 10, 50)
    made.launch("gemm", 20, 50, 90)
    made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 90, 500)  # no compute: an event does not wait for it
    clock = derive_device_clock(examine_device(made.build()))
    assert clock is not None
    assert clock.read(np.array([0, 1, 20, 21, 60, 200])).tolist() == [0, 50, 50, 90, 90, 200]


def test_without_launches_nobody_knows_the_device() -> None:
    made = SyntheticTrace()
    made.activity("gemm", 0, 10)
    assert derive_device_clock(examine_device(made.build())) is None
