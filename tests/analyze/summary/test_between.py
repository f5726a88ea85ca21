"""The time between steps: by hand, and that its parts add up to what lies between the stamps."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.analyze.summary.phases import PARTS, report_between
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, Clock, Run
from distprof.report.report import BetweenReport
from tests.factories import MS, USUAL_NS, drop_rows, make_run

NOTHING = dict.fromkeys(PARTS.values(), 0.0)


def make_gaps(gaps_ns: FloatArray, **columns: object) -> Run:
    """Steps of 100 ms, each ``gaps_ns`` after the one before, ``[num_ranks, num_steps]``."""
    begin_ns = 10**12 + np.arange(gaps_ns.shape[1]) * 100 * MS + np.cumsum(gaps_ns, axis=1)
    changes = {"begin_host_ns": begin_ns, **columns}
    return make_run(num_ranks=len(gaps_ns), num_steps=gaps_ns.shape[1], columns=changes)  # type: ignore[arg-type]


def report(run: Run) -> BetweenReport | None:
    measured_steps = choose_measured_steps(run)
    return report_between(measured_steps, read_timing(measured_steps, Clock.HOST))


def take(run: Run) -> BetweenReport:
    found = report(run)
    assert found is not None
    return found


def test_parts_by_hand() -> None:
    """Rank 0 evaluates for 45 of 60 ms before step 3, rank 1 waits for it as long; step 1 follows a warm-up step,
    so that nothing is known of the time before one of three steps."""
    gaps = np.array([[0, 99, 6, 60.0], [0, 99, 6, 60]]) * MS
    evaluation = np.array([[0, 9, 0, 45.0], [0, 9, 0, 0]]) * MS
    waits = np.array([[0, 9, 0, 0.0], [0, 9, 0, 45]]) * MS
    found = take(make_gaps(gaps, **NOTHING | {"evaluation_host_ns": evaluation, "between_wait_host_ns": waits}))
    assert [(part.part, part.mean_ns) for part in found.parts] == [
        ("evaluation", (15 * MS, 0)), ("waits between steps", (0, 15 * MS)), ("between steps", (7 * MS, 7 * MS)),
    ]  # fmt: skip
    assert found.cycle_mean_ns == (122 * MS, 122 * MS) and found.between_ratio == pytest.approx(22 / 122)
    assert found.parts[0].share_ratio == pytest.approx(15 / 244)
    assert (found.parts[0].spread_ns.max_rank, found.steps_used, found.parts_known) == (0, 2, True)


def test_step_and_time_between_are_the_cycle_and_that_is_the_step_time() -> None:
    """Two steps of 300 and 100 ms with 75 between them: of the second alone it would be 43 % of a cycle of 175 ms."""
    begin_ns, step_ns = 10**12 + np.array([[0.0, 375.0]]) * MS, np.array([[300.0, 100.0]]) * MS
    columns = {"begin_host_ns": begin_ns, "step_host_ns": step_ns}
    whole = analyze(make_run(num_ranks=1, num_steps=2, num_warmup=0, columns=columns))
    assert whole.between is not None
    (step,) = [item for item in whole.steps if item.clock == Clock.HOST]
    assert step.mean_ns == (200 * MS,) and whole.between.cycle_mean_ns == (237.5 * MS,)
    assert whole.headline.step_mean_ns == 237.5 * MS and whole.headline.between_ratio == pytest.approx(37.5 / 237.5)
    assert whole.between.between_ratio == pytest.approx(37.5 / 237.5)


def test_where_parts_were_not_recorded_the_whole_is_one_row() -> None:
    found = take(make_gaps(np.full((2, 4), 7.5 * MS)))  # before two of three measured steps
    assert [(part.part, part.mean_ns) for part in found.parts] == [("between steps", (5 * MS, 5 * MS))]
    assert not found.parts_known and found.steps_used == 2


def test_steps_without_their_parts_count_as_a_whole_where_others_have_them() -> None:
    gaps = np.array([[0, 5, 5, 10, 5.0]]) * MS
    unknown = {name: np.array([[0, 0, 0, np.nan, 0]]) for name in PARTS.values()}
    found = take(make_gaps(gaps, **unknown))
    assert found.parts[0].mean_ns == (5 * MS,) and found.steps_used == 2


@pytest.mark.parametrize("name", ["window", "failed"])
def test_what_follows_a_step_that_does_not_count_is_left_out(name: str) -> None:
    gaps = np.array([[0, 10, 10, 10, 300, 10.0]]) * MS
    found = take(make_gaps(gaps, **{name: np.arange(6) == 3}))
    assert found.parts[0].mean_ns == (5 * MS,) and found.steps_used == 2


def test_a_gap_in_the_numbers_is_no_time_between_steps() -> None:
    run = make_gaps(np.array([[0, 10, 10, 10, 300.0]]) * MS, step=np.array([0, 1, 2, 3, 9]))
    assert take(run).parts[0].mean_ns == (5 * MS,)


def test_without_two_steps_in_a_row_nothing_is_said() -> None:
    assert report(make_run(num_steps=2)) is None
    assert report(make_run(num_steps=0)) is None
    assert report(make_run(num_ranks=0, meta={"world_size": 2})) is None
    assert report(make_gaps(np.zeros((1, 9)), window=np.arange(9) % 2 == 1)) is None


def test_what_precedes_each_burst_of_recorded_steps_counts_and_so_do_its_parts() -> None:
    """Two of four steps are recorded, and ranks average their parameters for 40 ms before each four: of the four
    recorded steps after the first burst, two follow 40 ms and two 2 ms, and the first burst's second one 2 ms."""
    steps = np.arange(12)
    waits = np.where(steps % 4 == 0, 38.0, 0)[np.newaxis] * MS
    columns = NOTHING | {"between_wait_host_ns": waits, "shadow": steps % 4 >= 2, "warmup": 0}
    found = take(make_gaps(np.where(steps % 4 == 0, 40, 2)[np.newaxis] * MS, **columns))
    assert [(part.part, part.mean_ns) for part in found.parts] == [
        ("waits between steps", (pytest.approx(2 * 38 / 6 * MS),)), ("between steps", (pytest.approx(10 / 6 * MS),)),
    ]  # fmt: skip
    assert found.cycle_mean_ns == (pytest.approx((100 + (2 * 40 + 3 * 2) / 6) * MS),) and found.steps_used == 5


