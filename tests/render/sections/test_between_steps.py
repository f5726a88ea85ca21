"""What lies between steps in the table of phases, the headline and W&B: shown beside the step, never in it."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from msgspec import structs
from rich.cells import cell_len
from rich.console import Console

from distprof.analyze import analyze
from distprof.analyze.summary.phases import PARTS
from distprof.facts.run import COLUMN
from distprof.render.html.html import render_html
from distprof.render.terminal.screen import render_screen
from distprof.render.terminal.terminal import render_terminal
from distprof.render.wandb.wandb_summary import make_summary, make_table
from distprof.report.report import Report
from tests.factories import MS, USUAL_NS, make_run
from tests.wandb_file import read_details

NUM_STEPS = 12
OWN = dict.fromkeys(PARTS.values(), 0.0)


def make_report(gap_ms: float, *, num_ranks: int = 2, device: bool = False, **columns: object) -> Report:
    """Steps of 100 ms, each ``gap_ms`` after the one before."""
    begin_ns = 10**12 + np.arange(NUM_STEPS) * (100 + gap_ms) * MS
    changes = {"begin_host_ns": begin_ns[None], **columns}
    device_ns = USUAL_NS if device else None
    return analyze(make_run(num_ranks=num_ranks, num_steps=NUM_STEPS, device_ns=device_ns, columns=changes))  # type: ignore[arg-type]


EVALUATES = make_report(
    8.8, **OWN | {"evaluation_host_ns": [[5.5 * MS], [0]], "between_wait_host_ns": [[0], [5.5 * MS]]}
)
"""11 steps of 100 ms, and 8.8 ms before ten of them: a mean of 8 ms."""


def show(report: Report, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    render_terminal(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def find_rows(text: str) -> list[list[str]]:
    table = text[text.index("host clock: mean per step, ms") :].split("\n\n")[0]
    return [re.split(r"  +", line.strip()) for line in table.splitlines()[1:]]


def test_rows_stand_below_the_step_and_apart() -> None:
    rows = find_rows(show(EVALUATES))
    names = [row[0] for row in rows]
    note = " ".join(row[0] for row in rows[-2:])
    assert [name for name in names[:-2] if not name.startswith("\u2500")] == [
        "phase", "data", "forward", "backward", "all_reduce", "grad_norm", "optimizer", "other", "step",
        "evaluation", "waits between steps", "between steps", "cycle",
    ]  # fmt: skip
    assert note == (
        'the rows below "step" are the time between steps, which is known before 10 of them, as a mean per measured '
        "step; a cycle is the step and that time, and shares in those rows are of the cycle"
    )
    ruled = [names[index + 1] for index, name in enumerate(names) if name.startswith("\u2500")]
    assert ruled == ["data", "step", "evaluation", "cycle"]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["evaluation"] == ["5.00", "0", "0", "2.50", "5.00", "0", "2.3 %"]
    assert by_name["waits between steps"][:2] == ["0", "5.00"] and by_name["between steps"][:2] == ["3.00", "3.00"]
    assert by_name["step"][-1] == "100.0 %" and by_name["cycle"][:2] == ["108.0", "108.0"]


def test_the_headline_has_waits_between_steps_beside_those_within() -> None:
    text = " ".join(show(EVALUATES).split())
    assert "(mean over ranks); waits between steps are 2.3 % of the time from step to step" in text
    assert "waits between steps are" not in " ".join(show(make_report(8.8, **OWN)).split())


def test_the_headline_says_how_long_it_is_from_step_to_step() -> None:
    text = show(EVALUATES)
    assert "step time      108.0 ms mean, " in text  # the cycle of the table
    assert "(elapsed time over steps, host clock, 7.4 % of it between steps)" in " ".join(text.split())


@pytest.mark.parametrize(("unrecorded_ms", "told"), [(100.0, ""), (97.0, ""), (80.0, "; 100.0 ms when recorded")])
def test_the_headline_says_how_long_recorded_steps_take_if_others_are_not_alike(
    unrecorded_ms: float, told: str
) -> None:
    """Half of the steps are recorded, and take 100 ms; phases are of these, and the others have none."""
    shadow = np.arange(NUM_STEPS) % 2 == 0
    step_ns = np.where(shadow, unrecorded_ms, 100) * MS
    columns = {"shadow": shadow, "step_host_ns": step_ns, "begin_host_ns": (np.cumsum(step_ns) - step_ns)[None]}
    report = make_report(0, **columns, warmup=0)
    mean = f"{(100 + unrecorded_ms) / 2:.1f} ms mean, "
    assert f"step time      {mean}" in show(report)
    assert f"(elapsed time over steps, host clock){told} " in " ".join(show(report).split())
    console = Console(width=80, file=io.StringIO(), color_system=None)
    render_screen(report, console, names=("report.json",), folder="runs/x", again="runs/x")
    assert isinstance(console.file, io.StringIO)
    (line,) = [line for line in console.file.getvalue().splitlines() if line.startswith("step time")]
    assert line.rstrip() == f"step time   {mean}100.0 ms p95 (host clock){told}"


GAPS = [(0, False, False), (0.05, False, False), (0.5, False, True), (1.5, True, True)]


@pytest.mark.parametrize(("gap_ms", "told", "shown"), GAPS)
def test_what_is_next_to_nothing_is_left_out(gap_ms: float, told: bool, shown: bool) -> None:
    text = show(make_report(gap_ms, **OWN))
    assert ("of it between steps" in " ".join(text.split())) == told
    assert ("\nbetween steps" in text) == shown


def test_without_parts_the_whole_is_one_row_and_that_is_said() -> None:
    text = show(make_report(8))
    assert "\nbetween steps" in text and "\nwaits between" not in text
    assert "own time and waits between steps cannot be distinguished" in text
    assert "cannot be distinguished" not in show(EVALUATES)


def test_it_stands_under_the_host_clock_only() -> None:
    text = show(make_report(8, device=True))
    host = text.index("phases by rank, host clock")
    assert "\nbetween steps" not in text[:host] and "\nbetween steps" in text[host:]


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("num_ranks", [1, 2, 8, 64])
def test_the_table_fits(num_ranks: int, width: int) -> None:
    text = show(make_report(8, num_ranks=num_ranks, **dict.fromkeys(OWN, 1.0 * MS)), width)
    assert max(map(cell_len, text.splitlines())) <= width and "\u2026" not in text
    assert "\ndata between steps " in text and "\ncheckpoint " in text and "\nlogging " in text


def test_the_page_has_the_same_rows_without_a_colour() -> None:
    page = render_html(EVALUATES)
    assert '<tr class="ruled"><td>evaluation</td><td>0</td>' in page
    assert '<tr class="ruled"><td><b>cycle</b></td><td>108.0</td>' in page
    assert '<tr class="ruled"><td><b>step</b></td>' in page and '<i class="p-evaluation">' not in page


def test_wandb_gets_them_on_the_host_clock() -> None:
    told = make_table(EVALUATES)
    table = [dict(zip(told.columns, row, strict=True)) for row in told.rows]
    assert [row["evaluation_host_ms"] for row in table] == pytest.approx([5, 0])
    assert [row["waits_between_steps_host_ms"] for row in table] == pytest.approx([0, 5])
    assert [row["between_steps_host_ms"] for row in table] == pytest.approx([3, 3])
    facts = make_summary(EVALUATES)
    assert facts["summary/cycle_ms"] == pytest.approx(108) and facts["summary/between_ratio"] == pytest.approx(8 / 108)
    assert "summary/cycle_ms" not in make_summary(structs.replace(EVALUATES, between=None))


def test_points_hold_what_was_measured() -> None:
    run = make_run(columns={**OWN, "evaluation_host_ns": [[5.0 * MS], [0]]})
    run.rows[:, :, COLUMN["logging_host_ns"]] = np.nan
    point = read_details(run.rows)
    assert {name: value for name, value in point.items() if name.startswith("between/")} == {
        "between/between_data_host_ms": 0, "between/evaluation_host_ms": 2.5,
        "between/checkpoint_host_ms": 0, "between/between_wait_host_ms": 0,
    }  # fmt: skip
