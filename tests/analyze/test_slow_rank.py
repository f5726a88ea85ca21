"""Who is blamed, for what, and who is not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from distprof.analyze.measured_steps import find_measured_steps, read_timing
from distprof.analyze.slow_rank import SlowRank, find_slow_rank
from distprof.analyze.statistics import median_of_others, medians_of_others
from distprof.analyze.sync_cycles import MIN_CYCLES, find_cycles
from distprof.facts.run import Clock, Phase, Run
from distprof.simulate import Delay, SimulatedJob, simulate
from tests.factories import MS, USUAL_NS, make_run


def blame(run: Run, clock: Clock = Clock.HOST) -> SlowRank | None:
    measured_steps = find_measured_steps(run)
    return find_slow_rank(find_cycles(measured_steps, read_timing(measured_steps, clock)))


@given(arrays(np.float64, st.tuples(st.integers(2, 7), st.integers(1, 3)), elements=st.integers(0, 9).map(float)))
def test_every_rank_is_compared_to_the_median_of_the_others(values: npt.NDArray[np.float64]) -> None:
    found = medians_of_others(values)
    for place in range(len(values)):
        for column in range(values.shape[1]):
            assert found[place, column] == median_of_others(values, place)[column]


def make_late_run(late_ns: npt.ArrayLike, *, num_ranks: int = 4, num_steps: int = 12, on: Clock = Clock.HOST) -> Run:
    """Rank 1 is late in ``optimizer`` by this much, and the others wait for it in the next step's ``all_reduce``."""
    late = np.zeros((num_ranks, num_steps))
    late[1] = late_ns
    waits = np.zeros((num_ranks, num_steps))
    waits[:, 1:] = late[1, :-1]
    waits[1] = 0
    times = {**USUAL_NS, "optimizer": 8 * MS + late, "all_reduce": 15 * MS + waits}
    if on is Clock.DEVICE:
        return make_run(num_ranks=num_ranks, num_steps=num_steps, num_warmup=1, device_ns=times)
    return make_run(num_ranks=num_ranks, num_steps=num_steps, num_warmup=1, host_ns=times)


@pytest.mark.parametrize("clock", [Clock.HOST, Clock.DEVICE])
def test_rows_alone_name_the_rank_and_the_phase(clock: Clock) -> None:
    """100 ms without the delay: 85 of its own and 15 of transfer, of which nothing is lost but the 20."""
    slow_rank = blame(make_late_run(20 * MS, on=clock), clock)
    assert slow_rank is not None
    assert (slow_rank.row, slow_rank.phase, slow_rank.persistent) == (1, Phase.OPTIMIZER, True)
    assert slow_rank.late_ns == 20 * MS
    assert slow_rank.lost_ns.tolist() == [20 * MS] * 11


def test_what_a_rank_does_after_the_wait_makes_it_late_for_the_next() -> None:
    """Late in the optimizer of every third step: lost in the step after, each time."""
    late = np.where(np.arange(31) % 3 == 0, 30 * MS, 0)
    slow_rank = blame(make_late_run(late, num_steps=31))
    assert slow_rank is not None and not slow_rank.persistent
    assert slow_rank.phase is Phase.OPTIMIZER
    assert slow_rank.lost_ns.tolist() == [30 * MS if step % 3 == 1 else 0 for step in range(1, 31)]
    assert slow_rank.held.tolist() == [step % 3 == 1 for step in range(1, 31)]


def test_what_a_rank_does_between_its_steps_counts_too() -> None:
    """Rank 1 writes something for 30 ms after every step, outside of it; the others wait in the next."""
    step_ns = np.array([[130], [100], [130], [130]]) * MS
    idle_ns = np.array([[0], [30], [0], [0]]) * MS
    begin_ns = 10**12 + np.arange(12) * (step_ns + idle_ns)
    times = {**USUAL_NS, "all_reduce": 15 * MS + step_ns - 100 * MS}
    slow_rank = blame(make_run(num_ranks=4, num_steps=12, host_ns=times, columns={"begin_host_ns": begin_ns}))
    assert slow_rank is not None
    assert (slow_rank.row, slow_rank.phase) == (1, Phase.OTHER)
    assert slow_rank.lost_ns.tolist() == [30 * MS] * 11


@pytest.mark.parametrize(("num_steps", "named"), [(MIN_CYCLES, False), (MIN_CYCLES + 1, True)])
def test_a_few_steps_name_nobody(num_steps: int, named: bool) -> None:
    """One step is warm-up."""
    assert (blame(make_late_run(20 * MS, num_steps=num_steps)) is not None) == named


def test_less_than_half_a_percent_is_nobodys_fault() -> None:
    assert blame(make_late_run(0.4 * MS)) is None


def test_of_two_ranks_the_slower_one_is_named() -> None:
    slow_rank = blame(make_late_run(20 * MS, num_ranks=2))
    assert slow_rank is not None and slow_rank.row == 1


def test_alone_nobody_is_named() -> None:
    assert blame(make_run(num_ranks=1, num_steps=20)) is None


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_a_rank_that_is_late_now_and_then_is_intermittent(strategy: str) -> None:
    delay = Delay(rank=2, phase=Phase.FORWARD, delay_ns=40 * MS, share_ratio=0.3)
    made = simulate(SimulatedJob(strategy=strategy, delays=(delay,)), seed=3)
    slow_rank = blame(made.run)
    assert slow_rank is not None and not slow_rank.persistent
    assert (slow_rank.row, slow_rank.phase) == (2, Phase.FORWARD)
    true_ns = (made.truth.step_ns - made.truth.without_delays_ns)[1:]
    assert slow_rank.lost_ns.mean() == pytest.approx(true_ns.mean(), rel=0.1)
    assert slow_rank.held.tolist() == (true_ns > 20 * MS).tolist()


def test_a_delay_that_goes_from_rank_to_rank_is_nobodys() -> None:
    job = SimulatedJob(delays=(Delay(rank=None, phase=Phase.FORWARD, delay_ns=40 * MS),))
    assert [blame(simulate(job, seed=seed).run) for seed in range(10)] == [None] * 10


def test_of_two_slow_ranks_the_one_that_costs_more_is_named() -> None:
    delays = (Delay(rank=1, phase=Phase.DATA, delay_ns=20 * MS), Delay(rank=6, phase=Phase.BACKWARD, delay_ns=35 * MS))
    made = simulate(SimulatedJob(delays=delays), seed=1)
    slow_rank = blame(made.run)
    assert slow_rank is not None and (slow_rank.row, slow_rank.phase) == (6, Phase.BACKWARD)
    assert slow_rank.lost_ns.mean() == pytest.approx(15 * MS, rel=0.1)  # then rank 1 is the last
