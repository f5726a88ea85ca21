"""The kernel window, against a simulated session of torch.profiler."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from distprof.config.schema import ProfileConfig
from distprof.facts.run import PHASE_CODE, Phase
from distprof.profiler.rank.profiler import Profiler
from distprof.profiler.windows.rank_windows import LevelWindow
from distprof.record.gather.step_window import EARLIEST_STEP
from distprof.record.step.recorder import Recorder
from distprof.record.windows import kernel_window
from distprof.record.windows.kernel_window import KernelWindow, TraceRanges
from distprof.storage.run_folder import kernel_path
from tests.fakes import FakeAnnotation

FORWARD, BACKWARD = PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.BACKWARD]
CANARY = "canary-5f2e9c"
PROFILE = ProfileConfig(
    level="kernels", nvtx=False, nvtx_module_depth=0, window_s=0.05, shadow_every=2, max_overhead_ratio=None,
    kernel_steps=2,
)  # fmt: skip


@pytest.fixture
def annotations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeAnnotation.log, FakeAnnotation.open = [], []
    monkeypatch.setattr(kernel_window, "record_function", FakeAnnotation)
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
        """Steps as `Profiler` runs them, of which every one enters a phase."""
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
    assert "the trace is cut short" in note and list((tmp_path / "kernels").iterdir()) == []


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
    assert rank.notes == ["the kernel window was interrupted: there is no trace of this rank"]
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


def test_a_step_at_level_phases_does_not_know_of_windows() -> None:
    assert structs.replace(PROFILE, level="phases").window_steps == 0 and PROFILE.window_steps == 3
    for function in (Profiler.begin_step, Profiler.end_step, Recorder.begin_step, Recorder.end_step):
        assert not [name for name in function.__code__.co_names if "window" in name.lower()], function
    assert "_window" in LevelWindow.enter.__code__.co_names  # had one, it would have been seen


# A device


FORWARD, BACKWARD, ALL_REDUCE = (PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.ALL_REDUCE))


class FakeRanges:
    """Whoever showed the ranges before."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.seen.append((name, arguments))


def test_phases_and_marks_are_annotations_inside_the_step(annotations: list[str]) -> None:
    outer = FakeRanges()
    recorder = Recorder(ranges=TraceRanges(outer))
    recorder.begin_step(7, warmup=False)
    recorder.enter(BACKWARD)
    recorder.mark(ALL_REDUCE)
    recorder.resume()
    recorder.mark(ALL_REDUCE)
    recorder.exit()
    recorder.enter(FORWARD)
    recorder.end_step()  # as after an exception: the phase is still open
    step, backward, reduce = "ProfilerStep#7", "distprof.backward", "distprof.all_reduce"
    assert annotations == [
        step, backward, reduce, f"/{reduce}", reduce, f"/{reduce}", f"/{backward}", "distprof.forward",
        "/distprof.forward", f"/{step}",
    ]  # fmt: skip
    assert outer.seen == [
        ("step", (7,)), ("enter", (BACKWARD,)), ("begin_mark", (ALL_REDUCE,)), ("end_mark", ()),
        ("begin_mark", (ALL_REDUCE,)), ("exit", ()), ("enter", (FORWARD,)), ("error", (FORWARD,)), ("end_step", ()),
    ]  # fmt: skip


def test_a_mark_of_another_thread_has_no_annotation_and_ends_none(annotations: list[str]) -> None:
    ranges = TraceRanges(None)
    ranges.step(0)
    ranges.enter(BACKWARD)
    ranges.begin_mark(ALL_REDUCE)
    thread = threading.Thread(target=lambda: (ranges.end_mark(), ranges.begin_mark(ALL_REDUCE)))
    thread.start()
    thread.join()
    ranges.exit()
    ranges.end_step()
    assert annotations.count("distprof.all_reduce") == 1 and not FakeAnnotation.open


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.sampled_from(["enter", "exit", "begin_mark", "end_mark"]), st.integers(0, 7))))
def test_whatever_is_called_a_step_closes_what_it_opens(annotations: list[str], moves: list[tuple[str, int]]) -> None:
    annotations.clear()
    ranges = TraceRanges(None)
    ranges.step(1)
    for move, code in moves:
        getattr(ranges, move)(*([code] if move in ("enter", "begin_mark") else []))
        assert FakeAnnotation.open[0].name == "ProfilerStep#1"
    ranges.end_step()
    assert not FakeAnnotation.open and annotations[-1] == "/ProfilerStep#1"
