"""Stages of ``torch.distributed.pipelining``: every micro-batch is recorded, and nothing is changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from distprof.analyze.make_report import analyze
from distprof.facts.micro_batches import OPERATION_KINDS
from distprof.patching import require_fit
from distprof.profiler.open_session import start
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.pipeline import watch_stages
from distprof.record.step.recorder import Recorder
from distprof.storage.run_folder import read_run
from distprof.world import World
from tests.profiler.session.session_case import LONG
from tests.ranks import call_on_ranks

CALLS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
STEPS, BATCHES = 6, 4


def train(world: World, schedule: str, folder: str | None) -> list[float]:
    """Two stages, or two times two; returns the parameters after training, and on the last rank the losses."""
    from torch.distributed.pipelining import PipelineStage, schedules  # takes half a second

    torch.manual_seed(1)
    per_rank = 2 if "Interleaved" in schedule else 1
    session = None if folder is None else start(run_dir=folder, window_s=0.05, **{**LONG, "warmup_steps": 1})
    if session is not None:
        session.find_steps()
    models = [nn.Linear(4, 4) for _ in range(2 * per_rank)]
    own = [world.rank + 2 * turn for turn in range(per_rank)]
    stages: Any = [PipelineStage(models[at], at, len(models), torch.device("cpu")) for at in own]
    made = getattr(schedules, schedule)(
        stages if per_rank > 1 else stages[0], BATCHES, loss_fn=nn.functional.mse_loss
    )  # fmt: skip
    parameters = [parameter for at in own for parameter in models[at].parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses: list[torch.Tensor] = []
    for _ in range(STEPS):
        if world.rank == 0:
            made.step(torch.ones(8, 4))
        else:
            made.step(target=torch.zeros(8, 4), losses=losses)
        optimizer.step()
        optimizer.zero_grad()
    if session is not None:
        session.close()
    return [
        *(float(loss.detach()) for loss in losses),
        *torch.cat([each.detach().flatten() for each in parameters]).tolist(),
    ]


def train_twice(world: World, schedule: str, folder: str) -> None:
    plain = train(world, schedule, None)
    assert train(world, schedule, folder) == plain  # to the bit
    stage: Any = sys.modules["torch.distributed.pipelining.stage"]
    assert all(not hasattr(getattr(stage._PipelineStageBase, name), "__wrapped__") for name in CALLS)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7),
    reason="torch 2.6: its schedules hang with gloo, unwatched too",
)
@pytest.mark.parametrize("schedule", ["Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_stages_are_recorded_as_they_compute_and_compute_what_they_did(schedule: str, tmp_path: Path) -> None:
    call_on_ranks(2, train_twice, schedule, str(tmp_path / "run"), tmp_path=tmp_path)
    run, chunks = read_run(tmp_path / "run"), 2 if "Interleaved" in schedule else 1
    for own in run.operations:
        assert own is not None
        for step in set(own.step.tolist()) - {0}:
            kinds = [OPERATION_KINDS[kind] for kind in own.kind[own.step == step].tolist()]
            assert kinds.count("forward") == kinds.count("backward") == BATCHES * chunks  # type: ignore[arg-type]
            assert kinds.count("send") + kinds.count("receive") == 2 * BATCHES * (2 * chunks - 1)  # type: ignore[arg-type]
    found = analyze(run).pipeline
    assert found is not None and (found.num_stages, found.micro_batches, found.notes) == (2, BATCHES, ())
    assert [(stage.stage, stage.chunks) for stage in found.stages] == [(0, chunks), (1, chunks)]
    assert all(stage.late_sender_ns is not None and stage.forward_ns > 0 for stage in found.stages)


def test_a_stage_of_another_release_is_left_alone_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.pipelining.stage as stages

    class Other:
        def forward_one_chunk(self, inputs: object, fwd_chunk_id: int) -> None: ...

    notes: list[str] = []
    monkeypatch.setattr(stages, "_PipelineStageBase", Other)
    undo = watch_stages(CollectiveWatch(Recorder(), notes.append))
    (note,) = notes
    assert note.startswith("the micro-batches of pipelines are not recorded: ")
    assert note.endswith("Other.forward_one_chunk of this torch takes no `fwd_chunk_id` as its argument 2")
    assert not hasattr(Other.forward_one_chunk, "__wrapped__")
    undo()


class Stage:
    stage_index, has_backward = 3, True


def test_what_a_stage_raises_reaches_the_script_and_what_is_ours_does_not() -> None:
    import torch.distributed.pipelining.stage as stages

    notes: list[str] = []
    recorder = Recorder()
    watch = CollectiveWatch(recorder, notes.append)
    before = stages._PipelineStageBase.forward_one_chunk
    undo = watch_stages(watch)
    forward: Any = require_fit(stages._PipelineStageBase, "forward_one_chunk")
    recorder.begin_step(0, warmup=False)
    with pytest.raises(AttributeError, match="is_first"):
        forward(Stage(), 0, ())
    recorder.begin_operation = None  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="is_first"):
        forward(Stage(), 0, ())
    assert len(notes) == 1 and notes[0].startswith("the micro-batches of pipelines are not recorded from step 0 on: ")
    undo()
    assert stages._PipelineStageBase.forward_one_chunk is before
