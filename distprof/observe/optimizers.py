"""Optimizer steps: by torch's own hooks for all optimizers, those that a GradScaler takes or skips, and DeepSpeed's.

DeepSpeed's engine is a model that updates its parameters by itself. Its forward, backward, collectives and batches are
torch's own, and found like those of any other loop. What it does at the end of a step, with optimizers that need not be
torch's or are stepped once per group of parameters, is one optimizer step.

What runs in a closure is not the optimizer's: it has phases of its own, and what is in none of them is `other`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from threading import get_ident
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from distprof.compiling import skip_compile
from distprof.facts.run import PHASE_CODE, Phase
from distprof.observe.instrumentation import Arguments, Instrumentation, Options, Patches, ReentrancyGuard, surround
from distprof.observe.modules import Forwards
from distprof.observe.observer_target import ObserverTarget
from distprof.observe.step_search import StepSearch
from distprof.patching import after_import, leave_out_of_warnings

_OPTIMIZER, _OTHER = PHASE_CODE[Phase.OPTIMIZER], PHASE_CODE[Phase.OTHER]
_ENGINES = "deepspeed.runtime.engine"
_CLOSURES = (FunctionType, MethodType, partial)
"""Other arguments of a step may be callable too: a model."""
_UPDATE = "_take_model_step"
"""A method of DeepSpeed's engine, called when gradients are complete: by its ``step``, and by the engine of a pipeline.
"""


class Optimizers:
    """Recognises the steps of optimizers: one at a time, the outermost if one calls another."""

    def __init__(self, session: ObserverTarget, search: StepSearch, guard: ReentrancyGuard, forwards: Forwards) -> None:
        """Args:
        session: Learns what is found.
        search: Finds the steps.
        guard: Of this rank.
        forwards: Learn of a step inside a forward before the search does.
        """
        self._session, self._search, self._guard, self._forwards = session, search, guard, forwards
        self._part = Instrumentation("optimizer steps are", session)
        self._engines = Instrumentation("DeepSpeed's steps are", session)
        self._running: object = None  # the outermost optimizer, or scaler of one, that takes a step now
        self._entered = False
        self._scaled: Any = None  # the optimizer that a scaler has been given
        self.in_backward: Any = None
        """An optimizer that has taken a step inside the running backward."""

    def install(self, patches: Patches) -> None:
        """Looks at all optimizers from now on."""
        self._part.run(self._install, patches)
        patches.add(after_import(_ENGINES, lambda: self._engines.run(self._install_engines, patches)))

    def _install(self, patches: Patches) -> None:
        self._part.replace(patches, [Optimizer], "__init__", self._watch_made)
        self._part.replace(patches, [GradScaler], "step", self._watch_scaler, {1: "optimizer"})
        # Optimizers override `step`, so it cannot be replaced in one place; torch calls these hooks around all of them.
        patches.add(register_optimizer_step_pre_hook(self._part.shield(self._before)).remove)
        patches.add(register_optimizer_step_post_hook(self._part.shield(self._after)).remove)

    def _install_engines(self, patches: Patches) -> None:
        module = sys.modules[_ENGINES]
        self._engines.replace(patches, [getattr(module, "DeepSpeedEngine", module)], _UPDATE, self._watch_update)

    def end_backward(self) -> None:
        """A backward has returned: if parameters are updated in it, that was the optimizer's step."""
        optimizer, self.in_backward = self.in_backward, None
        if optimizer is not None:
            self._search.begin_optimizer()
            self._search.end_optimizer(self)  # one for each parameter: together they are one

    def _before(self, optimizer: Optimizer, args: Arguments, options: Options) -> tuple[Arguments, Options] | None:
        """Returns the arguments that the step gets in place of its own, if it has a closure."""
        self._see_step(optimizer)
        if self._running is not optimizer or not self._entered or self._guard.inside:
            return None
        if len(args) > 1 and isinstance(args[1], _CLOSURES):
            return (args[0], self._set_apart(args[1]), *args[2:]), options
        if isinstance(closure := options.get("closure"), _CLOSURES):
            return args, {**options, "closure": self._set_apart(closure)}
        return None

    def _see_step(self, optimizer: Optimizer) -> None:
        if self._guard.inside:  # of a backward, perhaps on a thread of autograd; or nothing is looked at any more
            # Inside a backward: the hook of a parameter steps the optimizer, perhaps on a thread of autograd, on which
            # only this number shows it.
            if torch._C._current_graph_task_id() != -1:
                self.in_backward = optimizer
                self._search.cycle.discard(optimizer)
                return
            if self._running is None and (self._session.user_steps or self._search.cycle.waits_for(optimizer)):
                self._forwards.pass_over()
            if self._guard.inside:
                return
        if self._guard.thread == get_ident() or self._guard.admits(trains=True):
            self._begin(optimizer)

    def _after(self, optimizer: Optimizer, args: Any, options: Any) -> None:
        if self._running is optimizer and not self._guard.inside and self._guard.thread == get_ident():
            self._leave(raised=False)
            self._search.end_optimizer(optimizer)

    def _begin(self, running: object) -> None:
        if self._running is running:  # its last step has raised
            self._leave(raised=True)
        if self._running is None:
            self._running = running
            self._entered = self._search.begin_optimizer() and self._session.enter(_OPTIMIZER)

    def _set_apart(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """A closure, during which the optimizer's phase is interrupted."""
        part, session, guard = self._part, self._session, self._guard

        @wraps(closure)
        def watched(*args: Any, **options: Any) -> Any:
            seen = not guard.inside and guard.thread == get_ident() and part.run(session.enter, _OTHER)
            try:
                result = closure(*args, **options)
            except BaseException:
                if seen:
                    part.run(session.exit, raised=True)
                raise
            if seen:
                part.run(session.exit)
            return result

        leave_out_of_warnings(watched)
        return watched

    def _leave(self, *, raised: bool) -> None:
        entered, self._running, self._entered = self._entered, None, False
        if entered:
            self._session.exit(raised=raised)

    def _watch_made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, search, guard = self._part, self._search, self._guard

        @wraps(original)
        def watched(self: Optimizer, *args: Any, **options: Any) -> None:
            original(self, *args, **options)
            if not guard.inside:  # on whichever thread
                part.run(search.make_optimizer, self)

        leave_out_of_warnings(watched)
        skip_compile(watched)
        return watched

    def _watch_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A step that it skips is one too."""

        def before(args: Arguments, options: Options) -> bool | None:
            if self._running is not None:
                return None
            self._scaled = args[1] if len(args) > 1 else options.get("optimizer")
            self._begin(args[0])
            return True

        def after(args: Arguments, result: Any) -> None:
            optimizer, self._scaled = self._scaled, None
            self._search.end_optimizer(optimizer)

        return surround(original, self._guard, self._part, before=before, after=after, leave=self._leave)

    def _watch_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def before(args: Arguments, options: Options) -> bool:
            return self._search.begin_optimizer() and self._session.enter(_OPTIMIZER)

        def after(args: Arguments, result: Any) -> None:
            self._search.end_optimizer(unwrap_optimizer(args[0]))

        return surround(
            original, self._guard, self._engines, before=before, after=after, leave=self._session.exit, trains=True
        )


def unwrap_optimizer(engine: Any) -> Any:
    """The optimizer inside an engine of DeepSpeed, whether the script or the engine has made it, without what ZeRO
    wraps it in."""
    return getattr(engine, "basic_optimizer", None) or getattr(engine, "optimizer", None)
