"""The verdict as a sentence, and the tables behind it."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from msgspec import structs
from rich.cells import cell_len
from rich.console import Console

from benchmarks.simulate import Clocks, Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.facts.run import Phase
from distprof.render.html.html import render_html
from distprof.render.sections.cause_words import CAUSES
from distprof.render.sections.verdict import describe_verdict, list_what_ifs
from distprof.render.summary.next_step import describe_next
from distprof.render.terminal.terminal import render_terminal
from distprof.render.units import format_time
from distprof.report.report import Report
from distprof.report.wait_report import Cause, Estimate
from tests.factories import USUAL_NS, make_run

MS = 1_000_000
WITHOUT_DATA = {phase: ns for phase, ns in USUAL_NS.items() if phase != "data"}


def report_on(job: SimulatedJob) -> Report:
    return analyze(simulate(job, seed=3).run)


LATE = report_on(SimulatedJob(num_ranks=4, delays=(Delay(rank=2, phase=Phase.DATA, delay_ns=41 * MS),)))
UNSTEADY = report_on(SimulatedJob(delays=(Delay(rank=2, phase=Phase.FORWARD, delay_ns=41 * MS, share_ratio=0.3),)))
LINK = report_on(
    SimulatedJob(
        num_ranks=8, ranks_per_host=4, slow_hosts={1: 1000}, link_bytes_per_s=20e9,
        clocks=Clocks(offset_ns=3e9, drift_ratio=50e-6, bound_ns=30_000),
    )
)  # fmt: skip
SHARDED = report_on(
    SimulatedJob(strategy="fsdp", num_ranks=4, delays=(Delay(rank=2, phase=Phase.OPTIMIZER, delay_ns=41 * MS),))
)
REASON = LINK.verdict.reason
QUIET = report_on(SimulatedJob())
ROTATING = report_on(SimulatedJob(delays=(Delay(rank=None, phase=Phase.FORWARD, delay_ns=41 * MS),)))


def test_a_tired_person_reads_who_why_and_what_it_buys() -> None:
    lost = Estimate(value=0.19, low=0.17, high=0.21)
    verdict = structs.replace(LATE.verdict, late_ns=41.0 * MS, waited_ns=118.0 * MS, lost_ratio=lost)
    assert describe_verdict(structs.replace(LATE, verdict=verdict, causes=None)) == (
        "critical: rank 2 is 41.0 ms late in every step: its input pipeline (data +41.0 ms); the other 3 wait 118.0 ms "
        "per step together; fixing it makes steps 19 % shorter (17 to 21 %)"
    )


def test_a_rank_that_is_late_in_every_second_step_is_not_late_in_every_one() -> None:
    """Where the noise hides the rhythm: on the whole it is late, and half of the steps say so by chance only."""
    first, *rest = LATE.verdict.evidence
    assert first.label == "own time between waits"
    for agrees, often in ((0.75, "most steps"), (0.85, "every step")):
        evidence = (structs.replace(first, agree_ratio=agrees), *rest)
        verdict = structs.replace(LATE.verdict, evidence=evidence)
        assert f" late in {often}: " in describe_verdict(structs.replace(LATE, verdict=verdict, causes=None))


def test_doubt_is_told_from_the_verdict_and_not_from_its_words() -> None:
    """Whatever the reason says: that the others' waits confirm the rank is a fact of its own."""
    verdict = structs.replace(LATE.verdict, reason="in other words, the others wait for it")
    assert LATE.verdict.confirmed and "in other words" not in describe_verdict(structs.replace(LATE, verdict=verdict))
    doubtful = structs.replace(LATE.verdict, confirmed=False)
    assert f" ({LATE.verdict.reason}). One more " in describe_verdict(structs.replace(LATE, verdict=doubtful))


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_is_worded(cause: Cause) -> None:
    verdict = structs.replace(LATE.verdict, cause=cause)
    assert f": {CAUSES[cause]} (" in describe_verdict(structs.replace(LATE, verdict=verdict))


def test_now_and_then_is_said_as_such() -> None:
    assert "rank 2 is 40.9 ms late in 30.6 % of the steps: its compute (forward +41.0 ms)" in describe_verdict(UNSTEADY)


def test_of_two_ranks_the_other_waits_alone() -> None:
    two = report_on(SimulatedJob(num_ranks=2, delays=(Delay(rank=1, phase=Phase.OPTIMIZER, delay_ns=41 * MS),)))
    first = describe_verdict(two).partition(". ")[0]
    assert "; the other rank waits " in first and "together" not in first


def test_a_link_is_named_by_its_hosts() -> None:
    text = describe_verdict(LINK)
    assert text.startswith(f"critical: the link between host-0 and host-1 holds every rank up: {REASON}")
    assert f"; at its probed speed the link needs {format_time(LINK.verdict.needed_ns)} for one step's data; " in text
    assert re.search(r"; fixing it makes steps \d\d % shorter( \(\d\d to \d\d %\))?\. One more cause costs ", text)


