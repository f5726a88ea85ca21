"""What the page draws: where a job loses time, when, and who waits for whom; computed by hand, and bounded."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.analyze.summary.page import MAX_CELLS, MAX_COLUMNS, MAX_ROWS, measure_page
from distprof.analyze.summary.who_waits import MAX_ROWS as MAX_LAST
from distprof.analyze.summary.who_waits import measure_who_waits
from distprof.facts.mesh import RankGroup
from distprof.facts.run import Clock, Phase, Run
from distprof.report.page_report import PageReport
from tests.factories import MS, make_run, make_shadow_stall


def measure(run: Run) -> PageReport:
    page = measure_page(run, analyze(run))
    assert page is not None
    return page


def test_what_a_step_loses_to_a_rank_is_its_own_time_above_the_median_of_all() -> None:
    """Own times 30, 34 and 30 in one step, 30, 30 and 36 in the next, and a warm-up step that does not count."""
    forward = np.array([[90, 30, 30], [90, 34, 30], [500, 30, 36]]) * MS
    run = make_run(num_ranks=3, num_steps=3, host_ns={"forward": forward, "all_reduce": 50 * MS - forward % (50 * MS)})
    assert (measure(run).excess_ns / MS).tolist() == [0, 2, 3]


def test_of_two_ranks_the_slower_loses_all_that_it_is_slower_by() -> None:
    forward = np.array([[30, 30], [37, 37]]) * MS
    run = make_run(
        num_ranks=2, num_steps=2, num_warmup=0, host_ns={"forward": forward, "all_reduce": 50 * MS - forward}
    )
    assert (measure(run).excess_ns / MS).tolist() == [0, 7]


def test_own_time_between_steps_counts_and_a_wait_there_does_not() -> None:
    step_ns = 100 * MS
    begin = 10**12 + np.arange(4) * np.array([[step_ns], [step_ns + 8 * MS], [step_ns + 8 * MS]])
    waited = np.array([[0], [0], [8 * MS]])
    run = make_run(
        num_ranks=3, columns={"begin_host_ns": begin, "between_wait_host_ns": waited, "between_after_host_ns": 0}
    )
    assert (measure(run).excess_ns / MS).tolist() == [0, pytest.approx(16 / 3), 0]  # no gap before the first counted


def test_cells_are_step_own_wait_and_every_phase_that_takes_time() -> None:
    page = measure(make_run())
    assert list(page.cells_ns) == [
        "step", "own", "wait", "data", "forward", "backward", "all_reduce", "grad_norm", "optimizer", "other",
    ]  # fmt: skip
    assert page.cells_ns["own"].tolist() == [[85 * MS] * 4] * 2
    assert page.cells_ns["wait"].tolist() == [[15 * MS] * 4] * 2
    assert page.measured == (False, True, True, True) and page.steps == (0, 1, 2, 3)
    assert sum(page.mean_ns[name] for name in page.mean_ns if name != "step").tolist() == [100 * MS] * 4


def test_a_step_without_phases_has_none() -> None:
    page = measure(make_shadow_stall())
    assert np.isnan(page.mean_ns["forward"][20]) and page.mean_ns["step"][20] == 600 * MS
    assert not page.measured[20], "it ran without instruments, and does not count"


def test_many_ranks_and_steps_are_the_longest_of_several() -> None:
    forward = np.full((300, 400), 30 * MS)
    forward[217, 331] = 90 * MS
    page = measure(make_run(num_ranks=300, num_steps=400, host_ns={"forward": forward}))
    cells = page.cells_ns["forward"]
    assert page.ranks_each == 3 and len(cells) == 100 <= MAX_ROWS
    assert cells.shape[1] <= MAX_COLUMNS and cells.size <= MAX_CELLS and cells.shape[1] == len(page.steps)
    assert np.argwhere(cells == 90 * MS).tolist() == [[217 // 3, 331 // page.steps_each]]
    assert page.shown[331 // page.steps_each] == 331


def test_ranks_have_their_places_in_the_mesh() -> None:
    run = make_run(num_ranks=4)
    groups = (("pp", ((0, 2), (1, 3))), ("dp", ((0, 1), (2, 3))))
    named = tuple(RankGroup(name=name, ranks=ranks) for name, family in groups for ranks in family)
    run = replace(run, meta=replace(run.meta, groups=named))
    assert measure(run).places == (("pp", (0, 0, 1, 1)), ("dp", (0, 1, 0, 1)))


def test_without_steps_and_without_others_there_is_nothing_to_compare() -> None:
    run = make_run(num_ranks=1)
    assert np.isnan(measure(run).excess_ns).all() and measure(run).who_waits is None
    run = replace(run, rows=np.full_like(run.rows, np.nan))
    assert measure_page(run, analyze(run)) is None
    run = replace(run, ranks=(), rows=run.rows[:0])
    assert measure_page(run, analyze(run)) is None


def test_ranks_stand_still_until_the_late_one_comes() -> None:
    """Rank 1 works 30 longer in the forward of every step; ranks 0 and 2 stand still for so long, and it does not."""
    job = SimulatedJob(
        num_ranks=3, num_steps=10, num_buckets=1, jitter_ratio=0, transfer_ns=10 * MS,
        delays=(Delay(rank=1, phase=Phase.FORWARD, delay_ns=30 * MS),),
    )  # fmt: skip
    waits = measure_who_waits(choose_measured_steps(simulate(job, seed=0).run))
    assert waits is not None and waits.last == (1,) and waits.each == 1 and not waits.unclear
    assert (waits.stood_ns / MS).round(3).tolist() == [[30, 0, 30]]


def test_of_many_ranks_those_waited_for_most_have_rows() -> None:
    job = SimulatedJob(num_ranks=40, num_steps=30, jitter_ratio=0.1)
    waits = measure_who_waits(choose_measured_steps(simulate(job, seed=3).run))
    assert waits is not None and waits.each == 2 and waits.stood_ns.shape[1] == 20
    assert len(waits.last) == MAX_LAST + 1 and waits.last[-1] is None
    assert (np.diff(waits.stood_ns[:MAX_LAST].sum(axis=1)) <= 0).all()


LATE = Delay(rank=1, phase=Phase.FORWARD, delay_ns=20 * MS)


def mark_unseen(run: Run) -> Run:
    """The same with tables on the device clock in which nobody was seen to arrive or to end, as over gloo on a GPU."""
    tables = tuple(
        replace(
            item, clock=Clock.DEVICE, arrival_ns=np.full_like(item.arrival_ns, np.nan),
            end_ns=np.full_like(item.end_ns, np.nan),
        )
        for item in run.collectives
    )  # fmt: skip
    return replace(run, device_collectives=tables)


def test_collectives_on_a_device_that_nobody_saw_end_leave_the_hosts_waits_as_they_are() -> None:
    run = simulate(
        SimulatedJob(num_ranks=3, num_steps=40, delays=(Delay(rank=1, phase=Phase.FORWARD, delay_ns=20 * MS),)), seed=3
    ).run
    plain, unseen = (measure_who_waits(choose_measured_steps(each)) for each in (run, mark_unseen(run)))
    assert plain is not None and unseen is not None and plain.last == unseen.last
    np.testing.assert_array_equal(plain.stood_ns, unseen.stood_ns)
    report = analyze(mark_unseen(run))
    assert report.bandwidths == () and report.waits == analyze(run).waits
    assert any("host stamps" in source for source in report.coverage.sources)


def test_steps_in_which_a_wait_is_not_known_do_not_count_as_steps_without_one() -> None:
    run = simulate(
        SimulatedJob(num_ranks=2, num_steps=40, delays=(Delay(rank=1, phase=Phase.FORWARD, delay_ns=20 * MS),)), seed=3
    ).run
    (table,) = run.collectives
    took_ns = np.where(np.arange(2) == 1, 5.0 * MS, 25.0 * MS)[:, None, None] + np.zeros_like(table.arrival_ns)
    timed = replace(table, clock=Clock.DEVICE, end_ns=table.arrival_ns + took_ns, exposed_ns=took_ns)
    half = timed.end_ns.copy()
    half[0, ::2, -1] = np.nan  # the last one of every other step
    whole, part = (
        measure_who_waits(choose_measured_steps(replace(run, device_collectives=(replace(timed, end_ns=end_ns),))))
        for end_ns in (timed.end_ns, half)
    )
    assert whole is not None and part is not None and np.isfinite(part.stood_ns).all()
    np.testing.assert_allclose(part.stood_ns, whole.stood_ns, rtol=0.01)  # of half as many steps
