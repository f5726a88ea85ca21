"""Sentences about causes, with the numbers of the report and nothing unmeasured."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from rich.cells import cell_len
from rich.console import Console

from distprof.facts.run import OWN_PARTS, Stretch
from distprof.render.html.html import render_html
from distprof.render.sections.cause_words import (
    KINDS,
    list_causes,
    name_cause,
    show_share,
)
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.render.terminal.terminal import render_terminal
from distprof.render.terminal.terminal_tables import SPARE
from distprof.render.wandb.wandb_summary import make_summary
from distprof.report.report import Report
from distprof.report.wait_report import Cause, CauseReport, Pattern, VerdictKind
from tests.made_causes import FIRST, LAST, STEP_NS, make_cause, make_estimate, make_report
from tests.render.html.test_html import Page
from tests.render.sections.test_causes import describe, make_late

KIND = VerdictKind
JITTER = make_cause(KIND.JITTER, 1.2)
MOVING = make_cause(KIND.COMMUNICATION, 2.9, cause=Cause.NETWORK)


def test_unequal_data_and_a_slow_host() -> None:
    assert describe(make_cause(KIND.UNEQUAL_DATA, 9.0, cause=Cause.INPUT)) == (
        "ranks process unequal amounts of data in a step, and wait for the one with the most: the evidence says so; "
        "with equal amounts steps would be 9.0 % shorter (8.2 to 10.0 %)"
    )
    text = describe(make_cause(KIND.SLOW_HOST, 12.0, hosts=("host-1",), last_step=30, whole=False), JITTER, hosts=4)
    assert text.startswith("host host-1 (2 ranks) is 20.0 ms late in every step until step 30: ")


STRETCHES = [(stretch, Cause[stretch.name]) for stretch in Stretch]


@pytest.mark.parametrize(("stretch", "cause"), STRETCHES)
def test_time_between_steps_is_a_place_like_a_phase(stretch: Stretch, cause: Cause) -> None:
    text = describe(make_late(0, 19.0, phase=stretch.value, cause=cause))
    assert text.startswith("rank 0 is 20.0 ms late in every step: its ") and f" ({stretch} +20.0 ms); the" in text
    assert ("such as loading data or logging" in text) == (stretch is Stretch.BETWEEN)


def test_where_nobody_is_named_the_rest_is_told() -> None:
    assert describe(JITTER, MOVING) == (
        "no single straggler: a different rank is last at each step; communication costs 2.9 % of a step "
        "(2.6 to 3.2 %), and waiting for whichever rank is last 1.2 % (1.1 to 1.3 %)"
    )
    assert describe(make_cause(KIND.JITTER, 9.0), MOVING).endswith(
        "; waiting for whichever rank is last costs 9.0 % of a step (8.2 to 10.0 %), and communication 2.9 % "
        "(2.6 to 3.2 %)"
    )
    text = describe(MOVING)
    assert text.startswith("no straggler: no rank is slower ") and text.endswith(
        "; communication costs 2.9 % of a step (2.6 to 3.2 %), and waiting for whichever rank is last 0.3 %"
    )
    cost = MOVING.saved_if_only_this_ratio
    assert describe(MOVING, kind=KIND.COMMUNICATION, lost_ratio=cost, reason="it all adds up") == (
        "no straggler: it all adds up; communication costs 2.9 % of a step (2.6 to 3.2 %)"
    )


@pytest.mark.parametrize(("percent", "first"), [(92.0, True), (40.0, False)])
def test_a_stall_that_costs_most_of_a_step_comes_first(percent: float, first: bool) -> None:
    text = describe(JITTER, make_cause(KIND.STALLS, percent, events=1), kind=KIND.JITTER, reason="one or another")
    assert text.startswith("1 stall of no particular rank costs 92 % of a step (" if first else "no single straggler: ")
    assert ("; beside that, no single straggler: a different rank is last at each step" in text) == first


def test_with_ranks_missing_nothing_is_said_of_costs() -> None:
    text = describe(make_late(3, 12.0), MOVING, lost_ns=None, lost_ratio=None, waited_ns=None)
    assert (
        text.endswith("compared with the ranks present; what fixing it would gain is not known") and " % " not in text
    )


causes = st.builds(
    make_cause,
    st.sampled_from([kind for kind in KIND if kind is not KIND.NONE]),
    st.floats(0.0, 40.0), alone=st.none() | st.floats(0.0, 60.0), rank=st.none() | st.integers(0, 1023),
    phase=st.none() | st.sampled_from([part.value for part in OWN_PARTS]), cause=st.none() | st.sampled_from(Cause),
    hosts=st.sampled_from([(), ("host-0",), ("host-0", "host-1")]), pattern=st.none() | st.sampled_from(Pattern),
    first_step=st.integers(FIRST, 40), last_step=st.integers(40, LAST), whole=st.booleans(), critical=st.booleans(),
    events=st.none() | st.integers(1, 20), period=st.none() | st.integers(2, 20),
    late_ns=st.none() | st.floats(0, 5e7),
)  # fmt: skip


def arrange(listed: list[CauseReport]) -> list[CauseReport]:
    """As a report holds them: who is slow has a name, and causes stand in order."""
    for place, cause in enumerate(listed):
        if cause.kind is KIND.SLOW_RANK and cause.rank is None:
            listed[place] = structs.replace(cause, rank=place)
        if cause.kind is KIND.SLOW_HOST and not cause.hosts:
            listed[place] = structs.replace(cause, hosts=("host-0",))
    unnamed = (KIND.JITTER, KIND.COMMUNICATION)
    return sorted(listed, key=lambda cause: (cause.kind in unnamed, -cause.saved_after_others_ns.value))


def list_shares(report: Report) -> set[str]:
    """Every percentage that a sentence may hold: the report's own, and sums of theirs."""
    assert report.causes is not None and report.verdict.lost_ratio is not None
    listed = report.causes.causes
    shares = [report.verdict.lost_ratio, *(cause.saved_if_only_this_ratio for cause in listed)]
    shares += [cause.saved_after_others_ratio for cause in listed]
    texts = {text for share in shares for text in re.findall(r"[\d.]+", show_share(share))}
    sums = [0.0]
    for cause in listed:
        sums += [part + cause.joint_ns / STEP_NS for part in sums]
    sums += [
        one.saved_if_only_this_ratio.value + two.saved_after_others_ratio.value
        for one in listed for two in listed
    ]  # fmt: skip
    return texts | {f"{100 * value:.{digits}f}" for value in sums for digits in (0, 1)}


