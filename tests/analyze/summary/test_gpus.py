"""Energy and clocks of GPUs, against power curves whose integral is known."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.gpu import GpuCaps, RankGpu
from distprof.facts.run import Run
from distprof.render.sections.gpus import show_gpus
from distprof.report.gpu_report import GpusReport
from tests.factories import MS, make_run
from tests.scripted_nvml import HandClock, ScriptedCard, make_scripted_nvml, record_gpu

BEGIN_NS = 10**12
"""Where the first step of `make_run` begins."""
TOKENS = 1024


def make_gpu(seconds: int, *, power_w: float = 300.0, first: int = 0, caps: GpuCaps | None = None) -> RankGpu:
    """A span a second, of constant power, from so many seconds after the first step's begin on."""
    begins = BEGIN_NS + (first + np.arange(seconds)) * 1e9
    columns = (begins, 1e9, power_w * 1e3, 1500.0, 40.0 + np.arange(seconds) % 3, 0x4, 5, 16)
    spans = np.stack([np.broadcast_to(column, seconds).astype(float) for column in columns], axis=1)
    return RankGpu(caps=caps or GpuCaps(sm_clock_mhz=1980, power_mw=700_000, counts_energy=True), spans=spans)


def make_job(gpus: list[RankGpu | None], *, uuids: str = "abcdefgh", steps: int = 200, warmup: int = 0) -> Run:
    """Steps of 100 ms, one right after the other."""
    infos = {rank: {"device_uuid": uuid} for rank, uuid in zip(range(len(gpus)), uuids, strict=False)}
    run = make_run(num_ranks=len(gpus), num_steps=steps, num_warmup=warmup, infos=infos)
    return structs.replace(run, gpus=tuple(gpus))


def report(run: Run) -> GpusReport:
    found = analyze(run).gpus
    assert found is not None
    return found


def test_two_cards_by_hand() -> None:
    """200 steps of 0.1 s: 300 W are 30 J a step, 100 W are 10 J."""
    found = report(make_job([make_gpu(21), make_gpu(21, power_w=100)]))
    one, two = found.devices
    assert (one.energy_per_step_j, two.energy_per_step_j) == pytest.approx((30, 10))
    assert one.energy_per_token_j == pytest.approx(30 / TOKENS)
    assert (found.energy_per_step_j, found.power_w, found.num_gpus) == pytest.approx((40, 400, 2))
    assert found.energy_per_token_j == pytest.approx(40 / (2 * TOKENS)) and not found.integrated
    assert (one.steps_used, found.steps_used) == (200, 200)
    assert (one.sm_clock_hz, one.sm_clock_max_hz, one.power_cap_w) == pytest.approx((1.5e9, 1.98e9, 700))
    assert (one.limited_by, one.temperature_c, one.pcie_generation, one.pcie_lanes) == (("power cap",), 42, 5, 16)


def test_warm_up_and_steps_that_are_not_covered_do_not_count() -> None:
    run = make_job([make_gpu(12, first=3), make_gpu(40)], warmup=10)
    found = report(run)
    assert found.devices[0].steps_used == found.steps_used == 120  # from 3 s to 15 s
    assert found.devices[1].steps_used == 190
    assert found.energy_per_step_j == pytest.approx(60)


def test_too_short_a_time_has_no_energy_and_no_clock() -> None:
    found = report(make_job([make_gpu(9), make_gpu(21)]))
    assert found.devices[0].energy_per_step_j is None and found.devices[0].sm_clock_hz is None
    assert found.energy_per_step_j is None and found.power_w is None
    assert found.devices[1].energy_per_step_j == pytest.approx(30)


