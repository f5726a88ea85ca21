"""DDP with hooks of the user's own, early or late, and with a second model: nothing breaks, facts are right."""
# Without postponed annotations: DDP inspects those of a hook.

import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from distprof.facts.run import KINDS, PHASE_CODE, CollectiveKind, Phase
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.collectives.ddp import watch_ddp
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord
from distprof.world import World
from tests.ranks import run_cases

BACKWARD, ALL_REDUCE = PHASE_CODE[Phase.BACKWARD], PHASE_CODE[Phase.ALL_REDUCE]
STEPS, WIDTH = 5, 24
DELAY_NS = 1_000_000
Register = Callable[[DistributedDataParallel], None]


def make_model(group: Any = None, bucket_mb: float = 0.002) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3)]
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket_mb, process_group=group)


def count_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def train(models: list[DistributedDataParallel], recorder: Recorder | None, accumulation: int = 1) -> list[float]:
    """The losses of some steps; each backward goes through all models at once."""
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for step in range(STEPS):
        if recorder is not None:
            recorder.begin_step(step, warmup=False)
        for micro_step in range(accumulation):
            models[0].require_backward_grad_sync = micro_step == accumulation - 1  # what no_sync() sets
            inputs = torch.randn(8, WIDTH, generator=generator)
            loss = torch.stack([model(inputs).square().mean() for model in models]).sum()
            if recorder is not None:
                recorder.enter(BACKWARD)
            loss.backward()
            if recorder is not None:
                recorder.exit()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
        if recorder is not None:
            recorder.end_step()
    return losses


def profile(
    *,
    early: Register | None = None,
    middle: Register | None = None,
    late: Register | None = None,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> tuple[list[float], list[StepRecord], list[str]]:
    """Trains one model that gets a hook before the profiler starts, before it watches the model, or after that."""
    recorder, notes, model = Recorder(now_ns=now_ns), list[str](), make_model()
    collective_watch = CollectiveWatch(recorder)
    if early is not None:
        early(model)
    undo = watch_collectives(collective_watch)
    if middle is not None:
        middle(model)
    watch_ddp(model, collective_watch, notes.append)
    if late is not None:
        late(model)
    losses = train([model], recorder)
    undo()
    return losses, recorder.drain(), notes


def train_plainly(register: Register) -> list[float]:
    model = make_model()
    register(model)
    return train([model], None)


def register_python(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, fp16_compress_hook)
    assert model._comm_hooks == [(fp16_compress_hook, None)]
    pickle.dumps(model._comm_hooks)


def register_builtin(model: DistributedDataParallel) -> None:
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)  # type: ignore[no-untyped-call]


