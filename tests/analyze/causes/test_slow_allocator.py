"""A rank that is late when the allocator of its GPU asks the driver for memory: by hand, and when nothing is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.scheduling import SCHEDULING
from distprof.render.sections.sections import ALLOCATOR_HEADS, list_rank_sections
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.report.report import Report
from distprof.report.wait_report import VerdictKind
from tests.analyze.causes.test_off_cpu import NUM_STEPS, make_job
from tests.factories import MS

NONE = {"driver_allocations": 0, "cache_flushes": 0}
FLUSH_NS = 8 * MS


def judge(*changes: dict[str, Any], late_ns: Any) -> Report:
    report = analyze(make_job(*changes, late_ns=late_ns))
    assert report.verdict.kind in (VerdictKind.SLOW_RANK, VerdictKind.STALLS) and report.verdict.rank == 1
    return report


def test_a_rank_that_waits_for_its_allocator_by_hand() -> None:
    flushes = 2 + 2 * (np.arange(NUM_STEPS) // 9 % 2)
    own = {"driver_allocations": 2 * flushes, "cache_flushes": flushes}
    report = judge(NONE, own, {**NONE, "driver_allocations": 0.5}, late_ns=FLUSH_NS * flushes)
    found = report.verdict.allocator
    assert found is not None and found.others_allocations == pytest.approx(0.25)
    assert found.flushes == pytest.approx(flushes.mean(), rel=0.05)
    assert found.allocations == pytest.approx(2 * found.flushes) and found.explained_ratio == pytest.approx(1, abs=0.1)
    exact = structs.replace(found, allocations=6.0, flushes=3.0, explained_ratio=0.9)
    report = structs.replace(report, verdict=structs.replace(report.verdict, allocator=exact))
    assert (
        "The allocator of rank 1's GPU asks the driver for memory 6 times a step (the others': 0.25), 3 of them after "
        "giving back all that it had cached; 90.0 % of the lateness goes with it"
    ) in describe_verdict(report)
    assert "expandable_segments:True, or let rank 1 use less memory" in describe_next(report)
    shown = {column.head: column.cells for column in list_rank_sections(report)[0].columns}
    assert shown["flushes"][shown["rank"].index("1")] == f"{report.ranks[1].scheduling.cache_flushes:.3g}"  # type: ignore[union-attr]


CASES = ("flushes", "allocations", "late alone", "steady", "little", "others too", "not read")


def draw_case(seed: int) -> tuple[str, Report]:
    """One random job in which rank 1 is late, and what is true of its allocator."""
    random, case = np.random.default_rng(seed), CASES[seed % len(CASES) if seed % 2 else seed // 2 % 2]
    own = (
        random.poisson(random.uniform(1, 4), NUM_STEPS)
        * random.choice([0, 1, 2], NUM_STEPS // 11 + 1).repeat(11)[:NUM_STEPS]
    )
    late_ns = random.uniform(4, 12) * MS * own + random.normal(0, 2 * MS, NUM_STEPS) + 2 * MS
    counters: dict[str, Any] = {"driver_allocations": own, "cache_flushes": own if case == "flushes" else 0}
    others: dict[str, Any] = NONE
    if case == "late alone":
        late_ns = random.permutation(late_ns.reshape(-1, 11), axis=0).ravel()
    elif case == "steady":
        counters = dict.fromkeys(counters, 2.0)
    elif case == "little":
        late_ns = late_ns / 8 + 25 * MS
    elif case == "others too":
        others = {"driver_allocations": own, "cache_flushes": own}
    elif case == "not read":
        counters = {}
    return case, judge(others, counters, others, others, late_ns=late_ns)


def test_of_random_jobs_those_that_wait_for_their_allocator_are_said_to_and_no_others() -> None:
    said: dict[str, list[bool]] = {}
    for seed in range(160):
        case, report = draw_case(seed)
        said.setdefault(case, []).append(report.verdict.allocator is not None)
    named = said.pop("flushes") + said.pop("allocations")
    assert sum(named) >= 0.95 * len(named) and len(named) >= 80
    assert {case: sum(each) for case, each in said.items()} == dict.fromkeys(CASES[2:], 0)


def test_a_rank_of_which_nothing_was_read_has_no_numbers() -> None:
    report = judge({}, NONE, {**NONE, "driver_allocations": 2}, late_ns=12 * MS)
    shown = {column.head: column.cells for column in list_rank_sections(report)[0].columns}
    assert {*shown["driver alloc."]} == {"n/a", "0", "2"}


def test_counters_that_were_set_back_are_no_window() -> None:
    flushes = 2 + 2 * (np.arange(NUM_STEPS) // 9 % 2)
    own = {"driver_allocations": 2 * flushes, "cache_flushes": flushes}
    run = make_job(NONE, own, NONE, late_ns=FLUSH_NS * flushes)
    for name in ("driver_allocations", "cache_flushes"):
        run.scheduling[1][8:, SCHEDULING[name]] -= run.scheduling[1][7, SCHEDULING[name]]
    found = analyze(run).verdict.allocator
    assert found is not None and found.flushes == pytest.approx(flushes.mean(), rel=0.1)


def test_an_allocator_that_seldom_asks_takes_no_columns() -> None:
    report = judge({**NONE, "driver_allocations": 0.02}, NONE, NONE, late_ns=12 * MS)
    assert not {column.head for column in list_rank_sections(report)[0].columns} & {*ALLOCATOR_HEADS}