@settings(max_examples=60, deadline=None)
@given(st.lists(causes, min_size=1, max_size=5).map(arrange), st.sampled_from([1, 4]))
def test_no_sentence_has_a_hole_or_a_number_of_its_own(listed: list[CauseReport], hosts: int) -> None:
    report = make_report(listed, hosts=hosts)
    held = report.verdict.held_ratio
    text = describe_verdict(report)
    assert not re.search(r"\bNone\b|\bnan\b|n/a|  |\(\)| ;| ,|\.\.|%s", text), text
    shares = set(re.findall(r"(-?[\d.]+) %", text)) | set(re.findall(r"\((-?[\d.]+) to", text))
    assert shares <= list_shares(report) | ({"30.0"} if held is not None else set()), text
    rows = list_causes(report)
    assert len(rows) == len(listed) + 3 and all(len(row) == len(rows[0]) for row in rows)
    assert not re.search(r"\bNone\b|\bnan\b", repr(rows))


LATE = {
    "steady": {}, "at times": {"pattern": Pattern.INTERMITTENT}, "since": {"first_step": 30, "whole": False},
    "until": {"last_step": 30, "whole": False}, "outside": {"phase": "other", "cause": Cause.OUTSIDE},
    "between": {"phase": "between steps", "cause": Cause.BETWEEN}, "launches": {"cause": Cause.HOST},
    "saves": {"phase": "checkpoint", "cause": Cause.CHECKPOINT, "pattern": Pattern.INTERMITTENT},
}  # fmt: skip
TOLD = {
    **{f"rank {name}": make_late(3, 6.0, **facts) for name, facts in LATE.items()},
    **{f"host {name}": make_cause(KIND.SLOW_HOST, 6.0, hosts=("host-1",), **facts) for name, facts in LATE.items()},
    "link": make_cause(KIND.SLOW_LINK, 6.0, hosts=("host-0", "host-1"), cause=Cause.NETWORK),
    "data": make_cause(KIND.UNEQUAL_DATA, 6.0, cause=Cause.INPUT),
    "stall": make_cause(KIND.STALLS, 6.0, rank=2, phase="forward", events=1),
    "stalls": make_cause(KIND.STALLS, 6.0, rank=2, phase="checkpoint", events=5, period=10),
    "nobody": None,
}  # fmt: skip
BESIDE = {
    "alone": [], "a little": [JITTER], "more": [make_cause(KIND.JITTER, 19.0), make_cause(KIND.COMMUNICATION, 59.0)],
    "in part": [make_cause(KIND.COMMUNICATION, 9.0, alone=3.5)], "late too": [make_late(5, 4.0), MOVING],
    "hidden": [make_late(5, 0.1, alone=5.5), make_late(6, 0.1, alone=5.4), MOVING],
    "stalls": [make_cause(KIND.STALLS, 8.0, events=3, phase="evaluation"), MOVING],
}  # fmt: skip
COST = re.compile(r"([\d.]+) %(?: of a step| shorter)? (\([\d.]+ to [\d.]+ %\))")


