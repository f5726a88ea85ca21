"""A comparison in words: the sentence, the screen and Markdown, by figures chosen by hand."""

from __future__ import annotations

import io

import pytest
from msgspec import structs
from rich.console import Console

from distprof.render.files.comparison_files import escape, render_markdown
from distprof.render.html.comparison_waterfall import draw_comparison
from distprof.render.sections.comparison_sections import (
    describe_comparison,
    format_percent,
    list_comparison_facts,
)
from distprof.render.terminal.comparison_screen import SCREEN_LINES, render_comparison
from distprof.report.comparison_report import (
    Change,
    ComparedAverage,
    ComparedTime,
    CompareVerdict,
    ComparisonReport,
    Side,
    WaterfallPart,
)

MS = 1e6


def make_average(ratio: float, reach: float | None, verdict: CompareVerdict) -> ComparedAverage:
    return ComparedAverage(
        base_ns=100 * MS, new_ns=100 * MS * ratio, difference_ns=100 * MS * (ratio - 1), ratio=ratio,
        low_ratio=None if reach is None else ratio - reach, high_ratio=None if reach is None else ratio + reach,
        verdict=verdict,
    )  # fmt: skip


def make_time(mean: ComparedAverage, usual: ComparedAverage | None, verdict: CompareVerdict) -> ComparedTime:
    return ComparedTime(
        scope="step", name="step", rank=None, place=None, clock="host", mean=mean, usual=usual, level=0.999,
        verdict=verdict,
    )  # fmt: skip


def make_report(step: ComparedTime) -> ComparisonReport:
    side = Side(names=("a",), started_utc=(None,), steps=(200,), step_mean_ns=(100 * MS,))
    return ComparisonReport(
        schema="", distprof_version="", base=side, new=side, step=step, limit_ratio=0.03, limit="over",
        runs_vary_ratio=0.0123, runs_assumed_ratio=None, rows=(), changes=(), complete=True, notes=(),
        waterfall=(WaterfallPart(name="data", base_ns=9 * MS, new_ns=7 * MS, difference_ns=-2_000_000),
                   WaterfallPart(name="forward", base_ns=91 * MS, new_ns=98 * MS, difference_ns=7_000_000)),
    )  # fmt: skip


WORSE = make_time(make_average(1.05, 0.01, "worse"), None, "worse")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (WORSE, "worse: a step takes 5 % longer (+4 to +6 %); 100.0 ms became 105.0 ms (host clock)"),
        (make_time(make_average(0.9, 0.02, "better"), None, "better"),
         "better: a step takes 10 % less (-12 to -8 %); 100.0 ms became 90.0 ms (host clock)"),
        (make_time(make_average(1.001, 0.004, "no difference"), None, "no difference"),
         "no difference: the mean step changed by +0.1 % (-0.3 to +0.5 %); 100.0 ms became 100.1 ms (host clock)"),
        (make_time(make_average(1.5, None, "inconclusive"), None, "inconclusive"),
         ("inconclusive: the mean step changed by +50 %, and too few steps or runs say how sure that is; "
          "100.0 ms became 150.0 ms (host clock)")),
        (make_time(make_average(1.01, 0.2, "inconclusive"), make_average(1.04, 0.01, "worse"), "worse"),
         ("worse: the usual step takes 4 % longer (+3 to +5 %); with rare long steps, the mean changed by +1 % "
          "(-19 to +21 %)")),
    ],
)  # fmt: skip
def test_the_sentence_says_what_the_verdict_is_of(step: ComparedTime, said: str) -> None:
    assert describe_comparison(make_report(step)) == said


def test_what_is_assumed_of_runs_is_said_where_they_are_few() -> None:
    few = structs.replace(make_report(WORSE), runs_assumed_ratio=0.03)
    texts = [[fact.text for fact in list_comparison_facts(report)][-1] for report in (make_report(WORSE), few)]
    varies = "the mean step varies by 1.2 % from run to run (standard deviation)"
    assert texts == [
        f"{varies}, and the intervals hold that, too",
        f"{varies}; so few runs may be alike by chance, so that intervals assume 3 %, too",
    ]


def test_the_screen_stays_a_screen_however_much_differs() -> None:
    row = structs.replace(WORSE, scope="rank", rank=3, place="dp 1, tp 0", name="forward")
    changes = tuple(Change(group="configuration", key=f"key{number}", old="1", new="2" * 300) for number in range(50))
    report = structs.replace(make_report(WORSE), rows=(row,) * 40, changes=changes)
    screen = io.StringIO()
    render_comparison(report, Console(width=80, file=screen), details=False)
    lines = screen.getvalue().splitlines()
    assert len(lines) <= SCREEN_LINES and max(map(len, lines)) <= 80
    assert any("rank 3 (dp 1, tp 0): forward" in line for line in lines)
    assert any(line.startswith("41 of 41 times differ, ") for line in lines)
    assert any(line.startswith("step ") and line.endswith("+5.00") for line in lines)


def test_the_drawing_leads_from_the_base_to_the_new_step() -> None:
    """100 to 107 to 105 ms: with a quarter of 7 ms on either side, 1,000 units are 10.5 ms from 98.25 ms on."""
    drawn = draw_comparison(make_report(WORSE))
    assert '<rect x="166.7" y="52" width="666.7"' in drawn and '<rect x="642.9" y="86" width="190.5"' in drawn
    assert "The left edge is 98.2 ms." in drawn or "The left edge is 98.3 ms." in drawn
    assert draw_comparison(structs.replace(make_report(WORSE), waterfall=())) == ""


def test_markdown_is_a_table_in_which_names_are_text() -> None:
    text = render_markdown(make_report(WORSE))
    assert "| forward | 91.00 | 98.00 | +7.00 |" in text and "| step | 100.0 | 105.0 | +5.00 |" in text
    assert text.startswith("### :red_circle: distprof: worse: a step takes 5 % longer")
    assert escape("<b>|a_b|`@me` https://x") == r"&lt;b&gt;\|a\_b\|\`&#64;me\` https&#58;//x"


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [(0.03, "3 %"), (0.0042, "0.42 %"), (-0.999, "-99.9 %"), (0.1234, "12.3 %"), (3.2, "320 %"), (0.0, "0 %"),
     (1e9, "over 100,000 %")],
)  # fmt: skip
def test_percent_has_the_digits_that_a_comparison_needs(ratio: float, shown: str) -> None:
    assert format_percent(ratio) == shown
