"""The window in which a job's modules are profiled: which step does what, and that nothing is left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import distprof
from distprof.facts.modules import ModuleTable, RankMemory
from distprof.profiler.rank.profiler import Profiler
from distprof.profiler.windows.module_window import EXTRA_STEPS, ModuleWindow
from distprof.profiler.windows.rank_windows import LevelWindow
from distprof.record.step.recorder import Recorder
from distprof.storage.module_files import module_path, read_modules
from distprof.storage.safe_open import open_folder

TOKENS = torch.ones(3, 4)
PREDICTED = RankMemory(parameters=1, gradients=2, optimizer=3, buffers=4, activations=None)


class Rank:
    """One rank with a model of its own."""

    def __init__(self, folder: Path, *, first_step: int | None = 2, timed_steps: int = 2, watch: int = 1) -> None:
        self.folder, self.notes, self.met = folder, list[str](), 0
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        self.window = ModuleWindow(
            recorder=Recorder(), path=module_path(folder, 0), rank=0, run_id="run", timed_steps=timed_steps,
            first_step=first_step, together=self.meet, opened=lambda steps: None, note=self.notes.append,
            predict_memory=lambda: PREDICTED,
        )  # fmt: skip
        for _ in range(watch):
            self.window.watch(self.model)

    def meet(self) -> None:
        self.met += 1

    def run(self, steps: range, fails: int | None = None) -> None:
        """Steps as `Profiler` runs them, of two micro-steps each."""
        for step in steps:
            covered = self.window.covers(step, warmup=False)
            if covered:
                self.window.before(step)
            error = RuntimeError("injected") if step == fails else None
            for _ in range(2):
                loss = self.model(TOKENS).sum()
                if error is None:
                    loss.backward()
            if covered:
                self.window.after(step, error)

    def read(self) -> ModuleTable:
        with open_folder(self.folder) as root:
            (table,), left_out = read_modules(self.folder, root, "run", [0])
        assert left_out == []
        return table


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert find_traces() == []


def find_traces(model: nn.Module | None = None) -> list[Any]:
    """Whatever would make a step slower: hooks on all modules or on these, and modes of dispatch."""
    hooks = [torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks]
    for each in () if model is None else model.modules():
        hooks += [each._forward_pre_hooks, each._forward_hooks, each._backward_hooks, each._backward_pre_hooks]
    hooks.append(_global_optimizer_pre_hooks)
    return [hook for hook in hooks if hook] + _get_current_dispatch_mode_stack()


def test_one_step_is_counted_one_warms_up_and_the_others_are_timed(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.run(range(2))
    assert find_traces() == [] and rank.met == 0
    rank.run(range(2, 8))
    rank.window.finish()
    assert rank.notes == [] and rank.met == 2 and find_traces(rank.model) == []
    table = rank.read()
    assert (table.counted_step, table.timed_steps) == (2, (4, 5)) and EXTRA_STEPS == 2
    assert table.names == ("", "0", "1") and table.parameters == (49, 40, 9) and table.calls == (2, 2, 2)
    forward = [2 * 2 * 3 * size for size in (40, 32, 8)]  # two micro-steps; a multiply-add is two
    assert [flops[0] for flops in table.flops] == forward
    assert [flops[1] for flops in table.flops] == [forward[1] + 2 * forward[2], forward[1], 2 * forward[2]]
    assert table.forward_ns.shape == (3, 2) and table.forward_ns.min() > 0 and table.backward_ns.min() > 0
    assert (table.forward_ns[0] >= table.forward_ns[1:].sum(axis=0)).all()


def test_memory_is_measured_in_the_counted_step_and_stands_beside_the_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(tmp_path)
    rank.window.covers(2, warmup=False)
    rank.window.before(2)
    rank.model(TOKENS).sum().backward()
    torch.optim.AdamW(rank.model.parameters()).step()
    assert rank.window._profiler is not None
    rank.window._profiler.device = torch.device("cuda", 1)  # as if: an allocator that tells
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {torch.device("cuda", 1): 9_000}.get)
    rank.window.after(2)
    rank.run(range(3, 8))
    table = rank.read()
    assert table.memory == RankMemory(
        parameters=4 * 49, gradients=4 * 49, optimizer=2 * 4 * 49, buffers=0, activations=4 * 3 * 9, communication=0
    )
    assert (table.predicted_memory, table.peak_bytes, rank.notes) == (PREDICTED, 9_000, [])
    outside = Rank(tmp_path)
    outside.window.covers(2, warmup=False)
    outside.window.before(2)
    outside.window.after(2)  # a step without forward
    outside.run(range(3, 8))
    found = outside.read().memory
    assert found == RankMemory(
        parameters=4 * 49, gradients=None, optimizer=None, buffers=0, activations=None, communication=0
    )


def test_a_step_that_fails_is_left_out_and_the_window_goes_on(tmp_path: Path) -> None:
    for place, fails in enumerate((2, 4)):
        folder = tmp_path / str(place)
        folder.mkdir()
        rank = Rank(folder)
        rank.run(range(8), fails=fails)
        table = rank.read()
        assert (table.counted_step, table.timed_steps) == ((None, (4, 5)), (2, (5,)))[place]
        assert rank.notes == [] and table.forward_ns.shape[1] == len(table.timed_steps)
        assert (table.memory is None) == (fails == 2) and table.peak_bytes is None


def test_a_job_that_fails_or_ends_early_leaves_nothing_open(tmp_path: Path) -> None:
    broken = Rank(tmp_path)
    for step in range(2, 4 + 1):
        broken.window.covers(step, warmup=False)
        broken.window.before(step)
        if step < 4:
            broken.window.after(step)
    assert find_traces() != []
    broken.window.abandon()
    assert broken.notes == ["the module profile was interrupted: there is none of this rank"] and broken.met == 1
    assert find_traces() == [] and not (tmp_path / "modules").exists()
    early = Rank(tmp_path)
    early.run(range(2))
    early.window.finish()
    assert early.notes == ["no module profile: the job ended before step 2, or was all warm-up"]
    cut = Rank(tmp_path, timed_steps=9)
    cut.run(range(5))
    cut.window.finish()
    assert cut.read().timed_steps == (4,) and cut.notes == []
    with pytest.raises(ValueError, match="takes the time of at least one step"):
        Rank(tmp_path, timed_steps=0)


def test_what_cannot_be_profiled_is_said_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unseen = Rank(tmp_path, watch=0)
    unseen.run(range(8))
    assert "profiler.watch(model) was not called; there is none of this rank" in unseen.notes[0]
    twice = Rank(tmp_path, watch=2)
    twice.run(range(8))
    assert twice.notes == ["the module profile is of the first of several watched models"]
    full = Rank(tmp_path)
    monkeypatch.setattr("distprof.profiler.windows.module_window.write_whole", lambda path, data: 1 / 0)
    full.run(range(8))
    assert full.notes == ["the module profile did not write its file: ZeroDivisionError: division by zero"]
    assert full.met == 2  # the others are not kept waiting


PACKAGE = f"{Path(distprof.__file__).parent}{os.sep}"


def run_recorded_steps(profiler: Profiler, model: nn.Module) -> set[tuple[str, str]]:
    """The functions of distprof that two steps call, by file and name."""
    called: set[tuple[str, str]] = set()

    def see(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.add((Path(frame.f_code.co_filename).stem, frame.f_code.co_name))

    sys.setprofile(see)
    try:
        for _ in range(2):
            with profiler.step():
                with profiler.phase("forward"):
                    loss = model(TOKENS).sum()
                with profiler.phase("backward"):
                    loss.backward()
    finally:
        sys.setprofile(None)
    return called


class _Nothing:
    """Parts of a profiler that do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None


