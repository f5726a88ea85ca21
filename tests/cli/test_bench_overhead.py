"""The overhead benchmark: what it runs, in which order, and what it concludes; nothing is timed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distprof.cli.bench import command
from distprof.cli.bench.comparison import compare_runs, read_step_ns
from distprof.cli.bench.overhead import (
    AGAIN,
    BARE,
    PHASES,
    RIVALS,
    TORCH_PROFILER,
    Workload,
    list_conditions,
    order_runs,
)
from distprof.cli.bench.overhead import measure_workload as measure
from distprof.cli.bench.overhead import write_command as write
from distprof.cli.parser import run_verb
from distprof.errors import EXIT_USAGE, DistprofError, UsageError
from distprof.facts.run import Run
from tests.factories import MS, make_run
from tests.faults.forked import Command, run, run_python

TINY = Workload(train="gpt2_tiny", ranks=1, steps=3, strategy="single", overrides=("train.seq_len=8",))


def test_a_step_is_elapsed_time_and_only_measured_ones_count() -> None:
    times = np.array([[900, 10, 30, 50, 70], [900, 20, 20, 60, 60]]) * MS
    begin_ns = times.cumsum(axis=1) - times
    columns = {"step_host_ns": times, "begin_host_ns": begin_ns, "shadow": np.arange(5) == 4}
    run = make_run(num_steps=5, columns=columns)
    assert read_step_ns(run) == 25 * MS  # of 15, 25 and 55
    assert np.isnan(read_step_ns(make_run(num_steps=1)))


def test_on_a_gpu_the_devices_steps_are_compared_and_a_step_without_them_does_not_count() -> None:
    """The host only launches: its steps take 1 ms, also where the device takes 30."""
    device_ns = np.array([[9, 10, 30, np.nan, 70], [9, 20, 20, 60, 60]]) * MS
    run = make_run(num_steps=5, columns={"step_host_ns": MS, "step_device_ns": device_ns}, meta={"device_type": "cuda"})
    assert read_step_ns(run) == 25 * MS  # of 15, 25 and 65
    assert np.isnan(read_step_ns(make_run(meta={"device_type": "cuda"})))  # no device times


def test_each_round_is_compared_with_its_own_bare_run() -> None:
    """The second round is twice as slow throughout; 10 % and 21 % are 1.1 and 1.1 squared, 1.1 ** 1.5 in the middle."""
    bare, slow = compare_runs({"bare": [100.0, 200.0], "slow": [110.0, 242.0]}, bare="bare")
    assert (bare.ratio, bare.low_ratio, bare.high_ratio, bare.runs) == (0, 0, 0, 2)
    assert slow.ratio == pytest.approx(1.1**1.5 - 1) and slow.median_step_ns == 176
    # Two rounds: t = 12.706; the spread of log 1.1 and 2 log 1.1 is log 1.1 / sqrt 2, its error half of log 1.1.
    half = 12.7062 * np.log(1.1) / 2
    assert slow.high_ratio == pytest.approx(np.exp(1.5 * np.log(1.1) + half) - 1)
    assert slow.low_ratio == pytest.approx(np.exp(1.5 * np.log(1.1) - half) - 1)


def test_one_round_has_no_interval() -> None:
    (_, other) = compare_runs({"bare": [100.0], "other": [150.0]}, bare="bare")
    assert other.ratio == pytest.approx(0.5) and other.low_ratio is None and other.high_ratio is None


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    noise = np.random.default_rng(11).lognormal(0, 0.05, (300, 2, 4))
    held = 0
    for bare_ns, other_ns in noise:
        found = compare_runs({"bare": list(bare_ns), "other": list(other_ns * 1.1)}, bare="bare")[1]
        assert found.low_ratio is not None and found.high_ratio is not None
        held += found.low_ratio < 0.1 < found.high_ratio
    assert 0.91 < held / 300 < 0.99


def test_every_second_round_runs_backwards() -> None:
    assert [condition.name for condition in order_runs([BARE, AGAIN, PHASES], 3)] == [
        BARE.name, AGAIN.name, PHASES.name, PHASES.name, AGAIN.name, BARE.name, BARE.name, AGAIN.name, PHASES.name,
    ]  # fmt: skip


def test_bare_comes_first_and_again_and_rivals_only_where_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == RIVALS[0] else None)
    assert [condition.name for condition in list_conditions()] == [
        "bare", "bare again (A/A)", "distprof phases", "torch.profiler", RIVALS[0],
    ]  # fmt: skip


def test_the_conditions_differ_in_their_instruments_alone(tmp_path: Path) -> None:
    one, two = (write(condition, TINY, tmp_path) for condition in (BARE, PHASES))
    assert one[:3] == two[:3] == [sys.executable, "-m", "distprof"]
    assert set(one) - set(two) == {"profile=off"} and "profile.shadow_every=0" in set(two) - set(one)
    assert write(BARE, TINY, tmp_path) == write(AGAIN, TINY, tmp_path)
    wrapped = write(TORCH_PROFILER, TINY, tmp_path)
    assert wrapped[2:4] == ["distprof.cli.bench.wrapped", "torch.profiler"] and wrapped[4:] == one[3:]
    pair = Workload(train="gpt2_tiny", ranks=2, steps=3, strategy="ddp")
    assert write(BARE, pair, tmp_path)[1:7] == [
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
    ]  # fmt: skip


def test_the_runs_are_read_back_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(folder: Path) -> Run:
        return make_run(columns={"step_host_ns": launched[folder.name] * MS})

    def launch(command: list[str]) -> subprocess.CompletedProcess[str]:
        folder = next(text for text in command if text.startswith("run_dir=")).rpartition("/")[2]
        launched[folder] = 110 if "profile=phases" in command else 100
        return subprocess.CompletedProcess(command, 0, "", "")

    launched: dict[str, int] = {}
    told: list[tuple[str, float]] = []
    monkeypatch.setattr("distprof.cli.bench.overhead.read_run", read)
    found = measure(
        TINY, [BARE, PHASES], repeats=2, progress=lambda *facts: told.append(facts), launch=launch
    )  # fmt: skip
    assert told == [(BARE.name, 1e8), (PHASES.name, 1.1e8), (PHASES.name, 1.1e8), (BARE.name, 1e8)]
    assert [item.ratio for item in found] == pytest.approx([0, 0.1])


@pytest.mark.parametrize(
    ("exit_code", "stderr", "error", "message"),
    [
        (2, "warning\ndistprof: train.steps=0: must be above 0\n", UsageError, "train.steps=0: must be above 0"),
        (1, "distprof: rank 1 failed: E: x\nTraceback\n", DistprofError, "bare: the run failed: rank 1 failed: E: x"),
        (1, "Traceback\nValueError: y\n", DistprofError, "bare: the run failed: ValueError: y"),
        (-9, "", DistprofError, "bare: the run failed: it printed nothing"),
    ],
)
def test_a_run_that_fails_says_why(exit_code: int, stderr: str, error: type[DistprofError], message: str) -> None:
    def launch(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, exit_code, "", stderr)

    with pytest.raises(DistprofError) as caught:
        measure(TINY, [BARE], repeats=1, progress=lambda *_: None, launch=launch)
    assert type(caught.value) is error and str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ranks", "0"], "--ranks 0: must be a whole number, 1 or more"),
        (["--repeats", "0"], "--repeats 0: must be a whole number, 1 or more"),
        (["--steps", "many"], "--steps many: must be a whole number, 1 or more"),
        (["--train", "gpt2_tiny,gpt9"], "--train gpt9: no such choice; there are cs336_2_7b, gpt2_large"),
        (["--strategy", "zero"], "--strategy zero: no such choice"),
        (["--json", "/nowhere/at/all.json"], "--json /nowhere/at/all.json: no such folder"),
        (["seq_len"], "seq_len: expected KEY=VALUE"),
        (["--wat"], "unrecognized arguments: --wat"),
    ],
)
def test_a_slip_is_refused_in_one_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        exit_code = run_verb(["bench", "overhead", *options])
    except SystemExit as leaving:
        assert isinstance(leaving.code, int)
        exit_code = leaving.code
    captured = capsys.readouterr()
    assert exit_code == 2 and said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


PHASE_BOUND_NS = 5_000
"""Allows ten times a phase's cost on a quiet machine; the fastest of 300 rounds stays below that on a busy one."""


