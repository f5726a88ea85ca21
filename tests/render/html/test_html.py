"""The page: what it shows, that nothing from a run can be more than text in it, and its size."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.facts.run import Phase
from distprof.render.html.html import render_html
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


def test_the_page_shows_the_report() -> None:
    report = analyze(make_run(num_ranks=4))
    page = Page(render_html(report))
    text = " ".join(page.words)
    for phase in report.phases:
        assert phase.phase in text
    assert page.tags.count("rect") >= 4 * len(report.phases)
    assert page.tags.count("polyline") == 4
    assert "Coverage" in text and "complete: yes" in text and "ranks present: 4 of 4" in text
    for table in re.findall(r"<table>.*?</table>", render_html(report)):
        assert table.count("<th ") * (table.count("<tr") - 1) == table.count("<td>")


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
    text = render_html(analyze(replace(make_run(infos=infos), meta=meta)))
    text.encode()
    page = Page(text)
    assert page.tags.count("script") == 0 and page.tags.count("style") == 1 and "img" not in page.tags
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
    report = analyze(make_run(num_ranks=256, num_steps=1000))
    text = render_html(report)
    assert len(text.encode()) < 3 * 2**20
    assert "ranks that do not stand out are not drawn" in text and "</i>smallest</li>" in text
    assert "Only the longest of every 2 steps is drawn" in text


def test_of_many_ranks_the_one_that_is_named_is_drawn() -> None:
    delay = Delay(rank=501, phase=Phase.DATA, delay_ns=50_000_000)
    report = analyze(simulate(SimulatedJob(num_ranks=600, num_steps=12, delays=(delay,)), seed=1, truth=False).run)
    assert report.verdict.rank == 501
    assert ">rank 501</text>" in render_html(report)


def test_a_peak_among_many_steps_is_drawn() -> None:
    waits = np.where(np.arange(2400) == 1801, 900, 15) * 1_000_000
    page = render_html(analyze(make_run(num_steps=2400, host_ns={"forward": 1e6, "all_reduce": waits})))
    heights = [float(point.split(",")[1]) for point in re.findall(r'points="([^"]*)"', page)[0].split()]
    assert min(heights) == 10  # the top of the chart


def test_configuration_and_tracebacks_keep_their_indentation() -> None:
    trace = "Traceback:\n  File x\n    raise"
    page = render_html(
        analyze(make_run(infos={0: {"traceback": trace, "ended": "failed"}}, meta={"config": {"a": {"b": 1}}}))
    )
    assert trace in page
    assert "{\n  &quot;a&quot;: {\n    &quot;b&quot;: 1" in page


@pytest.mark.slow
@pytest.mark.browser
def test_a_browser_opens_it_without_a_complaint(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(render_html(analyze(make_run(num_ranks=4))))
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or "chromium-browser"
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    done = subprocess.run(
        [
            chromium, *flags.split(), "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "report.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "Phases by rank" in done.stdout
    assert "CONSOLE" not in done.stderr and "Content Security Policy" not in done.stderr
