"""Two thousand steps: neither the memory nor the work of a step grows. Counted, not timed."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed.pipelining.stage  # from then on a shadow step takes its methods away and puts them back

from distprof.facts.arrays import FloatArray
from distprof.facts.run import PHASE_CODE, Clock, CollectiveKind, Phase
from distprof.profiler.rank import overhead_budget as budget
from distprof.profiler.rank.overhead_budget import keep_budget
from distprof.profiler.rank.profiler import Profiler
from distprof.profiler.rank.recorded_steps import ShadowPlan
from distprof.record.collectives.flight_recorder import read_ring
from distprof.record.gather.gather import Exchange, GatherThread
from distprof.record.gather.live import LiveSteps
from distprof.record.gather.step_writer import StepWriter
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import STEPS_AT_ONCE
from distprof.storage.rank_stream import StreamWriter
from tests.factories import make_info

STEPS, EARLY, WINDOW = 2000, 600, 100
EVERY = 20
"""One in this many steps is a shadow step; divides `WINDOW`, so that every window has the same number. In the
two windows that are counted, none follows another: the methods of stages are put back once for both."""
SLACK_BYTES = 12_000
"""Five bytes per step: less than keeping one number for each."""


class Job:
    """One rank's whole recording without a model, and without threads: the test plays the gather_thread."""

    def __init__(self, folder: Path) -> None:
        (folder / "ranks").mkdir()
        writer = StreamWriter(folder / "ranks" / "rank-00000.jsonl", run_id="x", world_size=1, info=make_info(0))
        self.recorder, self.exchange = Recorder(), Exchange(None)
        self.step_writer = StepWriter(recorder=self.recorder, writer=writer, device=torch.device("cpu"), warn=print)
        self.seen = 0
        take = keep_budget(
            1e9, every=EVERY, clock=Clock.HOST, stop=self.exchange.ask_to_stop, print_line=print, on_steps=self.count
        )
        assert take is not None
        self.live = LiveSteps(1, take)
        self.gather_thread = GatherThread(
            take=partial(self.step_writer.take, most=STEPS_AT_ONCE), exchange=self.exchange, lost=print,
            end=lambda: self.step_writer.end("completed"), deliver=self.live.add, window_s=60.0,
        )  # fmt: skip
        self.profiler = Profiler(
            recorder=self.recorder, plan=ShadowPlan(EVERY), step_writer=self.step_writer,
            gather_thread=self.gather_thread,
            ranges=None,
            module_depth=0, on_device=False, phases=True, timeout_s=60.0, done=lambda: None, clean=str,
        )  # fmt: skip

    def count(self, rows: FloatArray) -> None:
        """Counts the steps that arrive."""
        self.seen += rows.shape[1]

    def run_step(self) -> None:
        """A step of two micro-steps, as a training loop and DDP's hooks report it."""
        with self.profiler.step():
            for _ in range(2):
                with self.profiler.phase("data"):
                    pass
                with self.profiler.phase("forward"):
                    pass
                with self.profiler.phase("backward"):
                    tickets = [self.recorder.begin_collective(CollectiveKind.ALL_REDUCE, 4096) for _ in range(3)]
                    self.recorder.mark(PHASE_CODE[Phase.ALL_REDUCE], tickets[-1])
                    for ticket in tickets:
                        self.recorder.end_collective(ticket)
                self.profiler.add_work(tokens=128)
            with self.profiler.phase("optimizer"):
                pass
            self.profiler.keep_scalars(loss=2.5, grad_norm=0.5)

    def gather(self) -> None:
        """What the gather_thread does once per window."""
        tables, _ = self.exchange.send(self.step_writer.take(False), last=False)
        self.live.add(tables)


def count_operations(job: Job) -> list[int]:
    """Bytecode instructions that each step of a window runs."""
    counts = []
    for _ in range(WINDOW):
        ran = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal ran
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            ran += event == "opcode"
            return trace

        before = sys.gettrace()
        gc.disable()  # or whoever watches the garbage collector is counted too
        sys.settrace(trace)
        try:
            job.run_step()
        finally:
            sys.settrace(before)
            gc.enable()
        counts.append(ran)
    job.gather()
    return counts


def measure_containers(thing: Any, name: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """The length of every container reachable from our own objects, by path."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, (list, dict, set, deque)):
        yield name, len(thing)
    own = type(thing).__module__.startswith(("distprof", __name__))
    slots = [slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ())]
    parts = {**getattr(thing, "__dict__", {}), **{slot: getattr(thing, slot, None) for slot in slots}} if own else {}
    for key, part in parts.items():
        yield from measure_containers(part, f"{name}.{key}", seen)


def test_neither_what_is_kept_nor_what_a_step_does_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_KEPT_STEPS", 256)  # bounded, but by more than is run before the first look
    gc.collect()  # empties Python's free lists: what is taken from them would not be traced
    tracemalloc.start()
    job = Job(tmp_path)
    kept: list[dict[str, int]] = []
    operations: list[list[int]] = []
    used_bytes: list[int] = []
    for step in range(0, STEPS, WINDOW):
        if step in (EARLY, STEPS - WINDOW):
            operations.append(count_operations(job))
            kept.append(dict(measure_containers(job, "job", set())))
            gc.collect()
            ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/distprof/*")])
            used_bytes.append(sum(item.size for item in ours.statistics("filename")))
        else:
            for _ in range(WINDOW):
                job.run_step()
            job.gather()
    tracemalloc.stop()
    job.profiler.close()
    assert job.seen == STEPS and job.recorder.finished.lost == 0
    assert sorted(operations[0]) == sorted(operations[1])
    assert len(set(operations[0])) == 3  # of a shadow step, of the one after it, and of others
    assert kept[0] == kept[1] and len(kept[0]) > 10
    assert used_bytes[1] - used_bytes[0] < SLACK_BYTES


def test_a_list_that_grows_would_be_seen(tmp_path: Path) -> None:
    job = Job(tmp_path)
    before, early = dict(measure_containers(job, "job", set())), count_operations(job)
    job.recorder.at_next_step(lambda: None)
    assert dict(measure_containers(job, "job", set())) != before
    assert count_operations(job) != early
    job.profiler.close()


def test_a_backlog_takes_no_memory_beyond_its_own(tmp_path: Path) -> None:
    """What a process once had it keeps: a busy machine, on which steps queue up, must not make rank 0 larger."""
    job, backlog = Job(tmp_path), 5 * STEPS_AT_ONCE
    tracemalloc.start()
    for _ in range(backlog):
        job.run_step()
    queued_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    job.gather_thread.start()
    job.profiler.close()
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert job.seen == backlog and job.gather_thread.complete
    assert most_bytes - queued_bytes < 2 * STEPS_AT_ONCE * 4096  # with all at once, 6 KB for each in the backlog


def test_the_flight_recorder_is_not_read_in_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def make_dump(name: str) -> Any:
        return lambda *_, **__: read.append(name) or b"{}"

    for name in ("_dump_fr_trace", "_dump_fr_trace_json"):
        monkeypatch.setattr(torch._C._distributed_c10d, name, make_dump(name), raising=False)
    job = Job(tmp_path)
    for _ in range(WINDOW):
        job.run_step()
    assert read == []
    job.profiler.close()
    read_ring()
    assert read == ["_dump_fr_trace_json"]  # had it been read, it would have been seen