def test_fault_30_the_cost_of_a_phase_is_measured_and_below_its_bound(tmp_path: Path) -> None:
    code = "from distprof.cli.bench.overhead import *; c = measure_phase_cost(); print(c.phase_ns, c.phase_median_ns)"
    (done,) = run(Command(arguments=["--help"], before=f"{code}; raise SystemExit"), cwd=tmp_path)
    assert done.code == 0, done.err
    fastest, middle = map(float, done.out.split())
    assert 0 < fastest <= middle and fastest < PHASE_BOUND_NS


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "list_conditions", lambda: [BARE, TORCH_PROFILER])
    monkeypatch.setattr("distprof.cli.bench.overhead._launch", run_python)
    options = ["--ranks", "1", "--steps", "3", "--repeats", "1", "--json", str(tmp_path / "found.json")]
    assert run_verb(["bench", "overhead", *options, "train.seq_len=8"]) == 0
    shown, names = capsys.readouterr().out, ["bare", "torch.profiler"]
    assert all(f"{name}: " in shown for name in names)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [item["condition"] for item in found["overhead"]["gpt2_tiny"]] == names
    assert all(item["median_step_ns"] > 0 for item in found["overhead"]["gpt2_tiny"])


def test_where_the_other_subjects_have_gone_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["bench", "cost", "--turns", "3"]) == EXIT_USAGE
    assert capsys.readouterr().err.endswith(
        "bench cost: moved; from a checkout of distprof: python -m benchmarks cost\n"
    )
