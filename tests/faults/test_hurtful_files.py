"""Names made to hurt, scalars in place of objects, very many steps or names: linear, and at most one line."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fuzz.kineto import make_sound_trace
from benchmarks.fuzz.streams import Folder
from distprof.cli.parser import run_verb
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce import host_calls, kernel_names, steps
from distprof.traces.reduce.phase_names import NameMap
from tests.kineto_file import make_kernel, make_launch, make_step, write_kineto

SOME: tuple[Any, ...] = (5, None, "x", [5])
FEW, TIMES = 1_000, 4
HURTFUL = (
    "gemv<" + "<" * 4000, "gemv" * 1000, "void gemmk1_<" + "a<" * 2000, "cijk_a_b_h" * 400 + "_mx_",
    "_Z" + "S" * 4000 + "gemm", "cublas" + "_v1" * 1300 + "x", "a::" * 1300, "ncclKernel_" * 400, "0" * 4000,
)  # fmt: skip


def write_many(path: Path, count: int, event: str) -> Path:
    """A trace of very many events, of which each has ``{0}`` replaced by its number."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion":1,"traceEvents":[')
        for first in range(0, count, 10_000):
            texts = (event.replace("{0}", str(number)) for number in range(first, min(first + 10_000, count)))
            file.write("," * (first > 0) + ",".join(texts))
        file.write("]}")
    return path


STEP = '{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{0}","pid":7,"tid":7,"ts":1{0}0,"dur":9}'
KERNEL = '{"ph":"X","cat":"kernel","name":"kernel_{0}_gemv<<<<<<<<","pid":0,"tid":7,"ts":1{0}0,"dur":9}'


def test_fault_49_names_made_to_hurt_are_read_like_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That no pattern takes more than linear time on them is counted in ``test_regular_expressions.py``."""
    events = [make_step(1, 100, 900)]
    for number, name in enumerate(HURTFUL, start=1):
        events += [
            make_launch(100 + 20 * number, 5, number, name=name),
            make_kernel(name, 105 + 20 * number, 9, number),
        ]
    path = write_kineto(tmp_path / "t.json", events)
    asked: list[int] = []
    for module, judge in ((kernel_names, "infer_precision"), (host_calls, "name_call")):
        watched: Callable[[str], Any] = getattr(module, judge)
        monkeypatch.setattr(module, judge, lambda name, watched=watched: asked.append(len(name)) or watched(name))
    assert run_verb(["report", str(path), "--out", str(tmp_path)]) == EXIT_OK
    assert max(asked) > 3_900 and capsys.readouterr().err == ""


@pytest.mark.parametrize("what", ["run.json", "a stream", "a line", "a trace", *make_sound_trace()])
def test_fault_49_a_scalar_where_an_object_is_expected_is_one_line_or_counted(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, value in enumerate(SOME):
        folder, made = tmp_path / f"{number}", Folder()
        path = folder / "t.json"
        if what == "run.json":
            made.meta = value
        elif what in ("a stream", "a line"):
            made.files["rank-00000.jsonl"][slice(None) if what == "a stream" else slice(2, 3)] = [value]
        if what in ("run.json", "a stream", "a line"):
            made.write(folder)
            path = folder
        else:
            folder.mkdir()
            trace = make_sound_trace()
            path.write_text(json.dumps(value if what == "a trace" else trace | {what: value}), encoding="utf-8")
        code = run_verb(["report", str(path), "--out", str(tmp_path / "out")])
        lines = capsys.readouterr().err.splitlines()
        assert code in (EXIT_OK, EXIT_PARTIAL, EXIT_FAILED) and len(lines) <= 1, (value, lines)
        assert code != EXIT_FAILED or len(lines) == 1, value


@pytest.mark.parametrize(("event", "shown"), [(STEP, "{:,} steps"), (KERNEL, "")], ids=["steps", "names"])
def test_fault_49_memory_is_linear_in_steps_and_names(
    event: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of the whole report, from reading to writing: 250,000 steps take a third of a GiB."""
    peaks = []
    for count in (FEW // 10, FEW, FEW * TIMES):  # the first imports what the others use
        path = write_many(tmp_path / f"{count}.json", count, event)
        tracemalloc.start()
        try:
            assert run_verb(["report", str(path), "--width", "200", "--out", str(tmp_path / "out")]) == EXIT_OK
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        captured = capsys.readouterr()
        assert captured.err == "" and shown.format(count) in captured.out
    assert peaks[2] < 1.2 * TIMES * peaks[1]
    assert peaks[2] < 2_000 * FEW * TIMES


def test_fault_49_steps_beyond_the_limit_are_not_read_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MAX_STEPS", 100)
    run = read_paths([write_many(tmp_path / "t.json", 300, STEP)], NameMap())
    assert run.rows.shape[1] == 100
    assert "the steps after the first 100 are not read" in run.ranks[0].notes
