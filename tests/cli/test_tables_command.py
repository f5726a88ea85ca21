"""``distprof tables``: which processes and rows each option selects, what is written, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from distprof.traces.tables.projection import PROJECTIONS
from distprof.traces.tables.six_tables import TABLES
from tests.nsys_file import ADD, GEMM, NCCL, make_training_export

MS = 1_000_000


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks that do the same for five steps, and torchrun."""
    return make_training_export(num_ranks=3, num_steps=5).write(tmp_path_factory.mktemp("capture") / "node0.sqlite")


def read_table(folder: Path, name: str) -> dict[str, list[str]]:
    """The rows of a written table, by their last cell."""
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return {row[-1]: row for row in list(csv.reader(file))[1:]}


def test_the_six_tables_are_shown(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["tables", str(capture), "--width", "200"]) == EXIT_OK
    said = capsys.readouterr().out
    titles = [line.split(":")[0] for line in said.splitlines() if ": " in line and line.split(":")[0] in TABLES]
    assert titles == list(TABLES)
    assert "ranks 0-2 and 1 other process" in said
    assert "distprof:forward" in said and GEMM in said and "[CUDA memcpy Host-to-Device]" in said
    assert "3 ranges were never closed" in said


def test_one_table_of_one_rank(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--table", "cuda_gpu_kern_sum", "--rank", "1", "--rows", "1", "--width", "200"]
    assert run_verb(["tables", str(capture), *options]) == EXIT_OK
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0].strip() == "cuda_gpu_kern_sum: 3 rows, rank 1"
    # GEMM runs 20 and 40 ms in each of 5 steps, NCCL 24 ms and ADD 2 ms: 430 ms in all
    assert lines[2].split()[:6] == ["69.8", "300,000,000", "10", "30,000,000.0", "30,000,000.0", "20,000,000"]
    assert lines[3].startswith("and 2 more rows")


def test_the_tables_of_all_ranks_are_the_ranks_together(capture: Path, tmp_path: Path) -> None:
    assert run_verb(["tables", str(capture), "--csv", str(tmp_path / "all")]) == EXIT_OK
    assert run_verb(["tables", str(capture), "--csv", str(tmp_path / "each"), "--per-rank"]) == EXIT_OK
    assert sorted(path.stem for path in (tmp_path / "all").iterdir()) == sorted(TABLES)
    kernels = read_table(tmp_path / "all", "cuda_gpu_kern_sum")
    assert kernels[ADD][1:3] == [str(15 * 2 * MS), "15"]
    by_rank = [read_table(tmp_path / "each", f"cuda_gpu_kern_sum_rank-{rank:05d}") for rank in range(3)]
    for name in (GEMM, ADD, NCCL):
        assert sum(int(rows[name][1]) for rows in by_rank) == int(kernels[name][1])
    assert len(list((tmp_path / "each").glob("osrt_sum_process-4000*"))) == 1


def test_what_began_before_the_measured_steps_is_dropped(capture: Path, tmp_path: Path) -> None:
    export = make_training_export(num_ranks=2, num_steps=4)
    for pid in (4101, 4102):
        export.add_range(pid, "warmup", 90 * MS, 201 * MS)  # around step 0
    file = export.write(tmp_path / "warm.sqlite")
    assert run_verb(["tables", str(file), "--csv", str(tmp_path), "--drop-warmup"]) == EXIT_OK
    assert read_table(tmp_path, "nvtx_sum")["distprof:step"][2] == str(2 * 3)
    assert read_table(tmp_path, "cuda_gpu_kern_sum")[ADD][1:3] == [str(6 * 2 * MS), "6"]
    assert "poll" not in read_table(tmp_path, "osrt_sum")  # of torchrun, which has no steps
    assert run_verb(["tables", str(file), "--csv", str(tmp_path)]) == EXIT_OK
    assert read_table(tmp_path, "nvtx_sum")["distprof:step"][2] == str(2 * 4)


