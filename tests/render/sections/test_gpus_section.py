"""The GPUs while they trained, as a table."""

from __future__ import annotations

import io

from msgspec import structs
from rich.console import Console

from distprof.analyze import analyze
from distprof.facts.gpu import GpuCaps
from distprof.render.html.html import render_html
from distprof.render.sections.gpus import show_gpus
from distprof.render.terminal.terminal import render_terminal
from tests.analyze.summary.test_gpus import make_gpu, make_job

WIDE = GpuCaps(sm_clock_mhz=1980, power_mw=700_000, pcie_generation=5, pcie_lanes=16, counts_energy=True)
SUM = "30.20 J a step, 14.75 mJ a token, 302 W"
NARROW = GpuCaps(pcie_generation=5, pcie_lanes=32)


def test_a_row_for_each_and_a_sum_below() -> None:
    report = analyze(make_job([make_gpu(21, caps=WIDE), make_gpu(21, power_w=2, caps=NARROW)]))
    section = show_gpus(report, {0, 1})
    assert section.rows == [
        ("0", "1,500 of 1,980", "power cap", "42 C", "300 W of 700 W", "30.00 J", "29.30 mJ", "5 x16"),
        ("1", "1,500 of n/a", "power cap", "42 C", "2 W", "200.0 mJ", "0.20 mJ", "5 x16 of 5 x32"),
    ]
    assert section.notes == (f"all 2 GPUs: {SUM}, over 200 steps with the time between them; by power, integrated",)
    assert show_gpus(report, {1}).rows == section.rows[1:]


def test_it_is_on_the_terminal_and_on_the_page_and_nowhere_without_samples() -> None:
    report = analyze(make_job([make_gpu(21, caps=WIDE), make_gpu(21, caps=WIDE)]))
    out = io.StringIO()
    render_terminal(report, Console(file=out, width=80))
    text = out.getvalue()
    assert "GPUs while they trained" in text and "1,500 of 1,980" in text
    assert "all 2 GPUs: 60.00 J a step" in " ".join(text.split())
    assert "1,500 of 1,980" in render_html(report)
    without = structs.replace(report, gpus=None)
    out = io.StringIO()
    render_terminal(without, Console(file=out, width=80))
    assert "GPUs while" not in out.getvalue() and "GPUs while" not in render_html(without)
