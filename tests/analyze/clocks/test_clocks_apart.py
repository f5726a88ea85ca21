"""Two hosts whose clocks are seconds apart and drift: what is compared between them, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Clocks, Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.facts.run import Phase
from distprof.report.report import Report
from tests.factories import MS

BOUND_NS = 30_000
TRUE = SimulatedJob(strategy="fsdp", num_ranks=4, ranks_per_host=2, jitter_ratio=1e-8, link_bytes_per_s=1e12)
APART = Clocks(offset_ns=3e9, drift_ratio=50e-6, bound_ns=BOUND_NS)


def report_on(clocks: Clocks, *delays: Delay) -> Report:
    return analyze(simulate(structs.replace(TRUE, clocks=clocks, delays=delays), seed=14).run)


def test_fault_14_clocks_that_are_apart_and_drift_change_no_duration() -> None:
    true, apart = report_on(Clocks()), report_on(APART)
    for here, there in zip(true.phases, apart.phases, strict=True):
        assert there.mean_ns == pytest.approx(here.mean_ns, rel=50e-6, abs=2)
    assert apart.steps[0].mean_ns == pytest.approx(true.steps[0].mean_ns, rel=50e-6)


def test_fault_14_the_offset_is_shown_with_its_uncertainty() -> None:
    (near, far) = report_on(APART).clocks
    assert (near.offset_ns, near.bound_ns) == (0, 0)
    assert 1e6 < abs(far.offset_ns) <= 3e9 and far.bound_ns >= BOUND_NS
    assert far.drift_ratio is not None and abs(far.drift_ratio) <= 51e-6


def test_fault_14_what_lies_below_the_uncertainty_is_not_reported() -> None:
    """Ranks that arrive within a microsecond are nobody's; one on the other host that is 5 ms late is itself."""
    assert all(value == 0 for wait in report_on(APART).waits for value in wait.last_ratio)
    late = report_on(APART, Delay(rank=2, phase=Phase.DATA, delay_ns=5.0 * MS))
    gathers = next(wait for wait in late.waits if (wait.kind, wait.phase) == ("all_gather", "forward"))
    assert gathers.last_ratio[2] == pytest.approx(1 / gathers.count_per_step)
    assert gathers.bound_ns >= BOUND_NS and late.verdict.rank == 2
    vague = report_on(structs.replace(APART, bound_ns=20e6), Delay(rank=2, phase=Phase.DATA, delay_ns=5.0 * MS))
    assert np.max([wait.last_ratio for wait in vague.waits]) == 0


def test_hosts_started_days_apart_have_the_same_stalls() -> None:
    """The bound is that at a time on rank 0's clock. At a time on a clock days ahead of it, it would be seconds."""
    late = Delay(rank=2, phase=Phase.DATA, delay_ns=200.0 * MS, share_ratio=0.05)
    job = structs.replace(TRUE, num_ranks=3, delays=(late,))
    near, far = (
        [(stall.step, stall.rank, stall.phase) for stall in analyze(simulate(job, seed=4).run).stalls]
        for job in (job, structs.replace(job, clocks=Clocks(offset_ns=1e15, bound_ns=BOUND_NS)))
    )
    assert far == near and {rank for _, rank, _ in near} == {2}
