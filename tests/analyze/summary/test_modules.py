"""The ranks' modules side by side, by hand-computed numbers."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.facts.modules import MEMORY_KINDS, RankMemory
from distprof.report.job_modules import JobModule, JobModules
from distprof.report.module_report import ModuleFlops
from distprof.report.wait_report import Spread
from tests.factories import MS, make_run
from tests.made_modules import NAMES, make_module_run, make_table


def report(*tables: object) -> JobModules:
    found = analyze(make_module_run(tables)).modules  # type: ignore[arg-type]
    assert found is not None
    return found


def find(modules: JobModules, name: str) -> JobModule:
    return next(row for row in modules.rows if row.name == name)


def test_ranks_are_compared_module_by_module() -> None:
    late = {"head": [1, 9, 4, 4, 4]}
    found = report(make_table(0), make_table(1, forward_ms=late), make_table(2, forward_ms={"head": 2}))
    head = find(found, "head")
    assert (head.forward_ns.min, head.forward_ns.min_rank) == (3 * MS, 0)
    assert (head.forward_ns.max, head.forward_ns.max_rank) == (7 * MS, 1)  # its median over the steps
    assert head.forward_ns.median == 5 * MS and head.backward_ns.max == 6 * MS
    assert head.recomputed_ns.median is None
    assert head.flops == ModuleFlops(forward=6_000, backward=12_000)
    assert (head.parameters, head.held_parameters.max) == (30, 15)
    assert [row.name for row in found.rows] == list(NAMES) and found.ranks == (0, 1, 2) and found.timed_steps == 5
    assert found.notes == ()


def test_a_module_that_does_not_always_run_has_the_median_of_when_it_does() -> None:
    table = make_table(0)
    table.forward_ns[9] = [np.nan, 5e6, np.nan, 7e6, np.nan]
    table.backward_ns[9] = np.nan
    head = find(report(table, make_table(1)), "head")
    assert (head.forward_ns.max, head.forward_ns.max_rank) == (6 * MS, 0)
    assert (head.backward_ns.max_rank, head.backward_ns.min_rank) == (1, 1)


def test_it_is_said_what_looking_cost_in_steps_that_count_in_nothing_else() -> None:
    run = make_module_run()
    host_ns = run.column("step_host_ns")
    host_ns[:, 4], host_ns[:, 6:] = 300 * MS, 120 * MS
    host_ns[1, 6:] = 130 * MS
    found = analyze(run)
    assert found.modules is not None and found.coverage.steps_measured == 3
    times = (found.modules.usual_step_ns, found.modules.counted_step_ns, found.modules.step_ns)
    assert times == (100 * MS, 300 * MS, 130 * MS)
    assert found.headline.step_mean_ns == 100 * MS
    assert any("7 step(s) ran in the profiler's window" in note for note in found.coverage.notes)


def test_what_cannot_be_compared_is_said() -> None:
    other = make_table(1, kinds=("Other", *make_table(1).kinds[1:]))
    more = make_table(3, flops=((1, 1, 1),) * len(NAMES))
    found = report(make_table(0, notes=("compiled",)), other, make_table(2), more)
    assert found.ranks == (0, 2, 3)
    assert found.notes[0] == "compiled" and "rank 1: another model" in found.notes[1]
    assert found.notes[2] == "ranks count different FLOPs: those of rank 0 are shown"
    crowd = report(*(make_table(rank, notes=(f"{rank} times",)) for rank in range(30)))
    assert len(crowd.notes) == 21 and crowd.notes[-1] == "10 more notes of ranks are left out"


@pytest.mark.parametrize("counted", [None, 4])
def test_work_that_was_not_counted_is_not_zero(counted: int | None) -> None:
    found = report(make_table(0, counted_step=counted), make_table(1))
    assert (found.rows[0].flops is None) == (found.outside_flops is None) == (counted is None)


def test_without_timed_steps_there_is_no_time() -> None:
    found = report(make_table(0, num_steps=0), make_table(1, num_steps=0))
    assert found.rows[0].forward_ns.median is None and found.step_ns is None and found.timed_steps == 0


def make_memory(**kinds: int | None) -> RankMemory:
    usual: dict[str, int | None] = dict.fromkeys(MEMORY_KINDS, 100)
    return RankMemory(**{**usual, **kinds})


def test_memory_is_compared_by_kind_and_what_is_not_known_is_not_zero() -> None:
    predicted = make_memory(communication=None)
    found = report(
        make_table(0, memory=make_memory(gradients=None), predicted_memory=predicted, peak_bytes=900),
        make_table(1, memory=make_memory(activations=250, communication=0), peak_bytes=900),
        make_table(2, memory=make_memory(activations=150), peak_bytes=600),
    )  # fmt: skip
    kinds = {each.kind: each for each in found.memory}
    assert list(kinds) == [*MEMORY_KINDS, "rest", "peak"]
    activations = kinds["activations"].measured_bytes
    assert (activations.median, activations.min, activations.max, activations.max_rank) == (150, 100, 250, 1)
    assert kinds["gradients"].measured_bytes == Spread(median=100, min=100, min_rank=1, max=100, max_rank=1)
    assert kinds["communication"].measured_bytes.min == 0 and kinds["communication"].predicted_bytes.max is None
    assert (kinds["parameters"].predicted_bytes.max, kinds["parameters"].predicted_bytes.max_rank) == (100, 0)
    rest = kinds["rest"].measured_bytes  # rank 0: a kind is missing; rank 2: more than there was at any time
    assert (rest.min, rest.max, rest.max_rank) == (250, 250, 1) and kinds["peak"].measured_bytes.min == 600
    assert report(make_table(0)).memory == ()


def test_a_run_without_profiles_has_none() -> None:
    assert analyze(make_run()).modules is None
