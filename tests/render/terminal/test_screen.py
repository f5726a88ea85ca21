"""The report on one screen: 24 lines of 80 columns answer a stranger's ten questions, each with one number."""

from __future__ import annotations

import functools
import io
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from rich.console import Console

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.summary.phases import PARTS
from distprof.facts.run import Phase
from distprof.render.summary.screen import list_basis, list_parts, merge_small, show_causes
from distprof.render.terminal.screen import SCREEN_LINES, name_command, render_screen
from distprof.report.report import Report
from distprof.report.wait_report import Cause, VerdictKind
from tests.factories import MS, make_run
from tests.made_causes import make_cause, make_report

FOLDER = "runs/2026-01-31_12-00-00_gpt2_small_ddp"
FILES = ("report.html", "report.json", "trace.json.gz")


def show(report: Report, width: int = 80, *, folder: str | None = FOLDER) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    render_screen(report, console, names=FILES, folder=folder, again=name_command(Path(FOLDER)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@functools.cache
def simulate_report(num_ranks: int, late: bool, strategy: str = "ddp") -> Report:
    delays = (Delay(rank=num_ranks // 2, phase=Phase.FORWARD, delay_ns=41 * MS),) if late else ()
    job = SimulatedJob(
        num_ranks=num_ranks, ranks_per_host=min(8, num_ranks), num_steps=30, delays=delays,
        strategy=strategy,  # type: ignore[arg-type]
    )  # fmt: skip
    return analyze(simulate(job, seed=1, truth=False).run)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(("num_ranks", "late"), [(1, False), (2, True), (8, False), (8, True), (64, True)])
def test_the_main_jobs_report_fits_one_screen(num_ranks: int, late: bool, strategy: str, width: int) -> None:
    lines = show(simulate_report(num_ranks, late, strategy), width)
    assert len(lines) <= SCREEN_LINES == 24 and max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "\u2026" not in text and ("forward" in text) and "step time" in text


def test_a_strangers_ten_questions_are_answered() -> None:
    text = " ".join(" ".join(show(simulate_report(8, True))).split())
    for answer in (
        "rank 4 is 41.", "fixing it makes steps", "its compute (forward +", "next: compare rank 4's clock rates",
        "step time", "tokens/s", "intervals are 95 %", "ddp, 8 ranks", "measured 30 steps",
        f"files {', '.join(FILES)}", "recording n/a: too few shadow steps", f"distprof report {FOLDER} --details",
    ):  # fmt: skip
        assert answer in text, answer


def test_what_was_left_out_and_what_is_missing_is_said() -> None:
    text = "\n".join(show(make_report([make_cause(VerdictKind.JITTER, 3.0)])))
    assert re.search(r"measured +50 steps; left out: 10 warm-up; intervals are 95 %", text)
    report = simulate_report(8, True)
    many = structs.replace(report.coverage, steps_measured=7, notes=("first", "second", "third"))
    measured, note, _ = (fact.text for fact in list_basis(structs.replace(report, coverage=many)))
    assert measured == "7 steps; left out: 23 not recorded on every rank; intervals are 95 %"
    assert note == "first (and 2 more notes, with --details)"
    timed = structs.replace(report.coverage, steps_measured=7, steps_timed_alone=21)
    measured = next(fact.text for fact in list_basis(structs.replace(report, coverage=timed)))
    assert measured.startswith("7 steps, and of 21 more only the time; left out: 2 not recorded on every rank; ")
    coverage = structs.replace(report.coverage, ranks_missing=(3, 5), ranks_present=(0, 1, 2, 4, 6, 7))
    text = " ".join(" ".join(show(structs.replace(report, coverage=coverage))).split())
    assert "30 steps of 6 of 8 ranks (cut off: ranks 3, 5)" in text


def test_each_cost_in_the_sentence_is_the_one_in_the_table() -> None:
    late = make_cause(VerdictKind.SLOW_RANK, 12.0, rank=3)
    report = make_report([late, make_cause(VerdictKind.COMMUNICATION, 4.0, alone=4.2, cause=Cause.NETWORK, joint_ns=7)])
    lines = show(report)
    text = " ".join(" ".join(lines).split())
    assert (
        "steps 12 % shorter (11 to 13 %). One more cause costs 4.0 % of a step (3.6 to 4.4 %): communication." in text
    )
    assert next(line for line in lines if line.startswith("slow rank")).rstrip().endswith("12 % (11 to 13 %)")
    assert next(line for line in lines if line.startswith("communication")).rstrip().endswith("4.0 % (3.6 to 4.4 %)")
    assert "fix last" not in text


def test_the_cause_that_the_sentence_tells_of_has_a_row_however_little_it_costs() -> None:
    late = make_cause(VerdictKind.SLOW_RANK, 2.0, rank=3)
    large = [make_cause(kind, cost) for kind, cost in ((VerdictKind.COMMUNICATION, 30), (VerdictKind.JITTER, 20))]
    stalls = make_cause(VerdictKind.STALLS, 10.0, events=4)
    report = structs.replace(make_report([late]), causes=make_report([late, stalls, *large]).causes)
    for most, told in ((4, ["communication", "jitter", "4 stalls", "slow rank"]), (2, ["communication", "slow rank"])):
        (causes, *_) = show_causes(report, most).columns
        assert [*causes.cells] == told


def test_the_second_number_is_there_where_causes_hide_each_other() -> None:
    causes = [make_cause(VerdictKind.SLOW_RANK, 0.6, alone=13.0, rank=rank) for rank in (3, 5)]
    lines = show(make_report(causes))
    assert any(line.rstrip().endswith("fix only this  fix last") for line in lines)
    assert len([line for line in lines if line.startswith("slow rank") and line.rstrip().endswith(" 13 %")]) == 2


@pytest.mark.parametrize("most", [2, 3, 5, 9])
def test_small_phases_share_a_row_and_the_rows_add_up_to_the_step(most: int) -> None:
    report = simulate_report(8, True)
    rows = merge_small(list_parts(report), most)
    assert len(rows) <= most
    assert sum(row.share_ratio or 0 for row in rows) == pytest.approx(1, abs=1e-6)
    for position in range(8):
        (step,) = (step for step in report.steps if step.clock == report.headline.clock)
        assert sum(row.mean_ns[position] or 0 for row in rows) == pytest.approx(step.mean_ns[position])


def test_what_lies_between_steps_has_a_row_for_each_part_and_they_add_up_to_the_cycle() -> None:
    """Rank 0 evaluates for 20 ms before every step of 100 ms and 5 ms of its own; rank 1 waits for it."""
    columns = dict.fromkeys(PARTS.values(), 0.0) | {
        "evaluation_host_ns": [[20.0 * MS], [0]], "between_wait_host_ns": [[0], [20.0 * MS]],
        "begin_host_ns": 10**12 + np.arange(12) * 125.0 * MS,
    }  # fmt: skip
    report = analyze(make_run(num_steps=12, num_warmup=0, columns=columns))
    rows = list_parts(report)
    assert [row.name for row in rows[-3:]] == ["evaluation", "waits between steps", "between steps"]
    means = np.array([row.mean_ns for row in rows[-3:]], dtype=float)
    assert means == pytest.approx(np.array([[20, 0], [0, 20], [5, 5]]) * 11 / 12 * MS)
    assert sum(row.share_ratio or 0 for row in rows) == pytest.approx(1)
    text = "\n".join(show(report))
    assert re.search(r"evaluation +0 +9.17 +18.33 +rank 0 +7.5 %", text)


def test_a_phase_that_a_cause_names_keeps_its_row_however_small_it_is() -> None:
    delays = (Delay(rank=1, phase=Phase.DATA, delay_ns=9 * MS), Delay(rank=6, phase=Phase.BACKWARD, delay_ns=42 * MS))
    report = analyze(simulate(SimulatedJob(num_ranks=8, num_steps=30, delays=delays), seed=1, truth=False).run)
    parts = list_parts(report)
    assert [row.name for row in merge_small(parts, 3, {"data", "backward"})][:2] == ["data", "backward"]
    assert "data" not in [row.name for row in merge_small(parts, 3)]


def test_without_files_it_says_so() -> None:
    assert any(line.split() == ["files", "none", "written"] for line in show(simulate_report(1, False), folder=None))
