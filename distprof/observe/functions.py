"""Backward, clipping, batches and checkpoints: functions of torch that are looked at where they are called. Also the
start of processes, which are not watched.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from threading import get_ident
from typing import Any

import torch
import torch.utils.data.dataloader as loaders
from torch.nn.utils import clip_grad

from distprof.compiling import is_compiling, skip_compile
from distprof.facts.run import PHASE_CODE, Phase
from distprof.observe.instrumentation import Arguments, Instrumentation, Options, Patches, ReentrancyGuard, surround
from distprof.observe.observer_target import ObserverTarget
from distprof.observe.optimizers import Optimizers
from distprof.observe.step_search import StepSearch
from distprof.patching import after_import, leave_out_of_warnings
from distprof.unseen import unseen

_FORWARD, _BACKWARD, _GRAD_NORM, _DATA = (
    PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.DATA)
)
_CHECKPOINT, _FSDP = "torch.distributed.checkpoint", "torch.distributed.fsdp"
"""Modules that take long to import, and that most scripts do not need."""
_CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")

STARTED = (
    "processes that the script starts itself (torch.multiprocessing, multiprocessing.Process) are not watched: if they "
    "train, start the ranks with torchrun, or call distprof.start() in each of them"
)
SPAWN = "torch.multiprocessing.spawn"
"""The module whose processes run a function of the caller's."""
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class Functions:
    """Recognises everything that is neither a module nor an optimizer."""

    def __init__(
        self, session: ObserverTarget, search: StepSearch, guard: ReentrancyGuard, optimizers: Optimizers
    ) -> None:
        """Args:
        session: Learns what is found.
        search: Finds the steps.
        guard: Of this rank.
        optimizers: Learn of every backward before the search does.
        """
        self._session, self._search, self._guard, self._optimizers = session, search, guard, optimizers
        self._backward = Instrumentation("backward is", session)
        self._clipping = Instrumentation("gradient clipping is", session)
        self._data = Instrumentation("getting batches is", session)
        self._saving = Instrumentation("saving checkpoints is", session)
        self._starting = Instrumentation("the start of processes is", session)
        self._in_data = False

    def install(self, patches: Patches) -> None:
        """Looks at the functions from now on."""
        self._backward.replace(patches, [torch.autograd], "backward", self._watch_backward)
        self._backward.replace(patches, [torch.autograd], "grad", self._watch_grad, {1: "inputs", 4: "create_graph"})
        for name in _CLIPPING:
            if hasattr(torch.nn.utils, name):  # not all have the same name where they are defined
                self._clipping.replace(patches, [torch.nn.utils, clip_grad], name, self._watch_clipping)
        patches.add(after_import(_FSDP, lambda: self._clipping.run(self._install_clipping, patches)))
        iterator = getattr(loaders, "_BaseDataLoaderIter", loaders)
        self._data.replace(patches, [iterator], "__next__", self._watch_fetch)
        self._data.replace(patches, [loaders.DataLoader], "__iter__", self._watch_start)
        self._saving.replace(patches, [torch.serialization, torch], "save", self._watch_saving)
        patches.add(after_import(_CHECKPOINT, lambda: self._saving.run(self._install_saving, patches)))
        self._starting.replace(patches, [BaseProcess], "start", self._watch_process)

    def _install_clipping(self, patches: Patches) -> None:
        # FSDP1 clips in a method of its own; torch may leave it out some day.
        if (sharded := getattr(sys.modules[_FSDP], "FullyShardedDataParallel", None)) is not None:
            self._clipping.replace(patches, [sharded], "clip_grad_norm_", self._watch_clipping)

    def _install_saving(self, patches: Patches) -> None:
        checkpoint: Any = sys.modules[_CHECKPOINT]
        for name in ("save", "async_save"):
            if hasattr(checkpoint, name):
                places = [checkpoint.state_dict_saver, checkpoint]
                self._saving.replace(patches, places, name, self._watch_saving)

    def _watch_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        optimizers, search, guard, part = self._optimizers, self._search, self._guard, self._backward
        session = self._session

        def after(args: Arguments, result: Any) -> None:
            if optimizers.in_backward is not None:
                optimizers.end_backward()
            if not search.settled:
                search.end_backward()

        watched = surround(
            original, guard, part, before=self._begin_backward, after=after, leave=session.exit, trains=True
        )

        @functools.wraps(original)
        def watched_quickly(*args: Any, **options: Any) -> Any:
            if is_compiling() or guard.inside or not search.repeated or guard.thread != get_ident():
                return watched(*args, **options)
            session.found_micro_steps += 1
            guard.inside, guard.part = 1, part
            try:
                result = original(*args, **options)
            finally:
                if guard.inside:
                    guard.inside -= 1
            if optimizers.in_backward is not None:
                part.run(optimizers.end_backward)
            return result

        leave_out_of_warnings(watched_quickly)
        skip_compile(watched_quickly)
        return watched_quickly

    def _begin_backward(self, args: Arguments, options: Options) -> bool:
        if not self._search.begin_backward():
            return False
        session = self._session
        if session.open:
            session.found_micro_steps += 1
        return session.enter(_BACKWARD)

    def _watch_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """It is a backward if it computes gradients of parameters, or of what `torch.func.grad` differentiates.

        Gradients of anything else (an input, a simulation's coordinates) are no reason to look for steps. Those that
        are differentiated again are part of the loss, as in a gradient penalty, so their time is the forward's.
        """

        def before(args: Arguments, options: Options) -> bool:
            # Inside torch.func.grad its interpreter is on functorch's stack, and the inputs are no parameters.
            if torch._C._functorch.peek_interpreter_stack() is not None:
                return self._begin_backward(args, options)
            again = options.get("create_graph", args[4] if len(args) > 4 else False)
            if not again and _has_parameters(options.get("inputs", args[1] if len(args) > 1 else ())):
                return self._begin_backward(args, options)
            return self._search.in_work and self._session.enter(_FORWARD if again else _BACKWARD)

        return surround(
            original, self._guard, self._backward, before=before, leave=self._session.exit,
            after=lambda args, result: self._search.end_backward(), trains=True,
        )  # fmt: skip

    def _watch_clipping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @unseen
        def after(args: Arguments, result: Any) -> None:
            if self._session.open and type(result) is torch.Tensor and result.numel() == 1:
                self._session.keep_scalars(grad_norm=result.detach() if result.requires_grad else result)

        return surround(
            original, self._guard, self._clipping, before=lambda args, options: self._session.enter(_GRAD_NORM),
            after=after, leave=self._session.exit,
        )  # fmt: skip

    def _watch_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def before(args: Arguments, options: Options) -> bool:
            found = self._search.begin_fetch(grad_on=torch.is_grad_enabled())
            self._in_data = found and self._session.enter(_DATA)
            return found

        def leave(*, raised: bool) -> None:
            ended = raised and isinstance(sys.exception(), StopIteration)
            if self._in_data:
                self._session.exit(raised=raised and not ended)
            if ended:
                self._search.end_fetch()

        return surround(original, self._guard, self._data, before=before, leave=leave)

    def _watch_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Making the iterator, which starts workers, is time for data in a step that is open, and begins none."""
        return surround(
            original, self._guard, self._data, before=lambda args, options: self._session.enter(_DATA),
            leave=self._session.exit,
        )  # fmt: skip

    def _watch_saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return surround(
            original, self._guard, self._saving, before=lambda args, options: self._search.begin_save(),
            leave=lambda *, raised: self._session.end_stretch(),
        )  # fmt: skip

    def _watch_process(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(process: Any, *args: Any, **options: Any) -> Any:
            if self._starting.run(_runs_script, process):
                self._session.warn_once(STARTED)
            return original(process, *args, **options)

        leave_out_of_warnings(start)
        return start


def _has_parameters(inputs: Any) -> bool:
    """Whether gradients of parameters are asked for; an iterator, such as of ``model.parameters()``, is left alone."""
    if isinstance(inputs, Iterator):
        return True
    if isinstance(inputs, Mapping):
        inputs = inputs.values()
    several = isinstance(inputs, Iterable) and not isinstance(inputs, torch.Tensor)
    return any(isinstance(each, torch.nn.Parameter) for each in (inputs if several else [inputs]))


def _runs_script(process: Any) -> bool:
    """Whether what runs in a process is the script's.

    Libraries start processes for their own work, which are no news: workers of a DataLoader, of a pool, of torch's
    compiler.
    """
    work: Any = type(process).run
    if work is BaseProcess.run:
        work = process._target
    while isinstance(work, functools.partial):
        work = work.func
    name = getattr(work, "__module__", None) or ""
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return name == SPAWN or not path.startswith(_LIBRARIES)
