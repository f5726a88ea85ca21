"""The kernel window: against a pretended session of torch.profiler, and for real on two gloo ranks."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distprof.config.schema import HardwareConfig, ProfileConfig
from distprof.facts.run import PHASE_CODE, Phase, Run
from distprof.profiler.profiler import KernelProfiler, Profiler
from distprof.profiler.start import start_profiler
from distprof.record import kernel_window, trace_ranges
from distprof.record.cuda_clock import CudaClock
from distprof.record.kernel_window import EARLIEST_STEP, KernelWindow
from distprof.record.recorder import Recorder
from distprof.storage.run_folder import kernel_path, read_run
from distprof.world import World
from tests.fakes import FakeAnnotation
from tests.ranks import call_on_ranks, run_alone

FORWARD, BACKWARD = PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.BACKWARD]
CANARY = "canary-5f2e9c"
PROFILE = ProfileConfig(
    level="kernels", nvtx=False, nvtx_module_depth=0, window_s=0.05, shadow_every=2, max_overhead_ratio=None,
    kernel_steps=2,
)  # fmt: skip


@pytest.fixture
def annotations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeAnnotation.log, FakeAnnotation.open = [], []
    monkeypatch.setattr(trace_ranges, "record_function", FakeAnnotation)
    return FakeAnnotation.log


class FakeSession:
    """Stands for `torch.profiler.profile`, and tells the window's log what it is asked."""

    def __init__(self, log: list[str], text: str = '{"traceEvents": []}\n', fails: str = "") -> None:
        self.log, self.text, self.fails = log, text, fails
        self.metadata: dict[str, Any] = {}

    def start(self) -> None:
        self._do("start")

    def stop(self) -> None:
        self._do("stop")

    def add_metadata_json(self, key: str, value: str) -> None:
        self.metadata[key] = json.loads(value)

    def export_chrome_trace(self, path: str) -> None:
        self._do("export")
        Path(path).write_text(self.text)

    def _do(self, what: str) -> None:
        self.log.append(what)
        if what == self.fails:
            raise RuntimeError(f"cannot {what}\nand more")


