"""The modules of a job on the terminal and on the page, and the verdict's sentence about them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from distprof.analyze import analyze
from distprof.facts.modules import RankMemory
from distprof.render.html.html import render_html
from distprof.render.sections import module_tree
from distprof.render.sections.job_modules import draw_modules, show_memory, show_modules
from distprof.render.sections.verdict import describe_verdict
from distprof.render.terminal.terminal import render_terminal
from distprof.report.late_reasons import SlowModule
from distprof.report.report import Report
from distprof.report.wait_report import VerdictKind
from tests.factories import MS
from tests.made_causes import make_cause, make_report, make_verdict
from tests.made_modules import NAMES, make_module_run, make_table

SLOW = SlowModule(name="blocks.1.mlp", rank_ns=26e6, others_ns=6e6, share_ratio=1.0, steps_used=5)

PREDICTED = RankMemory(parameters=2048, gradients=2048, optimizer=4096, buffers=0, activations=None)


def make(*tables: Any) -> Report:
    return analyze(make_module_run(tables or (make_table(0), make_table(1, forward_ms={"blocks.1.mlp": 20}))))


def show(report: Report, width: int) -> str:
    out = StringIO()
    render_terminal(report, Console(file=out, width=width))
    return out.getvalue()


def find_cells(report: Report) -> dict[str, dict[str, str]]:
    section = show_modules(report)
    heads = [column.head for column in section.columns]
    return {row[0].strip(): dict(zip(heads, row, strict=True)) for row in section.rows}


def test_the_sentence_names_the_module() -> None:
    late = make_cause(VerdictKind.SLOW_RANK, 20, rank=1, phase="forward")
    said = describe_verdict(make_report([late], module=SLOW))
    assert "(forward +20.0 ms), most of it in blocks.1.mlp; the other" in said
    assert "most of it" not in describe_verdict(make_report([late]))


def test_identical_modules_fold_and_ranks_stand_side_by_side() -> None:
    cells = find_cells(make())
    assert list(cells) == ["(model)", "embedding", "blocks", "0-1 (2 x)", "attention (2 x)", "mlp (2 x)", "head"]
    head, mlp = cells["head"], cells["mlp (2 x)"]
    assert (head["parameters"], head["held"], head["class"]) == ("30", "15", "Linear")
    assert (head["forward"], head["backward"]) == ("3.00 k", "6.00 k")
    assert (head["forward time"], head["backward time"]) == ("3.0 ms", "6.0 ms")
    assert mlp["parameters"] == "120" and mlp["forward time"] == "22.0 ms"  # medians 6 and 16, added up
    assert (mlp["forward least"], mlp["forward most"]) == ("6.0 ms, rank 0, in 0", "26.0 ms, rank 1, in 1")
    assert cells["blocks"]["forward most"] == "40.3 ms, rank 1"


def test_one_rank_is_not_compared_with_itself() -> None:
    assert not {"forward least", "forward most"} & {*find_cells(make(make_table(0)))["head"]}


def test_the_cost_is_said_and_that_it_counts_in_nothing_else() -> None:
    run = make_module_run()
    run.column("step_host_ns")[:, 4:] = 150 * MS
    (cost,) = show_modules(analyze(run)).facts
    assert cost.text == (
        "5 steps in which modules were timed take 150.0 ms each (1.5 times a measured step's median), the one in which "
        "operations were counted 150.0 ms; they count in no other number"
    )


def test_the_slow_module_stands_above_the_table() -> None:
    verdict = make_verdict(make_cause(VerdictKind.SLOW_RANK, 20, rank=1, phase="forward"), module=SLOW)
    facts = show_modules(structs.replace(make(), verdict=verdict)).facts
    assert facts[0].text == "blocks.1.mlp takes 26.0 ms of forward on rank 1, and 6.0 ms on the others"


def test_only_the_largest_rows_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_tree, "TOP", 4)
    section = show_modules(make())
    assert [row[0].strip() for row in section.rows] == ["(model)", "blocks", "0-1 (2 x)", "mlp (2 x)"]
    assert section.notes[-1] == (
        "a terminal shows the 4 largest rows, report.html the whole tree, report.json every module"
    )


@pytest.mark.parametrize("width", [80, 200])
def test_the_terminal_shows_it_at_any_width(width: int) -> None:
    shown = show(make(), width)
    assert "modules of Model: work and time of a step, host clock" in shown
    assert "26.0 ms, rank 1, in 1" in shown and max(map(len, shown.splitlines())) <= width


class Page(HTMLParser):
    """Counts elements, and checks that they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack, self.seen = list[str](), list[str]()
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.stack.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_the_page_has_a_tree_that_opens_and_closes() -> None:
    drawn = draw_modules(make())
    assert Page(drawn).seen.count("details") == 3  # the model, its blocks, and the two of them
    assert drawn.count("<details open>") == 2
    assert re.findall(r"<summary><span>([^<]*)", drawn) == ["(model)", "blocks", "0-1 (2 x)"]
    assert re.findall(r"<div><span>([^<]*)", drawn) == ["embedding", "attention (2 x)", "mlp (2 x)", "head"]
    assert drawn in render_html(make())


def test_a_large_tree_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_tree, "MAX_SHOWN", 4)
    drawn = draw_modules(make())
    assert Page(drawn).seen.count("details") == 3 and "<p>3 more are in report.json.</p>" in drawn


def test_hostile_names_do_nothing() -> None:
    names = ("", "</script><b>x", "blocks\x1b[31m", *NAMES[3:])
    report = make(make_table(0, names=names, notes=("\u202edelipmoc",)), make_table(1, names=names, model="\x1b]0;x"))
    assert "<b>x" not in render_html(report) and not {"\x1b", "\u202e"} & {*show(report, 120)}


def test_memory_stands_beside_its_prediction_and_the_rank_with_most_is_named() -> None:
    kinds = {"gradients": None, "optimizer": 4096, "buffers": 0, "activations": 2048, "communication": None}
    tables = [
        make_table(rank, memory=RankMemory(parameters=1024 * (2 - rank), **kinds), predicted_memory=PREDICTED)
        for rank in (0, 1)
    ]
    section = show_memory(make(*tables))
    assert [column.head for column in section.columns] == ["kind", "predicted", "measured", "least", "most"]
    assert section.rows == [
        ("parameters", "2.0 KiB", "1.5 KiB", "1.0 KiB, rank 1", "2.0 KiB, rank 0"),
        ("gradients", "2.0 KiB", "n/a", "", ""), ("optimizer state", "4.0 KiB", "4.0 KiB", "", ""),
        ("buffers", "0 B", "0 B", "", ""), ("activations", "n/a", "2.0 KiB", "", ""),
        ("communication buffers", "n/a", "n/a", "", ""),
    ]  # fmt: skip
    shown = show(make(*tables), 80)
    assert "memory of a rank by kind" in shown and max(map(len, shown.splitlines())) <= 80
    assert "<td>1.0 KiB, rank 1</td>" in render_html(make(*tables))
    assert "memory of a rank by kind" not in show(make(), 80)
    tables[0] = structs.replace(tables[0], peak_bytes=10240)
    assert show_memory(make(tables[0])).rows[-1] == ("the allocator's peak", "n/a", "10.0 KiB")


def test_without_a_profile_there_is_nothing() -> None:
    report = make_report([])
    assert draw_modules(report) == "" and not show_memory(report).columns and not show_modules(report).columns
