"""What traces say, as it is shown: on the terminal at every width, on the page, and to Weights & Biases."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from msgspec import structs
from rich.cells import cell_len
from rich.console import Console

from distprof.analyze import analyze
from distprof.analyze.traces.findings.rules import RULES
from distprof.facts.run import Run
from distprof.facts.trace_summary import Category, LaunchGap, LaunchGaps, TraceSummary
from distprof.render.finding_texts import describe_finding
from distprof.render.finding_texts.parts import name_kernel
from distprof.render.html.html import render_html
from distprof.render.sections.trace_rows import (
    HOST_ONLY_WORDS,
    MAX_KERNELS,
    MAX_RANGES,
    RANGE_WORDS,
    describe_not_checked,
    list_checks,
    list_devices,
    list_kernels,
)
from distprof.render.terminal.terminal import render_terminal
from distprof.render.wandb.wandb_summary import make_summary
from distprof.report.finding_report import MissingData, NotChecked
from distprof.report.report import Report
from distprof.report.trace_report import TraceReport, WindowCheck
from tests.analyze.traces.findings.synthetic_summaries import (
    make_device,
    make_kernel,
    make_range,
    make_rank,
    make_traced,
)
from tests.factories import MS, USUAL_NS, make_run
from tests.render.html.test_html import HOSTILE, Page

LONG = "void at::native::(anonymous namespace)::" + "elementwise_kernel_with_a_long_name" * 40


def show(report: Report, width: int = 100) -> str:
    stream = io.StringIO()
    render_terminal(report, Console(width=width, file=stream, force_terminal=False, color_system=None))
    return stream.getvalue()


def make_host_bound(rank: int, name: str = "attention") -> TraceSummary:
    """A rank with findings, and names as a test wants them."""
    return make_rank(
        rank,
        device=make_device(idle_host=60 + rank % 40, memory=2, memory_busy=2),
        kernels=(make_kernel(Category.MATMUL, 60, name=name), make_kernel(Category.ELEMENTWISE, 90, name=LONG)),
        ranges=(make_range(name, 100, 17), make_range("mlp", 60, 102, open_count=2)),
    )


def test_what_was_not_seen_of_a_device_stands_under_its_times() -> None:
    report = analyze(make_traced(structs.replace(make_host_bound(0), unobserved_ns=464 * MS), make_host_bound(1)))
    told = "in no column: 464.0 ms of rank 0; before its first kernels a device may have run"
    assert told in " ".join(show(report).split())
    assert "in no column" not in show(analyze(make_traced(make_host_bound(0))))


def test_the_ten_longest_gaps_are_all_on_the_terminal() -> None:
    longest = tuple(LaunchGap(length_ns=MS, name=f"kernel_{number}", stream=7, graph=False) for number in range(10))
    gaps = LaunchGaps(count=400, median_ns=1, p90_ns=3, short_ns=0, graph_ns=10 * MS, longest=longest)
    text = show(analyze(make_traced(make_rank(device=make_device(idle_launch=40), gaps=gaps))))
    assert [number for number in range(10) if f"kernel_{number} (rank 0, stream 7)" in text] == list(range(10))


def make_report(num_ranks: int = 2, name: str = "attention", *, traced: bool = True, **changes: Any) -> Report:
    """Of traces alone, unless a job of its own is wanted."""
    infos = {rank: {"source": "trace", "ended": None} for rank in range(num_ranks)} if traced else None
    work = {"work": None, "strategy": None, "precision": None} if traced else {}
    run = make_run(
        num_ranks=num_ranks, num_steps=3, infos=infos, device_ns=USUAL_NS, meta=work,
        columns={"tokens": float("nan")} if traced else None,
    )  # fmt: skip
    return analyze(make_traced(*(make_host_bound(rank, name) for rank in range(num_ranks)), run=run, **changes))


def replace_activity(report: Report, **changes: Any) -> Report:
    assert report.activity is not None
    return structs.replace(report, activity=structs.replace(report.activity, **changes))


def strip_ends(text: str) -> str:
    return re.sub(r" +\n", "\n", text)


def test_findings_stand_between_the_headline_and_the_tables_with_all_that_belongs_to_them() -> None:
    report = make_report()
    text = strip_ends(show(report, 200))
    assert report.activity is not None
    first = report.activity.findings[0]
    words = describe_finding(first)
    assert f"\n1. {words.title} [" in text
    assert words.consequence in text and f"   Remedy: {words.remedy}" in text
    assert "   - host-bound, of the step: 30.5 % (rank 1)\n   - host-bound, of the step: 30.0 % (rank 0)" in text
    assert text.index("step time") < text.index("\nfindings") < text.index("phases by rank")
    assert text.index("phases by rank") < text.index("device time by rank") < text.index("\ncoverage")


def test_a_job_without_traces_says_nothing_of_them() -> None:
    text, page = show(analyze(make_run())), " ".join(Page(render_html(analyze(make_run()))).words)
    for word in ("findings (", "Findings ", "evice time by rank", "ernels by category", "ot checked"):
        assert word not in text and word not in page


def test_no_finding_is_said_and_so_is_what_was_not_checked() -> None:
    report = replace_activity(
        make_report(), findings=(),
        not_checked=(
            NotChecked(rule="copies_in_step", lack=MissingData.NO_STEPS),
            NotChecked(rule="host_bound", lack=MissingData.NO_DEVICE),
            NotChecked(rule="sync_in_step", lack=MissingData.NO_STEPS),
        ),
    )  # fmt: skip
    why = "copies_in_step, sync_in_step (no steps are known); host_bound (no device activity was traced)"
    assert f"\nnone\nnot checked: {why}\n" in strip_ends(show(report, 200))
    assert f"Not checked: {why}." in render_html(report)
    assert report.activity is not None
    assert describe_not_checked(structs.replace(report.activity, not_checked=())) == ""


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("num_ranks", [1, 2, 16, 40])
def test_everything_fits_the_width_and_no_number_is_cut(width: int, num_ranks: int) -> None:
    report = make_report(num_ranks, name=LONG)
    text = show(report, width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "\u2026" not in text
    table = text[text.index("device time by rank") :]
    first = next(line.split() for line in table.splitlines() if re.match(r"\d", line))
    device = next(item for item in report.activity.devices if item.rank == int(first[0]))  # type: ignore[union-attr]
    assert first[1] == f"{device.compute_ns / MS:.2f}"


def test_of_many_ranks_those_with_the_most_and_the_least_to_do_are_shown() -> None:
    """Rank 77 has the least exposed communication, rank 400 the most."""
    exposed = {77: 1.0, 400: 55.0}
    items = [
        make_rank(
            rank, device=make_device(idle_communication=exposed.get(rank, 20 + rank / 100), communication_busy=60)
        )
        for rank in range(512)
    ]
    run = make_run(num_ranks=512, num_steps=3, infos={rank: {"source": "trace", "ended": None} for rank in range(512)})
    report = analyze(make_traced(*items, run=run))
    text = show(report, 80)
    table = text[text.index("device time by rank") : text.index("kernels by category")]
    rows = [line.split()[0] for line in table.splitlines() if re.match(r"\d+ ", line)]
    assert len(rows) == 9 and rows[0] == "77" and rows[7] == "400"  # the ninth counts those left out
    assert "504 ranks between the busiest and the least busy" in table
    page = render_html(report)
    assert page.count('class="d-compute" x=') == 8 and "504 ranks between" in page
    assert len(text.splitlines()) < 160


def test_device_parts_add_up_to_the_span() -> None:
    report = make_report(3)
    assert report.activity is not None
    for row in list_devices(report.activity.devices):
        *parts, span = (float(cell.replace(",", "")) for cell in row[1:8])
        assert sum(parts) == pytest.approx(span, abs=0.04)
    for widths in _find_bars(render_html(report)).values():
        assert sum(widths) == pytest.approx(1000 - 84, abs=0.5)


def _find_bars(page: str) -> dict[str, list[float]]:
    bars: dict[str, list[float]] = {}
    for top, width in re.findall(r'<rect class="d-\w+" x="[\d.]+" y="(\d+)" width="([\d.]+)"', page):
        bars.setdefault(top, []).append(float(width))
    return bars


def test_sums_are_per_step_and_rank_or_of_the_whole_trace() -> None:
    stepped = show(make_report(2), 120)
    assert "kernels by category: per step and rank" in stepped
    row = next(line for line in stepped.splitlines() if line.startswith("elementwise "))
    assert row.split() == ["elementwise", "5", "45.0", "ms", "60.0", "%"]  # ten launches and 90 ms in two steps
    whole = analyze(make_traced(structs.replace(make_host_bound(0), num_steps=0)))
    text = show(whole, 120)
    assert "kernels by category: the whole trace" in text and "device time by rank: over the whole trace, ms" in text
    row = next(line for line in text.splitlines() if line.startswith("elementwise "))
    assert row.split()[1:4] == ["10", "90.0", "ms"]


def test_ranges_show_both_times_their_ratio_and_what_they_are() -> None:
    text = show(make_report(2), 120)
    table = text[text.index("\nranges: ") :]  # GPU: 34 of 125 + 124 ms of work
    row = next(line for line in table.splitlines() if line.startswith("attention "))
    assert row.split() == ["attention", "4", "50.0", "ms", "8.5", "ms", "0.17", "x", "50.0", "%", "13.7", "%"]
    assert RANGE_WORDS.split(";")[0] in text
    assert "4 ranges were never closed and are left out: mlp" in text


def test_ranges_without_device_activity_are_said_to_be_the_hosts() -> None:
    items = [make_rank(device=None, queue=None, kernels=(), ranges=(make_range("attention", 100, None),))]
    run = make_run(num_ranks=1, num_steps=3, infos={0: {"source": "trace", "ended": None}})
    report = analyze(make_traced(*items, run=run))
    text = show(report, 80)
    assert strip_ends(text).count("Host times only") == 1 and HOST_ONLY_WORDS[:40] in text
    assert "GPU/host" not in text and "device time by rank" not in text and "kernels by category" not in text
    page = render_html(report)
    assert "Host times only" in page and "Device time" not in page


def test_tables_show_the_first_and_no_more() -> None:
    kernels = tuple(make_kernel(Category.MATMUL, 10 - number / 10, name=f"k{number}") for number in range(40))
    ranges = tuple(make_range(f"r{number}x", 90 - number, 50) for number in range(40))
    text = show(analyze(make_traced(make_rank(kernels=kernels, ranges=ranges))), 100)
    assert f"\nk{MAX_KERNELS - 1} " in text and f"\nk{MAX_KERNELS} " not in text
    assert f"\nr{MAX_RANGES - 1}x " in text and f"\nr{MAX_RANGES}x " not in text


CHECKS = (
    WindowCheck(rank=0, phase="forward", clock="device", live_ns=100 * MS, trace_ns=101 * MS, difference_ratio=0.01),
    WindowCheck(rank=1, phase="forward", clock="device", live_ns=100 * MS, trace_ns=97 * MS, difference_ratio=-0.03),
    WindowCheck(rank=0, phase="step", clock="device", live_ns=200 * MS, trace_ns=202 * MS, difference_ratio=0.01),
    WindowCheck(rank=0, phase="data", clock="host", live_ns=0, trace_ns=MS, difference_ratio=None),
)


def test_the_window_is_set_beside_live_phases_where_they_differ_most() -> None:
    report = replace_activity(make_report(traced=False), window_checks=CHECKS)
    assert report.activity is not None
    assert list_checks(report.activity) == [
        ["step", "device", "200.0 ms", "202.0 ms", "+1.0 %", "0"],
        ["data", "host", "0 ms", "1.0 ms", "n/a", "0"],
        ["forward", "device", "100.0 ms", "97.0 ms", "-3.0 %", "1"],
    ]
    assert "kernel window against live phases" in show(report, 80)
    assert "Kernel window against live phases" in render_html(report)
    assert "window against" not in show(make_report(traced=False), 80)


def test_traces_alone_show_no_line_that_says_nothing() -> None:
    text = show(report := make_report(2), 100)
    for word in ("throughput", "MFU", "devices, before", "shadow", "FLOP/s", "traced", "\nlost"):
        assert word not in text, word
    assert "step time" in text and "exposed comm." in text
    assert "\nsynthetic: 2 ranks, gloo, cuda (Simulated Device)\n" in strip_ends(text)
    page = render_html(report)
    assert "tokens/s" not in page and "MFU" not in page and "shadow" not in page
    live = show(make_report(2, traced=False), 100)
    assert "throughput" in live and "devices, before" in live and "MFU" in live


def test_traces_without_steps_are_a_report_too() -> None:
    run: Run = make_run(
        num_ranks=1, num_steps=0, infos={0: {"source": "trace", "ended": None}}, meta={"world_size": 8, "work": None}
    )
    items = [structs.replace(make_host_bound(0), num_steps=0)]
    report = analyze(make_traced(*items, run=run))
    text = strip_ends(show(report, 80))
    assert text.startswith("ranks 1-7 are missing: there is no trace of them\n")
    assert "no verdict" not in text and "step time" not in text and "busiest" not in text
    assert "\n\n\n" not in text
    assert "Headline" not in render_html(report)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_from_traces_stay_text(name: str) -> None:
    items = [make_host_bound(rank, name) for rank in range(2)]
    layers = tuple(make_range(f"{name[:200]}{number}", 5 if number else 50, None, domain=name) for number in range(8))
    items[1] = structs.replace(items[1], ranges=layers, head=structs.replace(items[1].head, path=f"/{name}"))
    report = analyze(make_traced(*items))
    text = show(report, 80)
    assert not set(text) & set("\x1b\x07\u202e\r\x9b") and max(cell_len(line) for line in text.splitlines()) <= 80
    page = render_html(report)
    page.encode()
    tags = Page(page)
    assert tags.tags.count("script") == 1 and tags.tags.count("style") == 1 and "img" not in tags.tags
    assert not any(attribute.startswith("on") for attribute in tags.attributes) and tags.links == []
    assert "\x1b" not in page and "\u202e" not in page and len(page) < 1_000_000


def test_kernel_names_lose_what_all_have() -> None:
    assert name_kernel("void at::native::(anonymous namespace)::f<(int)4, at::native::G>(int)", 60) == "f<4, G>"
    assert name_kernel("", 60) == "(no name)"
    assert len(name_kernel("x" * 10**6, 60)) == 60
    report = make_report()
    assert report.activity is not None
    assert [row[0][:21] for row in list_kernels(report.activity)] == ["elementwise_kernel_wi", "attention"]


def test_every_finding_of_every_rule_can_be_shown() -> None:
    """More findings than are shown whole: the rest by their titles."""
    report = make_report()
    assert report.activity is not None
    one = report.activity.findings[0]
    many = tuple(structs.replace(one, ranks=(number, 99), share_ratio=0.0) for number in range(len(RULES)))
    text = strip_ends(show(replace_activity(report, findings=many), 120))
    for number, finding in enumerate(many):
        assert f"\n{number + 1}. {describe_finding(finding).title}\n" in text
    assert text.count("Remedy:") == 5
    assert render_html(replace_activity(report, findings=many)).count("<em>Remedy</em>") == len(RULES)


def test_the_summary_has_the_devices_and_the_first_findings() -> None:
    report = make_report(2)
    summary = make_summary(report)
    assert (summary["summary/finding_1"], summary["summary/finding_2"]) == ("matmul_share", "host_bound")
    assert summary["summary/finding_2_share_ratio"] == pytest.approx(61 / 200)
    assert summary["summary/device_idle_host_ratio"] == pytest.approx(60.5 / 200)
    parts = ("compute", "copies", "exposed", "idle_host", "idle_launch", "idle_unknown")
    assert sum(float(summary[f"summary/device_{part}_ratio"]) for part in parts) == pytest.approx(1)
    assert not [name for name in make_summary(analyze(make_run())) if "finding" in name or "device_" in name]
    empty: TraceReport = structs.replace(report.activity, devices=(), findings=())  # type: ignore[type-var]
    bare = make_summary(structs.replace(report, activity=empty))
    assert bare["summary/findings"] == 0 and "summary/device_compute_ratio" not in bare
