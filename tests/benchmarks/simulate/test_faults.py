"""What a simulated job's faults are, and what they cost: by hand, and as they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulate import Between, Delay, Fault, SimulatedJob, simulate
from benchmarks.simulate.draw import assemble, draw, list_faults
from benchmarks.simulate.program import write_program
from distprof.facts.run import COLUMN, Phase, Stretch

MS = 1_000_000
PLAIN = SimulatedJob(
    num_ranks=4, num_steps=6, num_buckets=1, jitter_ratio=0, transfer_ns=2 * MS,
    phase_ns={Phase.FORWARD: 20 * MS, Phase.BACKWARD: 40 * MS, Phase.OPTIMIZER: 5 * MS},
)  # fmt: skip


def find_logs(job: SimulatedJob, phase: Phase) -> np.ndarray:
    """Logarithms of the drawn own times of a phase, without delays."""
    program = write_program(job)
    drawn = draw(job, program, np.random.default_rng(3), np.random.default_rng(4))
    return np.log(drawn.own_ns[:, :, list(Phase).index(phase)])


@pytest.mark.parametrize("correlation", [0.0, 0.2, 0.9])
def test_drift_has_the_spread_of_jitter_and_its_own_correlation(correlation: float) -> None:
    job = replace(PLAIN, num_ranks=50, num_steps=800, jitter_ratio=0.05, autocorrelation=correlation)
    logs = find_logs(job, Phase.FORWARD)
    logs -= np.log(20 * MS)
    assert logs.std() == pytest.approx(0.05, rel=0.05)
    assert logs[:, 0].std() == pytest.approx(0.05, rel=0.35)  # stationary from the first step on
    lagged = float((logs[:, 1:] * logs[:, :-1]).mean() / (logs**2).mean())
    assert lagged == pytest.approx(correlation, abs=0.03)
    assert abs(np.corrcoef(logs[0], logs[1])[0, 1]) < 0.4  # ranks drift on their own


def test_pareto_tails_are_heavy() -> None:
    """P(more than x) is (1 + x)^-1.5: 9 x the scale is exceeded by 3.2 %, 99 x by 0.1 %."""
    job = replace(PLAIN, num_ranks=50, num_steps=2000, pareto_ratio=0.02)
    more = (np.exp(find_logs(job, Phase.FORWARD)) / (20 * MS) - 1) / 0.02
    assert (more > 9).mean() == pytest.approx(10**-1.5, rel=0.1)
    assert (more > 99).mean() == pytest.approx(1e-3, rel=0.4)


def test_when_a_delay_strikes() -> None:
    delays = (
        Delay(rank=0, phase=Phase.FORWARD, delay_ns=1 * MS, first_step=1, last_step=3),
        Delay(rank=1, phase=Phase.FORWARD, factor=3.0, every=2, first_step=1),
        Delay(rank=2, phase=Phase.FORWARD, delay_ns=1 * MS, count=2),
        Delay(rank=None, host=1, phase=Phase.OPTIMIZER, delay_ns=7 * MS),
        Delay(rank=3, phase=Stretch.CHECKPOINT, delay_ns=4 * MS, every=3),
    )
    made = simulate(replace(PLAIN, ranks_per_host=2, delays=delays), seed=1)
    forward = (made.run.column("forward_host_ns") / MS).round(6)
    assert forward[0].tolist() == [20, 21, 21, 21, 20, 20]
    assert forward[1].tolist() == [20, 60, 20, 60, 20, 60]
    assert sorted(forward[2].tolist()) == [20] * 4 + [21] * 2
    assert (made.run.column("optimizer_host_ns")[:, 0] / MS).round(6).tolist() == [5, 5, 12, 12]
    checkpoint = made.run.column("checkpoint_host_ns") / MS
    assert checkpoint[3, 1:].round(6).tolist() == [0, 0, 4, 0, 0] and np.isnan(checkpoint[3, 0])


def test_two_ranks_hide_each_other() -> None:
    """20 and 19 ms late: without one of them the other is still late; alone each costs all of its delay."""
    late = [Delay(rank=rank, phase=Phase.FORWARD, delay_ns=size * MS) for rank, size in ((1, 20), (2, 19))]
    truth = simulate(replace(PLAIN, delays=tuple(late)), seed=0, faults=True).truth
    costs = [(cost.lost_ns[2] / MS, cost.alone_ns[2] / MS) for cost in truth.costs]
    assert [tuple(np.round(pair, 6).tolist()) for pair in costs] == [(1, 20), (0, 19)]
    assert (truth.step_ns - truth.without_faults_ns)[2] / MS == pytest.approx(20)


def test_a_rank_faster_elsewhere_is_one_fault() -> None:
    """+8 in data and -8 in forward: nothing under DDP, and 8 where FSDP waits in between."""
    late = Delay(rank=1, phase=Phase.DATA, delay_ns=8 * MS)
    delays = (late, replace(late, phase=Phase.FORWARD, delay_ns=-8 * MS))
    for strategy, cost in (("ddp", 0), ("fsdp", 8)):
        job = replace(PLAIN, strategy=strategy, delays=delays)
        assert list_faults(job) == (Fault(delay=0),)
        truth = simulate(job, seed=0, faults=True).truth
        assert (truth.costs[0].alone_ns[1:] / MS).round(6).tolist() == [cost] * 5


def test_overlap_hides_a_delay_between_buckets() -> None:
    """Buckets of 20 are ready at 30, 40, 50 and 60 and keep the network busy until 110. 10 more before the third cost
    nothing. 35 more before the last cost 5: it could have started at 90, and starts at 95."""
    busy = replace(PLAIN, num_buckets=4, transfer_ns=80 * MS)
    hidden = Delay(rank=2, phase=Phase.BACKWARD, delay_ns=10 * MS, piece=2)
    seen = replace(hidden, delay_ns=35 * MS, piece=3)
    for delay, cost in ((hidden, 0), (seen, 5)):
        truth = simulate(replace(busy, delays=(delay,)), seed=0, faults=True).truth
        assert truth.costs[0].alone_ns[2] / MS == pytest.approx(cost)


def test_unequal_data_take_proportionally_long_and_equal_data_are_their_mean() -> None:
    job = replace(PLAIN, token_spread_ratio=0.2)
    made = simulate(job, seed=5, faults=True)
    tokens = made.run.rows[:, :, COLUMN["tokens"]]
    assert np.std(tokens) > 100
    assert np.allclose(made.run.column("backward_host_ns"), 40 * MS * tokens / job.tokens)
    slowest, mean = tokens.max(axis=0) / job.tokens, tokens.mean(axis=0) / job.tokens
    assert np.allclose(made.truth.costs[0].alone_ns, 60 * MS * (slowest - mean))


def test_time_between_steps_is_recorded() -> None:
    """An evaluation of 9 before steps 2 and 4, then an all-reduce that takes a hundredth of 2; rank 1 takes 3 more, and
    2 before every step, after that wait."""
    job = replace(
        PLAIN, between=(Between(stretch=Stretch.EVALUATION, own_ns=9 * MS, every=2),),
        delays=(
            Delay(rank=1, phase=Stretch.EVALUATION, delay_ns=3 * MS, every=2),
            Delay(rank=1, phase=Stretch.BETWEEN, delay_ns=2 * MS),
        ),
    )  # fmt: skip
    made = simulate(job, seed=0, faults=True)

    def get(name: str, rank: int) -> list[float]:
        return (made.run.column(name)[rank, 1:] / MS).round(6).tolist()  # type: ignore[no-any-return]

    assert get("evaluation_host_ns", 0) == [0, 9, 0, 9, 0] and get("evaluation_host_ns", 1) == [0, 12, 0, 12, 0]
    assert get("between_wait_host_ns", 0) == [0, 3.02, 0, 3.02, 0] and get("between_wait_host_ns", 1)[1] == 0.02
    assert (made.run.column("between_count")[0, 1:]).tolist() == [0, 1, 0, 1, 0]
    assert np.isnan(made.run.column("between_after_host_ns")[1, 1])  # no wait, no time after it
    assert get("between_after_host_ns", 1)[1] == 2 and get("between_after_host_ns", 0)[1] == 0
    begin = made.run.column("begin_host_ns")
    idle = (begin[:, 1:] - begin[:, :-1] - made.run.column("step_host_ns")[:, :-1]) / MS
    assert idle[:, 1].round(3).tolist() == [12.02, 14.02, 12.02, 12.02]
    assert [round(float(cost.alone_ns[2]) / MS, 3) for cost in made.truth.costs] == [3, 2]


def test_a_batch_fetched_between_steps_stands_there() -> None:
    job = replace(PLAIN, phase_ns={**PLAIN.phase_ns, Phase.DATA: 6 * MS}, data_between=True)
    run = simulate(job, seed=0).run
    assert (run.column("data_host_ns") == 0).all()
    assert (run.column("between_data_host_ns")[:, 1:] == 6 * MS).all()


@pytest.mark.parametrize(("share_ratio", "slower"), [(1.0, 3.0), (0.25, 1.5)])
def test_only_groups_that_cross_a_slow_link_are_slower(share_ratio: float, slower: float) -> None:
    """HSDP: shards of two ranks on one host each; the replicas' all-reduces cross hosts. What hosts take of a transfer
    stays: a quarter three times as long is half as long again."""
    job = replace(PLAIN, strategy="hsdp", ranks_per_host=2, slow_hosts={1: 3.0}, slow_from_step=3)
    job = replace(job, link_share_ratio=share_ratio)
    program = write_program(job)
    drawn = draw(job, program, np.random.default_rng(1), np.random.default_rng(2))
    load = assemble(job, program, drawn, list_faults(job))
    healthy = assemble(job, program, drawn, ())
    factors = load.transfer_ns / healthy.transfer_ns
    assert factors[:, :3].max() == 1  # not slow yet
    names = [op.partition for op in program if hasattr(op, "partition")]
    expected = {"shard": 1.0, "replica": slower, "world": slower}
    for index, name in enumerate(names):
        assert np.allclose(factors[:, 3:, index], expected[name])
