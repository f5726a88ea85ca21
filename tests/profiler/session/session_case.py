"""A session without files, for tests of what a loop may do to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from distprof.facts.run import Run
from distprof.profiler.rank.build_profiler import Job
from distprof.profiler.rank.profiler import Profiler
from distprof.profiler.rank.recorded_steps import ShadowPlan
from distprof.profiler.session.session import Session
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord
from distprof.storage.run_folder import read_run
from tests.fakes import FakeClock

LONG = {"warmup_steps": 0, "shadow_every": 0}
"""Every step is measured."""


def find_run(folder: Path, name: str = "") -> Run:
    (found,) = [path for path in (folder / "runs").iterdir() if path.name.endswith(name)]
    return read_run(found)


class Files:
    """In place of a profiler's files and threads."""

    received = None
    complete = False

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.note = self.notes.append
        self.ended: list[str] = []

    def take_rest(self) -> None: ...

    def end(self, how: str, **facts: Any) -> None:
        self.ended.append(f"{how}: {facts.get('error')}")

    def wait_for_begin(self, limit_s: float) -> None: ...

    def finish(self, *, alone: bool, timeout_s: float) -> None: ...


class Case:
    """A session without files, and what it has recorded and said."""

    def __init__(self, make: Callable[..., Profiler] = Profiler, **options: Any) -> None:
        self._make = make
        self.clock, self.files, self.said, self.ends = FakeClock(), Files(), list[str](), list[BaseException | None]()
        self.recorder = Recorder(now_ns=self.clock)
        self.session = Session(self.start, end=self.ends.append, print_line=self.said.append, **options)

    def start(self) -> Job:
        profiler = self._make(
            recorder=self.recorder, plan=ShadowPlan(0), step_writer=cast(Any, self.files),
            gather_thread=cast(Any, self.files), ranges=None, module_depth=0, on_device=False, phases=False,
            timeout_s=1.0, done=lambda: None, clean=str,
        )  # fmt: skip
        return cast(Job, SimpleNamespace(folder=Path("runs/mine"), joined=True, profiler=profiler))

    def work(self, ns: int = 100) -> None:
        with self.session.phase("forward"):
            self.clock.advance(ns)

    def steps(self) -> list[StepRecord]:
        return self.recorder.drain()

    def times(self) -> list[int]:
        return [record.step_host_ns for record in self.steps()]


def load(case: Case, number: int) -> Iterator[int]:
    for batch in range(number):
        case.clock.advance(10)
        yield batch
    case.clock.advance(7)