@pytest.mark.parametrize("critical", [False, True])
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("told", TOLD)
def test_every_sentence_is_whole_agrees_with_its_table_and_begins_with_the_largest(
    told: str, beside: str, critical: bool
) -> None:
    first = TOLD[told]
    listed = [] if first is None else [structs.replace(first, critical=critical)]
    report = make_report([*listed, *BESIDE[beside]], hosts=4)
    text, advice = describe_verdict(report), describe_next(report)
    for sentence in text.split(". "):
        assert not sentence[0].islower() or text.startswith(sentence), text
    for words in (text, advice):
        assert not re.search(r"\bNone\b|\bnan\b|  | \(\)| [;,)]| \.(?!item)|[;,.]{2}|: *;|\bits its\b", words), words
        assert words.count("(") == words.count(")")
    cells = {cell for row in list_causes(report) for cell in row}
    costs = COST.findall(text)
    assert {f"{value} % {interval}" for value, interval in costs} <= cells | {
        show_share(cause.saved_after_others_ratio) for cause in BESIDE[beside]
    }  # fmt: skip
    if "hidden" not in beside and len(costs) > 1:
        assert float(costs[0][0]) == max(float(value) for value, _ in costs), text
    assert text.lower().count("critical") == bool(listed and critical)
    if beside == "late too":
        assert max(map(len, show(report, 80).splitlines())) <= 80


def test_the_parts_of_the_table_add_up_to_the_step() -> None:
    rows = list_causes(make_report([make_late(3, 12.0), make_late(5, 1.0, alone=8.0), JITTER, MOVING]))
    assert [row[0] for row in rows[-3:]] == ["remainder", "ideal step", "step"]
    assert sum(float(row[7]) for row in rows[:-1]) == pytest.approx(float(rows[-1][7]), abs=0.01)
    assert [row[5:7] for row in rows[:3]] == [
        ["12 % (11 to 13 %)", "12 %"], ["1.0 % (0.9 to 1.1 %)", "8.0 %"], ["1.2 % (1.1 to 1.3 %)", "1.2 %"],
    ]  # fmt: skip


