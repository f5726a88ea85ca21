"""When the job orders a kernel window itself: made-up steps on a made-up clock."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.facts.run import COLUMN, Clock, FloatArray
from distprof.profiler.windows.step_bands import BLOCK_STEPS, MAX_BLOCKS, MIN_BLOCKS, PAUSE_S, StepBands
from tests.factories import MS, make_run

LEARN = BLOCK_STEPS * MIN_BLOCKS


class Bands:
    def __init__(self, num_ranks: int = 2, max_windows: int = 9, works: bool = True, clock: Clock = Clock.HOST) -> None:
        self.num_ranks, self.now_s, self.works, self.orders = num_ranks, 0.0, works, list[str]()
        self.clock = clock
        self.bands = StepBands(self.order, max_windows=max_windows, clock=clock, now_s=lambda: self.now_s)
        self.draws = np.random.default_rng(1)

    def order(self, why: str) -> bool:
        self.orders.append(why)
        return self.works

    def run(self, steps: int, *ms: float, noise: float = 0.02, **flags: int) -> None:
        """Steps that take so long on each rank, in rounds of three."""
        for first in range(0, steps, 3):
            self.bands.add(self.make(min(3, steps - first), ms, noise, flags))

    def make(self, steps: int, ms: tuple[float, ...], noise: float, flags: dict[str, int]) -> FloatArray:
        rows = make_run(num_ranks=self.num_ranks, num_steps=steps, num_warmup=0).rows.copy()
        factor = 1 + noise * self.draws.standard_normal((self.num_ranks, steps))
        rows[:, :, COLUMN[f"step_{self.clock}_ns"]] = np.array(ms)[:, None] * MS * factor
        for name, value in flags.items():
            rows[:, :, COLUMN[name]] = value
        return rows


def test_a_rank_that_gets_slower_orders_one_window_and_says_why() -> None:
    bands = Bands()
    bands.run(100, 30, 30, noise=0.0)
    assert bands.orders == []
    bands.run(BLOCK_STEPS, 30, 60, noise=0.0)
    assert bands.orders == []  # one block may be an accident
    bands.run(BLOCK_STEPS, 30, 60, noise=0.0)
    assert bands.orders == ["steps of rank 1 take 60.0 ms instead of 30.0 ms"]
    bands.run(100, 30, 60)
    assert len(bands.orders) == 1


@pytest.mark.parametrize("ratio", [1.1, 1.0, 0.5])
def test_steps_within_the_band_order_nothing(ratio: float) -> None:
    bands = Bands()
    bands.run(100, 30, 30)
    bands.run(100, 30 * ratio, 30 * ratio)
    assert bands.orders == []


def test_noise_makes_the_band_wide_and_single_stalls_mean_nothing() -> None:
    bands = Bands()
    bands.run(3000, 30, 30, noise=0.3)
    assert bands.orders == []
    bands = Bands()
    bands.run(100, 30, 30)
    for _ in range(100):  # checkpoints, say: every fourth step takes ten times as long
        bands.run(3, 30, 30)
        bands.run(1, 300, 300)
    assert bands.orders == []


def test_a_second_window_needs_a_return_into_the_band_and_time() -> None:
    bands = Bands()
    bands.run(100, 30, 30)
    bands.run(20, 60, 60)
    bands.run(20, 30, 30)
    bands.run(20, 60, 60)
    assert len(bands.orders) == 1  # ten minutes have not passed
    bands.now_s = PAUSE_S
    bands.run(20, 30, 30)
    bands.run(20, 60, 60)
    assert len(bands.orders) == 2
    bands.now_s = 5 * PAUSE_S
    bands.run(20, 60, 60)
    assert len(bands.orders) == 2  # the same slowness


def test_there_are_at_most_so_many() -> None:
    bands = Bands(max_windows=2)
    for turn in range(5):
        bands.now_s = turn * PAUSE_S
        bands.run(100, 30, 30)
        bands.run(20, 60, 60)
    assert len(bands.orders) == 2


def test_a_job_that_stays_slow_has_a_new_band() -> None:
    bands = Bands()
    bands.run(100, 30, 30)
    bands.run(BLOCK_STEPS * (MAX_BLOCKS + 2), 60, 60)
    bands.now_s = PAUSE_S
    bands.run(50, 70, 70)
    assert len(bands.orders) == 1  # 70 is within the band of 60
    bands.run(50, 90, 90)
    assert len(bands.orders) == 2


def test_an_order_that_cannot_be_met_is_tried_again() -> None:
    bands = Bands(works=False)
    bands.run(100, 30, 30)
    bands.run(20, 60, 60)
    assert len(bands.orders) >= 2


@pytest.mark.parametrize("flag", ["warmup", "window", "failed"])
def test_steps_that_are_no_usual_ones_do_not_count(flag: str) -> None:
    bands = Bands()
    bands.run(100, 30, 30)
    bands.run(100, 90, 90, **{flag: 1})
    assert bands.orders == []


def test_on_gpus_the_device_clock_counts() -> None:
    bands = Bands(clock=Clock.DEVICE)
    bands.run(LEARN, 30, 30)
    bands.run(20, 60, 60)
    assert len(bands.orders) == 1
    silent = Bands()  # steps without a time on that clock are left out
    silent.run(100, float("nan"), 30)
    assert silent.orders == []


def test_memory_is_bounded_and_a_flood_is_cut() -> None:
    bands = Bands(1)
    bands.bands.add(bands.make(20_000, (30,), 0.02, {}))
    bands.bands.add(bands.make(20_000, (60,), 0.02, {}))
    assert len(bands.orders) == 1 and len(bands.bands._blocks) <= MAX_BLOCKS
