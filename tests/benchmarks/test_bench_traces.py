"""The benchmark on traces: what is synthetic, what is run and what is compared; nothing here is timed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import benchmarks.trace_rival
from benchmarks.__main__ import main
from benchmarks.process_tree import ProcessOutcome, find_session, read_memory, run_fresh
from benchmarks.synthetic_traces import TraceGeneration
from benchmarks.trace_job import LATE_NS, STEPS, make_job
from benchmarks.traces import OURS, RIVAL, find_difference, list_programs, measure_programs
from distprof.errors import DistprofError
from distprof.facts.arrays import IntArray
from distprof.traces.kineto.read_kineto import read_kineto

HOLDER = """
    import subprocess, sys
    held = bytearray(b"x") * 40_000_000
    if len(sys.argv) == 1:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, __file__, "child"], **pipes) as child:
            child.stdout.readline()
            print("ready", flush=True)
            sys.stdin.read()
            child.stdin.close()
    else:
        print("ready", flush=True)
        sys.stdin.read()
"""
FAKE_HTA = """
    class TraceAnalysis:
        def __init__(self, trace_dir, include_last_profiler_step):
            assert include_last_profiler_step is True
            self.folder = trace_dir

        def get_comm_comp_overlap(self, visualize):
            assert visualize is False
            return {"rank": [0, 1], "comp_comm_overlap_pctg": [50.0, 12.5]}

        def get_potential_stragglers(self, num_candidates):
            if self.folder == "new names":
                raise ValueError("attempt to get argmax of an empty sequence")
            return [1]
