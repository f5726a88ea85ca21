"""The main job as a user starts it: real processes, gloo, the toy model; checked by reading its files."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock
from distprof.storage.run_folder import read_run
from tests.faults.forked import Command, Started, make_rank, start
from tests.forked_ranks import fork_alone, fork_ranks
from tests.ranks import find_ports, run_alone, run_ranks, wait_until
from tests.render.files.perfetto_file import read_timeline

PEAK = "hardware.peak=1e13"
"""Is not measured, which takes a second on each rank."""
QUICK = ("train=gpt2_tiny", "train.steps=4", "train.warmup_steps=2", "logger=none", PEAK)
DELAY_MS = 400
"""Large against what a busy machine takes from a rank in most steps."""
DDP_PHASES = {"data", "forward", "backward", "all_reduce", "grad_norm", "optimizer", "other"}


def find_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def read_report(tmp_path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((find_folder(tmp_path) / "report.json").read_text())
    return report


def check_identity(tmp_path: Path, ranks: int, steps: int) -> None:
    """For every rank and step, the phases sum to the step."""
    run = read_run(find_folder(tmp_path))
    assert run.rows.shape[:2] == (ranks, steps)
    error = abs(run.phase_ns(Clock.HOST).sum(axis=2) / run.step_ns(Clock.HOST) - 1)
    assert error.max() < 1e-3  # NaN, a rank or step that is not there, fails too


def times_ms(tmp_path: Path, *phases: str) -> FloatArray:
    """Summed host time of some phases, by rank and measured step."""
    run = read_run(find_folder(tmp_path))
    counted = run.measured().all(axis=0)
    total: FloatArray = sum(run.column(f"{phase}_host_ns")[:, counted] for phase in phases) / 1e6  # type: ignore[assignment]
    return total


def test_alone_it_runs_and_the_report_comes_again_from_the_folder(tmp_path: Path) -> None:
    done = run_alone([*QUICK, "hardware.peak=auto"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    check_identity(tmp_path, ranks=1, steps=6)
    folder = find_folder(tmp_path)
    first = (folder / "report.json").read_bytes()
    (folder / "report.json").unlink()
    again = fork_alone(["report", str(folder)], tmp_path)
    assert again.returncode == 0, again.stderr
    assert (folder / "report.json").read_bytes() == first
    for name in ("run.json", "config.yaml", "ranks/rank-00000.jsonl", "report.html", "trace.json.gz"):
        assert (folder / name).is_file(), name


@pytest.mark.parametrize(
    ("overrides", "extra_phases"),
    [
        pytest.param(
            ("strategy=fsdp", "train.grad_accum=3", "train.precision=bf16"), {"all_gather"}, marks=pytest.mark.sharding
        ),
        (("data=text", "train.grad_accum=4", "train.precision=bf16"), set()),
        (("strategy=accelerate", "train.grad_accum=2", "train.activation_checkpointing=true"), set()),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_every_way_to_train_is_reported(tmp_path: Path, overrides: tuple[str, ...], extra_phases: set[str]) -> None:
    done = fork_ranks(2, [*QUICK, *overrides], tmp_path)
    assert done.returncode == 0, done.stderr
    check_identity(tmp_path, ranks=2, steps=6)
    report = read_report(tmp_path)
    assert {row["phase"] for row in report["phases"]} == DDP_PHASES | extra_phases
    assert report["coverage"]["complete"] and report["coverage"]["steps_measured"] == 4
    details = fork_alone(["report", str(find_folder(tmp_path)), "--details"], tmp_path)  # where small ones have lines
    assert all(phase in details.stdout for phase in DDP_PHASES | extra_phases)
    assert all(phase in done.stdout for phase in {"forward", "backward"} | extra_phases)
    if "train.activation_checkpointing=true" in overrides:
        assert report["headline"]["hfu_ratio"] > report["headline"]["mfu_ratio"]
    assert 0 < report["headline"]["mfu_ratio"] <= 1


@pytest.mark.sharding
def test_two_copies_of_a_sharded_model_are_kept_alike_by_all_reduces(tmp_path: Path) -> None:
    """HSDP: four ranks, two copies, each sharded over two."""
    done = fork_ranks(4, [*QUICK, "strategy=fsdp", "strategy.replicas=2"], tmp_path)
    assert done.returncode == 0, done.stderr
    check_identity(tmp_path, ranks=4, steps=6)
    report = read_report(tmp_path)
    assert report["strategy"] == "fsdp(2 replicas)"
    kinds = {row["kind"]: row for row in report["communication"]}
    scatters, reductions = (kinds[kind]["count_per_step"][0] for kind in ("reduce_scatter", "all_reduce"))
    assert reductions >= scatters + 1  # one for each unit, and the gradient norm's
    groups = {wait["group"] for wait in report["waits"]}
    assert len(groups) == 4 or len(groups) == 5  # two of shards, two of copies, and the norm's own where it has one
    assert report["waits"] and all(sum(value is not None for value in wait["wait_ns"]) >= 2 for wait in report["waits"])
    timeline = read_timeline((find_folder(tmp_path) / "trace.json.gz").read_bytes())
    assert len(timeline.processes) == 4 and len(timeline.on_track("steps")) == 4 * 6
    assert timeline.flows and timeline.about["clock_bound_ns_by_rank"] == dict.fromkeys("0123", 0.0)


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
def test_shorter_modes_have_fewer_phases(tmp_path: Path, mode: str) -> None:
    done = fork_alone([*QUICK, f"train.mode={mode}", "strategy=single"], tmp_path)
    assert done.returncode == 0, done.stderr
    expected = {"data", "forward", "other"} | ({"backward"} if mode == "forward_backward" else set())
    assert {row["phase"] for row in read_report(tmp_path)["phases"]} == expected


@pytest.mark.parametrize(
    ("strategy", "waiting"),
    [("ddp", ["all_reduce"]), pytest.param("fsdp", ["all_gather", "all_reduce"], marks=pytest.mark.sharding)],
)
def test_an_injected_delay_is_found_where_it_is_and_felt_where_it_is_waited_for(
    tmp_path: Path, strategy: str, waiting: list[str]
) -> None:
    drill = ["inject.rank=2", "inject.phase=data", f"inject.delay_ms={DELAY_MS}", f"strategy={strategy}"]
    done = fork_ranks(4, [*QUICK, *drill, "train.steps=12"], tmp_path)
    assert done.returncode == 0, done.stderr
    report = read_report(tmp_path)
    assert report["steps"][0]["identity_error_ratio"] < 1e-3
    assert {row["phase"] for row in report["phases"]} == DDP_PHASES | set(waiting)
    assert report["coverage"]["complete"] and 0 < report["headline"]["mfu_ratio"] <= 1
    data = times_ms(tmp_path, "data")
    assert data.shape == (4, 12) and data[2].min() >= DELAY_MS  # a sleep is never shorter
    waits, rest = times_ms(tmp_path, *waiting), times_ms(tmp_path, *(DDP_PHASES - {"data", *waiting}))
    for rank in (0, 1, 3):  # in most steps: now and then the machine holds up any rank
        assert np.median(data[2] - data[rank]) > DELAY_MS / 2
        assert np.median(waits[rank] - waits[2]) > DELAY_MS / 2
        assert abs(np.median(rest[rank] - rest[2])) < DELAY_MS / 2  # nothing else is larger
    assert report["headline"]["busiest"]["rank"] == 2 and report["headline"]["busiest"]["phase"] == "data"
    require_verdict(report, 2, "data", times_ms(tmp_path, "step"))
    assert " ".join(done.stdout.split()).lower().count("critical: rank 2 is ") == 1


def require_verdict(report: Any, rank: int, phase: str, steps_ms: FloatArray) -> None:
    """The rank is blamed, with this phase, and the steps are longer by what the others cannot hide of its delay."""
    verdict = report["verdict"]
    assert (verdict["kind"], verdict["rank"], verdict["phase"]) == ("slow_rank", rank, phase)
    assert verdict["critical"] and verdict["pattern"] == "persistent"
    assert 0.5 * DELAY_MS <= verdict["lost_ns"]["value"] / 1e6 <= min(1.5 * DELAY_MS, steps_ms[rank].mean())
    assert {wait["kind"] for wait in report["waits"]} >= {"all_reduce"}


def test_what_happens_after_the_last_wait_is_lost_at_the_next(tmp_path: Path) -> None:
    drill = ["inject.rank=1", "inject.phase=optimizer", f"inject.delay_ms={DELAY_MS}"]
    done = fork_ranks(2, [*QUICK, *drill, "train.steps=12"], tmp_path)
    assert done.returncode == 0, done.stderr
    require_verdict(read_report(tmp_path), 1, "optimizer", times_ms(tmp_path, "step"))


def test_fault_01_a_killed_rank_ends_the_job_and_the_report_says_which(tmp_path: Path) -> None:
    drill = [
        "inject.rank=1",
        "inject.phase=forward",
        "inject.action=kill",
        "inject.from_step=30",
        "profile.window_s=0.1",
    ]
    unlimited = ["train.steps=1000", "group_timeout_s=600"]  # the job waits for neither
    done = fork_ranks(2, [*QUICK, *unlimited, *drill], tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    shown = fork_alone(["report", str(find_folder(tmp_path))], tmp_path)
    assert shown.returncode == 3, shown.stderr
    assert re.search(r"rank 1 is missing", shown.stdout)
    report = read_report(tmp_path)
    assert report["coverage"]["ranks_missing"] == [1] and not report["coverage"]["complete"]
    assert report["ranks"][0]["ended"] in ("failed", "terminated")
    noticed = [report["ranks"][0]["error"], *report["coverage"]["notes"]]
    assert any(re.search("onnection (closed|reset) by peer", text) for text in noticed), noticed
    assert 0 <= report["ranks"][1]["last_step"] < 30


def test_fault_02_a_failing_rank_leaves_its_traceback_also_with_the_launcher(tmp_path: Path) -> None:
    drill = ["inject.rank=1", "inject.phase=backward", "inject.action=fail", "inject.from_step=3"]
    done = run_ranks(2, [*QUICK, *drill], tmp_path, HF_TOKEN="of step 3")
    assert done.returncode == 1
    assert "rank 1 failed: InjectedFailure" in done.stderr
    (cause,) = re.findall(r"Root Cause .*", done.stderr, re.S)
    assert re.search(r"rank +: 1 ", cause) and "in inject" in cause and "of step 3" not in done.stderr
    assert "InjectedFailure: inject.action=fail on rank 1 in backward [redacted]" in cause
    assert fork_alone(["report", str(find_folder(tmp_path))], tmp_path).returncode == 3
    rank = read_report(tmp_path)["ranks"][1]
    assert rank["ended"] == "failed" and "inject.action=fail on rank 1" in rank["error"]
    assert "in inject" in rank["traceback"] and rank["last_step"] == 3
    note = "error: phase backward was left by an exception, in 1 step(s), first in step 3"
    assert any(note in text for text in read_report(tmp_path)["coverage"]["notes"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train=nope"], "Could not find 'train/nope'"),
        (["train.stepz=1"], "train.stepz: unknown key"),
        (["+train.stepz=1"], "train.stepz: unknown key; did you mean 'steps'?"),
        (["train.steps=x"], "train.steps='x': expected a whole number"),
        (["strategy=fsdp", "strategy.bucket_mb=3"], "strategy.bucket_mb: unknown key"),
        (["strategy=accelerate", "strategy.wrap=fsdp"], "Accelerate silently falls back from FSDP to DDP"),
        (["backend=nccl"], "backend=nccl needs a GPU"),
        (["train.model.width=32768"], "parameters on 1 rank(s) need at least"),
        (["hydra.run.dir=/proc/none"], "hydra.run.dir=/proc/none"),
        (["train.steps=[", ""], "train.steps=["),
        (["data=text", "data.path=/nowhere"], "/nowhere: no such file"),
        (["runs_dir=/proc/none"], "cannot make the run folder"),
        (["inject.rank=0", "inject.module=blocks.9"], "no module of this name; did you mean blocks."),
    ],
)
def test_a_slip_is_one_message_and_exit_code_2(tmp_path: Path, overrides: list[str], message: str) -> None:
    done = fork_alone([*QUICK, "device=cpu", *filter(None, overrides)], tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


def test_a_slip_of_several_ranks_is_said_once(tmp_path: Path) -> None:
    done = fork_ranks(2, ["train=gpt2_tiny", "strategy=single"], tmp_path)
    assert done.stderr.count("distprof: strategy=single is one process") == 1 and done.returncode == 2
    assert not (tmp_path / "runs").exists()


def test_ranks_that_start_apart_share_one_folder(tmp_path: Path) -> None:
    (port,) = find_ports(1)
    started: list[Started] = []
    for rank in (3, 1, 0, 2):
        command = make_rank(rank, 4, port, ["train=gpt2_tiny", "train.steps=2", "logger=none", PEAK])
        started += start(command, cwd=tmp_path)
        time.sleep(0.5)  # not a tolerance: what is tested is that this does not matter
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert len(list(find_folder(tmp_path).glob("ranks/*.jsonl"))) == 4


def test_fault_04_sigterm_flushes_and_leaves_with_143(tmp_path: Path) -> None:
    (process,) = start(Command(arguments=[*QUICK, "train.steps=100000", "profile.window_s=0.1"]), cwd=tmp_path)
    wait_until(
        lambda: any(b'"type":"step"' in path.read_bytes() for path in tmp_path.glob("runs/*/ranks/*")), [process]
    )
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=30)
    assert process.returncode == 143 and "Traceback" not in errors and "distprof report" in said
    (told,) = read_run(find_folder(tmp_path)).ranks
    assert told.ended == "terminated" and (told.error or "").startswith("SIGTERM ")


def test_the_offline_wandb_file_of_a_job_holds_its_steps_table_and_summary(tmp_path: Path) -> None:
    from distprof.render.wandb.wandb_workspace import SECTIONS
    from tests.wandb_file import read_wandb_file

    overrides = ["train=gpt2_tiny", "train.steps=3", "train.warmup_steps=1", PEAK, "logger.group=sweep-1"]
    own = tmp_path / "tmp"
    own.mkdir()
    done = fork_ranks(2, overrides, tmp_path, WANDB_MODE="offline", HF_TOKEN="canary-hf", TMPDIR=str(own))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in own.iterdir() if not path.name.startswith("torch")] == []
    assert done.stdout.count("wandb: offline") == 1
    (path,) = find_folder(tmp_path).glob("wandb/offline-run-*/*.wandb")
    told = read_wandb_file(path)
    assert [point["step"] for point in told.history if "step/time_ms" in point] == [0, 1, 2, 3]
    report = read_report(tmp_path)
    assert told.summary["summary/step_mean_ms"] == pytest.approx(report["headline"]["step_mean_ns"] / 1e6)
    (table,) = path.parent.glob("files/media/table/ranks_by_phase*.json")
    assert len(json.loads(table.read_text())["data"]) == 2
    assert told.group == "sweep-1" and told.config["logger"]["group"] == "sweep-1"
    assert {
        "ranks_by_phase",
        "causes",
        "verdict",
        "rank_by_step",
        "heat_map/own",
        "heat_map/exposed",
    } <= told.media.keys()
    page, *others = told.artifacts["distprof-report"]
    assert page.read_bytes() == (find_folder(tmp_path) / "report.html").read_bytes()
    assert [path.name for path in others] == ["report.json", "trace.json.gz"]
    for panel in (panel for section in SECTIONS for panel in section.panels if panel.kind in ("lines", "stack")):
        there = {name for point in told.history for name in point} & {*panel.names}
        rare = {"straggler/rank", "flops/mfu_ratio"}  # where none stands out, and the peak is unknown
        assert there or rare & {*panel.names} or "device clock" in panel.title, panel
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"canary" not in file.read_bytes(), file


def test_no_secret_is_in_any_file(tmp_path: Path) -> None:
    secrets = {"HF_TOKEN": "canary-hf-01", "MY_PASSWORD": "canary-pw-02"}
    overrides = [f"name=run-{secrets['HF_TOKEN']}", "inject.rank=0", "inject.action=fail", "inject.from_step=2"]
    done = fork_alone(["train=gpt2_tiny", "train.steps=3", PEAK, *overrides], tmp_path, WANDB_MODE="offline", **secrets)
    assert done.returncode == 1, done.stderr
    fork_alone(["report", str(find_folder(tmp_path))], tmp_path, **secrets)
    for path in tmp_path.rglob("*"):
        assert b"canary" not in (path.read_bytes() if path.is_file() else b""), path
        assert "canary" not in os.fspath(path.relative_to(tmp_path))
    assert "canary" not in done.stdout + done.stderr
    refused = fork_alone(["+logger.api_key=canary-key-03"], tmp_path)
    assert refused.returncode == 2 and "canary" not in refused.stderr
