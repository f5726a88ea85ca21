"""Tables of traces as text and as CSV: what gives way where there is little room, and what a hostile name can do."""

from __future__ import annotations

import csv
import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from distprof.render.terminal.nsys_tables import render_table, write_csv
from distprof.traces.tables.six_tables import Table

HEADS = (
    "Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)", "Name",
)  # fmt: skip
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float>>(int, char*)"
NUMBERS = (88.3, 3_008_940_150, 900, 3_343_266.8, 1_452_872.0, 1_437_240, 7_050_554, 2_162_776.2)


def make_table(*names: str | None) -> Table:
    return Table(name="cuda_gpu_kern_sum", heads=HEADS, rows=tuple((*NUMBERS, name) for name in names))


def show(table: Table, width: int, max_rows: int | None = None) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False, color_system=None)
    render_table(table, "rank 0", console, max_rows=max_rows)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_wide_terminal_shows_what_nsys_shows() -> None:
    title, heads, row, *rest = show(make_table(KERNEL), 200)
    assert title.strip() == "cuda_gpu_kern_sum: rank 0"
    assert [heads.find(head) >= 0 for head in HEADS] == [True] * len(HEADS)
    assert row.split()[:8] == [
        "88.3", "3,008,940,150", "900", "3,343,266.8", "1,452,872.0", "1,437,240", "7,050,554", "2,162,776.2",
    ]  # fmt: skip
    assert "void at::native::vectorized" in row and row.strip().endswith("(int, char*)")
    assert not any(line.strip() for line in rest)


def test_a_narrow_terminal_says_which_columns_it_leaves_out() -> None:
    _, heads, row, note, *_ = show(make_table(KERNEL), 80)
    assert heads.split() == ["Time", "(%)", "Total", "Time", "Instances", "Avg", "Max", "Name"]
    assert row.split()[:8] == ["88.3", "3.009", "s", "900", "3.3", "ms", "7.1", "ms"]
    assert note.startswith("no room for Med, Min, StdDev: see --width and --csv")


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("name", [KERNEL, "日本語" * 80, "k", "\x1b[31mred\x07\n<script>", None])
def test_no_line_is_wider_than_the_terminal(width: int, name: str | None) -> None:
    lines = show(make_table(name, "gemm"), width)
    assert all(cell_len(line) <= width for line in lines)
    assert not any(character in "".join(lines) for character in "\x1b\x07")
    assert sum("gemm" in line for line in lines) == 1


def test_a_name_of_a_megabyte_is_cut() -> None:
    assert sum(map(len, show(make_table("x" * 1_000_000), 100))) < 600


def test_rows_beyond_the_limit_are_counted() -> None:
    lines = show(make_table(*(f"kernel_{number}" for number in range(1_500))), 120, max_rows=2)
    assert sum("kernel_" in line for line in lines) == 2
    assert any(line.startswith("and 1,498 more rows: see --rows") for line in lines)


def test_an_empty_table_is_its_title() -> None:
    assert [line.strip() for line in show(make_table(), 80) if line.strip()] == ["cuda_gpu_kern_sum: rank 0"]


def test_what_the_consoles_encoding_cannot_say_is_replaced() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    render_table(make_table("gémm"), "rank 0", Console(width=200, file=file, force_terminal=False))
    file.flush()
    assert b"g?mm" in file.buffer.getvalue()  # type: ignore[attr-defined]


def test_the_csv_has_the_heads_and_the_digits_of_nsys() -> None:
    sizes = Table(
        name="cuda_gpu_mem_size_sum",
        heads=("Total (MB)", "Count", "Avg (MB)", "Med (MB)", "Min (MB)", "Max (MB)", "StdDev (MB)", "Operation"),
        rows=((13627.402, 292, 46.669, 26.214, 0.01, 104.858, 42.616, "[CUDA memcpy Host-to-Device]"),),
    )  # fmt: skip
    assert write_csv(sizes).decode().splitlines() == [
        "Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation",
        "13627.402,292,46.669,26.214,0.010,104.858,42.616,[CUDA memcpy Host-to-Device]",
    ]
    assert write_csv(make_table("gemm")).decode().splitlines() == [
        ",".join(HEADS), "88.3,3008940150,900,3343266.8,1452872.0,1437240,7050554,2162776.2,gemm",
    ]  # fmt: skip
    assert write_csv(Table(name="t", heads=("Time (%)", "Name"), rows=((None, None),))).splitlines()[1] == b","


def test_only_texts_are_quoted_for_spreadsheets() -> None:
    names = ("=cmd|' /C calc'!A0", "+1", "-1", "@sum", "operator=", 'say "a, b"\nnext', "\ud800lone")
    table = Table(name="t", heads=("Total (ns)", "Name"), rows=tuple((-5, name) for name in names))
    rows = list(csv.reader(io.StringIO(write_csv(table).decode(), newline="")))
    assert [row[0] for row in rows[1:]] == ["-5"] * len(names)
    assert [row[1] for row in rows[1:]] == [
        "'=cmd|' /C calc'!A0", "'+1", "'-1", "'@sum", "operator=", 'say "a, b"\nnext', "\\ud800lone",
    ]  # fmt: skip


def test_fault_16_a_cell_holds_nothing_that_a_terminal_or_a_spreadsheet_obeys() -> None:
    names = {
        "\x1b[31mred\x1b[0m \x1b]0;title\x07end": "red end", "nul\0 bell\a del\x7f csi\x9b31m": "nul bell del csi",
        "\t=1+1": "' =1+1", "\r+1": "' +1", " @x": "' @x", "\n-1": "'\n-1", "\x1b[0m=1": "'=1", "\u202e=1": "'=1",
        "\uff1dcmd()": "'\uff1dcmd()", "a\tb  c": "a b  c", "rtl\u202e\u200bname": "rtlname", "": "",
    }  # fmt: skip
    table = Table(name="t", heads=("Min (ns)", "Name"), rows=tuple((-1.5, name) for name in names))
    rows = list(csv.reader(io.StringIO(write_csv(table).decode(), newline="")))[1:]
    assert [row[1] for row in rows] == list(names.values())
    assert {row[0] for row in rows} == {"-1.5"}, "a number is one, whatever it begins with"
