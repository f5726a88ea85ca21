"""What a training loop calls besides its steps: stretches between them, and batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch.distributed as dist
from torch import nn

from distprof.facts.run import PHASE_CODE, Phase
from distprof.profiler.rank.profiler import Profiler
from distprof.profiler.rank.recorded_steps import ShadowPlan
from distprof.record.step.recorder import Recorder
from tests.fakes import FakeClock


def make_profiler(recorder: Recorder, *, phases: bool = False, note: Any = print) -> Profiler:
    """A profiler that nobody closes: it has no files and no threads."""
    nothing = cast(Any, None)
    step_writer = cast(Any, SimpleNamespace(note=note))
    return Profiler(
        recorder=recorder, plan=ShadowPlan(0), step_writer=step_writer, gather_thread=nothing, ranges=None,
        module_depth=0, on_device=False, phases=phases, timeout_s=1.0, done=lambda: None, clean=str,
    )  # fmt: skip


def test_a_loop_says_what_it_does_between_its_steps() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    profiler = make_profiler(recorder)

    def load() -> Any:
        for number in range(3):
            clock.advance(40)
            yield number

    for number in profiler.data(load()):
        with profiler.step():
            clock.advance(100)
        with profiler.stretch("evaluation"):
            clock.advance(number)
    with profiler.step():
        assert list(profiler.data([7])) == [7]
        assert next(iter(profiler.data(load()))) == 0
    records = recorder.drain()
    facts = [(record.between.data_ns, record.between.stretches_ns[0]) for record in records if record.between]
    assert facts == [(40, 0), (40, 1), (0, 2)] and records[0].between is None
    assert [(record.phase_host_ns or [])[PHASE_CODE[Phase.DATA]] for record in records] == [0, 0, 0, 40]


def test_there_are_three_stretches() -> None:
    profiler = make_profiler(Recorder())
    for name in ("between steps", "data", "eval"):
        with pytest.raises(ValueError, match=f"no such stretch: '{name}'; there are evaluation, checkpoint, logging"):
            profiler.stretch(name)


def test_only_models_that_may_synchronise_by_themselves_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a frozen teacher, nor a container of what is in a DDP model."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    notes: list[str] = []
    profiler = make_profiler(Recorder(now_ns=FakeClock()), phases=True, note=notes.append)
    inner = nn.Linear(1, 1)
    monkeypatch.setattr("distprof.profiler.rank.profiler.list_wrapped", lambda model: [model] if model is inner else [])
    profiler.watch(inner)
    profiler.watch(nn.Sequential(inner))
    profiler.watch(nn.Bilinear(1, 1, 1).requires_grad_(False))
    assert not [note for note in notes if "neither" in note]
    profiler.watch(nn.Sequential(inner, nn.Linear(1, 1)))
    assert notes[-1].startswith("Sequential holds neither DDP nor FSDP: if it is trained")
    profiler._undo()
