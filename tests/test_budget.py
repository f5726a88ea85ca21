"""When recording costs too much: decided on rank 0, said once, and heard by every rank."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch.distributed as dist

from distprof import budget
from distprof.analyze import analyze
from distprof.budget import MAX_KEPT_STEPS, MIN_SHADOW_STEPS, Budget, keep_budget
from distprof.config import HardwareConfig, ProfileConfig
from distprof.folder import read_run
from distprof.gather import Exchange
from distprof.report import OverheadReport
from distprof.run import COLUMN, ROW_WIDTH, FloatArray
from distprof.start import start_profiler
from distprof.world import World
from tests.ranks import call_on_ranks

EVERY = 10


def make_rows(first_step: int, num_steps: int, *, cost: float, noise: float = 0.01) -> FloatArray:
    """Whole steps of two ranks, one in `EVERY` a shadow step; the others take ``1 + cost`` times as long."""
    steps = np.arange(first_step, first_step + num_steps)
    rows = np.full((2, num_steps, ROW_WIDTH), np.nan)
    shadow = steps % EVERY == EVERY // 2
    jitter = np.random.default_rng(first_step).lognormal(0, noise, num_steps)
    for name, values in {
        "step": steps, "warmup": 0, "failed": 0, "shadow": shadow,
        "step_host_ns": 1e7 * jitter * np.where(shadow, 1, 1 + cost),
    }.items():  # fmt: skip
        rows[:, :, COLUMN[name]] = values
    return rows


def feed(watch: Budget, num_steps: int, *, cost: float, noise: float = 0.01, first_step: int = 0) -> None:
    """A window of seven steps at a time."""
    for step in range(first_step, first_step + num_steps, 7):
        watch.add(make_rows(step, min(7, first_step + num_steps - step), cost=cost, noise=noise))


def test_a_cost_above_the_limit_is_told_once_and_not_before_there_are_enough_shadow_steps() -> None:
    told: list[OverheadReport] = []
    watch = Budget(0.03, told.append)
    feed(watch, (MIN_SHADOW_STEPS - 1) * EVERY + EVERY // 2, cost=0.2)
    assert told == []
    feed(watch, 400, cost=0.2, first_step=(MIN_SHADOW_STEPS - 1) * EVERY + EVERY // 2)
    (overhead,) = told
    assert overhead.low_ratio > 0.03 and overhead.shadow_steps >= MIN_SHADOW_STEPS
    assert 0.18 < overhead.ratio < 0.22


def test_a_cost_below_the_limit_and_one_that_cannot_be_told_from_noise_stay() -> None:
    told: list[OverheadReport] = []
    feed(Budget(0.03, told.append), 1000, cost=0.01)
    feed(Budget(0.03, told.append), 1000, cost=0.04, noise=0.3)
    assert told == []


def test_what_is_kept_is_bounded() -> None:
    watch = Budget(0.03, lambda overhead: None)
    watch.add(make_rows(0, MAX_KEPT_STEPS + 500, cost=0))
    assert len(watch._steps) == MAX_KEPT_STEPS


def test_it_is_said_with_figures_and_the_steps_still_reach_whoever_else_wants_them() -> None:
    said: list[str] = []
    stopped: list[bool] = []
    seen: list[FloatArray] = []
    take = keep_budget(0.03, stop=lambda: stopped.append(True), say=said.append, on_steps=seen.append)
    assert take is not None
    for step in range(0, 500, 50):
        take(make_rows(step, 50, cost=0.2))
    assert len(seen) == 10 and stopped == [True]
    (line,) = said
    assert line.startswith("distprof: recording costs 2") and "more than profile.max_overhead_ratio=0.03" in line


def test_without_a_limit_nothing_stands_in_between() -> None:
    def show(rows: FloatArray) -> None:
        raise AssertionError

    assert keep_budget(None, stop=lambda: None, say=print, on_steps=show) is show
    assert keep_budget(None, stop=lambda: None, say=print, on_steps=None) is None


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
    sure = OverheadReport(ratio=0.5, low_ratio=0.4, high_ratio=0.6, shadow_steps=8)
    budget.compare_steps = lambda costs: sure  # type: ignore[assignment]
    said: list[str] = []
    profile = ProfileConfig(
        level="phases", nvtx=False, nvtx_module_depth=0, window_s=0.02, shadow_every=2, max_overhead_ratio=0.03
    )
    job = start_profiler(
        world, name="job", strategy="none", precision="fp32", config={}, runs_dir=folder, profile=profile,
        hardware=HardwareConfig(peak=1e9), say=said.append,
    )  # fmt: skip
    begin_s = time.monotonic()
    after = 0
    while after < 5 and time.monotonic() - begin_s < 60:
        with job.profiler.step(), job.profiler.phase("forward"):
            time.sleep(0.001)
        after += job.profiler._plan.always
    job.profiler.close()
    assert after == 5
    (line,) = said if world.rank == 0 else ["costs 50.0 % of a step"]
    assert "costs 50.0 % of a step" in line


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