def test_nobody_is_said_in_so_many_words() -> None:
    assert describe_verdict(QUIET).startswith("no straggler: no rank is slower")
    assert describe_verdict(ROTATING).startswith("no single straggler: a different rank is last at each step; waiting")
    doubt = structs.replace(ROTATING.verdict, reason="rank 1 is waited for: but why is not known")
    said = describe_verdict(structs.replace(ROTATING, verdict=doubt))
    assert said.startswith("no certain straggler: rank 1 is waited for: but why is not known; waiting for whichever")
    assert describe_verdict(analyze(make_run(num_ranks=1, host_ns=WITHOUT_DATA))) == ""
    assert describe_verdict(analyze(make_run(num_ranks=2))).startswith("no verdict: 3 measured steps")


def show(report: Report, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    render_terminal(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("report", [LATE, UNSTEADY, LINK, SHARDED, QUIET], ids=range(5))
def test_the_verdict_comes_first_and_its_tables_fit(report: Report, width: int) -> None:
    text = show(report, width)
    sentence = describe_verdict(report)
    assert " ".join(text.split()).startswith(" ".join(sentence.split()))
    assert max(map(cell_len, text.splitlines())) <= width and "\u2026" not in text
    assert "what if: replay of the recorded" in text and "waits per collective: waiting" in text
    assert ("evidence, per step" in text) == bool(report.verdict.evidence)


def test_hosts_clocks_are_shown_with_their_bound() -> None:
    assert "hosts' clocks  against rank 0: host-1 +" in show(LINK, 100) and "(within 30.0 us)" in show(LINK, 100)
    assert "hosts' clocks  against" not in show(LATE, 100)


def test_an_interval_of_one_point_is_a_point() -> None:
    item = structs.replace(LATE.what_if[0], saved_ratio=Estimate(value=0.3, low=0.3, high=0.3))
    assert list_what_ifs(structs.replace(LATE, what_if=(item,)))[0][2] == "30 %"


def test_the_page_opens_with_it() -> None:
    page = render_html(LATE)
    card = page.partition('<section class="card critical"')[2].partition("</section>")[0]
    assert "Rank 2 is slow" in card and "Critical: rank 2 is " in card
    for part in ("<dt>Cost</dt>", "<dt>Why</dt>", "<dt>Next</dt>"):
        assert part in card
    places = ["Five numbers", "Waterfall", "Where:", "When:", "Waits per collective:", "Causes:", "What if", "Coverage"]
    assert [page.index(place) for place in places] == sorted(page.index(place) for place in places)
    assert "No straggler" in render_html(QUIET)
    alone = render_html(analyze(make_run(num_ranks=1, host_ns=WITHOUT_DATA)))
    assert "Cost</dt>" not in alone and "one rank waits for nobody" in alone


def test_names_of_hosts_and_groups_stay_text() -> None:
    name = "</p><script>alert(1)</script>\x1b[31m"
    hostile = structs.replace(
        LINK, verdict=structs.replace(LINK.verdict, hosts=(name, name)),
        waits=tuple(structs.replace(item, group=name) for item in LINK.waits),
        clocks=tuple(structs.replace(item, host=name) for item in LINK.clocks),
    )  # fmt: skip
    assert "<script>alert" not in render_html(hostile) and "\x1b" not in render_html(hostile) + show(hostile, 80)


def test_a_slow_host_is_named_with_its_ranks() -> None:
    delays = tuple(Delay(rank=rank, phase=Phase.FORWARD, delay_ns=30 * MS) for rank in range(4, 8))
    text = describe_verdict(report_on(SimulatedJob(num_ranks=8, ranks_per_host=4, delays=delays)))
    assert text.startswith("critical: host host-1 (4 ranks) is 30.0 ms late in every step: ")
    assert "its compute (forward +30.0 ms); the other 4 wait " in text


def test_a_single_process_that_waits_for_its_data_is_told_so() -> None:
    """57 of 100 ms, of which 20 lie before each step but the first that counts."""
    host_ns = {"data": 37 * MS, "forward": 43 * MS}
    begin_ns = 10**12 + np.arange(40) * 100 * MS
    columns = {"begin_host_ns": begin_ns, "between_wait_host_ns": 0, "between_data_host_ns": 20 * MS}
    columns |= {f"{stretch}_host_ns": 0 for stretch in ("evaluation", "checkpoint", "logging")}
    report = analyze(make_run(num_ranks=1, num_steps=40, host_ns=host_ns, columns=columns))
    sentence = describe_verdict(report)
    assert re.fullmatch(r"the process waits for its data for 56\.8 % of a step \(56\.5 ms\): with every .*", sentence)
    assert describe_next(report).startswith("get batches sooner")
    assert describe_next(analyze(make_run(num_ranks=1, host_ns=WITHOUT_DATA))).startswith("make backward faster")