def test_a_rank_without_rows_is_not_measured_and_the_others_are() -> None:
    run = drop_rows(make_gaps(np.full((3, 5), 20 / 3 * MS)), 1, 0)
    found = take(run)
    assert found.parts[0].mean_ns == (pytest.approx(5 * MS), None, pytest.approx(5 * MS))
    assert found.cycle_mean_ns[1] is None and found.between_ratio == pytest.approx(5 / 105)


def test_the_parts_add_up_to_the_time_between_stamps() -> None:
    draw = np.random.default_rng(2)
    own = {name: draw.integers(0, 3 * MS, (4, 30)).astype(float) for name in PARTS.values()}
    rest = draw.integers(0, MS, (4, 30)).astype(float)
    gaps = np.sum([rest, *own.values()], axis=0)
    found = take(make_gaps(gaps, **own))
    total = np.sum([part.mean_ns for part in found.parts], axis=0)
    assert total == pytest.approx(gaps[:, 2:].sum(axis=1) / 29)
    assert total + sum(USUAL_NS.values()) == pytest.approx(np.array(found.cycle_mean_ns))  # type: ignore[arg-type]
    assert found.between_ratio == pytest.approx(sum(part.share_ratio or 0 for part in found.parts))


def test_clocks_of_ranks_are_not_compared() -> None:
    run = make_gaps(np.full((2, 6), 5.0 * MS))
    moved = run.rows.copy()
    moved[1, :, COLUMN["begin_host_ns"]] += 10**10
    assert report(structs.replace(run, rows=moved)) == report(run)
