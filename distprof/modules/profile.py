"""The profile of a model's modules, by one call or around a step of one's own."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch import Tensor, nn

from distprof.facts.arrays import FloatArray
from distprof.facts.modules import ModuleTable, RankMemory
from distprof.modules.calls import OUTSIDE, ModuleCalls, ModulePass, Paths, list_tensors, padded_shape
from distprof.modules.count import AlivePeak, Counter
from distprof.modules.memory import MemoryWatch
from distprof.modules.names import is_compiled, list_modules, unwrap
from distprof.modules.rows import Found, add_up, make_rows, measure_work
from distprof.modules.timer import ModuleTimer
from distprof.modules.unallocated import Unallocated, is_unallocated
from distprof.report.module_report import ModuleFlops, ModuleReport

Times = dict[tuple[int, ModulePass], float]
MODES = ("forward", "forward_backward")


def profile_model(
    model: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any] = (),
    *,
    mode: str = "forward_backward",
    loss: Callable[[Any], Tensor] | None = None,
    passes: int = 3,
    name: str | None = None,
    unallocated: Unallocated | None = None,
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
) -> ModuleReport:
    """Runs a model once to count and then a few times to take the time, and leaves it as it was.

    Gradients, buffers and the state of the random numbers are put back. A compiled model runs uncompiled. With a model
    on the meta device nothing is computed or allocated, and no time is taken; what is counted is what the kernels of a
    CPU do and keep.

    Args:
        model: Any module, also wrapped in DDP or FSDP2 or compiled; called with the inputs as it is.
        inputs: What it is given: one tensor, a sequence by position, or a mapping by name.
        mode: "forward" for inference, without gradients; "forward_backward" for a step of training.
        loss: From the model's output to a scalar. None: the output's ``loss`` if it has one, the output itself if it
            is a scalar, else the sum of its floating-point tensors.
        passes: How many passes take the time, after one that does not count. 0: no time.
        name: How to call the model in the report. None: its class.
        unallocated: Where a model without memory was built. None: on the meta device, if it has none.
        dtype: To which such a model's parameters are cast while it runs, as FSDP2 does. None: their own.
        autocast: Of forward. None: no autocast.

    Raises:
        ValueError: The mode is unknown, or nothing of the output can be differentiated.
        unallocated.VALUES_NEEDED: The model asks for values that a model without memory does not have.
        Exception: Whatever the model raises; the model is as it was then, too.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
    backward = mode == "forward_backward"

    if unallocated is None and is_unallocated(model):
        unallocated = Unallocated()
    peak = AlivePeak() if backward else None
    profiler = ModuleProfiler(model, activations=backward, peak=peak)
    given = describe(inputs)
    with contextlib.ExitStack() as held:
        if unallocated is not None:
            inputs = unallocated.take(inputs, dtype)
            held.enter_context(unallocated.standing_in(model, dtype))
        held.enter_context(_left_as_it_was(model))
        if peak is not None:
            held.enter_context(peak.without_gradients(model))

        def run(look: Callable[[], None] = lambda: None) -> None:
            with torch.set_grad_enabled(backward):
                with _cast(profiler.device, autocast):
                    found = _call(model, inputs)
                    if backward:
                        found = (loss or choose_loss)(found)
                look()
                if backward:
                    found.backward()

        with profiler:
            run(profiler.look)
        for number in range(0 if unallocated is not None or not passes else passes + 1):
            with profiler.timing(warmup=number == 0):
                run()
    report = profiler.report(mode=mode, inputs=given, name=name)
    return (
        report
        if unallocated is None
        else structs.replace(report, device="meta", notes=(*report.notes, *unallocated.notes))
    )


