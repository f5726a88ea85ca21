"""The rank the others may be waiting for."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
import pytest
from rich.console import Console

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.facts.run import Phase
from distprof.render.sections.headline import describe_busiest
from distprof.render.terminal.terminal import render_terminal
from distprof.report.report import BusiestRank
from tests.factories import MS, USUAL_NS, drop_rows, make_run


def make_straggler(rank: int, phase: str, num_ranks: int, waiting: str = "all_reduce") -> dict[str, np.ndarray]:
    """Every step takes 300 ms: one rank loses 200 in a phase, and the others wait for it."""
    late = np.arange(num_ranks)[:, None] == rank
    times = {name: np.full((num_ranks, 1), float(np.asarray(value))) for name, value in USUAL_NS.items()}
    times[phase] = times[phase] + late * 200.0 * MS
    times[waiting] = times.get(waiting, np.zeros((num_ranks, 1))) + ~late * 200.0 * MS
    return times


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "grad_norm", "optimizer", "other"])
@pytest.mark.parametrize(
    ("rank", "num_ranks", "waiting"), [(0, 2, "all_reduce"), (2, 4, "all_gather"), (4, 5, "all_reduce")]
)
def test_a_straggler_is_named_with_its_phase_and_its_delay(rank: int, num_ranks: int, waiting: str, phase: str) -> None:
    run = make_run(num_ranks=num_ranks, host_ns=make_straggler(rank, phase, num_ranks, waiting))
    assert analyze(run).headline.busiest == BusiestRank(
        rank=rank, own_ns=285 * MS, excess_ns=200 * MS, stands_out=True, phase=phase, phase_excess_ns=200 * MS
    )


def test_waiting_is_no_work() -> None:
    exposed = np.array([[80], [10], [10]]) * MS
    own = np.array([[10], [20], [15]]) * MS
    busiest = analyze(make_run(num_ranks=3, host_ns={"all_reduce": exposed, "forward": own})).headline.busiest
    assert busiest is not None
    assert (busiest.rank, busiest.excess_ns, busiest.phase) == (1, 7.5 * MS, Phase.FORWARD)


def test_alone_there_is_nobody_to_compare_with() -> None:
    assert analyze(make_run(num_ranks=1)).headline.busiest is None
    assert analyze(drop_rows(make_run(num_ranks=2), 1, 0)).headline.busiest is None


def test_it_is_measured_on_the_headline_clock() -> None:
    run = make_run(host_ns=make_straggler(0, "data", 2), device_ns=make_straggler(1, "forward", 2))
    busiest = analyze(run).headline.busiest
    assert busiest is not None and (busiest.rank, busiest.phase) == (1, "forward")


def test_waits_inside_a_phase_are_no_work_of_it() -> None:
    """Rank 0 waits 30 of its 50 ms of forward, and loses its time in backward: 20 ms against 10 and 12."""
    run = make_run(
        num_ranks=3,
        host_ns={"forward": np.array([[50], [21], [25]]) * MS, "backward": np.array([[20], [10], [12]]) * MS},
        columns={"forward_wait_host_ns": np.array([[30], [0], [4]]) * MS},
    )
    report = analyze(run)
    assert report.headline.busiest == BusiestRank(
        rank=0, own_ns=40 * MS, excess_ns=8 * MS, stands_out=True, phase="backward", phase_excess_ns=9 * MS
    )
    assert [rank.own_ns for rank in report.ranks] == [40 * MS, 31 * MS, 33 * MS]
    assert [rank.exposed_ns for rank in report.ranks] == [30 * MS, 0, 4 * MS]


def test_a_rank_above_the_others_in_no_phase_has_no_phase() -> None:
    """Rank 0 does as much as the median of the others in forward and in backward; only the two together are more."""
    times = {"forward": np.array([[20], [20], [20], [0]]) * MS, "backward": np.array([[20], [20], [1], [20]]) * MS}
    report = analyze(make_run(num_ranks=4, host_ns=times))
    assert report.headline.busiest == BusiestRank(
        rank=0, own_ns=40 * MS, excess_ns=19 * MS, stands_out=True, phase=None, phase_excess_ns=None
    )
    assert describe_busiest(report).endswith(
        "19.0 ms more than the median of the others, in no single phase more than the others"
    )


@pytest.mark.parametrize(("delay_ms", "stands_out"), [(4.9, False), (6.0, True)])
def test_a_rank_stands_out_from_a_twentieth_of_the_step(delay_ms: float, stands_out: bool) -> None:
    """In a step of 100 ms and the delay."""
    late = np.arange(4)[:, None] == 2
    times = {**USUAL_NS, "data": (10 + late * delay_ms) * MS, "all_reduce": (15 + ~late * delay_ms) * MS}
    busiest = analyze(make_run(num_ranks=4, host_ns=times)).headline.busiest
    assert busiest is not None and (busiest.rank, busiest.stands_out) == (2, stands_out)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_the_rank_of_the_verdict_is_among_those_with_the_most_own_time(
    strategy: Literal["fsdp", "hsdp"], seed: int
) -> None:
    """Late in grad_norm: the others' waits stand inside that phase, and are no work of theirs."""
    late = Delay(rank=seed + 3, phase=Phase.GRAD_NORM, delay_ns=30 * MS)
    job = SimulatedJob(strategy=strategy, num_ranks=24, ranks_per_host=24, num_steps=30, delays=(late,))
    report = analyze(simulate(job, seed=seed, truth=False).run)
    assert report.verdict.rank == late.rank
    text = io.StringIO()
    render_terminal(report, Console(file=text, width=120))
    table = text.getvalue().partition("ranks: the 4 with the most time of their own")[2].splitlines()[3:7]
    assert int(table[0].split()[0]) == late.rank
