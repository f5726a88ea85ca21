"""The report on a terminal: what stands where, at every width, and what a hostile name can do."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from distprof.analyze import analyze
from distprof.facts.run import PHASES, DeviceSnapshot, Peak, Run
from distprof.render.sections.ends import MAX_ALERTS, describe_ends
from distprof.render.sections.headline import describe_busiest
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.sections.sections import choose_rows
from distprof.render.terminal.terminal import MAX_NOTES, render_terminal
from distprof.render.terminal.terminal_tables import fit_table
from tests.factories import MS, USUAL_NS, drop_rows, make_run

GPU = DeviceSnapshot(
    name="NVIDIA H200 141GB HBM3e", memory_total_bytes=141 * 2**30, memory_used_bytes=3 * 2**30, utilization_ratio=0.98,
    power_w=512.4, temperature_c=63, processes=2,
)  # fmt: skip


def show(run: Run, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False, color_system=None)
    render_terminal(analyze(run), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def find_row(text: str, label: str) -> list[str]:
    """The cells of the first line that begins with a label."""
    return next(line for line in text.splitlines() if line.startswith(label)).split()


def make_straggler_run(num_ranks: int, rank: int, delay_ms: float, **changes: Any) -> Run:
    """One rank loses time in ``data``, and the others wait for it in ``all_reduce``."""
    late = np.arange(num_ranks)[:, None] == rank
    times = dict(USUAL_NS)
    times["data"] = 10 * MS + late * delay_ms * MS
    times["all_reduce"] = 15 * MS + ~late * delay_ms * MS
    return make_run(num_ranks=num_ranks, host_ns=times, **changes)


def test_the_headline_says_the_numbers() -> None:
    text = show(make_straggler_run(4, 2, 200))
    assert text.startswith("no verdict: 3 measured steps: at least 8")
    assert "\nsynthetic: ddp, 4 ranks, gloo, cpu (Simulated Device), fp32\n" in text
    assert "step time      300.0 ms mean, 300.0 ms median, 300.0 ms p95 (elapsed time over steps, host clock)" in text
    assert "throughput     13,653 tokens/s" in text
    assert "FLOP/s         6.67 GFLOP/s per device" in text
    assert "MFU, HFU       0.7 %, 1.0 %" in text
    assert "exposed comm.  55.0 % of the step, 165.0 ms (mean over ranks)" in text
    assert "; the formula gives 1.60 GFLOP (25.0 % off)" in " ".join(text.split())


def test_a_formula_that_gives_another_model_is_no_percentage() -> None:
    run = make_run()
    assert run.meta.work is not None
    work = replace(run.meta.work, analytic_flops_per_micro_step=run.meta.work.model_flops_per_micro_step // 1000)
    text = " ".join(show(replace(run, meta=replace(run.meta, work=work))).split())
    assert "; the formula gives 2.00 MFLOP, so it does not describe this model" in text


def test_the_straggler_is_one_plain_sentence() -> None:
    assert describe_busiest(analyze(make_straggler_run(4, 2, 200.1))) == (
        "rank 2 spends 285.1 ms of its own per step, 200.1 ms more than the median of the others, "
        "most of it in data (+200.1 ms)"
    )


def test_where_the_verdict_names_another_rank_the_busiest_is_said_to_be_an_average() -> None:
    report = analyze(make_straggler_run(4, 2, 200.1))
    said = describe_busiest(replace(report, verdict=replace(report.verdict, rank=1)))
    assert said.startswith("rank 2 spends 285.1 ms of its own per step, averaged over all steps, 200.1 ms more")
    report = analyze(make_straggler_run(4, 2, 4))
    said = describe_busiest(replace(report, verdict=replace(report.verdict, rank=1)))
    assert said.startswith("no outlier: rank 2 does the most work, averaged over all steps, ")


def test_less_than_half_is_not_most_of_it() -> None:
    report = analyze(make_straggler_run(4, 2, 200.1))
    assert report.headline.busiest is not None
    busiest = replace(report.headline.busiest, phase_excess_ns=90.0 * MS)
    said = describe_busiest(replace(report, headline=replace(report.headline, busiest=busiest)))
    assert said.endswith("the others, the largest part of it in data (+90.0 ms)")


@pytest.mark.parametrize(("delay_ms", "named"), [(4, False), (5, False), (6, True)])
def test_below_a_twentieth_of_the_step_no_rank_stands_out(delay_ms: float, named: bool) -> None:
    text = describe_busiest(analyze(make_straggler_run(4, 2, delay_ms)))
    assert text.startswith("rank 2 spends") == named
    assert text.startswith("no outlier") != named


def test_phases_stand_by_rank_with_their_ends_and_the_step_below() -> None:
    text = show(make_straggler_run(4, 2, 200))
    assert "phases by rank, host clock: mean per step, ms" in text
    heading = ["phase", "rank", "0", "rank", "1", "rank", "2", "rank", "3", "min", "median", "max", "rank", "share"]
    assert find_row(text, "phase ") == heading
    times = ["10.00", "10.00", "210.0", "10.00", "10.00", "10.00", "210.0", "2"]
    assert find_row(text, "data") == ["data", *times, "20.0", "%"]
    assert find_row(text, "step  ")[1:5] == ["300.0"] * 4
    assert text.index("\nother") < text.index("\nstep  ")
    assert "all_gather" not in text


def test_the_device_clock_comes_first() -> None:
    text = show(make_run(device_ns={"forward": 1 * MS}))
    assert text.index("phases by rank, device clock") < text.index("phases by rank, host clock")
    assert "(elapsed time over steps, device clock)" in text


def test_without_a_peak_the_way_to_supply_one_is_shown() -> None:
    peak = {"peak": Peak(flops_per_s=None, source="set hardware.peak=FLOP/s")}
    everywhere = show(make_run(infos={0: peak, 1: peak}))
    assert "MFU, HFU       n/a, n/a: peak FLOP/s unknown: set hardware.peak=FLOP/s\n" in strip_ends(everywhere)
    assert "MFU, HFU       n/a, n/a: rank 1: peak FLOP/s unknown" in show(make_run(infos={1: peak}))


def strip_ends(text: str) -> str:
    return re.sub(r" +\n", "\n", text)


def test_lost_ranks_stand_at_the_very_top() -> None:
    infos = {
        1: {"ended": None},
        2: {"ended": "failed", "error": "RuntimeError: Connection closed by peer"},
        3: {"ended": "terminated"},
        4: {"ended": "terminated"},
    }
    run = make_run(num_ranks=5, num_steps=6, infos=infos, meta={"world_size": 8})
    run = drop_rows(drop_rows(drop_rows(run, 1, 4), 3, 5), 4, 5)
    assert show(run, 120).splitlines()[:5] == [
        "ranks 5-7 are missing: they left no record",
        "rank 1 is missing after step 3: its stream ends abruptly (killed?)",
        "rank 2 failed after step 5: RuntimeError: Connection closed by peer",
        "ranks 3-4 were terminated after step 4",
        "no verdict: 3 measured steps: at least 8 are needed to tell a slow rank from chance",
    ]
    assert "ranks present  5 of 8; missing: ranks 5-7; cut off: rank 1" in show(run)


def test_ranks_that_never_got_to_a_step_are_told_apart() -> None:
    run = make_run(num_ranks=3, infos={0: {"ended": None}, 1: {"ended": "failed", "error": "E"}}, num_steps=0)
    assert describe_ends(analyze(run)) == [
        "rank 2 is missing: it recorded no step",
        "rank 0 is missing before the first step: its stream ends abruptly (killed?)",
        "rank 1 failed before the first step: E",
    ]


def test_a_thousand_different_failures_do_not_bury_the_report() -> None:
    infos = {rank: {"ended": "failed", "error": f"error {rank}"} for rank in range(100)}
    lines = describe_ends(analyze(make_run(num_ranks=100, infos=infos)))
    assert len(lines) == MAX_ALERTS + 1
    assert lines[-1] == "and 88 more like these, in report.json"


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8, 9, 64])
def test_tables_fit_and_nothing_in_them_is_cut(num_ranks: int, width: int) -> None:
    infos = {
        rank: {"snapshot": GPU, "host": f"host-{rank // 8}.a-cluster.of.an.organisation.example"}
        for rank in range(num_ranks)
    }  # fmt: skip
    run = make_straggler_run(num_ranks, num_ranks - 1, 12_345, infos=infos, device_ns=USUAL_NS)
    text = show(run, width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "\u2026" not in text
    step = find_row(text[text.index("host clock: mean") :], "step ")
    assert "12,445.0" in step
    by_rank = len(re.findall(r"rank \d", text[text.index("\nphase ") :].splitlines()[1]))
    assert by_rank == (num_ranks if num_ranks <= 4 or (num_ranks <= 8 and width >= 100) else 0)
    assert find_row(text, "0 " if num_ranks <= 16 else str(num_ranks - 1))[-1] == "completed"


def test_a_very_narrow_console_still_gets_a_report() -> None:
    assert "coverage" in show(make_run(num_ranks=4), 30)


def test_of_many_ranks_the_extremes_are_shown() -> None:
    own = np.random.default_rng(1).permutation(1024)
    run = make_run(num_ranks=1024, host_ns={"forward": own[:, None] * MS, "all_reduce": (2000 - own)[:, None] * MS})
    expected = [int(np.flatnonzero(own == value)[0]) for value in (1023, 1022, 1021, 1020, 3, 2, 1, 0)]
    assert choose_rows(analyze(run)) == expected
    text = show(run)
    table = text[text.index("ranks: the 4 with the most time of their own, and the 4 with the least") :].splitlines()
    assert [int(line.split()[0]) for line in table[3:11]] == expected
    assert table[11] == "1,016 other ranks are left out; report.json has them"
    assert len(text.splitlines()) < 72


def test_devices_show_the_columns_that_could_be_told() -> None:
    text = show(make_run(infos={0: {"snapshot": GPU}, 1: {"snapshot": DeviceSnapshot(name="GPU", power_w=9)}}))
    device = text[text.index("devices, before the first step") :]
    assert find_row(device, "0 ") == ["0", "cpu", "141.0", "GiB", "3.0", "GiB", "98.0", "%", "512", "W", "63", "C", "2"]
    assert find_row(device, "1 ") == ["1", "cpu", "n/a", "n/a", "n/a", "9", "W", "n/a", "n/a"]
    assert "devices, before" not in show(make_run(infos={rank: {"snapshot": None} for rank in range(2)}))


def test_communication_shows_ranges_where_ranks_differ() -> None:
    text = show(make_run(columns={"all_gather_count": [[2], [4]], "all_gather_busy_host_ns": np.nan}))
    assert find_row(text, "all_gather") == ["all_gather", "2", "to", "4", "0", "B", "n/a"]
    assert find_row(text[text.index("collective ") :], "all_reduce") == ["all_reduce", "3", "3.8", "MiB", "30.0", "ms"]


@pytest.mark.parametrize(("exposed_ms", "noted"), [(30, False), (31, True)])
def test_compute_that_goes_on_after_the_end_of_collectives_is_explained(exposed_ms: int, noted: bool) -> None:
    text = " ".join(show(make_run(columns={"all_reduce_exposed_host_ns": exposed_ms * MS})).split())
    assert ("and may exceed busy" in text) == noted  # they are busy for 30 ms


def test_coverage_says_what_the_numbers_stand_on() -> None:
    config = {"train": {"steps": 4, "warmup_steps": 1}}
    notes = tuple(f"note number {number}" for number in range(MAX_NOTES + 5))
    text = show(make_run(infos={0: {"rows_lost": 2}}, meta={"config": config, "notes": notes}))
    assert re.search(r"complete +no\n", strip_ends(text))
    assert "ranks present  2 of 2" in text
    assert "3 measured, 1 warm-up left out; 5 planned, warm-up included" in text
    assert "2 rows, 0 segments" in text
    assert f"note number {MAX_NOTES - 1}" in text and f"note number {MAX_NOTES}" not in text
    assert "and 5 more, in report.json" in text


@pytest.mark.parametrize(
    "run",
    [
        make_run(num_ranks=0, meta={"world_size": 2}),
        make_run(num_steps=0),
        make_run(num_ranks=1, columns=dict.fromkeys(("step", "warmup", "step_host_ns"), np.nan)),
    ],
)
def test_a_run_without_a_measured_step_shows_no_numbers(run: Run) -> None:
    text = show(run)
    assert "n/a: no measured step" in text
    assert "phases by rank" not in text
    headline = text[text.index("step time") : text.index("model")]
    assert not re.search(r"\d", headline.replace("one rank", ""))


def test_at_level_off_the_step_stands_alone() -> None:
    text = show(make_run(num_ranks=20, columns={f"{phase}_host_ns": np.nan for phase in PHASES}))
    assert "phases were not recorded: step time only" in text
    assert find_row(text, "step  ")[1] == "100.0"
    assert "ranks: the 4 with the most step time, and the 4 with the least" in text


HOSTILE = "\x1b[2J\x1b]0;owned\x07evil\u202e[red]\nname" + "x" * 500


def test_names_cannot_touch_the_terminal() -> None:
    info = {
        "host": HOSTILE, "device": HOSTILE, "error": HOSTILE, "ended": HOSTILE, "notes": (HOSTILE,),
        "snapshot": DeviceSnapshot(name=HOSTILE, power_w=1), "peak": Peak(flops_per_s=None, source=HOSTILE),
    }  # fmt: skip
    meta = dict.fromkeys(("name", "backend", "device_type", "strategy", "precision"), HOSTILE) | {"notes": (HOSTILE,)}
    for num_ranks in (1, 2, 20):
        text = show(make_run(num_ranks=num_ranks, infos={0: info}, meta=meta, warnings=(HOSTILE,)), 80)
        assert "evil[red] name" in text
        assert not set(text) & set("\x1b\x07\u202e\r\x9b")
        assert "x" * 301 not in text
        assert max(cell_len(line) for line in text.splitlines()) <= 80


def test_a_terminal_that_knows_only_ascii_gets_the_report_too() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    run = make_run(meta={"name": "Größe 模型"}, infos={0: {"snapshot": DeviceSnapshot(name="Gerät")}})
    render_terminal(analyze(run), Console(width=80, file=file))
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    assert b"\nGr??e ??: ddp" in file.buffer.getvalue()


def test_rendering_keeps_nothing() -> None:
    run = make_straggler_run(4, 2, 200)
    first = show(run)
    show(make_run(num_ranks=1), 80)
    assert show(run) == first


def test_names_that_are_too_long_are_shortened_before_ranks_and_figures_are_cut() -> None:
    heads, device = (
        ("rank", "host", "device", "product", "exchange with rank 0"),
        "A Processor of Long Name @ 2.80GHz",
    )
    rows = [(f"{rank} (suspect)", f"host-{rank}.example", device, "12.3 GFLOP/s", "1.2 GB/s, 34 us") for rank in (3, 4)]
    section = Section(key="probes", title="probes", columns=make_columns(heads, rows, ("host", "device")))
    for width in (100, 80):
        console = Console(width=width, file=io.StringIO(), force_terminal=False, color_system=None)
        console.print(fit_table(section, console))
        assert isinstance(console.file, io.StringIO)
        shown = console.file.getvalue()
        assert all(word in shown for word in ("3 (suspect)", "A Proc", "12.3 GFLOP/s", "1.2 GB/s, 34 us")), shown