def test_ranks_that_share_a_gpu_have_no_energy_of_their_own_and_count_once_in_all() -> None:
    run = make_job([make_gpu(21), make_gpu(21), make_gpu(21)], uuids="aab")
    found = report(run)
    assert [gpu.energy_per_step_j for gpu in found.devices] == [None, None, pytest.approx(30)]
    assert [gpu.energy_per_token_j for gpu in found.devices[:2]] == [None, None]
    assert [gpu.shared_with for gpu in found.devices] == [(1,), (0,), ()]
    assert found.num_gpus == 2 and found.energy_per_step_j == pytest.approx(60)
    section = show_gpus(analyze(run), {0, 1, 2})
    assert section.columns[5].cells[:2] == ("n/a", "n/a")
    assert section.notes[1] == "ranks 0-1 share GPUs, whose energy is in the sum but no rank's own"


def test_a_gpu_that_was_not_sampled_leaves_the_sum_open() -> None:
    found = report(make_job([make_gpu(21), None]))
    assert len(found.devices) == 1 and found.energy_per_step_j is None and found.num_gpus == 2
    missing = structs.replace(make_job([make_gpu(21)]).meta, world_size=2)
    found = report(structs.replace(make_job([make_gpu(21)]), meta=missing))
    assert found.energy_per_step_j is None and found.devices[0].energy_per_step_j == pytest.approx(30)
    assert analyze(make_job([None, None])).gpus is None and analyze(make_run()).gpus is None


def test_steps_on_a_device_are_placed_by_its_own_clock() -> None:
    """The device is 5 s behind its host when the steps begin: those are the spans that count."""
    run = make_job([make_gpu(40)])
    begin = np.arange(200) * 100.0 * MS
    device = make_run(
        num_ranks=1, num_steps=200, num_warmup=0, device_ns={"forward": 100 * MS}, infos={0: {"device_uuid": "a"}},
        columns={"begin_device_ns": begin, "anchor_device_ns": begin, "anchor_host_ns": begin + BEGIN_NS + 5e9,
                 "anchor_bound_ns": 5e3},
    )  # fmt: skip
    gpu = make_gpu(40)
    gpu.spans[:5, 2] = 0
    found = report(structs.replace(device, gpus=(gpu,)))
    assert found.devices[0].steps_used == 200 and found.devices[0].energy_per_step_j == pytest.approx(30)
    assert report(structs.replace(run, gpus=(gpu,))).devices[0].energy_per_step_j == pytest.approx(22.5)


@pytest.mark.slow
def test_joules_integrate_to_one_percent() -> None:
    """200 random curves, at random moments about once a second; a card without a counter averages over a second itself,
    so nothing there is quicker than some seconds."""
    worst = 0.0
    for seed in range(200):
        random = np.random.default_rng(seed)
        counts = bool(seed % 2)
        seconds, base_w = int(random.integers(20, 90)), random.uniform(90, 700)
        periods = random.uniform(0.05 if counts else 4, 60, size=4)
        waves = [(base_w * random.uniform(0, 0.2), period, random.uniform(0, 6)) for period in periods]
        card = ScriptedCard(base_w=base_w, waves=waves, counts_energy=counts)
        clock = HandClock(BEGIN_NS - 2 * 10**9)
        nvml = make_scripted_nvml({"GPU-a": card}, clock)
        every_ns = (random.uniform(0.9, 1.1, size=seconds + 10) * 1e9).astype(int)
        gpu = record_gpu(nvml, card, clock, (clock.now_ns + np.cumsum(every_ns)).tolist(), 1.0)
        steps, warmup = 10 * seconds, int(random.integers(0, 20))
        found = report(make_job([gpu], steps=steps, warmup=warmup))
        (device,) = found.devices
        assert device.steps_used == steps - warmup and found.integrated is not counts
        truth_j = card.energy_j(2 + steps / 10) - card.energy_j(2 + warmup / 10)
        assert device.energy_per_step_j is not None
        worst = max(worst, abs(device.energy_per_step_j * device.steps_used / truth_j - 1))
        assert found.energy_per_step_j == pytest.approx(device.energy_per_step_j)
    assert worst < 0.01
