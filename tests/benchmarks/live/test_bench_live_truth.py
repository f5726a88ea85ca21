"""Steps with and without a delay: which are made, when the delay acts, and what it costs according to them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from benchmarks.live.live_job import LOOPS, RARE_EVERY, LiveDelay, LiveJob
from benchmarks.live.live_truth import estimate_cost, is_known
from benchmarks.live.loops import stage as stage_module
from benchmarks.live.loops.schedule import CALIBRATION, WARMUP, acts_in, find_acting_ratio, plan_turns
from benchmarks.live.loops.stage import Stage
from distprof.facts.arrays import FloatArray
from distprof.report.wait_report import Estimate
from tests.factories import MS

LATE = LiveDelay(rank=1, place="gradient hook", every=1, spins=True)
LATE_JOB = LiveJob(loop="accumulation", num_ranks=2, steps=5, pairs=6, seed=3, size_ratio=0.05, delay=LATE)
CALM_JOB = structs.replace(LATE_JOB, pairs=0, size_ratio=0.0, delay=None)


def make_half(differences_ns: FloatArray | list[float], *, base_ns: float = 100.0) -> list[tuple[bool, float]]:
    """Pairs with these differences, the delayed step now first and now second."""
    half: list[tuple[bool, float]] = []
    for index, difference_ns in enumerate(differences_ns):
        pair = [(True, base_ns + float(difference_ns)), (False, base_ns)]
        half += pair if index % 2 else pair[::-1]
    return half


def test_the_cost_is_the_mean_of_the_pairs_differences() -> None:
    """Four pairs are too few to leave any out: mean 5, sample deviation sqrt(20 / 3), error of it half of that."""
    cost = estimate_cost([make_half([2.0, 8.0]), make_half([4.0, 6.0])])
    assert cost is not None and cost.value == 5
    assert cost.high - 5 == pytest.approx(2.05 * np.sqrt(20 / 3) / 2) == pytest.approx(5 - cost.low)


def test_one_pair_in_ten_is_left_out_at_either_end() -> None:
    """Of 1 to 9 and 1000: 2 to 9 are kept, mean 5.5; winsorized 2, 2, 3 ... 9, 9."""
    cost = estimate_cost([make_half([1000.0, 2, 3, 4, 5]), make_half([6.0, 7, 8, 9, 1])])
    assert cost is not None and cost.value == 5.5
    winsorized = np.array([2, 2, 3, 4, 5, 6, 7, 8, 9, 9])
    apart = (1014 / 5 - 31 / 5) / 2  # of the halves' means: five pairs are too few to leave any out
    assert cost.high - cost.value == pytest.approx(apart)
    alike = estimate_cost([make_half([1000.0, 2, 4, 6, 8, 1, 3, 5, 7, 9])])
    assert alike is not None and alike.value == 5.5
    assert alike.high - 5.5 == pytest.approx(2.05 * winsorized.std(ddof=1) / (0.8 * np.sqrt(10)))


def test_the_interval_covers_a_machine_that_changed_between_the_halves() -> None:
    cost = estimate_cost([make_half([10.0] * 10), make_half([14.0] * 10)])
    assert cost is not None and (cost.value, cost.low, cost.high) == (12, 10, 14)


def test_a_rare_delay_costs_its_share_of_a_step() -> None:
    """It acts in so many of the 16 judged steps, which is not a seventh of them."""
    rare = structs.replace(LATE_JOB, steps=16, delay=structs.replace(LATE, every=RARE_EVERY))
    numbers = [turn.number for turn in plan_turns(rare) if turn.part == "judged"]
    acting = sum(number % RARE_EVERY == 0 for number in numbers)
    assert find_acting_ratio(rare) == acting / 16 in (2 / 16, 3 / 16) and find_acting_ratio(CALM_JOB) == 0
    cost = estimate_cost([make_half([80.0] * 4)], acting_ratio=1 / 8)
    assert cost == Estimate(value=10, low=10, high=10)
    assert estimate_cost([make_half([70.0] * 3)]) is None and estimate_cost([[], []]) is None


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    draws = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        times = 100 * draws.lognormal(0, 0.1, (40, 2))
        cost = estimate_cost(
            [make_half(3 + times[:20, 0] - times[:20, 1]), make_half(3 + times[20:, 0] - times[20:, 1])]
        )
        assert cost is not None
        held += cost.low < 3 < cost.high
    assert 0.93 < held / 400 < 0.995


@pytest.mark.parametrize(("low", "high", "known"), [(9.0, 11.0, True), (7.5, 12.5, True), (7.4, 12.6, False)])
def test_a_cost_is_known_if_its_interval_is_no_wider_than_half_of_it(low: float, high: float, known: bool) -> None:
    assert is_known(Estimate(value=10, low=low, high=high)) is known


def test_pairs_stand_before_and_after_the_judged_steps_and_are_alike() -> None:
    turns = plan_turns(LATE_JOB)
    assert [turn.part for turn in turns] == [
        *["warm-up"] * WARMUP, *["calibration"] * CALIBRATION, *["pair 0"] * 6, *["judged"] * 5, "warm-up",
        *["pair 1"] * 6,
    ]  # fmt: skip
    judged = [turn for turn in turns if not turn.warmup]
    assert len(judged) == 5 and all(turn.delayed for turn in judged)
    assert np.diff([turn.number for turn in judged]).tolist() == [1] * 4
    pairs = [turn for turn in turns if turn.part.startswith("pair")]
    for first, second in zip(pairs[::2], pairs[1::2], strict=True):
        assert first.number == second.number and first.delayed != second.delayed
    assert turns[turns.index(judged[-1]) + 1].delayed  # it decides on the last judged step's optimizer
    assert turns == plan_turns(LATE_JOB)
    assert {turn.delayed for turn in plan_turns(CALM_JOB)} == {False}


def test_a_rare_delay_acts_in_every_pair() -> None:
    rare = structs.replace(LATE_JOB, delay=structs.replace(LATE, every=RARE_EVERY))
    assert all(turn.number % RARE_EVERY == 0 for turn in plan_turns(rare) if turn.part.startswith("pair"))


@pytest.mark.parametrize("every", [1, RARE_EVERY])
def test_pairs_repeat_the_judged_steps_in_which_the_delay_acts(every: int) -> None:
    job = structs.replace(LATE_JOB, steps=21, pairs=21, delay=structs.replace(LATE, every=every))
    turns = plan_turns(job)
    acting = [turn.number for turn in turns if not turn.warmup and turn.number % every == 0]
    paired = [turn.number for turn in turns if turn.part.startswith("pair")]
    assert len(acting) == 21 // every and sorted(paired) == sorted(acting * 2 * every)


def test_stalls_come_in_steps_drawn_at_random() -> None:
    """Five of fifty, others with another seed; each pair repeats one of them."""
    stalls = structs.replace(LATE, every=10, stalls=True)
    job = structs.replace(LATE_JOB, steps=50, pairs=10, delay=stalls)
    acting = {}
    for seed in (3, 4):
        turns = plan_turns(structs.replace(job, seed=seed))
        judged = [turn for turn in turns if not turn.warmup]
        acting[seed] = [turn.number for turn in judged if acts_in(stalls, turn)]
        assert len(judged) == 50 and len(acting[seed]) == 5 and len(set(np.diff(acting[seed]).tolist())) > 1
        pairs = [turn for turn in turns if turn.part.startswith("pair")]
        assert sorted(turn.number for turn in pairs if acts_in(stalls, turn)) == sorted(acting[seed] * 2)
        assert len(pairs) == 20 and not any(acts_in(stalls, turn) for turn in turns if turn.part == "warm-up")
    assert acting[3] != acting[4] and find_acting_ratio(job) == 0.1


@pytest.mark.parametrize("loop", LOOPS)
def test_every_loop_can_be_delayed_in_each_of_its_places(loop: str) -> None:
    code = (Path(stage_module.__file__).parent / f"{loop}.py").read_text()
    calls = {
        "module hook": "stage.hook_layer(", "gradient hook": "stage.hook_layer(",
        "hook of the first bucket": "DistributedDataParallel(", "hook of the last bucket": "DistributedDataParallel(",
        "hook older than the profiler": "DistributedDataParallel(",
    }  # fmt: skip
    for place in LOOPS[loop].phases:
        assert code.count(calls.get(place, f'stage.pause("{place}")')) == 1
    assert code.count("stage.synced()") == 1


class FakeTime:
    """A clock that only moves when told, or asked to sleep."""

    def __init__(self) -> None:
        self.now_ns, self.slept_s = 0, list[float]()

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)


def play(job: LiveJob, rank: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In which steps the rank pauses, if a step takes 40 ms; in each it comes by three places twice."""
    clock = FakeTime()
    monkeypatch.setattr(stage_module, "time", clock)
    world: Any = SimpleNamespace(rank=rank, size=2)
    stage = Stage(world, job, Path("unused"))
    paused = []
    for index, _ in enumerate(stage.turns()):
        for place in ("forward", "gradient hook", "optimizer") * 2:
            stage.pause(place)
        paused += [index] * len(clock.slept_s)
        assert set(clock.slept_s) <= {job.delay.every * 0.05 * 0.040 if job.delay else 0.0}
        clock.slept_s.clear()
        clock.now_ns += 40 * MS
        stage.synced()
    return paused


@pytest.mark.parametrize("every", [1, 2])
def test_only_the_delayed_rank_pauses_and_once_in_each_delayed_step(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = structs.replace(LATE_JOB, delay=structs.replace(LATE, every=every, spins=False))
    turns = plan_turns(job)
    wanted = [index for index, turn in enumerate(turns) if turn.delayed and turn.number % every == 0]
    assert play(job, 1, monkeypatch) == wanted and len(wanted) >= 6
    assert play(job, 0, monkeypatch) == []
    assert play(CALM_JOB, 1, monkeypatch) == []
