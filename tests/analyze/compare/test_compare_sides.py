"""Two sides: intervals by hand, runs that vary, a difference that adds up, and simulated pairs with a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from benchmarks.compare_runs import play_pair
from distprof.analyze.compare.compare_sides import compare_sides
from distprof.analyze.compare.compare_times import (
    ALPHA,
    ALPHA_SHARES,
    compare_time,
    judge,
    judge_limit,
    measure_run_variance,
)
from distprof.analyze.compare.measure_figures import TRANSFERS, WAITS, flatten, make_figure, measure_figures
from distprof.analyze.compare.measure_sweep import measure_sweep
from distprof.analyze.compare.waterfall import allocate, make_waterfall
from distprof.analyze.stats.significance import t_quantile
from distprof.facts.mesh import RankGroup
from distprof.facts.run import Run
from distprof.report.comparison_report import Average, Figure, RunFigures
from tests.factories import MS, USUAL_NS, make_run
from tests.made_modules import make_table
from tests.traces.traced_ranks import make_activity, make_kernel

STEPS = 40


def make_average(value_ns: float, variance_ns2: float | None = 0.0, freedom: float | None = None) -> Average:
    return Average(value_ns=value_ns, variance_ns2=variance_ns2, degrees_of_freedom=freedom, autocorrelation=None)


def make_step(value_ns: float, variance_ns2: float | None = 0.0, freedom: float | None = None) -> Figure:
    average = make_average(value_ns, variance_ns2, freedom)
    return Figure(scope="step", name="step", rank=None, place=None, clock="host", steps=STEPS, mean=average, usual=None)


def measure(run: Run) -> RunFigures:
    found = measure_figures(run)
    assert found is not None
    return found


def make_noisy_run(seed: int, *, forward: float = 1.0, **changes: object) -> Run:
    draws = np.random.default_rng(seed)
    times = {name: np.asarray(ns) * draws.normal(1, 0.01, (2, STEPS)) for name, ns in USUAL_NS.items()}
    times["forward"] = times["forward"] * forward
    return make_run(num_steps=STEPS, host_ns=times, **changes)  # type: ignore[arg-type]


def test_the_interval_of_a_ratio_is_fiellers() -> None:
    """100 +- 1 and 110 +- 2, with 30 degrees of freedom each: the bounds solve (110 - 100 r)^2 = t^2 (4 + r^2)."""
    row = compare_time([make_step(100, 1, 30)], [make_step(110, 4, 30)], num_rows=1, limit_ratio=0.03, step_ns=100)
    freedom = (1 + 4) ** 2 / (1 / 30 + 16 / 30)
    far = t_quantile(ALPHA * ALPHA_SHARES["step"] / 4, freedom)
    assert row.mean.low_ratio is not None and row.mean.high_ratio is not None and row.mean.ratio == pytest.approx(1.1)
    for bound in (row.mean.low_ratio, row.mean.high_ratio):
        assert (110 - 100 * bound) ** 2 == pytest.approx(far**2 * (4 + bound**2))
    assert row.mean.low_ratio < 1.1 < row.mean.high_ratio and row.verdict == "worse"


@given(st.floats(1, 1e3), st.floats(1, 1e3), st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_ratio_contains_one_exactly_where_the_difference_contains_nothing(
    old: float, new: float, old_variance: float, new_variance: float
) -> None:
    base, other = make_step(old, old_variance, 10), make_step(new, new_variance, 10)
    mean = compare_time([base], [other], num_rows=1, limit_ratio=0.03, step_ns=old).mean
    if mean.low_ratio is None or mean.high_ratio is None:
        assert mean.verdict in ("worse", "better", "inconclusive")  # the base may be 0
    elif mean.verdict in ("no difference", "inconclusive"):
        assert mean.low_ratio <= 1 + 1e-6 and mean.high_ratio >= 1 - 1e-6
    else:
        assert mean.low_ratio >= 1 - 1e-6 if mean.verdict == "worse" else mean.high_ratio <= 1 + 1e-6


def test_runs_that_differ_make_an_interval_wider_than_their_steps_do() -> None:
    """Means of 98, 100, 102 and of 108, 110, 112: 2 % from run to run, with 4 degrees of freedom."""
    base, new = ([make_step(value, 1e-4, 50) for value in values] for values in ((98, 100, 102), (108, 110, 112)))
    between = measure_run_variance([each.mean for each in base], [each.mean for each in new])
    assert between is not None and between.degrees_of_freedom == 4
    assert math.sqrt(between.relative) == pytest.approx(math.sqrt((2 * 0.02**2 + 2 * (2 / 110) ** 2) / 4))
    one = compare_time(base[1:2], new[1:2], num_rows=1, limit_ratio=0.03, step_ns=100)
    three = compare_time(base, new, num_rows=1, limit_ratio=0.03, step_ns=100)
    assert (one.verdict, three.verdict) == ("worse", "inconclusive")


@pytest.mark.parametrize(("value", "verdict", "limit"), [(151, "worse", "over"), (106, *["inconclusive"] * 2)])
def test_two_runs_that_are_alike_show_a_large_difference_and_not_a_small_one(
    value: float, verdict: str, limit: str
) -> None:
    """99 and 101 vary by sqrt(2) %, with one degree of freedom; 3 % with four are added: 2.76 % with five."""
    base, new = ([make_step(value, 1e-4, 50) for value in side] for side in ((99, 101), (value,)))
    between = measure_run_variance([each.mean for each in base], [each.mean for each in new])
    assert between is not None and between.is_assumed
    error = between.estimate_error(100, 2, 100)
    assert error.degrees_of_freedom == 5 and error.variance == pytest.approx((2 + 4 * 9) / 5 / 2)
    row = compare_time(base, new, num_rows=1, limit_ratio=0.03, step_ns=100)
    assert row.verdict == verdict and judge_limit(row, 0.03) == limit
    enough = measure_run_variance([each.mean for each in (*base, *base)])
    assert enough is not None and not enough.is_assumed  # three degrees of freedom


def test_steps_that_vary_more_than_runs_keep_their_own_error() -> None:
    base = [make_step(100, 25, 50), make_step(100.001, 25, 50)]
    alone = compare_time(base[:1], base[:1], num_rows=1, limit_ratio=0.03, step_ns=100).mean
    two = compare_time(base, base, num_rows=1, limit_ratio=0.03, step_ns=100).mean
    assert alone.high_ratio is not None and two.high_ratio is not None
    assert two.high_ratio - 1 == pytest.approx((alone.high_ratio - 1) / math.sqrt(2), rel=0.1)


@pytest.mark.parametrize(
    ("difference", "reach", "verdict"),
    [(4, 3, "worse"), (-4, 3, "better"), (1, 2, "no difference"), (1, 2.5, "inconclusive"), (9, None, "inconclusive")],
)
def test_a_verdict_is_where_the_interval_lies(difference: float, reach: float | None, verdict: str) -> None:
    assert judge(difference, reach, 3) == verdict


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12), st.integers(-(10**9), 10**9))
def test_whole_parts_sum_to_any_total_and_are_as_near_as_that_allows(values: list[float], total: int) -> None:
    assert sum(allocate(values, total)) == total
    near = allocate(values, round(math.fsum(values)))
    assert max(abs(part - value) for part, value in zip(near, values, strict=True)) <= 1 + 1e-6
    assert allocate([0.5, 0.7, -1.2], 0) == [0, 1, -1]


@given(st.lists(st.floats(1e3, 1e8), min_size=7, max_size=7), st.integers(0, 99))
def test_where_the_difference_went_sums_to_the_difference_of_the_steps(times: list[float], seed: int) -> None:
    changed = {name: ns * np.ones((2, 12)) for name, ns in zip(USUAL_NS, times, strict=True)}
    base, new = measure(make_noisy_run(seed)), measure(make_run(num_steps=12, host_ns=changed))
    parts = make_waterfall([base], [new])
    assert sum(part.difference_ns for part in parts) == round(new.step.mean.value_ns) - round(base.step.mean.value_ns)
    assert all(abs(part.difference_ns - (part.new_ns - part.base_ns)) <= 2 for part in parts)


def test_what_the_phases_do_not_add_up_to_is_a_part_of_its_own() -> None:
    base = measure(make_noisy_run(1))
    short = structs.replace(base, figures=tuple(item for item in base.figures if item.name != "backward"))
    parts = {part.name: part for part in make_waterfall([base], [short])}
    assert parts["in no phase"].difference_ns == pytest.approx(-parts["backward"].difference_ns, abs=2)
    assert not make_waterfall([base], [structs.replace(base, figures=base.figures[:1])])


def test_a_longer_phase_is_named_with_what_it_adds() -> None:
    report = compare_sides([measure(make_noisy_run(1))], [measure(make_noisy_run(2, forward=1.2))])
    different = {(row.scope, row.name): row.verdict for row in report.rows if row.verdict in ("better", "worse")}
    assert different[("phase", "forward")] == report.step.verdict == "worse" and ("phase", "backward") not in different
    forward = max(report.waterfall, key=lambda part: part.difference_ns)
    assert forward.name == "forward" and forward.difference_ns == pytest.approx(4 * MS, rel=0.05)
    assert report.runs_vary_ratio is None and report.limit == "over"


def test_a_rare_long_step_hides_no_difference_of_the_usual_one() -> None:
    def stall(seed: int, forward: float) -> Run:
        more_ns = np.where(np.arange(STEPS) % 13 == 5, 900 * MS, 0)
        draws = np.random.default_rng(seed)
        times = {name: np.asarray(ns) * draws.normal(1, 0.01, (2, STEPS)) for name, ns in USUAL_NS.items()}
        return make_run(num_steps=STEPS, host_ns={**times, "forward": times["forward"] * forward + more_ns})

    step = compare_sides([measure(stall(1, 1.0))], [measure(stall(2, 1.3))]).step
    assert step.mean.verdict == "inconclusive" and step.usual is not None
    assert step.usual.verdict == step.verdict == "worse" and step.usual.ratio == pytest.approx(1.06, abs=0.01)


def test_ranks_are_matched_by_their_coordinates_where_all_have_some() -> None:
    def place(run: Run, pairs: tuple[tuple[int, int], ...]) -> Run:
        tp = tuple(RankGroup(name="mesh_tp", ranks=ranks) for ranks in pairs)
        dp = tuple(RankGroup(name="mesh_dp", ranks=ranks) for ranks in zip(*pairs, strict=True))
        return structs.replace(run, meta=structs.replace(run.meta, groups=(*tp, *dp)))

    own_ns = {**USUAL_NS, "forward": np.array([[20.0], [30.0], [20.0], [20.0]]) * MS}
    base = measure(place(make_run(num_ranks=4, num_steps=STEPS, host_ns=own_ns), ((0, 1), (2, 3))))
    own_ns["forward"] = np.array([[20.0], [20.0], [30.0], [20.0]]) * MS
    new = measure(place(make_run(num_ranks=4, num_steps=STEPS, host_ns=own_ns), ((0, 2), (1, 3))))
    rows = [row for row in compare_sides([base], [new]).rows if row.scope == "rank" and row.name == "forward"]
    assert {row.place for row in rows} == {"dp 0, tp 0", "dp 0, tp 1", "dp 1, tp 0", "dp 1, tp 1"}
    assert all(row.mean.difference_ns == 0 for row in rows)


def test_what_changed_is_listed_by_dotted_key_and_places_are_left_out() -> None:
    base, new = (
        make_noisy_run(1, meta={"config": config, "versions": {"torch": version}})
        for config, version in (({"train": {"batch": 2, "old": 1}, "run_dir": "a"}, "2.12"),
                                ({"train": {"batch": 4}, "run_dir": "b"}, "2.13"))
    )  # fmt: skip
    changes = {(item.group, item.key): (item.old, item.new) for item in
               compare_sides([measure(base)], [measure(new)]).changes}  # fmt: skip
    assert changes == {
        ("configuration", "train.batch"): ("2", "4"), ("configuration", "train.old"): ("1", None),
        ("versions", "torch"): ("2.12", "2.13"),
    }  # fmt: skip
    assert dict(flatten({"a": {"b": {}, "c": None}, "d": [1]})) == {"a.b": "{}", "a.c": "null", "d": "[1]"}


def test_two_sweeps_are_compared_by_job() -> None:
    jobs = [{(("a", "1"),): measure(make_noisy_run(seed)), (("a", "2"),): measure(make_noisy_run(seed + 1))}
            for seed in (1, 3)]  # fmt: skip
    first, second = (measure_sweep("sweep", "", each, complete=True) for each in jobs)
    report = compare_sides([first], [second])
    assert [row.name for row in report.rows] == ["a=1", "a=2"] and report.step.verdict == "no difference"
    assert first.step.mean.value_ns == pytest.approx(np.mean([each.step.mean.value_ns for each in jobs[0].values()]))

    other = measure_sweep("other", "", {(("a", "3"),): measure(make_noisy_run(1))}, complete=True)
    for side in (other, measure(make_noisy_run(1))):
        with pytest.raises(ValueError, match="same jobs"):
            compare_sides([first], [side])


def test_a_phase_that_one_side_has_is_noted_and_counts_where_the_difference_went() -> None:
    base = measure(make_run(num_steps=STEPS))
    new = measure(make_run(num_steps=STEPS, host_ns={**USUAL_NS, "all_gather": 30 * MS}))
    report = compare_sides([base], [new])
    assert report.notes == ("1 of the phase times are of some runs only, and are not compared",)
    assert sum(part.difference_ns for part in report.waterfall) == 30 * MS


def test_a_run_of_which_a_rank_ended_early_is_not_complete() -> None:
    whole = measure(make_noisy_run(1))
    early = measure(make_noisy_run(2, infos={1: {"ended": None}}))
    assert whole.complete and not early.complete
    report = compare_sides([whole], [early])
    assert not report.complete and report.notes == ("synthetic: has ended early on rank 1, or still runs",)


def test_clocks_are_not_compared_with_each_other() -> None:
    host = measure(make_noisy_run(1))
    device = structs.replace(host, figures=(structs.replace(host.step, clock="device"), *host.figures[1:]))
    with pytest.raises(ValueError, match="different clocks"):
        compare_sides([host], [device])


def test_a_figure_knows_the_autocorrelation_of_its_steps() -> None:
    draws = np.random.default_rng(5)
    drifting = np.zeros(400)
    for step in range(1, 400):
        drifting[step] = 0.8 * drifting[step - 1] + draws.normal()
    found = make_figure("step", "step", "host", 100 + drifting).mean
    assert found.autocorrelation == pytest.approx(0.8, abs=0.1)
    assert found.variance_ns2 == pytest.approx(25 / 400, rel=0.6)  # 1 / (1 - 0.8)^2, over the steps
    single = make_figure("step", "step", "host", np.array([5.0]))
    assert single.mean == make_average(5.0, None) and single.usual is None


def test_waits_and_transfers_are_told_apart_and_add_up() -> None:
    from benchmarks.simulate import Delay, SimulatedJob, simulate
    from distprof.facts.run import Phase

    job = SimulatedJob(num_ranks=4, num_steps=20, jitter_ratio=0.0)
    slow = structs.replace(job, delays=(Delay(rank=1, phase=Phase.FORWARD, delay_ns=20 * MS),))
    base, new = (measure(simulate(each, seed=0, truth=False).run) for each in (job, slow))
    parts = {part.name: part.difference_ns for part in make_waterfall([base], [new])}
    assert parts["forward"] == pytest.approx(5 * MS, rel=0.01)  # of one rank of four
    assert parts[WAITS] == pytest.approx(15 * MS, rel=0.01) and abs(parts.get(TRANSFERS, 0)) < MS / 10


def test_simulated_pairs_of_the_same_do_not_differ_and_small_changes_are_found() -> None:
    noise = "steps like their neighbours"
    assert not any(play_pair(noise, 1.0, seed).anything for seed in range(6))
    assert all(play_pair(noise, 1.03, seed).phase == "worse" for seed in range(3))
    assert all(play_pair(noise, 1.015, seed).phase == "worse" for seed in range(3))


def test_modules_and_kernels_are_compared_per_step_and_kernels_only_where_runs_are_several() -> None:
    def make(seed: int, mlp_ms: float, gemm_ns: int) -> RunFigures:
        noise = np.random.default_rng(seed)
        tables = tuple(
            make_table(rank, forward_ms={"blocks.0.mlp": mlp_ms}, noise=noise, num_steps=20) for rank in (0, 1)
        )
        summary = make_activity(0, kernels=(make_kernel("gemm", gemm_ns),), num_steps=4)
        return measure(structs.replace(make_noisy_run(seed), modules=tables, activity=(summary,)))

    base, new = ([make(seed, ms, round(ns)) for seed, ms, ns in runs] for runs in (
        [(1, 0, 40 * MS), (2, 0, 41 * MS), (3, 0, 39 * MS)], [(4, 6, 80 * MS), (5, 6, 81 * MS), (6, 6, 79 * MS)],
    ))  # fmt: skip
    (one,) = [row for row in compare_sides(base[:1], new[:1]).rows if row.scope == "kernel"]
    (several,) = [row for row in compare_sides(base, new).rows if row.scope == "kernel"]
    assert (one.mean.base_ns, one.mean.new_ns, one.mean.low_ratio, one.verdict) == (10e6, 20e6, None, "inconclusive")
    assert several.mean.ratio == 2 and several.verdict == "worse"
    modules = {row.name: row for row in compare_sides(base[:1], new[:1]).rows if row.scope == "module"}
    assert modules["blocks.0.mlp"].verdict == "worse" and modules["blocks.1.mlp"].verdict != "worse"
    assert modules["blocks.0.mlp"].mean.difference_ns == pytest.approx(6 * MS, rel=0.2) and "the model" in modules
