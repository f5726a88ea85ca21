"""What torch.compile takes of a step: callbacks that the test makes against clocks that it moves by hand, and a real
compilation."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from distprof.facts.run import COLUMN, COMPILED_PHASES, OWN_PHASES, PHASE_CODE, Phase
from distprof.record.step.collector_watch import CollectorWatch
from distprof.record.step.compile_watch import CALLBACKS, MAX_NAMES, NAME_LIMIT, CompileWatch
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_row import pack_row
from tests.fakes import FakeClock

NAMES = (*(f"{phase}_compile_host_ns" for phase in COMPILED_PHASES), *(f"{phase}_gc_host_ns" for phase in OWN_PHASES))


class Compiler:
    """Calls back as PyTorch does."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.handler = SimpleNamespace(start_callbacks=[], end_callbacks=[])

    def compile(self, name: str, duration_ns: int, *arguments: object, collects: bool = False) -> None:
        code = compile("", f"/home/someone/{name}.py", "exec").replace(co_name="loss_fn", co_firstlineno=31)
        for callback in self.handler.start_callbacks:
            callback(*arguments)
        self.clock.advance(duration_ns)
        if collects:
            gc.collect()
        for callback in self.handler.end_callbacks:
            callback(*arguments)
        assert code is not None  # PyTorch holds what it compiles, too


