"""A GPU that is sampled in the background: what is kept, and that no driver holds anybody up."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distprof.facts.gpu import UNREAD, GpuCaps, GpuReading, GpuSpan
from distprof.record.device import gpu_sampler as module
from distprof.record.device.gpu_sampler import (
    CLOSE_LIMIT_S,
    MAX_DOUBLINGS,
    SPANS_PER_LENGTH,
    GpuSample,
    GpuSampler,
    NvmlCard,
    SpanMaker,
)
from distprof.record.gather.step_writer import StepWriter
from distprof.record.step.recorder import Recorder
from distprof.storage.rank_stream import StreamWriter, read_stream
from tests.scripted_nvml import CAP_MW, MAX_MHZ, HandClock, NvmlError, ScriptedCard, make_scripted_nvml
from tests.storage.test_rank_stream import INFO

LIMIT_S = 10.0


def make_sample(at_s: float, **changes: Any) -> GpuSample:
    usual: dict[str, Any] = {
        "power_mw": 100_000, "energy_mj": None, "sm_clock_mhz": 1980, "temperature_c": 40, "limits": 0,
        "pcie_generation": 5, "pcie_lanes": 16,
    }  # fmt: skip
    return GpuSample(at_ns=round(at_s * 1e9), **{**usual, **changes})


def make_spans(samples: list[GpuSample], window_s: float = 1.0) -> list[GpuSpan]:
    maker = SpanMaker(window_s)
    return [span for span in [*map(maker.add, samples), maker.end()] if span is not None]


def test_power_is_integrated_by_hand() -> None:
    """100 W, 300 W, 200 W, a second apart: 200 J and 250 J."""
    samples = [make_sample(at, power_mw=mw) for at, mw in ((0, 100_000), (1, 300_000), (2, 200_000))]
    assert [span.energy_mj for span in make_spans(samples)] == [200_000, 250_000]
    counted = [sample._replace(energy_mj=mj) for sample, mj in zip(samples, (7, 90_007, 300_007), strict=True)]
    assert [span.energy_mj for span in make_spans(counted)] == [90_000, 210_000]


def test_what_is_not_known_is_not_guessed() -> None:
    far = [make_sample(0), make_sample(6), make_sample(7)]
    assert [span.energy_mj for span in make_spans(far)] == [None, 100_000]
    assert [span.energy_mj for span in make_spans([item._replace(energy_mj=1000) for item in far])] == [0, 0]
    back = [make_sample(0, energy_mj=900), make_sample(1, energy_mj=5), make_sample(2, energy_mj=8)]
    assert [span.energy_mj for span in make_spans(back)] == [None, 3]
    (none,) = make_spans([make_sample(at, sm_clock_mhz=None, limits=None, pcie_lanes=None) for at in (0, 1)])
    assert (none.sm_clock_mhz, none.limits, none.pcie_lanes) == (None, None, None)


def test_spans_get_longer_and_their_number_stays_small_and_integrals_keep_every_sample() -> None:
    random = np.random.default_rng(1)
    seconds = 3 * SPANS_PER_LENGTH
    powers = random.integers(50_000, 700_000, size=seconds).tolist()
    samples = [make_sample(at, power_mw=mw, limits=4 if at % 3 else 8) for at, mw in enumerate(powers)]
    spans = make_spans(samples)
    assert len(spans) == 2 * SPANS_PER_LENGTH and {span.length_ns for span in spans[:-1]} == {10**9, 2 * 10**9}
    assert all(a.begin_ns + a.length_ns == b.begin_ns for a, b in itertools.pairwise(spans))
    truth_mj = np.trapezoid(powers)
    assert sum(span.energy_mj or 0 for span in spans) == pytest.approx(truth_mj, rel=1e-7)
    assert MAX_DOUBLINGS <= 6  # or a step that begins in a span is too short for it


def test_a_limit_of_a_span_is_that_of_half_of_its_samples() -> None:
    maker = SpanMaker(1.0)
    for at, limits in enumerate((0x4, 0x4 | 0x1, 0x8, 0x4, 0x20)):
        maker._made = SPANS_PER_LENGTH * 6  # as after a day and a half
        assert maker.add(make_sample(at, limits=limits)) is None
    span = maker.end()
    assert span is not None and span.limits == 0x4 and span.length_ns == 4 * 10**9


def test_a_card_is_asked_what_it_answers_and_an_older_driver_by_the_older_name() -> None:
    clock = HandClock()
    card = ScriptedCard(counts_energy=False, limits=0x4)

    def refuse(*_: Any) -> Any:
        raise NvmlError("Not Supported")

    nvml = make_scripted_nvml(
        {"GPU-a": card}, clock, nvmlDeviceGetTemperature=refuse, nvmlDeviceGetMaxPcieLinkWidth=refuse,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda card: 0x8,
    )  # fmt: skip
    shown = NvmlCard(nvml, card, clock)
    assert shown.sample()[1:] == (400_000, None, MAX_MHZ, None, 0x4, 5, 16)
    assert shown.caps == GpuCaps(sm_clock_mhz=MAX_MHZ, power_mw=CAP_MW, pcie_generation=5)
    nvml.nvmlDeviceGetCurrentClocksEventReasons = refuse
    assert NvmlCard(nvml, card, clock).sample().limits == 0x8
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    assert NvmlCard(nvml, card, clock).sample().limits == 0x8


def start(nvml: Any, monkeypatch: pytest.MonkeyPatch, notes: list[str], window_s: float = 0.01) -> GpuSampler:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    sampler = GpuSampler("a", window_s=window_s, note=notes.append)
    sampler.start()
    return sampler


def wait_until(done: Any) -> None:
    for _ in range(int(LIMIT_S / 0.01)):
        if done():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


def test_the_thread_samples_until_it_is_closed_and_the_spans_are_in_the_ranks_stream(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml = make_scripted_nvml({"GPU-a": ScriptedCard(base_w=125, limits=0x4)}, HandClock())
    notes: list[str] = []
    sampler = start(nvml, monkeypatch, notes)
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=1, info=INFO)
    step_writer = StepWriter(recorder=Recorder(), writer=writer, device=torch.device("cpu"), warn=notes.append)
    step_writer.gpu = sampler
    wait_until(lambda: len(sampler._spans) >= 2)
    step_writer.take(False)
    assert sum(len(part.spans) for part in read_stream(tmp_path / "a").gpus) >= 2  # there already, without an end
    assert sampler.read_latest()[2:] == (MAX_MHZ, 41, 0x4) and sampler.read_latest().power_mw == 125_000
    step_writer.end("completed")
    assert not sampler.is_alive() and notes == [] and sampler.take() == []
    (gpu,) = read_stream(tmp_path / "a").gpus
    assert gpu.caps == sampler.caps and np.diff(gpu.column("begin_ns")) == pytest.approx(gpu.column("length_ns")[:-1])


def test_a_card_that_fails_is_left_with_a_note_and_says_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def fall_off(card: Any) -> int:
        if next(calls) > 3:
            raise NvmlError("GPU is lost")
        return 100_000

    nvml = make_scripted_nvml({"GPU-a": ScriptedCard()}, HandClock(), nvmlDeviceGetPowerUsage=fall_off)
    notes: list[str] = []
    sampler = start(nvml, monkeypatch, notes)
    sampler.join(LIMIT_S)
    assert not sampler.is_alive() and len(notes) == 1 and "GPU is lost" in notes[0]
    assert sampler.take()  # what was known until then
    sampler._now_ns = lambda: 10**18
    assert sampler.read_latest() == GpuReading() == (UNREAD,) * 5


def test_a_driver_that_never_answers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, release = threading.Event(), threading.Event()

    def hang(card: Any) -> int:
        stuck.set()
        release.wait(LIMIT_S)
        return 41

    nvml = make_scripted_nvml({"GPU-a": ScriptedCard()}, HandClock(), nvmlDeviceGetPowerUsage=hang)
    sampler = start(nvml, monkeypatch, [])
    assert stuck.wait(LIMIT_S) and sampler.take() == [] and sampler.read_latest() == GpuReading()
    sampler.close()
    assert sampler.is_alive() and sampler.daemon and CLOSE_LIMIT_S <= 0.5
    release.set()
    sampler.join(LIMIT_S)
    assert not sampler.is_alive()


def test_slow_answers_are_asked_for_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, waits = itertools.count(step=0.5), list[float]()  # every look at the clock is half a second later
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now_s))
    nvml = make_scripted_nvml({"GPU-a": ScriptedCard()}, HandClock())
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    sampler = GpuSampler("a", window_s=1.0, note=print)
    monkeypatch.setattr(sampler._closing, "wait", lambda timeout_s: waits.append(timeout_s) or len(waits) > 1)
    sampler.run()
    assert waits == [50.0, 50.0]


def test_without_nvml_or_without_answers_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    sampler = start(None, monkeypatch, notes)
    sampler.join(LIMIT_S)
    assert not sampler.is_alive() and notes == []  # the snapshot before the first step has the note
    nvml = make_scripted_nvml({"MIG-a": ScriptedCard()}, HandClock())
    for name in list(vars(nvml)):
        if name.startswith("nvmlDeviceGet") and name != "nvmlDeviceGetHandleByUUID":
            monkeypatch.delattr(nvml, name)
    sampler = start(nvml, monkeypatch, notes)
    sampler.join(LIMIT_S)
    assert notes == ["NVML tells neither power nor clocks of this device"] and sampler.take() == []
