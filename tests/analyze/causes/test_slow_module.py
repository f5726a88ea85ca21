"""Which module is slow on the rank that is late: made-up profiles whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.analyze.causes.slow_module import find_slow_module
from distprof.facts.modules import ModuleTable
from distprof.report.wait_report import Verdict, VerdictKind
from tests.factories import MS
from tests.made_causes import make_cause, make_verdict
from tests.made_modules import NAMES, make_module_run, make_table

LATE_MS = 20


def blame(phase: str = "forward", late_ms: float = LATE_MS, **changes: Any) -> Verdict:
    return make_verdict(make_cause(VerdictKind.SLOW_RANK, 20, rank=2, phase=phase, late_ns=late_ms * MS), **changes)


def make_tables(num_ranks: int = 4, *, seed: int = 0, **late: Any) -> list[ModuleTable]:
    """Ranks with noise, of which rank 2 is late."""
    noise = np.random.default_rng(seed)
    return [make_table(rank, noise=noise, **(late if rank == 2 else {})) for rank in range(num_ranks)]


@pytest.mark.parametrize("name", ["blocks.1.mlp", "blocks.1", "head", "embedding"])
@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_the_deepest_module_that_explains_it_is_named(name: str, stage: str) -> None:
    found = find_slow_module(make_tables(**{f"{stage}_ms": {name: LATE_MS}}), blame(stage))
    assert found is not None and found.name == name and found.steps_used == 5
    assert found.share_ratio > 0.9 and found.rank_ns - found.others_ns == pytest.approx(LATE_MS * MS, rel=0.1)


def test_two_ranks_are_enough() -> None:
    tables = [make_table(0), make_table(2, forward_ms={"blocks.0.mlp": 20})]
    found = find_slow_module(tables, blame())
    assert found is not None and found.name == "blocks.0.mlp"
    assert (found.rank_ns, found.others_ns, found.share_ratio) == (26 * MS, 6 * MS, 1.0)


def test_a_module_whose_submodules_share_the_delay_is_named_itself() -> None:
    late = {"blocks.1.mlp": 11, "blocks.1.attention": 9}
    found = find_slow_module(make_tables(forward_ms=late), blame())
    assert found is not None and found.name == "blocks.1"


def test_what_backward_repeats_of_forward_is_backward() -> None:
    tables = make_tables()
    again_ns = np.zeros((len(NAMES), 5))
    for row in (NAMES.index("blocks.0.mlp"), 3, 2, 0):
        again_ns[row] = LATE_MS * MS
    tables[2] = make_table(2, recomputed_ns=again_ns)
    found = find_slow_module(tables, blame("backward"))
    assert found is not None and found.name == "blocks.0.mlp"


SILENT: dict[str, tuple[list[ModuleTable], Verdict]] = {
    "another phase": (make_tables(forward_ms={"head": 20}), blame("data")),
    "the other stage": (make_tables(forward_ms={"head": 20}), blame("backward")),
    "explains too little": (make_tables(forward_ms={"head": 9}), blame()),
    "two explain it together": (make_tables(forward_ms={"head": 9, "embedding": 9}), blame()),
    "in one step of five": (make_tables(forward_ms={"head": [0, 0, 80, 0, 0]}), blame()),
    "by chance": (make_tables(forward_ms={"head": [0, 60, 5, 45, 1]}), blame(late_ms=10)),
    "three timed steps": ([make_table(0, num_steps=3), make_table(2, num_steps=3, forward_ms={"head": 20})], blame()),
    "one rank": ([make_table(2, forward_ms={"head": 20})], blame()),
    "no profile of the rank": ([make_table(0), make_table(1)], blame()),
    "stalls": (make_tables(forward_ms={"head": 20}), blame(kind=VerdictKind.STALLS)),
    "a host": (make_tables(forward_ms={"head": 20}), blame(kind=VerdictKind.SLOW_HOST, rank=None)),
    "nothing": (make_tables(), make_verdict(None)),
    "other steps": ([make_table(0, timed_steps=(1, 2, 3, 4, 5)), make_table(2, forward_ms={"head": 20})], blame()),
}


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT)
def test_otherwise_nothing_is_said(case: tuple[list[ModuleTable], Verdict]) -> None:
    assert find_slow_module(*case) is None


def test_a_rank_that_is_slow_everywhere_has_no_slow_module() -> None:
    """Whatever the largest module is."""
    slow = {name: 0.3 * ms for name, ms in (("blocks.0.mlp", 6), ("blocks.1.mlp", 6), ("head", 3), ("embedding", 1))}
    slow |= {"blocks.0.attention": 1.2, "blocks.1.attention": 1.2}
    tables = make_tables(8, forward_ms=slow)
    assert find_slow_module(tables, blame(late_ms=7)) is None


def test_noise_names_nobody() -> None:
    """The rank is late where modules do not see it; of 200 profiles none names a module by chance."""
    found = [find_slow_module(make_tables(2 + seed % 4 + 1, seed=seed), blame(late_ms=0.4)) for seed in range(200)]
    assert [item for item in found if item is not None] == []


def test_another_model_on_some_rank_is_left_out() -> None:
    tables = make_tables(forward_ms={"head": LATE_MS})
    tables[1] = make_table(1, names=(*NAMES[:-1], "tail"), forward_ms={"head": 500})
    found = find_slow_module(tables, blame())
    assert found is not None and found.name == "head"


def test_the_report_of_a_run_says_it_only_if_the_verdict_names_a_rank() -> None:
    report = analyze(make_module_run([make_table(0), make_table(1, forward_ms={"head": 50})]))
    assert report.verdict.rank is None and report.verdict.module is None and report.modules is not None
