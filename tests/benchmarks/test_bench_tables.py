"""The benchmark on captures: synthetic exports, and their tables compared cell by cell; nothing here is timed."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.nsys_tables import compare_tables, read_tables
from benchmarks.table_capture import PIDS, make_capture
from distprof.cli.parser import run_verb
from distprof.traces.nsys.read_nsys import read_nsys
from distprof.traces.tables.six_tables import TABLES


def test_a_synthetic_capture_has_the_rows_that_were_asked_for(tmp_path: Path) -> None:
    rows = make_capture(tmp_path / "synthetic.sqlite", rows=20_000)
    assert 19_000 < rows < 21_000
    traces = read_nsys(tmp_path / "synthetic.sqlite", all_processes=True)
    assert [(trace.head.pid, trace.head.rank) for trace in traces] == list(zip(PIDS, (0, 1), strict=True))
    for trace in traces:
        assert not any("rows" in note for note in trace.head.notes)  # nothing had to be dropped
        assert (trace.gpu.call >= 0).all() and len(trace.os_calls.begin_ns) > 0
        assert (trace.gpu.begin_ns[1:] >= trace.gpu.end_ns[:-1]).mean() > 0.5  # one stream, nothing twice at once


def make_tables(folder: Path) -> Path:
    folder.mkdir()
    for name in ("nvtx_sum", "cuda_gpu_kern_sum"):
        text = 'Time (%),Name\n60.0,=evil\n40.0,"a, b"\n'
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


def test_every_cell_is_compared_and_what_differs_is_named(tmp_path: Path) -> None:
    ours, theirs = (read_tables(make_tables(tmp_path / name)) for name in ("ours", "theirs"))
    assert compare_tables(ours, theirs) == ([], 12)
    ours["nvtx_sum"][1][1] = "'=evil"  # what a spreadsheet would run
    ours["osrt_sum"] = [["Time (%)", "Name"]]  # nsys leaves tables without rows out
    assert compare_tables(ours, theirs) == ([], 12)
    ours["nvtx_sum"][2][0] = "40.1"
    del theirs["cuda_gpu_kern_sum"][2]
    differences, total = compare_tables(ours, theirs)
    assert total == 12 and differences == [
        "nvtx_sum row 2, column 1: 40.1 against 40.0",
        "cuda_gpu_kern_sum row 2, column 1: 40.0 against (nothing)",
        "cuda_gpu_kern_sum row 2, column 2: a, b against (nothing)",
    ]
    assert len(compare_tables({}, theirs)[0]) == 10


def make_nsys(folder: Path, tables: Path) -> Path:
    """A stand-in for nsys that hands out tables made before."""
    nsys = folder / "nsys"
    nsys.write_text(textwrap.dedent(f"""\
        #!{sys.executable}
        import pathlib, shutil, sys
        if "--version" in sys.argv:
            sys.exit(print("NVIDIA Nsight Systems version 2099.1.1"))
        assert sys.argv[sys.argv.index("--report") + 1] == "{",".join(TABLES)}"
        output = sys.argv[sys.argv.index("--output") + 1]
        for path in pathlib.Path("{tables}").iterdir():
            shutil.copy(path, f"{{output}}_{{path.name}}")
        """), encoding="utf-8")  # fmt: skip
    nsys.chmod(0o755)
    return nsys


def test_the_exit_code_says_whether_a_cell_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, tables = tmp_path / "synthetic.sqlite", tmp_path / "tables"
    make_capture(file, rows=2_000)
    assert run_verb(["tables", str(file), "--csv", str(tables)]) == 0
    monkeypatch.setenv("NSYS", str(make_nsys(tmp_path, tables)))
    assert main(["tables", str(file), "--repeats", "1"]) == 0
    shown = capsys.readouterr().out
    assert "\n0 of " in shown and "as fast as nsys 2099.1.1" in shown
    kernels = tables / "cuda_gpu_kern_sum.csv"
    kernels.write_text(kernels.read_text("utf-8").replace("kernel_3<", "kernel_x<"), encoding="utf-8")
    found = tmp_path / "found.json"
    assert main(["tables", str(file), "--repeats", "1", "--json", str(found)]) == 1
    assert "\n1 of " in capsys.readouterr().out
    assert json.loads(found.read_bytes())["cells_that_differ"] == 1


@pytest.mark.nsys
def test_the_tables_of_a_synthetic_capture_are_those_of_nsys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "--rows", "5000", "--repeats", "1"]) == 0
    assert "\n0 of " in capsys.readouterr().out