class Rank:
    """One rank's recorder and window, and the log of both."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, log: list[str], **session: Any) -> None:
        self.log, self.notes = log, list[str]()
        self.session = FakeSession(log, **session)
        self.options: dict[str, Any] = {}
        self.folder = folder
        monkeypatch.setattr(kernel_window, "profile", lambda **options: self.options.update(options) or self.session)

    def plan(self, first_step: int | None, kept_steps: int = 2) -> KernelWindow:
        self.recorder = Recorder()
        return KernelWindow(
            recorder=self.recorder, path=kernel_path(self.folder, 3), facts={"rank": 3, "host": "h"},
            kept_steps=kept_steps, first_step=first_step, on_device=False, note=self.notes.append,
            together=lambda: self.log.append("together"), opened=lambda steps: self.log.append(str(steps)),
        )  # fmt: skip

    def run(self, window: KernelWindow, steps: range, num_warmup: int = 0) -> None:
        """Steps as `KernelProfiler` runs them, of which every one enters a phase."""
        for step in steps:
            covered = window.covers(step, warmup=step < num_warmup)
            if covered:
                window.before(step)
            self.log.append(f"step {step}")
            self.recorder.begin_step(step, warmup=False)
            self.recorder.enter(FORWARD)
            self.recorder.exit()
            self.recorder.end_step()
            if covered:
                window.after(step)


def test_the_ranks_start_together_drop_a_step_and_go_on_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, annotations: list[str]
) -> None:
    rank = Rank(tmp_path, monkeypatch, annotations)
    window = rank.plan(5)
    rank.run(window, range(4, 10))
    window.finish()
    told = [line for line in annotations if not line.startswith("/")]
    assert told == [
        "step 4", "range(5, 8)", "start", "together", "step 5",
        "step 6", "ProfilerStep#6", "distprof.forward", "step 7", "ProfilerStep#7", "distprof.forward",
        "stop", "export", "together", "step 8", "step 9",
    ]  # fmt: skip
    assert rank.session.metadata == {"distprof": {"rank": 3, "host": "h", "steps": [6, 7]}} and rank.notes == []
    assert not any(rank.options[name] for name in ("record_shapes", "with_stack", "profile_memory"))
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == ["rank-00003.json.gz"]
    assert json.loads(gzip.decompress(kernel_path(tmp_path, 3).read_bytes())) == {"traceEvents": []}
    assert rank.recorder.ranges is None  # and no step after it pays


@pytest.mark.parametrize(
    ("num_warmup", "expected"), [(0, EARLIEST_STEP), (2, EARLIEST_STEP), (5, 5)], ids=["none", "short", "long"]
)
def test_unless_told_it_begins_behind_the_warmup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_warmup: int, expected: int
) -> None:
    rank = Rank(tmp_path, monkeypatch, [])
    rank.run(rank.plan(None), range(9), num_warmup)
    assert f"range({expected}, {expected + 3})" in rank.log


@pytest.mark.parametrize("fails", ["start", "stop", "export"])
def test_a_profiler_that_fails_costs_a_note_and_no_barrier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    rank = Rank(tmp_path, monkeypatch, [], fails=fails)
    rank.run(rank.plan(0), range(5))
    assert rank.log.count("together") == 2 and rank.log[-1] == "step 4"
    (note,) = rank.notes
    doing = {"export": "write its trace"}.get(fails, fails)
    assert note == f"the kernel window did not {doing}: RuntimeError: cannot {fails}"
    assert rank.recorder.ranges is None and not kernel_path(tmp_path, 3).exists()


def test_a_trace_that_is_cut_short_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, monkeypatch, [], text='{"traceEvents": [{"ph"')
    rank.run(rank.plan(0), range(5))
    (note,) = rank.notes
    assert "truncated" in note and list((tmp_path / "kernels").iterdir()) == []


def test_another_profiler_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, monkeypatch, [])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        rank.run(rank.plan(0), range(5))
        torch.ones(2) + 1
    assert "start" not in rank.log and rank.log.count("together") == 2
    assert rank.notes == ["the kernel window did not start: another profiler runs; there is no trace of this rank"]
    assert any(event.key == "aten::add" for event in theirs.key_averages())


def test_a_window_that_a_failure_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, monkeypatch, [])
    window = rank.plan(0)
    rank.run(window, range(2))
    assert window.covers(2, warmup=False)
    window.before(2)  # the last step, which fails: nobody is told that it is over
    assert not window.covers(3, warmup=False)
    assert rank.log[-3:] == ["stop", "export", "together"]  # the job has caught it and goes on
    broken = rank.plan(0)
    rank.run(broken, range(2))
    before = rank.log.count("together")
    broken.abandon()  # the job ends with it: the others may be gone
    assert rank.log.count("together") == before and rank.log[-1] == "stop"
    assert rank.notes == ["the kernel window was broken off: there is no trace of this rank"]
    assert not broken.covers(2, warmup=False) and rank.recorder.ranges is None


def test_a_job_that_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, monkeypatch, [])
    window = rank.plan(2)
    rank.run(window, range(2))
    window.finish()
    assert rank.notes == ["no kernel window: the job ended before step 2, or was all warm-up"]
    cut = rank.plan(0, kept_steps=9)
    rank.run(cut, range(3))
    cut.finish()
    assert rank.log[-3:] == ["stop", "export", "together"] and kernel_path(tmp_path, 3).exists()
    with pytest.raises(ValueError, match="keeps at least one step"):
        rank.plan(0, kept_steps=0)


# Two ranks


def train_small(world: World, runs_dir: str, level: Any) -> list[float]:
    """Eight steps of a small model under DDP; the losses of this rank."""
    job = start_profiler(
        world, name="job", strategy="ddp", precision="fp32", config={}, runs_dir=runs_dir, say=lambda text: None,
        profile=dataclasses.replace(PROFILE, level=level), hardware=HardwareConfig(peak=1e9),
    )  # fmt: skip
    assert isinstance(job.profiler, KernelProfiler) == (level == "kernels")
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
            if event["name"].startswith("distprof.") and event["tid"] == step["tid"]
            and step["ts"] <= event["ts"] and event["ts"] + event["dur"] <= step["ts"] + step["dur"]
        ]  # fmt: skip
        assert inside == [f"distprof.{name}" for name in ("data", "forward", "backward", "all_reduce", "optimizer")]
    assert sum(event["name"].startswith("distprof.") for event in ranges) == 2 * 5  # and none outside of the two


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
    sizes = ("train=gpt2_tiny", "train.steps=2", "train.warmup_steps=1", "profile.kernel_steps=1", "strategy=single")
    done = run_alone([*sizes, "profile=kernels", "logger=none"], tmp_path)
    assert done.returncode == 0, done.stderr
    folder, run = read_only_run(tmp_path / "runs")
    assert run.column("window").tolist() == [[0, 0, 0, 1, 1]] and run.measured().tolist() == [[0, 1, 1, 0, 0]]
    assert read_trace(kernel_path(folder, 0))["distprof"]["steps"] == [4]
    coverage = json.loads((folder / "report.json").read_text())["coverage"]
    assert coverage["complete"] and (coverage["steps_measured"], coverage["steps_planned"]) == (2, 3)
    assert [note for note in coverage["notes"] if note.startswith("2 step(s) ran under the kernel window")]


def test_a_step_at_level_phases_does_not_know_of_windows() -> None:
    assert dataclasses.replace(PROFILE, level="phases").window_steps == 0 and PROFILE.window_steps == 3
    for function in (Profiler.step, Recorder.begin_step, Recorder.end_step, Recorder._record):
        assert not [name for name in function.__code__.co_names if "window" in name.lower()], function
    assert "_window" in KernelProfiler.step.__code__.co_names  # had one, it would have been seen


# A device


@pytest.mark.cuda
def test_device_phases_agree_with_the_kernels_of_the_trace(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    left, right = (torch.randn(4096, 4096, device=device) for _ in range(2))
    recorder = Recorder(device_clock=CudaClock(device, num_rows=8))
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