def show(report: Report, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    render_terminal(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


MANY = (
    make_late(3, 0.6, alone=13.0, critical=True), make_late(1023, 0.5, alone=12.0, phase="between steps"),
    make_cause(KIND.SLOW_LINK, 4.0, hosts=("a-long-name.of.a.host.example", "another-long-name.of.a.host.example")),
    make_cause(KIND.STALLS, 2.0, rank=2, phase="grad_norm", events=5, period=10, whole=False), JITTER, MOVING,
)  # fmt: skip


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_fits_and_holds_every_cause(width: int) -> None:
    text = show(make_report(MANY, hosts=4), width)
    assert max(map(cell_len, text.splitlines())) <= width and "\u2026" not in text
    table = text[text.index("causes: where step time") :].splitlines()
    heads = ["cause", "where", "when", "late", "critical", "fix only this", "fix last", "part, ms", "part"]
    shown = [head for head in heads if width > 80 or head not in SPARE["causes"]]
    assert table[1].split() == " ".join(shown).split()
    begins = ["slow rank", "slow rank", "slow link", "5 stalls", "jitter", "communication", "remainder", "ideal step"]
    assert all(line.startswith(begin) for line, begin in zip(table[3:], begins, strict=False))
    assert table[12].startswith("step ")
    assert text.index("phases by rank") < text.index("causes: where") < text.index("coverage")


def test_which_rank_and_when_is_wrapped_and_not_cut() -> None:
    partly = {"whole": False, "first_step": 30, "stretch_saved_if_only_this_ratio": make_estimate(27.0)}
    late = make_cause(KIND.SLOW_RANK, 12.0, rank=1023, phase="data between steps", **partly)
    lines = show(make_report([late, JITTER, MOVING]), 80).splitlines()
    at = lines.index(next(line for line in lines if line.startswith("causes: where")))
    assert max(map(cell_len, lines)) <= 80 and not any("..." in line or "\u2026" in line for line in lines[at : at + 9])
    words = " ".join(lines[at + 3 : at + 6]).split()
    assert {"1023,", "between", "steps", "since", "30"} <= {*words}
    assert lines[at + 3].startswith("slow rank ") and lines[at + 4].startswith("    ")


def test_the_page_has_the_table_with_its_line_above_the_step() -> None:
    text = render_html(make_report(MANY))
    assert "Causes: where step time could be saved" in text
    assert text.count('<tr class="ruled"><td>step</td>') == 1
    assert ">between steps" not in text and "rank 1023, between steps" in text


HOSTILE = "</td><script>alert(1)</script>\x1b[31m\u202e"


def test_names_stay_text() -> None:
    named = [make_cause(kind, 9.0, hosts=(HOSTILE, HOSTILE), phase=HOSTILE, rank=1) for kind in KIND if kind != "none"]
    report = make_report(named)
    assert Page(render_html(report)).tags.count("script") == 1
    sentences = "".join(describe_verdict(make_report([first, *named])) for first in named)
    assert "alert(1)" in sentences
    assert not set(render_html(report) + show(report, 80) + sentences) & set("\x1b\u202e")


def test_every_kind_has_a_name() -> None:
    assert set(KINDS) == set(KIND)
    names = [name_cause(make_cause(kind, 1.0)) for kind in KIND]
    assert all(names) and len({*names}) == len(names)


def test_wandb_gets_their_number_and_what_they_cost_together() -> None:
    facts = make_summary(make_report([make_late(3, 12.0, critical=True), JITTER]))
    assert facts["summary/causes"] == 2 and facts["summary/causes_lost_ratio"] == pytest.approx(0.132)
    assert facts["summary/verdict_critical"] is True and facts["summary/verdict_rank"] == 3
    assert facts["summary/verdict_lost_ratio"] == make_estimate(12.0).value
    assert "summary/causes" not in make_summary(structs.replace(make_report([JITTER]), causes=None))
