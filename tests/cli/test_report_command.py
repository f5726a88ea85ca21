"""`distprof report`: its inputs, its report, and where it writes its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL, EXIT_USAGE
from tests.faults.run_folder import make_late_run, write_run
from tests.kineto_file import make_event, make_kernel, make_launch, make_step, write_kineto
from tests.nsys_file import MS, make_training_export

CANARY = "sk-canary-0123456789abcdef"


def read_report(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return loaded


def read_phases(report: dict[str, Any], clock: str) -> dict[str, list[float]]:
    return {
        phase["phase"]: [value / MS for value in phase["mean_ns"]]
        for phase in report["phases"] if phase["clock"] == clock
    }  # fmt: skip


def test_a_capture_has_the_phases_of_both_clocks_that_its_maker_knows(tmp_path: Path) -> None:
    file = make_training_export(num_steps=4).write(tmp_path / "capture.sqlite")
    assert run_verb(["report", str(file), "--out", str(tmp_path / "out")]) == EXIT_OK
    report = read_report(tmp_path / "out")
    assert read_phases(report, "host") == {
        "data": [10, 10], "forward": [20, 20], "backward": [40, 40], "all_reduce": [10, 10], "optimizer": [15, 15],
        "other": [5, 5],
    }  # fmt: skip
    # forward's last kernel ends at 34 and backward's at 74; NCCL runs alone from there to 84, 4 of it past backward
    assert read_phases(report, "device") == {
        "data": [10, 10], "forward": [24, 24], "backward": [40, 40], "all_reduce": [10, 10], "optimizer": [11, 11],
        "other": [5, 5],
    }  # fmt: skip
    (reduced,) = report["communication"]
    assert [value / MS for value in reduced["busy_device_ns"]] == [24, 24]
    assert [value / MS for value in reduced["exposed_device_ns"]] == [10, 10]
    assert [value / MS for value in reduced["overlapped_device_ns"]] == [14, 14]


def test_an_engine_that_there_is_not_is_refused_for_a_run_folder_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", make_late_run())
    assert run_verb(["report", str(folder), "--executor", "dusk:tcp://a:1"]) == EXIT_USAGE
    assert "--executor dusk:tcp://a:1: expected local, dask:ADDRESS or ray:ADDRESS" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--step", "chunk*"], ["--phase", "forward=fw*"]])
def test_names_of_ranges_are_refused_where_there_are_no_traces(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", make_late_run())
    assert run_verb(["report", str(folder), *given]) == EXIT_USAGE
    assert "run: has no traces, and --phase and --step name ranges of traces: leave" in capsys.readouterr().err


def test_traces_of_different_tools_are_one_job(tmp_path: Path) -> None:
    capture = make_training_export(num_ranks=1, marks=False).write(tmp_path / "capture.sqlite")
    events = [
        make_step(0, 100, 50), make_event("user_annotation", "forward", 100, 40), make_launch(102, 3, 9),
        make_kernel("gemm", 110, 20, 9),
    ]  # fmt: skip
    trace = write_kineto(
        tmp_path / "trace.json", events, distributedInfo={"rank": 0, "world_size": 2, "backend": "nccl"}
    )
    code = run_verb(["report", str(capture), str(trace), "--out", str(tmp_path / "out")])
    report = read_report(tmp_path / "out")
    assert (code, report["coverage"]["ranks_present"]) == (EXIT_PARTIAL, [0, 1])  # they do not have the same steps
    sources = [device["source"] for device in report["activity"]["devices"]]
    assert sources == ["kineto: trace.json", "nsys: capture.sqlite"]
    assert any("kineto and nsys" in note for note in report["coverage"]["notes"])


def test_captures_of_different_days_are_different_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their clocks count from the begin of each session, and agree by coincidence."""
    monday = 1_700_000_000 * 1000 * MS
    for name, day in (("a", 0), ("b", 3)):
        export = make_training_export(num_ranks=1, marks=False)
        export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=monday + day * 86_400_000 * MS)
        export.write(tmp_path / f"{name}.sqlite")
    for verb in (["report", "--no-write"], ["tables"]):
        assert run_verb([*verb, str(tmp_path)]) == EXIT_FAILED
        assert "b.sqlite begins 3 days later" in capsys.readouterr().err
    assert run_verb(["report", str(tmp_path / "a.sqlite"), "--no-write"]) == EXIT_OK


def test_names_of_steps_and_phases_can_be_given(tmp_path: Path) -> None:
    events = [make_event("user_annotation", f"chunk {number}", 100 * number, 90) for number in (7, 8)]
    events += [make_event("user_annotation", "model_fwd", 100 * number, 30) for number in (7, 8)]
    trace = write_kineto(tmp_path / "t.json", events)
    out = tmp_path / "out"
    code = run_verb(["report", str(trace), "--out", str(out), "--step", "chunk*", "--phase", "forward=*_fwd"])
    report = read_report(out)
    assert (code, report["coverage"]["steps_measured"], report["ranks"][0]["last_step"]) == (EXIT_OK, 2, 8)
    assert read_phases(report, "host") == {"forward": [0.03], "other": [0.06]}


@pytest.mark.parametrize("slip", [["--phase", "forwards=x"], ["--phase", "forward"], ["--width", "3"], []])
def test_a_slip_is_one_line(slip: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [] if not slip else [str(write_kineto(tmp_path / "t.json", [make_step(0, 1, 2)]))]
    try:
        code: object = run_verb(["report", *paths, *slip])
    except SystemExit as left:
        code = left.code
    assert code == EXIT_USAGE and capsys.readouterr().err.count("\n") == 1


def test_without_a_run_folder_files_go_where_one_works_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    trace = write_kineto(tmp_path / "traces" / "t.json", [make_step(0, 1, 2)])
    run_verb(["report", str(trace), "--no-write"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["traces"]
    run_verb(["report", str(trace)])
    names = {"report.html", "report.json", "trace.json.gz"}
    assert {path.name for path in (tmp_path / "distprof-report").iterdir()} == names
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["t.json"]


def test_nothing_of_the_environment_is_in_what_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    events = [make_step(0, 1, 2), make_event("user_annotation", "forward", 1, 1)]
    trace = write_kineto(tmp_path / "t.json", events, env={"HF_TOKEN": CANARY}, behind={"WANDB_API_KEY": CANARY})
    run_verb(["report", str(trace), "--out", str(tmp_path / "out")])
    for path in (tmp_path / "out").iterdir():
        assert CANARY.encode() not in path.read_bytes()


@pytest.mark.parametrize("blocked", ["report.json", "the folder"])
def test_a_report_that_cannot_be_written_is_shown_and_is_partial(
    blocked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_kineto(tmp_path / "t.json", [make_step(0, 1, 2)])
    out = tmp_path / "out"
    if blocked == "the folder":
        out.write_text("")
    else:
        (out / "report.json").mkdir(parents=True)
    assert run_verb(["report", str(trace), "--out", str(out), "--details"]) == EXIT_PARTIAL
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and "choose another --out" in shown.err and "coverage" in shown.out
    if blocked == "report.json":
        assert "report.json could not be written (Is a directory)" in shown.err
        assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.json", "trace.json.gz"]
