"""The module profile of a job: a few steps in which the model's modules are counted and timed, on every rank at once.

In the first step operations are counted, which is slow; the second one warms up; in the others only time is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from distprof.facts.modules import RankMemory
from distprof.modules.memory import MemoryWatch
from distprof.modules.profile import ModuleProfiler, make_table
from distprof.patching import is_fsdp2
from distprof.record.gather.step_window import StepWindow
from distprof.record.step.recorder import Recorder
from distprof.storage.module_files import encode_modules
from distprof.storage.safe_open import require_own
from distprof.storage.whole_file import write_whole

EXTRA_STEPS = 2
"""The counted step and the one that warms up."""
PredictMemory = Callable[[], RankMemory]
Pass = contextlib.AbstractContextManager[object]


class ModuleWindow(StepWindow):
    """The window of one rank."""

    NAME = "module profile"
    LACKS = "there is none of this rank"

    def __init__(
        self,
        *,
        recorder: Recorder,
        path: Path,
        rank: int,
        run_id: str,
        timed_steps: int,
        first_step: int | None,
        together: Callable[[], None],
        opened: Callable[[range], None],
        note: Callable[[str], None],
        predict_memory: PredictMemory | None = None,
    ) -> None:
        """Plans a window; see `StepWindow` for the rest.

        Args:
            recorder: Records its steps too.
            path: The file to write.
            rank: This rank.
            run_id: Of the run.
            timed_steps: Steps whose time is taken; `EXTRA_STEPS` run before them.
            first_step: The step that is counted.
            together: Waits for the other ranks.
            opened: Receives the numbers of all the window's steps.
            note: Receives what could not be measured.
            predict_memory: What this rank's tensors should take. None: that is not known.

        Raises:
            ValueError: There is no step to take the time of.
        """
        if timed_steps < 1:
            raise ValueError(f"module_steps={timed_steps}: a module profile takes the time of at least one step")
        super().__init__(
            recorder=recorder, path=path, num_steps=EXTRA_STEPS + timed_steps, first_step=first_step,
            together=together, opened=opened, note=note,
        )  # fmt: skip
        self._rank, self._run_id, self._predict_memory = rank, run_id, predict_memory
        self._predicted: RankMemory | None = None
        self._peak_bytes: int | None = None
        self._watch: MemoryWatch | None = None
        self._models: list[nn.Module] = []
        self._profiler: ModuleProfiler | None = None
        self._pass: Pass | None = None
        self._counted: int | None = None
        self._timed: list[int] = []

    def watch(self, model: nn.Module) -> None:
        """Profiles the first model that is watched."""
        self._models.append(model)

    def _start(self) -> None:
        if not self._models:
            self._note(f"the module profile did not start: profiler.watch(model) was not called; {self.LACKS}")
            return
        if len(self._models) > 1:
            self._note("the module profile is of the first of several watched models")
        self._guard("start", self._make_profiler)

    def _make_profiler(self) -> None:
        self._profiler, self._watch = ModuleProfiler(self._models[0]), MemoryWatch(self._models[0])

    def _enter(self, step: int) -> None:
        assert self.steps is not None
        if self._profiler is None:
            return
        number = step - self.steps[0]
        self._pass = self._count() if number == 0 else self._profiler.timing(warmup=number < EXTRA_STEPS)
        if not self._guard("begin a step", self._pass.__enter__):
            self._pass = None

    def _leave(self, step: int, error: BaseException | None) -> None:
        assert self.steps is not None
        if not self._end_pass(error) or error is not None:
            return
        if step == self.steps[0]:
            self._counted, self._peak_bytes = step, self._read_peak()
        elif step - self.steps[0] >= EXTRA_STEPS:
            self._timed.append(step)

    @contextlib.contextmanager
    def _count(self) -> Iterator[None]:
        assert self._profiler is not None and self._watch is not None
        with self._watch, self._profiler:
            yield

    def _read_peak(self) -> int | None:
        """The most bytes that the allocator has given out. None: on a CPU it does not count them."""
        device = None if self._profiler is None else self._profiler.device
        if device is None or device.type != "cuda":
            return None
        return int(torch.cuda.max_memory_allocated(device))

    def _write(self) -> None:
        if self._profiler is not None:
            if self._predict_memory is not None:
                self._guard("predict the memory", self._predict)
            self._guard("write its file", self._write_table)
        self._profiler = self._watch = None
        self._models = []

    def _predict(self) -> None:
        assert self._predict_memory is not None
        self._predicted = self._predict_memory()

    def _write_table(self) -> None:
        assert self._profiler is not None and self._watch is not None
        table = make_table(
            self._profiler, rank=self._rank, counted_step=self._counted, timed_steps=self._timed, watch=self._watch,
            predicted_memory=self._predicted, peak_bytes=self._peak_bytes,
        )  # fmt: skip
        if any(map(is_fsdp2, self._models[0].modules())):
            self._note(
                "module times contain the gathering of parameters in FSDP2: a module that waits there for another rank "
                "is no slower itself"
            )
        require_own(self._path)
        self._path.parent.mkdir(exist_ok=True)
        write_whole(self._path, encode_modules(table, self._run_id))

    def _drop(self) -> None:
        self._end_pass(RuntimeError("training has failed"))
        self._profiler = self._watch = None

    def _end_pass(self, error: BaseException | None) -> bool:
        """Ends what looks at the open step; whether something did and succeeded."""
        ending, self._pass = self._pass, None
        if ending is None:
            return False

        def end() -> None:
            if error is None:
                ending.__exit__(None, None, None)
            else:
                ending.__exit__(type(error), error, error.__traceback__)

        return self._guard("end a step", end)
