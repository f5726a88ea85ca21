"""Python's garbage collector, and torch.compile, as causes: by hand, and beside a rank that is slow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, Run
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.report.report import Report
from distprof.report.wait_report import VerdictKind
from tests.factories import MS, USUAL_NS, make_run

NUM_STEPS = 81


def make_job(
    collected_ns: FloatArray, *, late_ns: float = 0.0, known: bool = True, phase: str = "forward", how: str = "gc"
) -> Run:
    """Ranks that collect, or compile, in a phase, rank 0 late in backward too, and wait for the last one in all_reduce.

    Args:
        collected_ns: How long each rank's collections take, ``[num_ranks, num_steps]``.
        late_ns: Of rank 0.
        known: False: a recording without collections.
        phase: In which ranks collect.
        how: "gc" or "compile".
    """
    draws = np.random.default_rng(3)
    noise_ns = draws.normal(0, 0.1 * MS, collected_ns.shape)
    late = np.zeros_like(collected_ns)
    late[0] = late_ns
    own_ns = {name: np.broadcast_to(np.float64(ns), collected_ns.shape) for name, ns in USUAL_NS.items()}
    own_ns[phase] = own_ns[phase] + collected_ns + noise_ns
    own_ns["backward"] = own_ns["backward"] + late
    behind_ns = collected_ns + noise_ns
    if phase == "optimizer":  # what follows the last wait makes a rank late for the next one
        behind_ns = np.roll(behind_ns, 1, axis=1)
    behind_ns = behind_ns + late
    own_ns["all_reduce"] = own_ns["all_reduce"] + behind_ns.max(axis=0) - behind_ns
    columns: dict[str, Any] = {name: 0.0 for name in COLUMN if "_gc_" in name or "_compile_" in name}
    columns[f"{phase}_{how}_host_ns"] = collected_ns
    return make_run(
        num_ranks=len(collected_ns), num_steps=NUM_STEPS, host_ns=own_ns, columns=columns if known else None
    )


def collect_in_turn(num_ranks: int, *, every: int = 2, long_ns: float = 10 * MS) -> FloatArray:
    """In every so many steps one rank collects, another each time."""
    collected_ns = np.zeros((num_ranks, NUM_STEPS))
    for turn, step in enumerate(range(0, NUM_STEPS, every)):
        collected_ns[turn % num_ranks, step] = long_ns
    return collected_ns


def list_kinds(report: Report) -> list[VerdictKind]:
    assert report.causes is not None
    return [cause.kind for cause in report.causes.causes]


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_ranks_that_collect_in_turn_by_hand(phase: str) -> None:
    """20 ms in every second step of 100 ms, 40 of the 80 measured ones: 10 of 110 ms, less what the others
    are late by in those steps anyway."""
    report = analyze(make_job(collect_in_turn(4, long_ns=20 * MS), phase=phase))
    verdict = report.verdict
    assert (verdict.kind, verdict.rank, verdict.phase) == (VerdictKind.GARBAGE_COLLECTION, None, phase)
    assert verdict.lost_ratio is not None
    assert verdict.lost_ratio.value == pytest.approx(10 / 110, rel=0.02)
    assert verdict.lost_ratio.low > 0
    assert verdict.held_ratio == pytest.approx(0.5)
    sentence = describe_verdict(report)
    assert "Python's garbage collector stops one rank or another in 50.0 % of the steps" in sentence
    assert "without collections steps would be 9.0 % shorter" in sentence
    assert "gc.freeze()" in describe_next(report)
    assert any(item.change == "without collections of Python's garbage collector" for item in report.what_if)


@pytest.mark.parametrize("phase", ["forward", "optimizer"])
def test_a_rank_that_compiles_now_and_then_by_hand(phase: str) -> None:
    """One rank compiles for 200 ms in 8 of 80 steps of 100 ms: 20 of 120 ms."""
    compiled_ns = np.zeros((2, NUM_STEPS))
    compiled_ns[1, 5::10] = 200 * MS
    report = analyze(make_job(compiled_ns, phase=phase, how="compile"))
    verdict = report.verdict
    assert (verdict.kind, verdict.rank, verdict.phase) == (VerdictKind.RECOMPILATION, None, phase)
    assert verdict.lost_ratio is not None
    assert verdict.lost_ratio.value == pytest.approx(20 / 120, rel=0.02)
    assert verdict.held_ratio == pytest.approx(0.1)
    sentence = describe_verdict(report)
    assert "ompiling (torch.compile) stops one rank or another in 10.0 % of the steps, and the others wait" in sentence
    assert "TORCH_LOGS=recompiles" in describe_next(report)
    assert any(item.change == "without compilations" for item in report.what_if)
    assert not {VerdictKind.STALLS, VerdictKind.SLOW_RANK} & {*list_kinds(report)}


def test_compilations_and_collections_are_two_causes() -> None:
    compiled_ns = np.zeros((4, NUM_STEPS))
    compiled_ns[1, 5::10] = 200 * MS
    run, both = make_job(compiled_ns, how="compile"), compiled_ns + (collected_ns := collect_in_turn(4))
    rows = make_job(both, how="compile").rows
    rows[:, :, COLUMN["forward_compile_host_ns"]], rows[:, :, COLUMN["forward_gc_host_ns"]] = compiled_ns, collected_ns
    kinds = list_kinds(analyze(structs.replace(run, rows=rows)))
    assert kinds[:2] == [VerdictKind.RECOMPILATION, VerdictKind.GARBAGE_COLLECTION]


def test_collecting_on_all_ranks_in_the_same_steps_costs_less() -> None:
    """As much is collected on every rank, and each step waits once: 10 ms in every eighth step of 100 ms."""
    together = np.zeros((4, NUM_STEPS))
    together[:, ::8] = 10 * MS
    report = analyze(make_job(together))
    cause = next(item for item in report.causes.causes if item.kind is VerdictKind.GARBAGE_COLLECTION)  # type: ignore[union-attr]
    assert cause.saved_if_only_this_ratio.value == pytest.approx(1.25 / 101.25, rel=0.03)


def test_without_a_recording_of_it_no_collector_is_named() -> None:
    report = analyze(make_job(collect_in_turn(4), known=False))
    assert VerdictKind.GARBAGE_COLLECTION not in list_kinds(report)


def test_little_is_no_cause() -> None:
    report = analyze(make_job(collect_in_turn(4, long_ns=0.5 * MS)))
    assert VerdictKind.GARBAGE_COLLECTION not in list_kinds(report)


def test_a_rank_that_only_collects_is_not_called_slow_and_a_slow_one_is() -> None:
    alone = np.zeros((4, NUM_STEPS))
    alone[2, ::2] = 10 * MS
    assert [kind for kind in list_kinds(analyze(make_job(alone))) if kind is not VerdictKind.COMMUNICATION] == [
        VerdictKind.GARBAGE_COLLECTION
    ]
    report = analyze(make_job(collect_in_turn(4), late_ns=12 * MS))
    assert (report.verdict.kind, report.verdict.rank, report.verdict.phase) == (VerdictKind.SLOW_RANK, 0, "backward")
    assert VerdictKind.GARBAGE_COLLECTION in list_kinds(report)
