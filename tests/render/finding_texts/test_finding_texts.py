"""Findings in words: every rule and every reason has a text, and many ranks take few lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from benchmarks.rule_table import write_table
from distprof.analyze import analyze
from distprof.analyze.traces.findings.idle import SHORT_GAPS
from distprof.analyze.traces.findings.rules import RULES, check_rules
from distprof.render.files.files import write_files
from distprof.render.finding_texts import WORDS, describe_finding, describe_lack
from distprof.render.finding_texts.parts import NAME_LIMIT, format_name, list_by_rank, name_some
from distprof.render.units import format_ratio
from distprof.report.finding_report import EvidenceItem, Finding, MissingData, NotChecked
from tests.analyze.traces.findings.synthetic_summaries import make_rank, make_traced
from tests.analyze.traces.findings.test_findings import list_numbers, make_bad_rank

PAGE = Path(__file__).resolve().parents[3] / "docs" / "findings.md"


def test_every_rule_has_words() -> None:
    found, _ = check_rules(make_traced(make_bad_rank(0), make_bad_rank(1)))
    assert {finding.rule for finding in found} == set(WORDS) == {rule.name for rule in RULES}
    for finding in found:
        text = describe_finding(finding)
        assert text.title[0].isupper() or text.title[0].isdigit() or text.title.startswith("layer")
        assert text.evidence and text.consequence.endswith(".") and text.remedy.endswith(".")


@pytest.mark.parametrize("lack", MissingData)
def test_every_reason_has_words(lack: MissingData) -> None:
    why = describe_lack(NotChecked(rule="matmul_share", lack=lack, share_ratio=0.125, ranks=(3, 4)))
    assert why and "{" not in why and "n/a" not in why


def test_words_come_from_the_numbers_that_the_finding_carries() -> None:
    """Analysis measures, and only here are ns and ratios given units."""
    finding = Finding(
        rule="host_bound", share_ratio=0.25, ranks=(4, 0), ranks_checked=3,
        by_rank={"idle_host_ratio": (0.25, 0.125)}, facts={"idle_host_ns": 412_300_000, "queue_empty_ratio": 0.0},
    )  # fmt: skip
    text = describe_finding(finding)
    assert text.title == "The device waits for the host 25.0 % of the step on ranks 0, 4"
    assert "412.3 ms per step" in text.consequence
    assert [(line.what, line.value, line.where) for line in text.evidence] == [
        ("host-bound, of the step", "25.0 %", "rank 4"), ("host-bound, of the step", "12.5 %", "rank 0"),
        ("nothing launched ahead", "0 % of the time", "rank 4"),  # as everywhere else, not 0.0 %
    ]  # fmt: skip
    whole = describe_finding(structs.replace(finding, per_step=False))
    assert whole.title.startswith("The device waits for the host 25.0 % of the traced time")
    assert "412.3 ms in the whole trace" in whole.consequence and "Without steps" in whole.remedy


def test_large_counts_are_shown_as_everywhere_else() -> None:
    finding = Finding(
        rule="sync_in_step", share_ratio=0.25, ranks=(0,), ranks_checked=1,
        by_rank={"waiting_ratio": (0.5,)}, facts={"calls_count": 1_544.5},
    )  # fmt: skip
    assert "in 1,544.5 calls per step" in describe_finding(finding).title


def test_of_many_ranks_the_worst_are_named_and_the_rest_summed_up() -> None:
    def show(shares: dict[int, float]) -> list[tuple[str, str]]:
        finding = Finding(
            rule="host_bound", share_ratio=0.5, ranks=tuple(shares), ranks_checked=len(shares),
            by_rank={"share_ratio": tuple(shares.values())},
        )  # fmt: skip
        return [(line.value, line.where) for line in list_by_rank(finding, "share_ratio", "share", format_ratio)]

    falling = {rank: rank / 10_000 for rank in reversed(range(512))}
    assert show(falling) == [
        ("5.1 %", "rank 511"), ("5.1 %", "rank 510"), ("5.1 %", "rank 509"), ("0 % to 5.1 %", "ranks 0-508"),
    ]  # fmt: skip
    rising = dict(reversed(falling.items()))
    assert show(rising)[0] == ("0 %", "rank 0") and show(rising)[3] == ("0.03 % to 5.1 %", "ranks 3-511")
    assert show(dict.fromkeys(range(8), 0.25)) == [("25.0 %", "ranks 0-7")]
    four = show({3: 0.4, 2: 0.3, 1: 0.2, 0: 0.1})
    assert [where for _, where in four] == ["rank 3", "rank 2", "rank 1", "rank 0"]
    assert name_some(range(0, 512, 2)) == "256 ranks"


def test_names_are_cut_and_clean() -> None:
    assert format_name("  a\n b ") == "a b" and format_name("") == format_name(None) == "(no name)"
    assert len(format_name("x" * 10**6)) == NAME_LIMIT
    figure = EvidenceItem(
        label="call", name="\x1b[31m\u202ecall", ranks=(0,), numbers={"calls_count": 2, "host_ns": 1e6}
    )
    finding = Finding(
        rule="sync_in_step", share_ratio=0.25, ranks=(0,), ranks_checked=1,
        by_rank={"waiting_ratio": (0.5,)}, facts={"calls_count": 2}, figures=(figure,),
    )  # fmt: skip
    assert describe_finding(finding).evidence[1].what == "call"


def test_the_file_holds_numbers_and_words(tmp_path: Path) -> None:
    run = make_traced(make_bad_rank(0), make_rank(1, kernels=()))
    report = analyze(run)
    assert report.activity is not None and write_files(tmp_path, run, report).problem is None
    activity = json.loads((tmp_path / "report.json").read_text("utf-8"))["activity"]
    for finding, held in zip(report.activity.findings, activity["findings"], strict=True):
        assert (held["rule"], held["title"]) == (finding.rule, describe_finding(finding).title)
        assert list(held["facts"].values()) == list(finding.facts.values())
        assert [line["what"] for line in held["evidence"]] == [line.what for line in describe_finding(finding).evidence]
        assert len(held["figures"]) == len(finding.figures) and list_numbers(finding)
    assert [(item["lack"], item["why"]) for item in activity["not_checked"]] == [
        (item.lack, describe_lack(item)) for item in report.activity.not_checked
    ]


def test_the_page_has_the_table_of_rules() -> None:
    assert write_table() in PAGE.read_text(encoding="utf-8")


def test_traits_are_worded() -> None:
    """Leaving one out changes the words of the finding that has it."""
    base = Finding(
        rule="launch_gaps", share_ratio=0.2, ranks=(0,), ranks_checked=1,
        by_rank={"idle_launch_ratio": (0.2,)}, facts={"launches_count": 1_000, "gap_ns": 20_000},
    )  # fmt: skip
    short = describe_finding(structs.replace(base, traits=(SHORT_GAPS,)))
    assert "CUDA graphs" in short.remedy and "streams wait" in describe_finding(base).consequence