class Job:
    """A recorder, both watches, and a compiler that there is from the second step on at the latest."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.recorder, self.notes = Recorder(now_ns=self.clock), list[str]()
        self.compiler = Compiler(self.clock)
        self.watch = CompileWatch(self.recorder, self.notes.append, self.clock)
        self.watch.open()

    def begin(self, step: int, phase: Phase, *, warmup: bool = False, shadow: bool = False) -> None:
        self.recorder.begin_step(step, warmup=warmup, shadow=shadow)
        self.recorder.enter(PHASE_CODE[phase])

    def end(self) -> None:
        self.recorder.exit()
        self.recorder.end_step()

    def read(self) -> list[dict[str, float]]:
        """What is known of each step, without zeros."""
        rows = [pack_row(record, memory_bytes=None, memory_peak_bytes=None) for record in self.recorder.drain()]
        return [{name: row[COLUMN[name]] for name in NAMES if row[COLUMN[name]] > 0} for row in rows]


@pytest.fixture(name="job")
def watched_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    job = Job()
    monkeypatch.setitem(sys.modules, CALLBACKS, SimpleNamespace(callback_handler=job.compiler.handler))
    yield job
    job.watch.close()
    assert not job.compiler.handler.start_callbacks and not job.compiler.handler.end_callbacks


def test_compilations_count_where_the_training_thread_was(job: Job) -> None:
    job.begin(0, Phase.FORWARD, warmup=True)
    job.compiler.compile("train", 500, "as later releases, with an argument")
    job.end()
    job.begin(1, Phase.FORWARD)
    job.compiler.compile("train", 7_000_000)
    job.compiler.compile("train", 2_000_000)
    job.recorder.exit()
    job.recorder.enter(PHASE_CODE[Phase.OPTIMIZER])
    job.compiler.compile("step", 11_000_000)
    job.end()
    job.compiler.compile("evaluate", 13)  # between steps
    job.begin(2, Phase.BACKWARD)
    job.end()
    assert job.read() == [
        {"forward_compile_host_ns": 500},
        {"forward_compile_host_ns": 9_000_000, "optimizer_compile_host_ns": 11_000_000}, {},
    ]  # fmt: skip
    assert job.notes == [
        "compiled train.py:31 loss_fn in step 1, 0.007 s", "compiled step.py:31 loss_fn in step 1, 0.011 s",
    ]  # fmt: skip


def test_what_is_collected_while_something_is_compiled_counts_once(job: Job) -> None:
    collector = CollectorWatch(job.recorder, iter(range(0, 1000, 5)).__next__)
    gc.disable()
    collector.open()
    job.begin(0, Phase.FORWARD)
    job.compiler.compile("train", 100, collects=True)
    gc.collect()
    job.end()
    collector.close()
    gc.enable()
    assert job.read() == [{"forward_compile_host_ns": 100, "forward_gc_host_ns": 5}]


def test_other_threads_and_shadow_steps_do_not_count_and_an_end_that_is_missed_is_forgotten(job: Job) -> None:
    job.begin(0, Phase.FORWARD)
    thread = threading.Thread(target=job.compiler.compile, args=("other", 5))
    thread.start()
    thread.join()
    for callback in job.compiler.handler.start_callbacks:  # the callbacks are taken away before it ends
        callback()
    job.compiler.handler.start_callbacks.clear()
    job.compiler.handler.end_callbacks.clear()
    job.end()
    job.begin(1, Phase.FORWARD)  # and come back
    for callback in job.compiler.handler.end_callbacks:
        callback()
    job.end()
    job.recorder.begin_step(2, warmup=False, shadow=True)
    job.compiler.compile("train", 5)
    job.recorder.end_step()
    job.begin(3, Phase.FORWARD)
    job.compiler.compile("train", 5)
    job.end()
    assert job.read() == [{}, {}, {}, {"forward_compile_host_ns": 5}]


def test_few_functions_are_noted_and_each_once(job: Job) -> None:
    job.begin(0, Phase.FORWARD)
    for number in (*range(MAX_NAMES + 4), 0):
        job.compiler.compile(f"{'long' * 99}{number}" if number == 1 else f"part{number}", 5)
    job.end()
    assert len(set(job.notes)) == len(job.notes) == MAX_NAMES
    assert max(map(len, job.notes)) < NAME_LIMIT + 40


def test_a_compiler_that_is_not_there_or_is_another_one_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    for module in (None, SimpleNamespace(), SimpleNamespace(callback_handler=SimpleNamespace(start_callbacks=()))):
        monkeypatch.setitem(sys.modules, CALLBACKS, module)
        job.begin(0, Phase.FORWARD)
        job.end()
    job.watch.close()
    assert job.read() == [{}, {}, {}] and not job.notes


def test_a_shape_that_is_new_is_compiled_in_its_step() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    recorder, notes = Recorder(), list[str]()
    compiled = torch.compile(double, backend="eager", dynamic=False)
    own = torch.compile(torch.nn.Sequential(torch.nn.ReLU()), backend="eager")
    compiled(torch.ones(1))  # PyTorch imports its compiler now
    watch = CompileWatch(recorder, notes.append)
    watch.open()
    for step, size in enumerate((1, 1, 2, 2, 1, 3)):
        recorder.begin_step(step, warmup=False)
        recorder.enter(PHASE_CODE[Phase.FORWARD])
        compiled(torch.ones(size))
        recorder.exit()
        recorder.end_step()
    recorder.begin_step(6, warmup=False)
    own(torch.ones(1))
    recorder.end_step()
    watch.close()
    rows = [pack_row(record, memory_bytes=None, memory_peak_bytes=None) for record in recorder.drain()]
    taken_ns = [row[COLUMN["forward_compile_host_ns"]] for row in rows]
    assert [step for step, ns in enumerate(taken_ns) if ns > 0] == [2, 5]
    assert all(ns <= row[COLUMN["forward_host_ns"]] for ns, row in zip(taken_ns, rows, strict=True))
    note, of_torch = notes
    assert re.match(r"compiled what test_compile_watch\.py:\d+ calls in step 6, ", of_torch)
    assert note.startswith(f"compiled test_compile_watch.py:{double.__code__.co_firstlineno} double in step 2, ")
    handler = sys.modules[CALLBACKS].callback_handler
    assert not {watch._begins, watch._ends} & {*handler.start_callbacks, *handler.end_callbacks}
