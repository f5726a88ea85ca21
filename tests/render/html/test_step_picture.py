"""The picture of one step: well formed, told to screen readers, nothing in it but text."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from distprof.analyze import analyze
from distprof.analyze.pipeline.report_operations import report_operations
from distprof.render.files.operations_files import render_operations_html
from distprof.render.html.html import render_html
from distprof.render.html.step_picture import draw_picture
from distprof.report.report import Report
from tests.analyze.timeline.test_step_timelines import make_kept_run
from tests.factories import make_run
from tests.render.files.test_timeline_file import make_pipeline_run, make_table

DATA = Path(__file__).resolve().parents[2] / "data"


def read(report: Report, at: int = 0) -> ElementTree.Element:
    return ElementTree.fromstring(draw_picture(report.timelines[at], report))


def list_boxes(svg: ElementTree.Element, kind: str) -> list[tuple[float, float, str]]:
    """Left edge, width and title of the rectangles of a class."""
    return [
        (float(box.attrib["x"]), float(box.attrib["width"]), (box.findtext("title") or ""))
        for box in svg.iter("rect") if box.attrib.get("class") == kind and box.find("title") is not None
    ]  # fmt: skip


def test_a_pipeline_is_numbered_hatched_and_joined() -> None:
    report = analyze(make_pipeline_run())
    svg = read(report)
    forwards = list_boxes(svg, "p-forward")
    assert [title for *_, title in forwards[:2]] == ["forward 0: 10.0 ms", "forward 1: 10.0 ms"]
    scale = forwards[0][1] / 10
    assert forwards[1][0] - forwards[0][0] == pytest.approx(12 * scale, abs=0.11)
    numbers = [text.text for text in svg.iter("text") if "num" in text.attrib.get("class", "")]
    assert sorted(filter(None, numbers)) == ["0"] * 4 + ["1"] * 4
    waits = [box for box in svg.iter("rect") if box.attrib.get("class") == "waits" and box.find("title") is not None]
    assert len(waits) == 3 and all(box.attrib["fill"] == "url(#step-typical-h)" for box in waits)
    assert [path.attrib["class"] for path in svg.iter("path")][1:] == ["send", "send", "send back", "send back"]


def test_collectives_are_hatched_until_the_last_arrival() -> None:
    run = make_kept_run(num_ranks=2)
    table = make_table(run, [[45], [70]], [[82], [82]])
    svg = read(analyze(replace(run, collectives=(table,))))
    (early, late), (hatched,) = list_boxes(svg, "p-all_reduce"), list_boxes(svg, "over")
    assert "37.0 ms, of which 25.0 ms until the last rank arrived" in early[2] and "of which 0" in late[2]
    assert hatched[0] == early[0] and hatched[1] == pytest.approx(early[1] * 25 / 37, abs=0.11)
    assert len([*svg.iter("polyline")]) == 1


def test_it_has_a_title_and_a_description_that_say_what_it_is() -> None:
    report = analyze(make_kept_run())
    svg = read(report, 1)
    assert svg.attrib["role"] == "img" and svg.attrib["aria-labelledby"] == "step-worst-t step-worst-d"
    assert svg.findtext("title") == "Step 4, the longest: 150.0 ms."
    assert "2 rows, one per rank" in (svg.findtext("desc") or "")


@pytest.mark.parametrize("name", ["</text><script>alert(1)</script>", '" onload="alert(1)', "\u202ea\x1b[31m", "]]>&<"])
def test_names_stay_text(name: str) -> None:
    run = make_kept_run(num_ranks=2)
    table = make_table(run, [[45], [70]], [[82], [82]], group=name)
    report = analyze(replace(run, collectives=(table,)))
    for at in range(2):
        svg = read(report, at)
        assert {element.tag for element in svg.iter()} <= {
            "svg", "title", "desc", "defs", "pattern", "path", "rect", "text", "line", "g", "polyline",
        }  # fmt: skip
        assert not any(key.startswith("on") for element in svg.iter() for key in element.attrib)
    assert "\u202e" not in render_html(report)


def test_the_page_has_both_steps_and_the_table_of_operations_too() -> None:
    page = render_html(analyze(make_kept_run()))
    assert page.count('<svg class="step"') == 2 and page.count('id="step-worst-t"') == 1
    assert '<svg class="step"' not in render_html(analyze(make_run(num_steps=1)))
    pytest.importorskip("pyarrow")
    from distprof.traces.operations.read_operations import read_operations

    report = report_operations(read_operations(DATA / "pipeline_8steps.parquet"), "x")
    assert {lane.stage for lane in report.timelines[0].lanes} == {0, 1, 2, 3}
    assert len(report.timelines[0].transfers.sources) == 2 * 4 * 3 * 2
    page = render_operations_html(report)
    assert page.count('<svg class="step"') == 2 and "dp 1, stage 3" in page


def test_many_ranks_stay_small() -> None:
    svg = draw_picture(analyze(make_kept_run(num_ranks=64)).timelines[0])
    assert len(svg) < 100_000 and 'class="end small"' in svg
