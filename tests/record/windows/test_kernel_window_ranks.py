"""The kernel window for real: on two gloo ranks, and on a GPU where there is one."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distprof.config.schema import HardwareConfig
from distprof.facts.range_names import OWN_MODULE, OWN_PREFIX
from distprof.facts.run import PHASE_CODE, Phase, Run
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.rank.build_profiler import start_profiler
from distprof.record.device.torch_device import TorchDevice
from distprof.record.step.recorder import Recorder
from distprof.record.windows import kernel_window
from distprof.record.windows.kernel_window import KernelWindow
from distprof.storage.run_folder import kernel_path, read_run
from distprof.world import World
from tests.forked_ranks import fork_alone
from tests.ranks import call_on_ranks
from tests.record.windows.test_kernel_window import BACKWARD, CANARY, FORWARD, PROFILE


def train_small(world: World, runs_dir: str, level: Any) -> list[float]:
    """Eight steps of a small model under DDP; the losses of this rank."""
    job = start_profiler(
        world,
        JobPlan(
            name="job", strategy="ddp", precision="fp32", config={}, runs_dir=runs_dir,
            hardware=HardwareConfig(peak=1e9),
        ),
        structs.replace(PROFILE, level=level), print_line=lambda text: None,
    )  # fmt: skip
    assert job.profiler.level_is_to_come == (level == "kernels")
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    job.profiler.watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(world.rank)
    losses = []
    for step in range(8):
        with job.profiler.step(warmup=step < 2):
            with job.profiler.phase("data"):
                batch = torch.randn(8, 16, generator=draws)
            with job.profiler.phase("forward"):
                loss = model(batch).square().mean()
            with job.profiler.phase("backward"):
                loss.backward()
            with job.profiler.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    job.profiler.close()
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.module.modules())
    return losses


def train_thrice(world: World, folder: str) -> None:
    os.environ["SECRET_API_KEY"] = CANARY
    plain = train_small(world, f"{folder}/plain", "phases")
    assert train_small(world, f"{folder}/traced", "kernels") == plain
    if world.rank == 1:  # here the profiler cannot start
        kernel_window.profile.start = lambda session: session.no_such_thing  # type: ignore[method-assign]
    assert train_small(world, f"{folder}/spoilt", "kernels") == plain


def read_trace(path: Path) -> Any:
    data = gzip.decompress(path.read_bytes())
    assert CANARY.encode() not in data
    return json.loads(data)


def is_phase(event: Any) -> bool:
    return event["name"].startswith(OWN_PREFIX) and not event["name"].startswith(OWN_MODULE)


def check_trace(path: Path, rank: int) -> None:
    trace = read_trace(path)
    assert (trace["distributedInfo"]["rank"], trace["distributedInfo"]["world_size"]) == (rank, 2)
    own = trace["distprof"]
    assert (own["rank"], own["world_size"], own["host"], own["steps"]) == (rank, 2, "test-host", [4, 5])
    ranges = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    steps = [event for event in ranges if event["name"].startswith("ProfilerStep")]
    assert [event["name"] for event in steps] == ["ProfilerStep#4", "ProfilerStep#5"]
    for step in steps:
        inside = [
            event["name"]
            for event in sorted(ranges, key=lambda event: float(event["ts"]))
            if is_phase(event) and event["tid"] == step["tid"]
            and step["ts"] <= event["ts"] and event["ts"] + event["dur"] <= step["ts"] + step["dur"]
        ]  # fmt: skip
        assert inside == [f"distprof.{name}" for name in ("data", "forward", "backward", "all_reduce", "optimizer")]
    assert sum(map(is_phase, ranges)) == 2 * 5  # and none outside of the two
    modules = Counter(event["name"] for event in ranges if event["name"].startswith(OWN_MODULE))
    expected = ("0:Linear", "1:ReLU", "2:Linear", ":Sequential")
    assert modules == {f"{OWN_MODULE}{name}": 2 for name in expected}  # likewise


def read_only_run(folder: Path) -> tuple[Path, Run]:
    (found,) = folder.iterdir()
    return found, read_run(found)


def test_two_ranks_trace_the_same_steps_and_train_as_without(tmp_path: Path) -> None:
    call_on_ranks(2, train_thrice, str(tmp_path), tmp_path=tmp_path)
    folder, run = read_only_run(tmp_path / "plain")
    assert not (folder / "kernels").exists() and run.column("window").tolist() == [[0] * 8] * 2
    folder, run = read_only_run(tmp_path / "traced")
    assert sorted(path.name for path in (folder / "kernels").iterdir()) == ["rank-00000.json.gz", "rank-00001.json.gz"]
    for rank in (0, 1):
        check_trace(kernel_path(folder, rank), rank)
    assert run.column("window").tolist() == [[0, 0, 0, 1, 1, 1, 0, 0]] * 2
    assert run.column("shadow")[0, 3:6].tolist() == [0, 0, 0]  # whose phases are compared with the trace's
    counted = (run.column("shadow")[0] == 0) & (run.column("window")[0] == 0)
    assert run.measured()[0].tolist() == [False] * 2 + counted[2:].tolist()  # the first two are warm-up
    assert all("kernel" not in note for info in run.ranks for note in info.notes)
    folder, run = read_only_run(tmp_path / "spoilt")
    assert [path.name for path in (folder / "kernels").iterdir()] == ["rank-00000.json.gz"]
    assert run.column("window").tolist() == [[0, 0, 0, 1, 1, 1, 0, 0]] * 2
    assert [info.ended for info in run.ranks] == ["completed"] * 2
    assert [note for note in run.ranks[1].notes if "kernel window did not start: AttributeError" in note]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes(), path


def test_the_trainer_runs_the_window_on_top_of_the_measured_steps(tmp_path: Path) -> None:
    sizes = (
        "train=gpt2_tiny",
        "train.steps=2",
        "train.warmup_steps=1",
        "hardware.peak=none",
        "profile.kernel_steps=1",
        "strategy=single",
    )
    done = fork_alone([*sizes, "profile=kernels", "logger=none"], tmp_path)
    assert done.returncode == 0, done.stderr
    folder, run = read_only_run(tmp_path / "runs")
    assert run.column("window").tolist() == [[0, 0, 0, 1, 1]] and run.measured().tolist() == [[0, 1, 1, 0, 0]]
    assert read_trace(kernel_path(folder, 0))["distprof"]["steps"] == [4]
    report = json.loads((folder / "report.json").read_text())
    coverage = report["coverage"]
    assert coverage["complete"] and (coverage["steps_measured"], coverage["steps_planned"]) == (2, 3)
    assert [note for note in coverage["notes"] if note.startswith("2 step(s) ran in the profiler's window")]
    check_modules(report["activity"]["modules"])


def check_modules(modules: Any) -> None:
    """On a CPU: time in operators and none of a device, forward and backward, and self times that add up."""
    rows = {row["name"]: row for row in modules["rows"] if row["kind"]}
    assert modules["ranks"] == [0] and modules["per_step"] and {"", "blocks.0", "blocks.1.feed_forward"} <= {*rows}
    for row in modules["rows"]:
        assert row["total_device_ns"]["median"] is None and row["self_device_ns"]["median"] is None
        stages = [row[f"{stage}_host_ns"]["median"] for stage in ("forward", "backward", "recomputed")]
        assert sum(stages) == row["total_host_ns"]["median"] and row["recomputed_host_ns"]["median"] == 0
    for name in ("blocks.0", "blocks.1.feed_forward", "head"):
        assert rows[name]["forward_host_ns"]["median"] > 0 < rows[name]["backward_host_ns"]["median"], name
    everything = modules["rows"][0]
    assert sum(row["self_host_ns"]["median"] for row in modules["rows"]) == everything["total_host_ns"]["median"]
    assert (
        rows[""]["total_host_ns"]["median"] + everything["self_host_ns"]["median"]
        == everything["total_host_ns"]["median"]
    )


@pytest.mark.cuda
def test_device_phases_agree_with_the_kernels_of_the_trace(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    left, right = (torch.randn(4096, 4096, device=device) for _ in range(2))
    recorder = Recorder(device=TorchDevice(device))
    notes: list[str] = []
    window = KernelWindow(
        recorder=recorder, path=kernel_path(tmp_path, 0), facts={"rank": 0}, kept_steps=3, first_step=3,
        on_device=True, together=lambda: None, opened=lambda steps: None, note=notes.append,
    )  # fmt: skip
    for step in range(8):
        if covered := window.covers(step, warmup=False):
            window.before(step)
        recorder.begin_step(step, warmup=False)
        for code, number in ((FORWARD, 20), (BACKWARD, 40)):
            recorder.enter(code)
            for _ in range(number):
                torch.mm(left, right)
            recorder.exit()
        recorder.end_step()
        if covered:
            window.after(step)
    assert notes == []
    live = {record.step: record.phase_device_ns for record in recorder.drain(wait=True)}
    traced = sum_kernels(read_trace(kernel_path(tmp_path, 0))["traceEvents"])
    assert {step for step, _ in traced} == {4, 5, 6}
    for (step, name), kernels_ns in traced.items():
        measured = live[step]
        assert measured is not None
        assert kernels_ns == pytest.approx(measured[PHASE_CODE[Phase(name)]], rel=0.02)


def sum_kernels(events: list[dict[str, Any]]) -> dict[tuple[int, str], float]:
    """Time of the kernels launched in each phase of each step, ns: the device never idles, so that is the phase."""
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    spans = [event for event in events if event.get("cat") == "user_annotation"]
    sums: dict[tuple[int, str], float] = {}
    for kernel in (event for event in events if event.get("cat") == "kernel"):
        at = launches[kernel["args"]["correlation"]]
        around = [span["name"] for span in spans if span["ts"] <= at <= span["ts"] + span["dur"]]
        step = next((int(name.removeprefix("ProfilerStep#")) for name in around if name.startswith("Profiler")), None)
        phase = next((name.removeprefix("distprof.") for name in around if name.startswith("distprof.")), None)
        if step is not None and phase is not None:
            sums[step, phase] = sums.get((step, phase), 0.0) + kernel["dur"] * 1e3
    return sums