def make_profiler(level_window: LevelWindow | None = None) -> Profiler:
    parts: dict[str, Any] = {
        "recorder": Recorder(), "plan": _Nothing(), "step_writer": _Nothing(), "gather_thread": _Nothing(),
        "ranges": None, "module_depth": 3, "on_device": False, "phases": True, "timeout_s": 1.0,
        "done": lambda: None, "clean": str,
    }  # fmt: skip
    return Profiler(**parts, level_window=level_window)


def test_without_the_level_a_step_runs_nothing_of_it_and_the_model_has_no_hook(tmp_path: Path) -> None:
    """And with it, the steps before and after its window run one comparison more: `ModuleWindow.covers`."""
    model = Rank(tmp_path).model
    plain = make_profiler()
    plain.watch(model)
    called = run_recorded_steps(plain, model)
    plain.close()
    assert find_traces(model) == [] and ("recorder", "begin_step") in called
    window = Rank(tmp_path, first_step=1_000, watch=0).window
    level_window = LevelWindow(lambda: window, 0)
    with_window = make_profiler(level_window)
    with_window.watch(model)
    level_window._make()
    assert run_recorded_steps(with_window, model) - called == {("rank_windows", "enter"), ("step_window", "covers")}
    assert find_traces(model) == []
    with_window._undo()
    assert not any("module" in name or "window" in name for name, _ in called)
