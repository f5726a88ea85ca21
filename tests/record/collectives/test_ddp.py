"""Gradient synchronisation under DDP, on real gloo ranks, against DDP's own account of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distprof.facts.arrays import FloatArray
from distprof.facts.intervals import measure_union
from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.ddp import watch_ddp
from distprof.record.step.collective_log import FIRST_STEPS, sees_ends
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord
from distprof.world import World
from tests.ranks import call_on_ranks


def make_model(width: int, depth: int, bucket_mb: float) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)


def watch(model: DistributedDataParallel, recorder: Recorder) -> list[str]:
    notes: list[str] = []
    watch_ddp(model, CollectiveWatch(recorder), notes.append)
    return notes


def run_steps(
    world: World, model: DistributedDataParallel, recorder: Recorder | None, steps: int, batch: int
) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(world.rank)
    losses = []
    for step in range(steps):
        inputs = torch.randn(batch, model.module[0][0].in_features, generator=generator)
        if recorder is not None:
            recorder.begin_step(step, warmup=step < 3)
            recorder.enter(PHASE_CODE[Phase.FORWARD])
        loss = model(inputs).square().mean()
        if recorder is not None:
            recorder.exit()
            recorder.enter(PHASE_CODE[Phase.BACKWARD])
        loss.backward()
        if recorder is not None:
            recorder.exit()
        optimizer.step()
        optimizer.zero_grad()
        if recorder is not None:
            recorder.end_step()
        losses.append(float(loss))
    return losses


def lose_nothing(world: World) -> None:
    plain = run_steps(world, make_model(48, 4, 0.01), None, 6, 8)
    model = make_model(48, 4, 0.01)
    recorder = Recorder()
    watch(model, recorder)
    assert run_steps(world, model, recorder, 6, 8) == plain  # to the last bit, with three ranks' 1/3 as well
    records = recorder.drain()
    expected = sum(parameter.nbytes for parameter in model.parameters())
    for record in records:
        seen = record.collectives or []
        assert sum(item.size_bytes for item in seen) == expected
        assert all(item.end_ns is not None and item.end_ns > item.arrival_ns for item in seen)
        assert record.phase_host_ns is not None and sum(record.phase_host_ns) == record.step_host_ns
        assert record.phase_host_ns[PHASE_CODE[Phase.ALL_REDUCE]] > 0
    assert len(records[-1].collectives or []) > 1  # several buckets


def test_losses_stay_the_same_and_every_byte_is_counted(tmp_path: Path) -> None:
    call_on_ranks(3, lose_nothing, tmp_path=tmp_path)


def skip_synchronisation(world: World) -> None:
    model, recorder = make_model(16, 2, 1), Recorder()
    watch(model, recorder)
    recorder.begin_step(0, warmup=False)
    with model.no_sync():
        model(torch.ones(2, 16)).sum().backward()
    before = time.monotonic_ns()
    model(torch.ones(2, 16)).sum().backward()
    recorder.end_step()
    (record,) = recorder.drain()
    assert sum(item.size_bytes for item in record.collectives or []) == sum(p.nbytes for p in model.parameters())
    assert all(item.arrival_ns > before for item in record.collectives or [])


def test_no_sync_issues_nothing(tmp_path: Path) -> None:
    call_on_ranks(2, skip_synchronisation, tmp_path=tmp_path)


def keep_the_users_hook(world: World) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model, recorder = make_model(16, 2, 1), Recorder()
    model.register_comm_hook(None, allreduce_hook)
    notes = watch(model, recorder)
    recorder.begin_step(0, warmup=False)
    assert len(notes) == 1 and "hook" in notes[0]
    model(torch.ones(2, 16)).sum().backward()
    recorder.end_step()


def test_a_users_own_hook_stays_and_a_note_says_what_is_not_known(tmp_path: Path) -> None:
    call_on_ranks(1, keep_the_users_hook, tmp_path=tmp_path)


BLOCKS, STEPS_OF_BLOCK = 3, 10
"""On a busy machine whole stretches of steps are disturbed, between our stamps and DDP's too; a recording that is wrong
is so in every block."""


def agree_with_ddp(world: World, path: str, width: int, depth: int) -> None:
    model, recorder = make_model(width, depth, 8), Recorder()
    watch(model, recorder)
    model._set_ddp_runtime_logging_sample_rate(1)
    theirs = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(256, width)
    for step in range(5 + BLOCKS * STEPS_OF_BLOCK):
        recorder.begin_step(step, warmup=False)
        recorder.enter(PHASE_CODE[Phase.FORWARD])
        loss = model(inputs).square().mean()
        recorder.exit()
        recorder.enter(PHASE_CODE[Phase.BACKWARD])
        loss.backward()
        recorder.exit()
        recorder.end_step()
        data = model._get_ddp_logging_data()
        theirs.append([data.get(f"backward_{key}_time", 0) for key in ("compute", "comm", "compute_comm_overlap")])
        optimizer.zero_grad()
    ours = [describe(record) for record in recorder.drain()]
    # DDP gives its account of a step when the next one starts.
    np.save(f"{path}/{world.rank}.npy", np.array([ours[4:-1], theirs[5:]], dtype=float))


def describe(record: StepRecord) -> list[float]:
    """Backward, busy and overlapped, ns: what DDP calls compute, comm and overlap."""
    assert record.phase_host_ns is not None
    exposed = record.phase_host_ns[PHASE_CODE[Phase.ALL_REDUCE]]
    seen = record.collectives or []
    busy = int(measure_union([item.arrival_ns for item in seen], [item.end_ns or 0 for item in seen]))
    return [record.phase_host_ns[PHASE_CODE[Phase.BACKWARD]], busy, busy - exposed]


@pytest.mark.live
@pytest.mark.parametrize(("width", "depth"), [(768, 10), (2048, 1)])
def test_backward_exposed_and_busy_agree_with_ddps_own_account(tmp_path: Path, width: int, depth: int) -> None:
    call_on_ranks(2, agree_with_ddp, str(tmp_path), width, depth, tmp_path=tmp_path)
    for rank in range(2):
        blocks = np.split(np.load(tmp_path / f"{rank}.npy"), BLOCKS, axis=1)
        assert any(agrees(block, one_bucket=depth == 1) for block in blocks), [compare(block) for block in blocks]


def compare(block: FloatArray) -> tuple[float, ...]:
    """Our backward, exposed and busy time as parts of DDP's.

    Step by step, and the middle step: a thread that the machine puts off now and then is in one of the two only.
    """
    (backward, busy, overlapped), (their_backward, their_span, their_overlapped) = block.transpose(0, 2, 1)
    parts = (backward / their_backward, (busy - overlapped) / (their_span - their_overlapped), busy / their_span)
    return tuple(float(np.median(part)) for part in parts)


def agrees(block: FloatArray, *, one_bucket: bool) -> bool:
    """DDP counts from the first bucket's start to the last one's end; with one bucket that is the union."""
    backward, exposed, busy = compare(block)
    return abs(backward - 1) < 0.05 and abs(exposed - 1) < 0.05 and busy <= 1.01 and (not one_bucket or busy > 0.95)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_of_long_jobs_many_buckets_are_seen_to_end_in_every_32nd_step_and_all_else_in_every_step(alone: None) -> None:
    layers = [nn.Linear(16, 16, bias=False) for _ in range(13)]
    model, recorder = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.9 * 1024 / 2**20), Recorder()
    watch(model, recorder)
    for step in range(FIRST_STEPS - 2, FIRST_STEPS + 34):
        recorder.begin_step(step, warmup=False)
        recorder.enter(PHASE_CODE[Phase.BACKWARD])
        model(torch.ones(2, 16)).sum().backward()
        recorder.exit()
        recorder.end_step()
    for record in recorder.drain()[1:]:  # in the first one DDP has not made its buckets yet
        seen = record.collectives or []
        assert [item.size_bytes for item in seen] == [1024] * 13
        assert all(item.phase == PHASE_CODE[Phase.BACKWARD] and item.arrival_ns > 0 for item in seen)
        assert [bool(item.exposed_ns) for item in seen] == [False] * 12 + [True]
        ends = {item.end_ns is not None for item in seen}
        assert ends == {record.step < FIRST_STEPS or record.step % 32 == 0}


@pytest.mark.parametrize(("buckets", "every"), [(0, 1), (1, 2), (2, 4), (3, 8), (4, 8), (8, 16), (13, 32), (16, 32)])
def test_the_more_buckets_the_fewer_steps_have_their_ends_seen(buckets: int, every: int) -> None:
    steps = [step for step in range(2 * FIRST_STEPS) if sees_ends(step, buckets)]
    assert steps == [*range(FIRST_STEPS), *range(FIRST_STEPS, 2 * FIRST_STEPS, every)]
