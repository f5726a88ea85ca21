"""Means by blocks of steps: those of all blocks are the report's, and those of some show what is so in them alone."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.analyze.summary.page import MAX_EXCESS_CELLS, MAX_PHASE_CELLS, measure_page
from distprof.analyze.summary.step_blocks import plan_blocks
from distprof.analyze.summary.who_waits import measure_who_waits
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, Phase, Run
from distprof.report.page_report import PageReport, StepBlocks
from tests.factories import MS, make_run

LATE = Delay(rank=2, phase=Phase.FORWARD, delay_ns=20 * MS, first_step=20)


@pytest.fixture(scope="module")
def run() -> Run:
    return simulate(SimulatedJob(num_ranks=4, num_steps=40, num_warmup=2, delays=(LATE,)), seed=1, truth=False).run


def measure(run: Run) -> PageReport:
    page = measure_page(run, analyze(run))
    assert page is not None
    return page


def combine(blocks: StepBlocks | None, name: str, *, first: int = 0, last: int | None = None) -> FloatArray:
    """As the page's script does."""
    assert blocks is not None
    used = np.array(blocks.used)[first:last]
    known = used > 0
    mean: FloatArray = (blocks.mean_ns[name][:, first:last][:, known] * used[known]).sum(axis=1) / used[known].sum()
    return mean


def test_all_blocks_together_are_the_report_s_means(run: Run) -> None:
    page, report = measure(run), analyze(run)
    np.testing.assert_allclose(combine(page.excess_by_block, "excess"), page.excess_ns)
    for phase in report.phases:
        np.testing.assert_allclose(combine(page.phases_by_block, phase.phase), phase.mean_ns)
    np.testing.assert_allclose(combine(page.phases_by_block, "step"), report.steps[0].mean_ns)
    assert page.who_waits is not None
    np.testing.assert_allclose(
        combine(page.who_waits.by_block, "stood"), page.who_waits.stood_ns.reshape(-1), atol=1e-6
    )


def test_blocks_before_a_rank_is_late_do_not_show_it_and_those_after_do(run: Run) -> None:
    page = measure(run)
    assert page.excess_by_block is not None and page.excess_by_block.columns_each == 1
    assert page.excess_by_block.used == (0, 0, *[1] * 38)  # warm-up
    before, after = (combine(page.excess_by_block, "excess", first=first, last=first + 20) / MS for first in (0, 20))
    assert before[2] < 2 and after[2] == pytest.approx(20, abs=2) and after[[0, 1, 3]].max() < 2
    forward = combine(page.phases_by_block, "forward", first=20) - combine(page.phases_by_block, "forward", last=20)
    assert (forward / MS).round().tolist() == [0, 0, 20, 0]
    assert page.who_waits is not None and page.who_waits.last[0] == 2
    stood = combine(page.who_waits.by_block, "stood", first=20).reshape(page.who_waits.stood_ns.shape) / MS
    assert stood[0, [0, 1, 3]] == pytest.approx(20, abs=2) and stood[0, 2] == 0


def test_a_block_in_which_a_wait_is_not_known_has_none(run: Run) -> None:
    (table,) = run.collectives
    took_ns = np.where(np.arange(4) == 2, 5.0 * MS, 25.0 * MS)[:, None, None] + np.zeros_like(table.arrival_ns)
    end_ns = table.arrival_ns + took_ns
    end_ns[0, 10:20, -1] = np.nan
    timed = replace(table, clock=Clock.DEVICE, end_ns=end_ns, exposed_ns=took_ns)
    measured = choose_measured_steps(replace(run, device_collectives=(timed,)))
    blocks = plan_blocks(np.arange(40), 40, steps_each=1, rows=1, most=8)
    waits = measure_who_waits(measured, blocks)
    assert waits is not None and waits.by_block is not None
    assert np.isnan(waits.by_block.mean_ns["stood"]).all(axis=0).tolist() == [False] * 2 + [True] * 2 + [False] * 4
    assert waits.by_block.used == (3, *[5] * 7)


def test_a_long_job_has_blocks_of_many_steps_and_one_of_too_many_ranks_none() -> None:
    page = measure(make_run(num_ranks=300, num_steps=400))
    assert page.excess_by_block is not None and page.phases_by_block is not None
    for blocks, most in ((page.excess_by_block, MAX_EXCESS_CELLS), (page.phases_by_block, MAX_PHASE_CELLS)):
        columns = -(-len(page.steps) // blocks.columns_each)
        assert 1 < len(blocks.used) == columns and sum(blocks.used) == 399
        assert sum(table.size for table in blocks.mean_ns.values()) <= most
    assert plan_blocks(np.arange(400), 400, steps_each=1, rows=40_000, most=72_000) is None
    assert plan_blocks(np.arange(1), 1, steps_each=1, rows=4, most=72_000) is None
    skipping = plan_blocks(np.array([0, 1, 4, 5]), 6, steps_each=2, rows=1, most=2)
    assert skipping is not None and skipping.number.tolist() == [0, 0, -1, -1, 1, 1]
    assert skipping.average(np.array([[1.0, 2.0, 7.0]]), np.array([0, 1, 4])).tolist() == [[1.5, 7.0]]
