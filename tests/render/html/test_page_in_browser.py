"""The page in a headless Chromium: nothing complains, nothing is fetched, it works, and no text covers another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.summary.page import measure_page
from distprof.cli.sweep.report import render_sweep_html
from distprof.facts.mesh import RankGroup
from distprof.facts.run import Phase, Run
from distprof.render.html.html import render_html
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.phase_names import NameMap
from tests.analyze.summary.test_pipeline import make_job, order_1f1b, play
from tests.factories import MS, make_run
from tests.render.html.browser import OVERLAPS, Browser
from tests.render.sections.test_sweep_sections import make_report

pytestmark = [pytest.mark.slow, pytest.mark.browser]
DATA = Path(__file__).resolve().parents[2] / "data"
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m\"' &lt;b&gt;"
PARTS = ("card", "Five numbers", "part-waterfall", "part-where", "part-when", "part-how", "part-coverage")
UNFOLD = 'document.querySelectorAll("details").forEach((each) => { each.open = true; })'


def write(folder: Path, name: str, run: Run) -> Path:
    report = analyze(run)
    return write_text(folder, name, render_html(report, measure_page(run, report)))


def write_text(folder: Path, name: str, page: str) -> Path:
    path = folder / f"{name}.html"
    path.write_text(page)
    return path


def make_four(first_step: int = 0) -> Run:
    delay = Delay(rank=2, phase=Phase.DATA, delay_ns=20 * MS, first_step=first_step)
    return simulate(SimulatedJob(num_ranks=4, num_steps=40, num_warmup=2, delays=(delay,)), seed=1, truth=False).run


def make_many() -> Run:
    """A thousand ranks on 128 hosts, in stages of 256."""
    count = 1024
    slow = 1 + 0.3 * (np.arange(count)[:, None] == 517)
    run = make_run(
        num_ranks=count, num_steps=24, host_ns={"forward": 30 * MS * slow, "backward": 40 * MS, "all_reduce": 9 * MS},
        infos={rank: {"host": f"host-{rank // 8}"} for rank in range(count)},
    )  # fmt: skip
    groups = [RankGroup(name="pp", ranks=tuple(range(first, count, 256))) for first in range(256)]
    groups += [RankGroup(name="dp", ranks=tuple(range(first, first + 256))) for first in range(0, count, 256)]
    return replace(run, meta=replace(run.meta, groups=tuple(groups)))


def make_hostile() -> Run:
    infos = {rank: {"host": f"{HOSTILE}{'x' * 200}{rank}", "notes": (HOSTILE * 20,)} for rank in range(3)}
    return make_run(num_ranks=3, infos=infos, meta={"name": HOSTILE, "config": {HOSTILE: HOSTILE}})


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {
        "four": write(folder, "four", make_four()),
        "late": write(folder, "late", make_four(25)),
        "one": write(folder, "one", make_run(num_ranks=1, num_steps=30)),
        "many": write(folder, "many", make_many()),
        "warm": write(folder, "warm", make_run(num_steps=6, num_warmup=6)),
        "pipeline": write(folder, "pipeline", make_job(play(4, 6, order_1f1b))),
        "import": write(folder, "import", read_paths([DATA / "h100_bert_small.json.gz"], NameMap())),
        "hostile": write(folder, "hostile", make_hostile()),
        "sweep": write_text(folder, "sweep", render_sweep_html(make_report())),
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


NAMES = ("four", "one", "many", "warm", "pipeline", "import", "hostile", "sweep")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_complains_and_no_text_covers_another(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name], dark=name == "one")
    browser.run(UNFOLD)
    for width in (1280, 390):
        browser.resize(width)
        assert browser.run(OVERLAPS) == [], width
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.list_complaints() == []
    if name != "sweep":
        shown = browser.run("document.documentElement.outerHTML")
        assert [part for part in PARTS if f'"{part}' not in shown] == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_keeps_people_from_using_the_page(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name], dark=name in ("four", "pipeline"), width=390 if name == "sweep" else 1280)
    browser.run(UNFOLD)
    assert browser.list_violations() == []


def test_the_theme_is_switched_and_names_stay_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    assert browser.run("document.images.length") == 0 and browser.run("document.scripts.length") == 2
    assert browser.run('document.querySelector("h1").textContent').startswith("</script><img")
    colour = "getComputedStyle(document.body).backgroundColor"
    seen = [browser.run(colour)]
    for _ in range(3):
        browser.run('document.getElementById("theme").focus()')
        browser.press("Enter")
        seen.append(browser.run(colour))
    assert seen == ["rgb(255, 255, 255)", "rgb(255, 255, 255)", "rgb(20, 23, 27)", "rgb(255, 255, 255)"]


def say(browser: Browser, key: str) -> str:
    return str(browser.run(f'document.getElementById("{key}-says").textContent'))


def test_the_keyboard_and_the_pointer_move_a_cursor(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["four"])
    browser.run('document.getElementById("where").focus()')
    for _ in range(3):
        browser.press("ArrowRight")
    assert say(browser, "where").startswith("rank 2 on ")
    box = browser.run('(({ x, y }) => [x, y])(document.getElementById("where").getBoundingClientRect())')
    browser.mouse("mouseMoved", box[0] + 110, box[1] + 30)
    assert say(browser, "where").startswith("rank 0 on ")
    browser.run('document.getElementById("stack").focus()')
    browser.press("ArrowRight")
    assert say(browser, "stack").startswith("step 0 (not in the statistics): ")
    browser.run('document.getElementById("cells").focus()')
    browser.press("ArrowDown")
    assert say(browser, "cells").startswith("rank 1, step 0: own ")


def test_a_brush_and_the_sliders_choose_steps(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["four"], height=3000)
    chosen = 'document.getElementById("chosen").textContent'
    assert browser.run(chosen) == "all are chosen"
    box = browser.run('(({ x, y, width }) => [x, y, width])(document.getElementById("stack").getBoundingClientRect())')
    column = (box[2] - 80) / 40
    browser.mouse("mousePressed", box[0] + 72 + 10.5 * column, box[1] + 60)
    browser.mouse("mouseMoved", box[0] + 72 + 19.5 * column, box[1] + 60)
    browser.mouse("mouseReleased", box[0] + 72 + 19.5 * column, box[1] + 60)
    assert browser.run(chosen) == "step 10 to step 19"
    browser.run('document.getElementById("cells").focus()')
    browser.press("ArrowRight")
    assert "step 10: " in say(browser, "cells"), "what follows shows the chosen steps alone"
    assert browser.run('document.querySelectorAll("#selection tbody tr").length') >= 5
    browser.run('document.getElementById("from").focus()')
    browser.press("ArrowRight")
    assert browser.run(chosen) == "step 11 to step 19"
    browser.run('document.getElementById("all").click()')
    assert browser.run(chosen) == "all are chosen"


def read_texts(browser: Browser, selector: str) -> list[str]:
    found = browser.run(f"[...document.querySelectorAll('{selector}')].map((each) => each.textContent)")
    assert isinstance(found, list)
    return found


def test_chosen_steps_are_what_the_other_parts_show(browser: Browser, pages: dict[str, Path]) -> None:
    """Rank 2 is 20 ms late in steps 25 to 39 alone, of 40, of which the first two are warm-up."""
    browser.open(pages["late"])
    browser.run(UNFOLD)
    whole = [read_texts(browser, each) for each in ("#part-who-waits td", "#phases-all td")]
    of_all = ["Of all measured steps."] * 3
    assert read_texts(browser, ".of") == of_all
    choose = """((first, last) => {
      document.getElementById("from").value = first;
      document.getElementById("to").value = last;
      document.getElementById("to").dispatchEvent(new Event("input"));
    })"""
    browser.run(f"{choose}(25, 39)")
    assert read_texts(browser, ".of") == ["Of steps 25 to 39: 15 measured."] * 3
    assert browser.run('document.getElementById("phases-all").hidden')
    waits = read_texts(browser, "#part-who-waits td")
    assert [round(float(waits[place])) for place in (0, 1, 3)] == [20] * 3 and waits[2] == ""
    assert read_texts(browser, "#phases-chosen tr")[1].startswith("data")
    _, _, longest, rank, _ = read_texts(browser, "#phases-chosen tbody:first-of-type tr:first-child td")[:5]
    assert float(longest) == pytest.approx(25, abs=1) and rank == "2"
    assert len(read_texts(browser, "#phases-chosen .bar")) == 4 and browser.run(OVERLAPS) == []
    browser.run('document.getElementById("where").focus()')
    for _ in range(3):
        browser.press("ArrowRight")
    assert "rank 2" in say(browser, "where") and ": 20." in say(browser, "where")
    browser.run(f"{choose}(2, 20)")
    before = read_texts(browser, "#part-who-waits tr:nth-child(1) td")
    assert all(float(text or 0) < 2 for text in before), "rank 2 was not late yet"
    browser.run(f"{choose}(0, 1)")
    assert read_texts(browser, ".of") == ["Of steps 0 to 1: none of them is measured."] * 3
    browser.run('document.getElementById("all").click()')
    assert read_texts(browser, ".of") == of_all
    assert [read_texts(browser, each) for each in ("#part-who-waits td", "#phases-all td")] == whole
    assert not browser.run('document.getElementById("phases-all").hidden') and browser.list_complaints() == []


def test_of_a_long_job_the_blocks_of_the_chosen_steps_are_shown_and_named(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 20 steps, of which the first has 18 that are measured; rank 2 is late in the last 15 of 40."""
    monkeypatch.setattr("distprof.analyze.summary.step_blocks.MOST_BLOCKS", 2)
    browser.open(write(tmp_path, "blocks", make_four(25)))
    choose = (
        '(() => {{ const to = document.getElementById("to"); to.value = {}; to.dispatchEvent(new Event("input")); }})()'
    )
    browser.run(choose.format(10))
    wider = "Of steps 0 to 19, the blocks that hold the chosen steps 0 to 10: 18 measured."
    assert read_texts(browser, ".of") == [wider] * 3
    browser.run(choose.format(38))
    assert set(read_texts(browser, ".of")) == {
        "Of steps 0 to 39, the blocks that hold the chosen steps 0 to 38: 38 measured."
    }  # fmt: skip
    _, _, longest = read_texts(browser, "#phases-chosen tbody:first-of-type tr:first-child td")[:3]
    assert float(longest) == pytest.approx(5 + 20 * 15 / 38, abs=0.2), "not 5 + 20 * (0 + 15 / 20) / 2"


def test_ranks_are_reordered_at_a_click(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["many"])
    names = browser.run('[...document.querySelectorAll("#where-orders button")].map((each) => each.textContent)')
    assert names == ["by pp", "by dp", "by host"]
    browser.run('document.querySelectorAll("#where-orders button")[2].click()')
    assert "host" in say(browser, "where")
    assert browser.run('document.querySelector("[aria-pressed=true]").textContent') == "by host"
    assert "517" in browser.run('document.querySelector("#part-where tbody td").textContent')