def _cast(device: torch.device, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    kind = "cpu" if device.type == "meta" else device.type
    return contextlib.nullcontext() if dtype is None else torch.autocast(kind, dtype=dtype)


class ModuleProfiler:
    """Counts what a model does between `start` and `stop`, or in a ``with`` block; `timing` takes the time.

    The model gets no hooks, attributes or other tensors: torch reports the calls of all modules, and does so no
    more once this is stopped, also after an exception.
    """

    def __init__(self, model: nn.Module, *, activations: bool = True, peak: AlivePeak | None = None) -> None:
        """``activations``: also count the bytes that forward keeps for backward; ``peak``: gets each tensor."""
        self.model = model
        self._modules = list_modules(model)
        self._activations, self._peak = activations, peak
        self.device = next((each.device for each in (*model.parameters(), *model.buffers())), torch.device("cpu"))
        self._held = contextlib.ExitStack()
        self.reset()

    def reset(self) -> None:
        """Forgets what was counted and timed."""
        self._first: dict[int, Found] = {}
        self._paths = Paths()
        self._calls = ModuleCalls(self._modules, self._paths, on_exit=self._see)
        self._counter = Counter(self.model, self._calls, activations=self._activations, peak=self._peak)
        self._timer = ModuleTimer(self.device)
        self._times: list[Times] = []
        self._returned_bytes: int | None = None
        self._kept_bytes: int | None = None

    def start(self) -> None:
        """Begins to count. Operations are slower while it does."""
        self._held.enter_context(_uncompiled())
        self._held.enter_context(self._calls)
        self._held.enter_context(self._counter.counting())

    def stop(self) -> None:
        """Ends counting; what was counted stays."""
        self._held.close()

    def __enter__(self) -> ModuleProfiler:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def timing(self, *, warmup: bool = False) -> Iterator[None]:
        """Takes the time of one pass; not while counting, which is slow. ``warmup``: it does not count."""
        timer = self._timer

        def leave(path: int, stage: ModulePass, module: nn.Module, inputs: Any, output: Any) -> None:
            timer.exit(path, stage, module, inputs, output)
            if stage is ModulePass.FORWARD and len(self._paths.rows[path]) == 1:
                timer.watch_backward(calls, output)

        calls = ModuleCalls(self._modules, self._paths, on_enter=timer.enter, on_exit=leave)
        try:
            with _uncompiled(), calls:
                yield
        except BaseException:
            timer.drop()
            raise
        taken = timer.take()
        if not warmup:
            self._times.append(taken)

    def report(self, *, mode: str = "forward_backward", inputs: str = "", name: str | None = None) -> ModuleReport:
        """What was counted and timed since the start or the last `reset`."""
        work, outside = measure_work(self._modules, self._paths.rows, self._counter.by_path())
        notes = self._counter.uncounted.describe(self._modules, self._paths.rows)
        if any(map(is_compiled, self.model.modules())):
            notes.append("compiled: counted and timed uncompiled; the compiled model may fuse, and then take less time")
        return ModuleReport(
            model=name or type(unwrap(self.model)).__name__, device=str(self.device), inputs=inputs, mode=mode,
            timed_passes=len(self._times), outside_flops=outside, notes=tuple(notes),
            rows=make_rows(
                self._modules, self._paths.rows, first=self._first, work=work, times=self._times,
                alive_bytes=self._counter.alive_bytes if self._activations else None,
            ),
            returned_bytes=self._returned_bytes,
            working_bytes=self._measure_working(),
            flops_by_operation=tuple(sorted(self._counter.by_operation().items(), key=lambda item: -item[1])),
        )  # fmt: skip

    @property
    def clock(self) -> str:
        """Which clock takes the time: "host", or on a GPU "device"."""
        return self._timer.clock

    @property
    def gathered_bytes(self) -> int | None:
        """Of parameters of which FSDP2 held more than this rank's part when forward ended. None: not measured."""
        return self._counter.gathered_bytes

    def list_times(self) -> list[list[dict[ModulePass, float]]]:
        """Time of each timed pass, ns: by row and stage, submodules included."""
        return [add_up(self._modules, self._paths.rows, each).total for each in self._times]

    def look(self) -> None:
        """Counts the activations as of now, when what forward returned is held no longer than backward needs it."""
        before = self._count_kept()
        self._counter.look()
        self._returned_bytes = before - self._count_kept()
        if self._peak is not None:
            self._kept_bytes = self._peak.restart()

    def _count_kept(self) -> int:
        return sum(size for path, size in self._counter.alive_bytes.items() if path != OUTSIDE)

    def _measure_working(self) -> int | None:
        return None if self._peak is None or self._kept_bytes is None else self._peak.peak_bytes - self._kept_bytes

    def _see(self, path: int, stage: ModulePass, module: nn.Module, inputs: Any, output: Any) -> None:
        if stage is not ModulePass.FORWARD:
            return
        rows = self._paths.rows[path]
        found = self._first.get(rows[-1])
        if found is None:
            self._first[rows[-1]] = Found(
                calls=1, input_bytes=sum(tensor.nbytes for tensor in list_tensors(inputs)),
                shapes=tuple(map(padded_shape, list_tensors(output))),
            )  # fmt: skip
        else:
            found.calls += 1
        if len(rows) == 1:
            self._counter.look()


def make_table(
    profiler: ModuleProfiler,
    *,
    rank: int,
    counted_step: int | None,
    timed_steps: Sequence[int],
    watch: MemoryWatch,
    predicted_memory: RankMemory | None,
    peak_bytes: int | None,
) -> ModuleTable:
    """The columns of a profile.

    Args:
        profiler: Has counted one step, and taken the time of others.
        rank: This rank.
        counted_step: None: it failed.
        timed_steps: As many as passes were timed.
        watch: Has seen the counted step.
        predicted_memory: What the configuration lets expect.
        peak_bytes: Of the device's allocator.
    """
    report = profiler.report()
    rows = report.rows
    kept = rows[0].activation_bytes if rows[0].calls else None  # its forward may run outside the step
    memory = watch.measure(activations=kept, gathered=profiler.gathered_bytes)
    return ModuleTable(
        rank=rank, model=report.model, clock=profiler.clock, counted_step=counted_step,
        timed_steps=tuple(timed_steps), names=tuple(row.name for row in rows), kinds=tuple(row.kind for row in rows),
        parents=tuple(row.parent for row in rows), calls=tuple(row.calls for row in rows),
        own_parameters=tuple(row.own_parameters for row in rows), parameters=tuple(row.parameters for row in rows),
        held_parameters=tuple(row.held_parameters for row in rows),
        flops=tuple(_list_flops(row.total_flops) for row in rows), outside_flops=_list_flops(report.outside_flops),
        forward_ns=_take(profiler, ModulePass.FORWARD, len(rows)),
        backward_ns=_take(profiler, ModulePass.BACKWARD, len(rows)),
        recomputed_ns=_take(profiler, ModulePass.RECOMPUTED, len(rows)),
        memory=None if counted_step is None else memory, predicted_memory=predicted_memory,
        peak_bytes=None if counted_step is None else peak_bytes, notes=report.notes,
    )  # fmt: skip


def _list_flops(flops: ModuleFlops) -> tuple[int, ...]:
    return flops.forward, flops.backward, flops.recomputed


def _take(profiler: ModuleProfiler, stage: ModulePass, num_rows: int) -> FloatArray:
    passes = profiler.list_times()
    found = [[by_stage.get(stage, np.nan) for by_stage in rows] for rows in passes]
    times_ns = np.array(found, dtype=np.float64).reshape(len(passes), num_rows).T
    return np.maximum(times_ns, 0.0)  # events are read as rounded differences; NaN stays


def choose_loss(output: Any) -> Tensor:
    """What to differentiate of a model's output: its ``loss``, itself if it is a scalar, else the sum of everything.

    Raises:
        ValueError: Nothing in it requires a gradient.
    """
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    if isinstance(output, Tensor) and output.ndim == 0:
        return output
    parts = [tensor.float().sum() for tensor in list_tensors(output) if tensor.requires_grad]
    if not parts:
        raise ValueError("nothing in the model's output requires a gradient: give a loss=, or mode='forward'")
    return torch.stack(parts).sum()


def describe(inputs: Any) -> str:
    """``int64:4x128, float32:4``."""
    given = [
        f"{str(each.dtype).removeprefix('torch.')}:{'x'.join(map(str, padded_shape(each)))}"
        for each in list_tensors(inputs)
    ]
    return ", ".join(given) or "nothing"


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """Compiled modules run as they were written, or their submodules could not be distinguished."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*when there are global hooks on modules")
        yield


@contextlib.contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Puts gradients, buffers and random numbers back."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    for parameter, _ in gradients:
        parameter.grad = None
    devices = sorted({each.device for each, _ in gradients if each.device.type == "cuda"}, key=str)
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
