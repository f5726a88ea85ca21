"""When recording costs too much: decided on rank 0, said once, and heard by every rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from distprof.analyze import analyze
from distprof.config.schema import HardwareConfig, ProfileConfig
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, ROW_WIDTH, Clock
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.rank import overhead_budget as budget
from distprof.profiler.rank.build_profiler import start_profiler
from distprof.profiler.rank.overhead_budget import (
    MAX_FALSE_RATIO,
    MAX_KEPT_STEPS,
    Budget,
    BudgetEvidence,
    keep_budget,
)
from distprof.profiler.rank.recorded_steps import draw_index
from distprof.record.gather.gather import Exchange
from distprof.report.wait_report import OverheadReport
from distprof.storage.run_folder import read_run
from distprof.world import World
from tests.ranks import call_on_ranks

EVERY = 10


def make_rows(step_ns: FloatArray, *, cost: float, first_step: int = 0) -> FloatArray:
    """Whole steps of two ranks, whose shadow steps take that long, and the others ``1 + cost`` times as long."""
    steps = np.arange(first_step, first_step + len(step_ns))
    rows = np.full((2, len(steps), ROW_WIDTH), np.nan)
    shadow = np.array([step % EVERY == draw_index(step // EVERY, EVERY) for step in steps.tolist()])
    for name, values in {
        "step": steps, "warmup": 0, "failed": 0, "shadow": shadow,
        "step_host_ns": step_ns * np.where(shadow, 1, 1 + cost),
    }.items():  # fmt: skip
        rows[:, :, COLUMN[name]] = values
    return rows


def watch(step_ns: FloatArray, *, cost: float, window: int = 500) -> list[OverheadReport]:
    """What a budget of 3 % has told of steps, so many at a time."""
    told: list[OverheadReport] = []
    budget = Budget(0.03, EVERY, told.append)
    for first in range(0, len(step_ns), window):
        budget.add(make_rows(step_ns[first : first + window], cost=cost, first_step=first))
    return told


def vary(num_steps: int, *, noise: float = 0.02, seed: int = 1) -> FloatArray:
    return 1e7 * np.random.default_rng(seed).lognormal(0, noise, num_steps)


@pytest.mark.parametrize("window", [7, 500])
def test_a_cost_above_the_limit_is_told_once_and_within_a_dozen_shadow_steps(window: int) -> None:
    (overhead,) = watch(vary(30 * EVERY), cost=0.1, window=window)
    assert overhead.low_ratio > 0.03 and 0.08 < overhead.ratio < 0.12
    assert watch(vary(10 * EVERY), cost=0.1, window=window) == []
    assert len(watch(vary(13 * EVERY), cost=0.1, window=window)) == 1


@pytest.mark.parametrize(("host", "device", "told"), [(0.0, 0.1, 1), (0.1, 0.0, 0)])
def test_on_a_gpu_it_is_the_device_whose_steps_count(host: float, device: float, told: int) -> None:
    """Launching may cost more or less than what is launched; a step whose events were lost says nothing."""
    step_ns = vary(30 * EVERY)
    rows = make_rows(step_ns, cost=host)
    rows[:, :, COLUMN["step_device_ns"]] = make_rows(step_ns, cost=device)[:, :, COLUMN["step_host_ns"]]
    rows[:, ::37, COLUMN["step_device_ns"]] = np.nan
    found: list[OverheadReport] = []
    Budget(0.03, EVERY, found.append, clock=Clock.DEVICE).add(rows)
    assert len(found) == told and all(overhead.clock == "device" for overhead in found)


def test_a_cost_that_comes_late_is_seen() -> None:
    budget_told: list[OverheadReport] = []
    budget = Budget(0.03, EVERY, budget_told.append)
    budget.add(make_rows(vary(300 * EVERY), cost=0))
    assert budget_told == []
    budget.add(make_rows(vary(40 * EVERY), cost=0.1, first_step=300 * EVERY))
    assert len(budget_told) == 1


def test_a_cost_below_the_limit_and_one_that_cannot_be_told_from_noise_stay() -> None:
    assert watch(vary(1000), cost=0.01) == []
    assert watch(vary(1000, noise=0.3), cost=0.04) == []


def make_bursts(draws: np.random.Generator, num_steps: int) -> FloatArray:
    """Other work comes now and then, stays for a dozen steps, and makes them up to three times as long."""
    changes = np.where(draws.random(num_steps) < 1 / 12, 0.0, np.nan)
    changes = np.where(draws.random(num_steps) < 1 / 40, 1.0, changes)
    known = np.maximum.accumulate(np.where(np.isnan(changes), 0, np.arange(num_steps)))
    busy = np.nan_to_num(changes)[known]
    return draws.lognormal(0, 0.05, num_steps) * np.where(busy == 1, draws.uniform(1.2, 3, num_steps), 1)


def make_lasting(draws: np.random.Generator, num_steps: int) -> FloatArray:
    """Noise of 20 % of which 95 % is still there a step later."""
    level = np.empty(num_steps)
    level[0] = 0.0
    for step, pushed in enumerate(draws.normal(0, 0.2 * np.sqrt(1 - 0.95**2), num_steps - 1).tolist()):
        level[step + 1] = 0.95 * level[step] + pushed
    return np.exp(level) * draws.lognormal(0, 0.03, num_steps)


def make_rhythm(draws: np.random.Generator, num_steps: int) -> FloatArray:
    """Every second step has more to do, and the sixth of every ten has less: the middle of a turn of ten."""
    steps = np.arange(num_steps)
    return draws.lognormal(0, 0.02, num_steps) * np.where(steps % 2 == 0, 1.3, 1) * np.where(steps % 10 == 5, 0.8, 1)


@pytest.mark.parametrize("make", [make_bursts, make_lasting, make_rhythm])
def test_a_job_that_costs_what_it_may_is_not_stopped_by_what_else_disturbs_it(
    make: Callable[[np.random.Generator, int], FloatArray],
) -> None:
    """One job in a hundred may be, of long ones whose recording costs just 3 %; none was of those where it is free."""
    draws = np.random.default_rng(7)
    jobs = [make(draws, 150 * EVERY) * 1e7 for _ in range(60)]
    assert sum(bool(watch(job, cost=0.03)) for job in jobs) <= 1
    assert not any(watch(job, cost=0) for job in jobs[:20])


def test_bets_on_what_is_fair_seldom_win() -> None:
    """1,000 jobs of 200 turns in which a shadow step is quicker in every second turn, looked at all the time."""
    quicker = np.random.default_rng(3).random((1_000, 200)) < 0.5
    stopped = 0
    for turns in quicker.tolist():
        evidence = BudgetEvidence()
        stopped += any(_add(evidence, turn) for turn in turns)
    assert stopped <= 1_000 * MAX_FALSE_RATIO + 3 * np.sqrt(1_000 * MAX_FALSE_RATIO)


def _add(evidence: BudgetEvidence, quicker: bool) -> bool:
    evidence.add(quicker=quicker)
    return evidence.sure


def test_missing_steps_are_no_evidence() -> None:
    """A turn without its shadow step, or with two, says nothing."""
    rows = make_rows(vary(40 * EVERY), cost=0.2)
    without = rows[:, rows[0, :, COLUMN["shadow"]] == 0]
    told: list[OverheadReport] = []
    Budget(0.03, EVERY, told.append).add(without)
    assert told == []


def test_what_is_kept_is_bounded() -> None:
    kept = Budget(0.03, EVERY, lambda overhead: None)
    kept.add(make_rows(vary(MAX_KEPT_STEPS + 500), cost=0))
    assert len(kept._steps) == MAX_KEPT_STEPS


def test_it_is_said_with_figures_and_the_steps_still_reach_whoever_else_wants_them() -> None:
    said: list[str] = []
    stopped: list[bool] = []
    seen: list[FloatArray] = []
    take = keep_budget(
        0.03,
        every=EVERY,
        clock=Clock.HOST,
        stop=lambda: stopped.append(True),
        print_line=said.append,
        on_steps=seen.append,
    )
    assert take is not None
    for step in range(0, 500, 50):
        take(make_rows(vary(50, noise=0.001, seed=step), cost=0.2, first_step=step))
    assert len(seen) == 10 and stopped == [True]
    (line,) = said
    assert line.startswith("distprof: recording costs 20.") and "more than profile.max_overhead_ratio=0.03" in line


def test_without_a_limit_nothing_stands_in_between() -> None:
    def show(rows: FloatArray) -> None:
        raise AssertionError

    assert keep_budget(None, every=EVERY, clock=Clock.HOST, stop=lambda: None, print_line=print, on_steps=show) is show
    assert keep_budget(None, every=EVERY, clock=Clock.HOST, stop=lambda: None, print_line=print, on_steps=None) is None


def hear_of_it(world: World) -> None:
    exchange = Exchange(dist.new_group(backend="gloo"))
    exchange.send([], last=False)
    assert not exchange.stop_recording
    if world.rank == 0:
        exchange.ask_to_stop()
    exchange.send([], last=False)
    assert exchange.stop_recording
    exchange.send([], last=True)
    assert exchange.stop_recording


def test_every_rank_hears_of_it_with_the_next_exchange(tmp_path: Path) -> None:
    call_on_ranks(2, hear_of_it, tmp_path=tmp_path)


def run_until_it_stops(world: World, folder: str) -> None:
    cost = OverheadReport(clock="host", ratio=0.5, low_ratio=0.4, high_ratio=0.6, shadow_steps=8)
    budget.compare_steps = lambda costs: cost  # type: ignore[assignment]
    budget.MAX_FALSE_RATIO = 1e9  # any turn is enough
    said: list[str] = []
    profile = ProfileConfig(
        level="phases", nvtx=False, nvtx_module_depth=0, window_s=0.02, shadow_every=2, max_overhead_ratio=0.03
    )
    job = start_profiler(
        world, JobPlan(name="job", config={}, runs_dir=folder, hardware=HardwareConfig(peak=1e9)), profile,
        print_line=said.append,
    )  # fmt: skip
    begin_s = time.monotonic()
    after = 0
    while after < 5 and time.monotonic() - begin_s < 60:
        with job.profiler.step(), job.profiler.phase("forward"):
            time.sleep(0.001)
        after += job.profiler._plan.always
    job.profiler.close()
    assert after == 5
    (line,) = said if world.rank == 0 else ["costs 50.0 % of a recorded step"]
    assert "costs 50.0 % of a recorded step" in line


def test_recording_stops_on_every_rank_and_the_report_says_so(tmp_path: Path) -> None:
    call_on_ranks(2, run_until_it_stops, str(tmp_path / "runs"), tmp_path=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    for shadow, forward_ns, rank in zip(
        run.column("shadow"), run.column("forward_host_ns"), run.ranks, strict=True
    ):  # fmt: skip
        own = np.isfinite(shadow)
        assert (shadow[own][-4:] == 1).all() and np.isnan(forward_ns[own][-4:]).all()
        assert not np.isnan(forward_ns[own][0])
        assert any("more than profile.max_overhead_ratio=0.03" in note for note in rank.notes)
    notes = [note for note in analyze(run).coverage.notes if "max_overhead_ratio" in note]
    assert len(notes) == 1 and notes[0].startswith("recording cost more than")
