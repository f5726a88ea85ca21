"""The page: what it shows, that nothing from a run can be more than text in it, and its size."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.summary.page import measure_page
from distprof.facts.run import Phase, Run
from distprof.render.html.html import render_html, show_card
from distprof.render.html.waterfall import draw_waterfall
from distprof.render.sections.section_types import Card
from distprof.report.wait_report import Stall
from tests.factories import drop_rows, make_meta, make_run

HOSTILE = [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "javascript:alert(1)", "a\u202eb",
    "\x1b[31mred",
    "\ud800", "x" * 1_000_000, "", '" onmouseover="alert(1)', "</style><style>*{}", "]]>", "&lt;b&gt;",
]  # fmt: skip


class Page(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def draw(run: Run) -> str:
    report = analyze(run)
    return render_html(report, measure_page(run, report))


def read_data(page: str) -> dict[str, Any]:
    """The block that the script reads; what stands in it has no meaning in HTML."""
    text = page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(text) and text.isascii()
    data: dict[str, Any] = json.loads(text)
    return data


def test_the_page_shows_the_report() -> None:
    report = analyze(make_run(num_ranks=4))
    page = Page(draw(make_run(num_ranks=4)))
    text = " ".join(page.words)
    for phase in report.phases:
        assert phase.phase in text
    assert page.tags.count("rect") >= 4 * len(report.phases)
    assert page.tags.count("canvas") == 3
    assert "Coverage" in text and "complete: yes" in text and "ranks present: 4 of 4" in text
    for table in re.findall(r"<table>.*?</table>", render_html(report)):
        assert table.count("<th ") * (table.count("<tr") - 1) == table.count("<td>")


def test_the_marks_say_what_was_an_evaluation_and_what_a_stall() -> None:
    run = make_run(num_steps=30)
    report = analyze(run)
    places = ((4, None, "evaluation"), (9, 1, "evaluation"), (14, None, "backward"), (19, None, None))
    stalls = [Stall(step=step, rank=rank, phase=phase, lost_ns=1e9 - step) for step, rank, phase in places]
    marks = read_data(render_html(replace(report, stalls=tuple(stalls), longest_steps=()), measure_page(run, report)))
    assert marks["marks"] == [[4, "evaluation"], [9, "stall"], [14, "stall"], [19, "stall"]]


def test_no_line_of_the_card_begins_with_the_sign_of_a_percentage() -> None:
    text = show_card(Card(title="Jitter", cost="<b> 7 %", why="7 % (5 to 9 %)", advice="", critical=False))
    assert "&lt;b&gt; 7&nbsp;%.</dd>" in text and "7&nbsp;% (5 to 9&nbsp;%)" in text


def test_a_missing_rank_stands_at_the_top() -> None:
    run = drop_rows(make_run(num_ranks=2), 1, 2)
    ranks = (run.ranks[0], replace(run.ranks[1], ended=None))
    page = render_html(analyze(replace(run, ranks=ranks)))
    alert = re.search(r'<p class="alert">(.*?)</p>', page)
    assert alert and "rank 1 is missing after step 1" in alert[1]
    assert page.index(alert[0]) < page.index("Headline")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_stay_text(name: str) -> None:
    infos = {0: {"host": name, "error": name, "traceback": name, "ended": "failed", "notes": (name,)}}
    meta = make_meta(name=name, strategy=name, config={name: {"key": name}})
    text = draw(replace(make_run(infos=infos), meta=meta))
    text.encode()
    page = Page(text)
    shown = read_data(text)["hosts"][0]
    assert len(shown) <= 100 and not any(char in shown for char in "\x1b\u202e\ud800")
    assert page.tags.count("script") == 2 and page.tags.count("style") == 1 and "img" not in page.tags
    assert not any(attribute.startswith("on") for attribute in page.attributes) and page.links == []
    assert "\x1b" not in text and "\u202e" not in text
    assert len(text) < 1_000_000
    assert "default-src 'none'" in text


def test_runs_without_facts_make_a_page() -> None:
    for run in (make_run(num_ranks=1, num_steps=1, num_warmup=0), make_run(num_steps=2, num_warmup=2)):
        assert "Coverage" in render_html(analyze(run))
    empty = make_run()
    empty = replace(empty, ranks=(), rows=empty.rows[:0])
    assert "left no record" in render_html(analyze(empty))


@pytest.mark.slow
def test_hundreds_of_ranks_and_a_thousand_steps_stay_small() -> None:
    text = draw(make_run(num_ranks=256, num_steps=1000))
    assert len(text.encode()) < 3 * 2**20
    assert "ranks that do not stand out are not drawn" in text
    assert "Each column is the longest of 4 steps." in text
    assert "Each cell is the longest time of 2 ranks x 4 steps." in text


def test_of_many_ranks_the_one_that_is_named_is_drawn() -> None:
    delay = Delay(rank=501, phase=Phase.DATA, delay_ns=50_000_000)
    report = analyze(simulate(SimulatedJob(num_ranks=600, num_steps=12, delays=(delay,)), seed=1, truth=False).run)
    assert report.verdict.rank == 501
    assert ">rank 501</text>" in render_html(report)


def test_numbers_travel_in_sixteen_bits() -> None:
    forward = np.array([[10, 20, 40, np.nan], [30, 20, 50, 0]]) * 1e6
    data = read_data(draw(make_run(columns={"forward_host_ns": forward})))
    unit_ns, packed = data["cells"]["forward"]
    levels = np.frombuffer(base64.b64decode(packed), dtype="<u2").reshape(2, 4)
    assert levels[0, 3] == 65_535 and levels[1, 3] == 0
    assert (levels * unit_ns)[:, :3] == pytest.approx(forward[:, :3], abs=unit_ns)
    assert data["measured"] == [0, 1, 1, 1]


def test_the_waterfall_adds_up_to_the_step() -> None:
    delays = tuple(Delay(rank=rank, phase=Phase.DATA, delay_ns=delay_ns) for rank, delay_ns in ((1, 4e7), (3, 2e7)))
    report = analyze(simulate(SimulatedJob(num_ranks=4, num_steps=40, delays=delays), seed=1, truth=False).run)
    rows = re.findall(r'scope="row">(.*?)</th><td>.*?x="([\d.]*)" y="0" width="([\d.]*)"', draw_waterfall(report))
    names = [name for name, _, _ in rows]
    assert names[0] == "ideal step" and names[-1] == "measured step" and {"rank 1 (data)", "rank 3 (data)"} < {*names}
    at = 0.0
    for _, left, width in rows[:-1]:
        assert float(left) == pytest.approx(at, abs=1.1)
        at += float(width)
    assert at == pytest.approx(float(rows[-1][2]), abs=1.1 * len(rows))


def test_the_script_is_small_and_the_only_one_that_may_run() -> None:
    page = draw(make_run())
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    assert len(script) < 30_000
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "unsafe" not in page.partition("</head>")[0]


def test_configuration_and_tracebacks_keep_their_indentation() -> None:
    trace = "Traceback:\n  File x\n    raise"
    page = render_html(
        analyze(make_run(infos={0: {"traceback": trace, "ended": "failed"}}, meta={"config": {"a": {"b": 1}}}))
    )
    assert trace in page
    assert "{\n  &quot;a&quot;: {\n    &quot;b&quot;: 1" in page