def keep_the_users_hook(world: World) -> None:
    plain = train_plainly(register_python)
    assert plain != train([make_model()], None)  # the hook does something
    for when in ("middle", "late"):
        losses, records, notes = profile(**{when: register_python})
        assert losses == plain and notes == []
        for record in records[2:]:
            check_buckets(record, count_bytes(make_model()))
    losses, records, (note,) = profile(early=register_python)
    assert losses == plain and "was registered before recording began" in note
    for record in records[2:]:  # seen where the hook issues them: halves
        check_buckets(record, count_bytes(make_model()) // 2, ends_seen=False)


def check_buckets(record: StepRecord, size_bytes: int, *, ends_seen: bool = True) -> None:
    seen = record.collectives or []
    assert len(seen) > 1 and sum(item.size_bytes for item in seen) == size_bytes
    assert {item.phase for item in seen} == {BACKWARD} and {KINDS[item.kind] for item in seen} == {
        CollectiveKind.ALL_REDUCE
    }
    assert all(item.end_ns is None or item.end_ns > item.arrival_ns for item in seen)
    assert not ends_seen or None not in {item.end_ns for item in seen}
    exposed = [item.exposed_ns for item in seen]
    assert exposed[:-1] == [0] * (len(seen) - 1) and exposed[-1]
    assert record.phase_host_ns is not None and record.phase_host_ns[ALL_REDUCE] == exposed[-1]


def block_in_the_hook(
    state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    work.wait()
    dist.all_reduce(bucket.buffer())
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def see_a_hook_that_blocks(world: World) -> None:
    _, records, _ = profile(late=lambda model: model.register_comm_hook(None, block_in_the_hook))
    for record in records:
        seen = record.collectives or []
        assert sum(item.size_bytes for item in seen) == count_bytes(make_model())  # a bucket is one collective
        assert all(item.exposed_ns and item.end_ns for item in seen)  # every one held the backward up
        assert record.phase_host_ns is not None
        assert record.phase_host_ns[ALL_REDUCE] == sum(item.exposed_ns or 0 for item in seen)


class CountingClock:
    """Every look at it takes 1 ns, and a delay takes what it says; nothing else takes time."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


def see_a_delay_in_the_hook(world: World) -> None:
    """It is the rank's own time, wherever in the backward it lies and whenever the hook was registered."""
    for when in ("early", "middle", "late"):
        for last in (True, False):
            clock = CountingClock()
            hook = make_late_hook(clock, last=last)
            register = {when: lambda model, hook=hook: model.register_comm_hook(None, hook)}
            _, records, _ = profile(**register, now_ns=clock)
            for record in records[2:]:
                totals, seen = record.phase_host_ns or [], record.collectives or []
                check_buckets(record, count_bytes(make_model()), ends_seen=when != "early")
                assert totals[BACKWARD] >= DELAY_NS > totals[ALL_REDUCE] > 0, (when, last)
                delayed = seen[-1 if last else 0]  # it arrives after its own delay
                assert delayed.arrival_ns - record.segments.begin_ns >= DELAY_NS


def make_late_hook(clock: CountingClock, *, last: bool) -> Callable[..., Any]:
    def delayed_hook(
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last() if last else bucket.index() == 0:
            clock.now_ns += DELAY_NS
        reduced: torch.futures.Future[torch.Tensor] = allreduce_hook(None, bucket)  # type: ignore[arg-type]
        return reduced

    return delayed_hook


def keep_the_builtin_hook(world: World) -> None:
    plain = train_plainly(register_builtin)
    for when in ("early", "middle"):
        losses, records, (note,) = profile(**{when: register_builtin})
        assert losses == plain and "built-in" in note
        assert all(record.collectives == [] for record in records)
    losses, records, notes = profile(late=register_builtin)
    assert losses == plain and notes == []
    for record in records[2:]:  # what it has reduced: halves
        check_buckets(record, count_bytes(make_model()) // 2)
    recorder, model = Recorder(), make_model()
    collective_watch = CollectiveWatch(recorder)
    undo = watch_collectives(collective_watch)
    watch_ddp(model, collective_watch, lambda note: None)
    recorder.begin_step(0, warmup=False)
    model.register_comm_hook(None, allreduce_hook)  # later than DDP allows without us, and it works
    model(torch.ones(2, WIDTH)).sum().backward()
    recorder.end_step()
    try:
        model.register_comm_hook(None, allreduce_hook)
        raise AssertionError("a model has one hook")
    except RuntimeError as error:
        assert "only be called once" in str(error)
    undo()


def train_two_models(world: World) -> None:
    group = dist.new_group([0, 1], group_desc="second")
    plain = train([make_model(), make_model(group)], None, accumulation=2)
    recorder, models = Recorder(), [make_model(), make_model(group)]
    collective_watch = CollectiveWatch(recorder)
    undo = watch_collectives(collective_watch)
    for model in models:
        watch_ddp(model, collective_watch, lambda note: None)
    assert train(models, recorder, accumulation=2) == plain
    undo()
    for record in recorder.drain()[2:]:
        first, second = (
            [item for item in record.collectives or [] if (item.group > 0) is own] for own in (False, True)
        )
        assert sum(item.size_bytes for item in first) == count_bytes(models[0])  # once: the first micro-step skips it
        assert sum(item.size_bytes for item in second) == 2 * count_bytes(models[1])
        exposed = [item.exposed_ns or 0 for item in record.collectives or []]
        # Whatever model is done first, it waits at the end of each backward only: one exposed bucket per micro-step.
        assert sum(ns > 0 for ns in exposed) == 2
        assert record.phase_host_ns is not None and record.phase_host_ns[ALL_REDUCE] == sum(exposed)
    assert recorder.groups[1][0].startswith("second ")


def watch_again(world: World) -> None:
    model, seen = make_model(), []
    for _ in range(2):  # a second job of the same process
        recorder = Recorder()
        collective_watch = CollectiveWatch(recorder)
        undo = watch_collectives(collective_watch)
        watch_ddp(model, collective_watch, lambda note: None)
        recorder.begin_step(0, warmup=False)
        model(torch.ones(2, WIDTH)).sum().backward()  # in no phase: nobody says when backward ends
        recorder.end_step()
        (record,) = recorder.drain()
        seen.append(sum(item.size_bytes for item in record.collectives or []))
        assert {item.exposed_ns for item in record.collectives or []} == {None}
        assert record.phase_host_ns is not None and record.phase_host_ns[ALL_REDUCE] == 0
        undo()
    assert seen == [count_bytes(model)] * 2


CASES = (
    watch_again, keep_the_users_hook, see_a_hook_that_blocks, see_a_delay_in_the_hook, keep_the_builtin_hook,
    train_two_models,
)  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What came to its end on both ranks."""
    return run_cases(2, CASES, tmp_path_factory.mktemp("hooks"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_hooks(case: Callable[[World], None], done: list[str]) -> None:
    assert case.__name__ in done
