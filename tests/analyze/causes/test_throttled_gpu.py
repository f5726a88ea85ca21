"""Whose GPU is throttled: jobs on made-up devices, with a scripted NVML, whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.gpu import LIMIT_BITS, ClockLimit
from distprof.facts.run import Run
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.report.report import Report
from distprof.report.wait_report import Cause, VerdictKind
from tests.factories import MS, make_run
from tests.scripted_nvml import (
    APPLICATION_BIT,
    HEAT_BIT,
    IDLE_BIT,
    MAX_MHZ,
    POWER_BIT,
    HandClock,
    ScriptedCard,
    make_scripted_nvml,
    record_gpu,
)

STEPS, WARMUP, WINDOW_S = 100, 5, 0.25
BEGIN_NS = 10**15
USUAL_MS = {"forward": 20, "backward": 40, "optimizer": 8}


def make_job(
    num_ranks: int, *, slow: int | None = None, factor: float = 1.0, phases: tuple[str, ...] = tuple(USUAL_MS),
    seed: int = 0, acts: slice = slice(None), **info: Any,
) -> Run:  # fmt: skip
    """Ranks on devices of their own, one of which takes a factor longer for its own work, or for parts of it."""
    random = np.random.default_rng(seed)
    own_ns = {
        phase: time * MS * (1 + 0.004 * random.standard_normal((num_ranks, STEPS))) for phase, time in USUAL_MS.items()
    }
    own_ns["data"] = 2 * MS * (1 + 0.004 * random.standard_normal((num_ranks, STEPS)))
    for phase in phases if slow is not None else ():
        own_ns[phase][slow, acts] *= factor
    before_ns = own_ns["data"] + own_ns["forward"] + own_ns["backward"]
    times_ns = {**own_ns, "all_reduce": before_ns.max(axis=0) - before_ns + 2 * MS}
    step_ns = sum(times_ns.values(), start=np.zeros((num_ranks, STEPS)))
    begin_ns = np.cumsum(step_ns, axis=1) - step_ns
    anchors = {"begin_device_ns": begin_ns, "anchor_device_ns": begin_ns, "anchor_host_ns": begin_ns + BEGIN_NS}
    return make_run(
        num_ranks=num_ranks, num_steps=STEPS, num_warmup=WARMUP, device_ns=times_ns,
        columns={**anchors, "anchor_bound_ns": 5e3},
        infos={rank: {"device_uuid": f"{rank}", **info} for rank in range(num_ranks)},
    )  # fmt: skip


def sample(run: Run, cards: list[ScriptedCard], seed: int = 0) -> Run:
    """The run with what a scripted NVML says, whose clocks vary by half a percent from sample to sample."""
    random, gpus = np.random.default_rng(seed), []
    duration_s = float(run.column("anchor_host_ns").max() - BEGIN_NS) / 1e9
    for card in cards:
        clock = HandClock(BEGIN_NS - 10**9)
        usual_mhz = card.sm_clock_mhz
        nvml = make_scripted_nvml({"GPU-x": card}, clock)
        nvml.nvmlDeviceGetClockInfo = lambda card, kind, mhz=usual_mhz: round(mhz * random.uniform(0.995, 1.005))
        times_ns = clock.now_ns + np.arange(int(duration_s / WINDOW_S) + 8) * int(WINDOW_S * 1e9)
        gpus.append(record_gpu(nvml, card, clock, times_ns.tolist(), WINDOW_S))
    return structs.replace(run, gpus=tuple(gpus))


def judge(run: Run, clocks: dict[int, tuple[float, int]], seed: int = 0) -> Report:
    """``clocks``: MHz and limits by rank; the others run at their maximum."""
    cards = [ScriptedCard(sm_clock_mhz=clocks.get(rank, (MAX_MHZ, 0))[0]) for rank in range(len(run.ranks))]
    for rank, (_, limits) in clocks.items():
        cards[rank].limits = limits
    return analyze(sample(run, cards, seed))


def test_a_rank_whose_gpu_is_throttled_is_said_to_be() -> None:
    report = judge(make_job(8, slow=5, factor=1980 / 1410), {5: (1410, POWER_BIT)})
    assert (report.verdict.kind, report.verdict.rank) == (VerdictKind.SLOW_RANK, 5)
    found = report.verdict.throttled
    assert found is not None and found.limit is ClockLimit.POWER_CAP
    assert found.sm_clock_hz == pytest.approx(1.41e9, rel=0.01) and found.sm_clock_max_hz == 1.98e9
    assert found.others_sm_clock_hz == pytest.approx(1.98e9, rel=0.01)
    assert found.explained_ratio == pytest.approx(1, abs=0.05)
    report = structs.replace(
        report, verdict=structs.replace(report.verdict, throttled=structs.replace(found, sm_clock_hz=1.41e9))
    )
    assert "Rank 5's GPU is throttled: power cap, 1,410 of 1,980 MHz (the others' run at 1,9" in describe_verdict(
        report
    )
    assert "nvidia-smi -pl" in describe_next(report) and "rank 5" in describe_next(report)


CASES = ("throttled", "memory bound", "slow alone", "no reason", "too little", "another rank", "nobody", "data")


def draw_case(seed: int) -> tuple[str, int, ClockLimit, Report]:
    """One random job: what is true of it, the rank it is about, what limits its clock, and the report."""
    random, case = np.random.default_rng(seed), CASES[seed % len(CASES) if seed % 3 else 0]
    num_ranks = int(random.integers(3, 9))
    slow, other = random.choice(num_ranks, size=2, replace=False).tolist()
    lower = float(random.uniform(1.05, 1.6))
    limit = ClockLimit(random.choice([ClockLimit.POWER_CAP, ClockLimit.TEMPERATURE, ClockLimit.APPLICATION]))
    bit = {ClockLimit.POWER_CAP: POWER_BIT, ClockLimit.TEMPERATURE: HEAT_BIT}.get(limit, APPLICATION_BIT)
    low, full = (MAX_MHZ / lower, bit), (MAX_MHZ, bit)
    factor, phases, clocks = lower, tuple(USUAL_MS), {slow: low}
    if case == "throttled":  # memory takes a part of the time, at its own clock
        factor = 1 + (lower - 1) * float(random.uniform(0.7, 1.0))
        phases = phases if random.random() < 0.5 else ("backward",)
    elif case in ("memory bound", "nobody"):
        factor, clocks = 1.0, {slow: low} if case == "memory bound" else {}
    elif case == "slow alone":
        clocks = {slow: full} if random.random() < 0.5 else {}
    elif case == "no reason":
        clocks = {slow: (low[0], IDLE_BIT if random.random() < 0.5 else 0)}
    elif case == "too little":
        factor = 1 + (lower - 1) * float(random.uniform(2.6, 5.0))
        phases = phases if random.random() < 0.5 else ("backward",)
    elif case == "another rank":
        clocks = {other: low}
    else:
        factor, phases = 20.0, ("data",)
    run = make_job(num_ranks, slow=slow, factor=factor, phases=phases, seed=seed)
    return case, slow, limit, judge(run, clocks, seed)


@pytest.mark.slow
def test_causes_are_named_where_they_are_and_nowhere_else_in_100_random_jobs() -> None:
    seen: dict[str, int] = dict.fromkeys(CASES, 0)
    for seed in range(100):
        case, slow, limit, report = draw_case(seed)
        seen[case] += 1
        verdict = report.verdict
        late = case not in ("memory bound", "nobody")
        assert (verdict.rank == slow) == late, (seed, case, verdict.reason)
        if case == "throttled":
            assert verdict.throttled is not None and verdict.throttled.limit is limit, (seed, verdict)
            assert "GPU is throttled" in describe_verdict(report)
        else:
            assert verdict.throttled is None, (seed, case, verdict)
            assert "throttled" not in describe_verdict(report)
    assert min(seen.values()) >= 7 and seen["throttled"] >= 35


def test_a_clock_that_falls_in_mid_run_is_read_where_the_rank_is_slow() -> None:
    run = make_job(4, slow=2, factor=1.5, acts=slice(50, None))
    begin_ns = run.column("anchor_host_ns")[0, 50]
    card = ScriptedCard(sm_clock_mhz=1320, limits=HEAT_BIT)
    run = sample(run, [ScriptedCard(), ScriptedCard(), card, ScriptedCard()])
    assert run.gpus[2] is not None
    run.gpus[2].spans[run.gpus[2].column("begin_ns") < begin_ns, 3:6] = (1980, 41, 0)
    report = analyze(run)
    found = report.verdict.throttled
    assert report.verdict.rank == 2 and found is not None and found.limit is ClockLimit.TEMPERATURE
    assert found.sm_clock_hz == pytest.approx(1.32e9, rel=0.02) and "cooling" in describe_next(report)


def test_nothing_is_said_without_others_of_the_same_model_or_on_the_hosts_clock() -> None:
    run, clocks = make_job(4, slow=2, factor=1.4), {2: (1414.0, POWER_BIT)}
    assert judge(run, clocks).verdict.throttled is not None
    other = structs.replace(run.ranks[2], snapshot=structs.replace(run.ranks[2].snapshot, name="Another"))  # type: ignore[type-var]
    mixed = structs.replace(run, ranks=(*run.ranks[:2], other, run.ranks[3]))
    assert judge(mixed, clocks).verdict.throttled is None
    shared = tuple(structs.replace(info, device_uuid="one") for info in run.ranks)
    assert judge(structs.replace(run, ranks=shared), clocks).verdict.throttled is None
    report = judge(run, clocks)
    for change in ({"clock": "host"}, {"cause": Cause.HOST}, {"evidence": ()}, {"kind": VerdictKind.STALLS}):
        assert _find_again(run, clocks, report, change) is None


def _find_again(run: Run, clocks: dict[int, tuple[float, int]], report: Report, change: dict[str, Any]) -> object:
    from distprof.analyze.causes.throttled_gpu import find_throttled_gpu
    from distprof.analyze.stats.measured_steps import choose_measured_steps

    cards = [ScriptedCard(sm_clock_mhz=clocks.get(rank, (MAX_MHZ, 0))[0], limits=POWER_BIT) for rank in range(4)]
    steps = choose_measured_steps(sample(run, cards))
    assert find_throttled_gpu(steps, report.verdict, report.causes) is not None
    return find_throttled_gpu(steps, structs.replace(report.verdict, **change), report.causes)


def test_every_limit_has_a_bit_and_a_remedy() -> None:
    report = judge(make_job(4, slow=2, factor=1.4), {2: (1414, POWER_BIT)})
    found = report.verdict.throttled
    assert found is not None and set(LIMIT_BITS) == set(ClockLimit)
    advices = set()
    for limit in ClockLimit:
        verdict = structs.replace(report.verdict, throttled=structs.replace(found, limit=limit))
        advices.add(describe_next(structs.replace(report, verdict=verdict)))
    assert len(advices) == len(ClockLimit) and all("rank 2" in advice for advice in advices)