def test_ranges_and_the_device_together(capture: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = list(PROJECTIONS)
    asked = [option for name in names for option in ("--table", name)]
    assert run_verb(["tables", str(capture), *asked, "--width", "80"]) == EXIT_OK
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in shown if line.split(":")[0] in names] == names
    assert max(map(len, shown)) <= 80
    for folder, options in (("nested", []), ("exclusive", ["--exclusive"]), ("dropped", ["--drop-warmup"])):
        assert run_verb(["tables", str(capture), *asked, *options, "--csv", str(tmp_path / folder)]) == EXIT_OK
    ranges = {folder: read_table(tmp_path / folder, "projection") for folder in ("nested", "exclusive", "dropped")}
    assert ranges["nested"]["step"][4] == str(15 * 100 * MS)  # 3 ranks, 5 steps of 100 ms
    assert ranges["exclusive"]["step"][4] == str(15 * 5 * MS)  # the last 5 ms of a step are in no phase
    projected = (tmp_path / "dropped" / "nvtx_gpu_proj_sum.csv").read_text()
    assert f"\ndistprof:forward,PushPop,{15 * 22 * MS}," in projected  # 12 to 34 ms: GEMM, then ADD
    assert "open" not in projected


def test_a_trace_of_pytorch(tmp_path: Path) -> None:
    def event(category: str, name: str, begin_us: int, long_us: int, thread: int, **more: object) -> dict[str, object]:
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "ts": begin_us,
            "dur": long_us,
            "pid": 0,
            "tid": thread,
            "args": more,
        }

    copied = {"bytes": 2_500_000, "device": 0, "stream": 7, "correlation": 3}
    events = [
        event("user_annotation", "ProfilerStep#1", 1_000, 100, 1),
        event("cuda_runtime", "cudaLaunchKernel", 1_010, 5, 1, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 1_020, 7, 1, correlation=2),
        event("kernel", "gemm", 1_030, 30, 7, device=0, stream=7, correlation=1),
        event("kernel", "gemm", 1_060, 10, 7, device=0, stream=7, correlation=2),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1_070, 4, 7, **copied),
    ]
    document = {"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": events}
    (tmp_path / "rank3.json").write_text(json.dumps(document))
    assert run_verb(["tables", str(tmp_path / "rank3.json"), "--csv", str(tmp_path), "--rank", "3"]) == EXIT_OK
    rows = {name: read_table(tmp_path, f"{name}_rank-00003") for name in TABLES}
    assert rows["cuda_gpu_kern_sum"] == {
        "gemm": ["100.0", "40000", "2", "20000.0", "20000.0", "10000", "30000", "14142.1", "gemm"]
    }
    assert rows["cuda_api_sum"]["cudaLaunchKernel"][1:4] == ["12000", "2", "6000.0"]
    assert rows["nvtx_sum"]["ProfilerStep#1"][1:3] == ["100000", "1"]
    assert [row[:2] for row in rows["cuda_gpu_mem_size_sum"].values()] == [["2.500", "1"]]
    assert rows["osrt_sum"] == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--exclusive"], "--exclusive: applies to the projection"),
        (["--rank", "9"], "--rank 9: not found; the traces have ranks 0-2 and 1 other process"),
        (["--rows", "-1"], "--rows -1: must be a whole number, 0 or more"),
        (["--width", "3"], "--width 3"),
        (["--step", "iteration*"], "--step: only works with --drop-warmup"),
        (["--drop-warmup", "--step", "nothing"], "no steps are known"),
    ],
)
def test_slips_are_one_line(
    options: list[str], expected: str, capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["tables", str(capture), *options]) == EXIT_USAGE
    said = capsys.readouterr()
    assert said.out == "" and expected in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("options", [["--table", "cuda_kern_sum"], ["--rank", "0", "--per-rank"], []])
def test_the_parser_refuses(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run_verb(["tables", *(["x.sqlite", *options] if options else [])])
    assert stop.value.code == EXIT_USAGE
    assert capsys.readouterr().err.startswith("distprof tables: ")


def test_a_folder_that_cannot_be_written_is_said(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["tables", str(capture), "--csv", str(capture / "inside")]) == EXIT_USAGE
    assert "--csv" in capsys.readouterr().err


def test_what_is_no_capture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    assert run_verb(["tables", str(tmp_path / "notes.txt")]) == EXIT_FAILED
    assert capsys.readouterr().err.count("\n") == 1
