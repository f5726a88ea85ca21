"""The card: culprit, cost, why and what next, for every kind of verdict; and five numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.render.summary.card import list_numbers, make_card
from distprof.report.report import Report
from distprof.report.wait_report import Estimate, VerdictKind
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.phase_names import NameMap
from tests.factories import make_run
from tests.render.sections.test_verdict_text import LATE, LINK, QUIET, ROTATING

DATA = Path(__file__).resolve().parents[2] / "data"


def change(report: Report, **verdict: object) -> Report:
    return structs.replace(report, verdict=structs.replace(report.verdict, **verdict))


def test_a_late_rank_is_named_with_its_reason_its_cost_and_what_to_do() -> None:
    card = make_card(LATE)
    assert card.title == "Rank 2 is slow: its input pipeline (data)" and card.critical
    lost = LATE.verdict.lost_ratio
    assert lost is not None and f"{100 * lost.value:.0f} % of it ({100 * lost.low:.0f} to " in card.cost
    assert card.cost.startswith("39.7 ms per step, "), "the delay is 41 ms, of which others are late for some"
    assert "rank 2 is" in card.why.lower() and "rank 2's input" in card.advice


@pytest.mark.parametrize(
    ("report", "title"),
    [
        (LINK, "The link "),
        (QUIET, "No straggler"),
        (ROTATING, "No straggler; the largest cost is jitter"),
        (change(LATE, kind=VerdictKind.SLOW_HOST, hosts=("host-7",), rank=None), "Host host-7 is slow: its input"),
        (change(LATE, kind=VerdictKind.STALLS), "Single steps stall on rank 2: its input pipeline (data)"),
        (change(LATE, kind=VerdictKind.UNEQUAL_DATA), "Unequal data"),
        (change(QUIET, lost_ratio=None, lost_ns=None), "No verdict"),
    ],
)  # fmt: skip
def test_every_verdict_has_a_title(report: Report, title: str) -> None:
    assert make_card(report).title.startswith(title)


def test_a_cause_of_some_steps_also_says_what_it_costs_then() -> None:
    then = Estimate(value=0.5, low=0.4, high=0.6)
    causes = LATE.causes
    assert causes is not None and causes.causes[0].rank == 2
    part = structs.replace(causes, causes=(structs.replace(causes.causes[0], whole=False),))
    report = structs.replace(change(LATE, stretch_lost_ratio=then), causes=part)
    assert make_card(report).cost.endswith("; 50 % (40 to 60 %) of the steps in which it acts")


def test_one_rank_has_a_card_without_a_cost() -> None:
    card = make_card(analyze(make_run(num_ranks=1)))
    assert card.title == "The largest part of the step is backward" and card.cost == ""


def test_of_a_trace_the_first_finding_is_on_the_card() -> None:
    report = analyze(read_paths([DATA / "h100_bert_small.json.gz"], NameMap()))
    card = make_card(report)
    assert card.title.startswith("The device waits for the host 89") and card.cost == "89.4 % of the step"
    assert card.why and card.advice.endswith("between the operators."), "whole"
    assert [fact.label for fact in list_numbers(report)][1:4] == ["host", "compute", "launch"]


def test_there_are_five_numbers_with_their_units() -> None:
    numbers = list_numbers(LATE)
    assert [fact.label for fact in numbers] == [
        "step time, host clock", "lost per step", "throughput", "exposed communication", "MFU",
    ]  # fmt: skip
    assert all(fact.number.endswith((" ms", "tokens/s", "%")) for fact in numbers[:4])
    assert numbers[4].number == "n/a" and numbers[4].text == "the model's FLOPs were not counted"
    assert len(list_numbers(analyze(make_run(num_ranks=1)))) == 5