"""


# Processes


def test_memory_is_that_of_all_processes_of_a_session_together(tmp_path: Path) -> None:
    script = tmp_path / "holder.py"
    script.write_text(textwrap.dedent(HOLDER), encoding="utf-8")
    command = [sys.executable, str(script)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as parent:  # fmt: skip
        assert parent.stdin is not None and parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        found = list(find_session(parent.pid))
        assert len(found) == 2 and parent.pid in found
        each = [read_memory(pid) for pid in found]
        assert min(each) > 40e6 and 80e6 < sum(each) < 300e6
        parent.stdin.close()
        assert parent.wait(30) == 0
    assert list(find_session(parent.pid)) == [] and read_memory(parent.pid) == 0


def test_a_run_is_either_timed_or_watched() -> None:
    code = "import sys\nfor _ in range(30): held = bytearray(b'x') * 50_000_000\nprint(1); sys.exit(3)"
    timed, watched = (run_fresh([sys.executable, "-c", code], watch=watch) for watch in (False, True))
    assert (timed.exit_code, timed.stdout, timed.peak_bytes) == (3, "1\n", None) and timed.wall_s > 0
    assert watched.peak_bytes is not None and 50e6 < watched.peak_bytes < 300e6


# Traces


@pytest.mark.parametrize("generation", list(TraceGeneration))
def test_a_synthetic_job_has_a_trace_of_every_rank_and_one_of_them_is_late(
    generation: TraceGeneration, tmp_path: Path
) -> None:
    assert make_job(tmp_path, ranks=4, events=3_000, generation=generation) == 2
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == [f"rank-{rank}.json.gz" for rank in range(4)]
    traces = [read_kineto(path) for path in paths]
    assert [(trace.head.rank, trace.head.world_size) for trace in traces] == [(rank, 4) for rank in range(4)]
    texts = [gzip.decompress(path.read_bytes()) for path in paths]
    assert texts[0] == texts[3].replace(b'"rank": 3', b'"rank": 0', 1) != texts[2]
    for trace in traces:
        steps = sum(trace.names[code].startswith("ProfilerStep#") for code in trace.ranges.name.tolist())
        assert steps == STEPS
        events = json.loads(texts[0])["traceEvents"]
        assert 0.8 * 3_000 < len(events) < 1.5 * 3_000
    firsts = [find_first_collective(trace.gpu.begin_ns, trace) for trace in traces]
    assert firsts[0] == firsts[1] == firsts[3] == firsts[2] - LATE_NS


def find_first_collective(begin_ns: IntArray, trace: Any) -> int:
    return next(
        begin for begin, code in zip(begin_ns.tolist(), trace.gpu.name.tolist(), strict=True)
        if trace.names[code].startswith("nccl")
    )  # fmt: skip


def make_options(**more: Any) -> Namespace:
    return Namespace(**{"hta_python": None, "against": "hta", **more})


def test_the_rival_runs_where_it_is_and_from_its_own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert list(list_programs(make_options(), tmp_path)) == [OURS]
    named = list_programs(make_options(hta_python="/hta/python"), tmp_path)
    assert named[OURS] == [sys.executable, "-m", "benchmarks.trace_ours", str(tmp_path)]
    python, option, code, folder = named[RIVAL]
    assert (python, option, folder) == ("/hta/python", "-c", str(tmp_path)) and "import distprof" not in code
    assert list(list_programs(make_options(hta_python="/hta/python", against="none"), tmp_path)) == [OURS]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert list_programs(make_options(), tmp_path)[RIVAL][0] == sys.executable


def test_what_the_rival_says_and_where_it_fails(tmp_path: Path) -> None:
    (tmp_path / "hta").mkdir()
    (tmp_path / "hta" / "__init__.py").write_text("")
    (tmp_path / "hta" / "trace_analysis.py").write_text(textwrap.dedent(FAKE_HTA), encoding="utf-8")
    code = Path(benchmarks.trace_rival.__file__).read_text(encoding="utf-8")
    found = {}
    for folder in ("old names", "new names"):
        done = run_fresh([sys.executable, "-c", code, folder], environment={"PYTHONPATH": str(tmp_path)})
        assert done.exit_code == 0, done.stderr
        found[folder] = json.loads(done.stdout)
    assert found["old names"]["overlap"] == {"0": 0.5, "1": 0.125} and found["old names"]["stragglers"] == [1]
    assert "stragglers" not in found["new names"]
    assert found["new names"]["failed"].startswith("its straggler search failed: ValueError: attempt to get argmax")


def answer(wall_s: float, peak_bytes: int | None, **found: Any) -> ProcessOutcome:
    said = json.dumps({"overlap": {"0": 0.5}, "work_s": wall_s / 2, **found})
    return ProcessOutcome(exit_code=0, stdout=f"a banner\n{said}\n", stderr="", wall_s=wall_s, peak_bytes=peak_bytes)


def test_programs_take_turns_and_memory_is_not_taken_while_timing() -> None:
    asked: list[tuple[str, bool]] = []
    walls_s = {"one": iter([9.0, 1.0, 3.0, 8.0]), "two": iter([9.0, 4.0, 4.0, 5.0])}

    def run(command: Sequence[str], watch: bool) -> ProcessOutcome:
        asked.append((command[0], watch))
        more = {"stragglers": [7]} if command[0] == "one" else {"failed": "its search failed"}
        return answer(next(walls_s[command[0]]), 123 if watch else None, **more)

    told: list[str] = []
    turns = ("one", "two", "two", "one", "one", "two")
    one, two = measure_programs({"one": ["one"], "two": ["two"]}, 3, told.append, run)
    assert asked == [("one", True), ("two", True), *((name, False) for name in turns)]
    assert told == [f"  run {text}" for text in (
        "1/3  one: 1.00 s", "1/3  two: 4.00 s", "2/3  two: 4.00 s", "2/3  one: 3.00 s", "3/3  one: 8.00 s",
        "3/3  two: 5.00 s")]  # fmt: skip
    assert (one.wall_s, one.work_s, one.walls_s, one.peak_bytes) == (3.0, 1.5, (1.0, 3.0, 8.0), 123)
    assert (one.overlap, one.stragglers, one.failed) == ({0: 0.5}, (7,), None)
    assert (two.wall_s, two.stragglers, two.failed) == (4.0, (), "its search failed")


def test_a_program_that_fails_says_why() -> None:
    def run(command: Sequence[str], watch: bool) -> ProcessOutcome:
        return ProcessOutcome(exit_code=1, stdout="", stderr="Traceback\nImportError: x\n", wall_s=1.0, peak_bytes=1)

    with pytest.raises(DistprofError, match="one: the run failed: ImportError: x"):
        measure_programs({"one": ["one"]}, 1, print, run)


@pytest.mark.parametrize(
    ("ours", "theirs", "difference_ratio"),
    [
        ({0: 0.5, 1: 0.2}, {0: 0.5, 1: 0.25}, 0.2),
        ({0: 0.0}, {0: 0.0}, 0.0),
        ({0: 0.5}, {0: 0.5, 1: 0.5}, None),
        ({0: 0.5}, {0: None}, None),
        ({0: 0.5}, {0: float("nan")}, None),
        ({}, {}, None),
    ],
)
def test_overlaps_are_compared_rank_by_rank(
    ours: dict[int, float | None], theirs: dict[int, float | None], difference_ratio: float | None
) -> None:
    assert find_difference(ours, theirs) == (None if difference_ratio is None else pytest.approx(difference_ratio))


def test_the_whole_command_finds_the_late_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--ranks", "3", "--events", "2000", "--repeats", "1", "--against", "none", "--names", "present"]
    assert main(["traces", *options, "--json", str(tmp_path / "found.json")]) == 0
    assert "3 files" in capsys.readouterr().out
    (found,) = json.loads((tmp_path / "found.json").read_bytes())["programs"]
    assert found["program"] == OURS and found["stragglers"] == [1] and found["peak_bytes"] > 10e6
    assert all(0 < found["overlap"][str(rank)] < 1 for rank in range(3))


# Tables


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["traces", "--ranks", "0"], "--ranks 0: must be 1 or more"),
        (["traces", "--hta-python", "/nowhere"], "--hta-python /nowhere: not an executable interpreter"),
        (["traces", "--json", "/nowhere/at/all.json"], "--json /nowhere/at/all.json: no such folder"),
        (["traces", "--against", "x"], "invalid choice: 'x'"),
        (["tables", "--rows", "0"], "--rows 0: must be 1 or more"),
        (["tables", "/dev/null"], "/dev/null: not an SQLite file"),
        (["tables"], "no nsys on PATH or in the variable NSYS"),
    ],
)
def test_a_slip_is_refused_in_one_line(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("NSYS", raising=False)
    try:
        exit_code = main(options)
    except SystemExit as leaving:
        assert isinstance(leaving.code, int)
        exit_code = leaving.code
    captured = capsys.readouterr()
    assert exit_code == 2 and said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


@pytest.mark.parametrize("subject", ["traces", "tables"])
def test_help_teaches(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([subject, "--help"])
    shown = capsys.readouterr().out
    assert leaving.value.code == 0 and "proportional set size" in shown and f"python -m benchmarks {subject}" in shown
