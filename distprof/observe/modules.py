"""Forwards: the outermost call of a module, and ``train()`` and ``eval()``.

A module in whose forward an optimizer of the training takes a step is no model, but runs the training (Lightning's
manual optimization under DDP, a learner that holds its optimizer). It is passed over, and the modules in it are looked
at.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distprof.compiling import skip_compile
from distprof.facts.run import PHASE_CODE, Phase
from distprof.observe.instrumentation import Arguments, Instrumentation, Options, Patches, ReentrancyGuard, surround
from distprof.observe.observer_target import ObserverTarget
from distprof.observe.sequence_lengths import square_lengths
from distprof.observe.step_search import StepSearch
from distprof.patching import leave_out_of_warnings
from distprof.unseen import unseen

_FORWARD = PHASE_CODE[Phase.FORWARD]
MAX_MODELS = 16
"""So many outermost modules are watched: a script may make a new one in every step."""


class Forwards:
    """Recognises forwards and evaluation, and the models that there are."""

    def __init__(self, session: ObserverTarget, search: StepSearch, guard: ReentrancyGuard) -> None:
        self._session, self._search, self._guard = session, search, guard
        self._part, self._modes = Instrumentation("forward is", session), Instrumentation("evaluation is", session)
        self._models = Instrumentation("models are", session)
        self._num_watched = 0
        self._has_parameters: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._last: weakref.ref[nn.Module] | None = None  # the model that was called last
        self._last_has_parameters = False
        self._trainers: weakref.WeakSet[nn.Module] | None = None  # the modules that run the training; None: none

    def install(self, patches: Patches) -> None:
        """Looks at all modules from now on."""
        self._models.replace(patches, [DistributedDataParallel], "__init__", self._watch_made)
        self._modes.replace(patches, [nn.Module], "train", self._watch_mode, {1: "mode"})
        # torch's hooks on all modules would make every one of them take its slow path, and `torch.compile` trace them.
        # A replaced `__call__` costs an inner module one comparison, and a compiled one nothing: dynamo compiles the
        # original.
        self._part.replace(patches, [nn.Module], "__call__", self._watch_call)

    def pass_over(self) -> None:
        """An optimizer of the training takes a step: if that is in the forward of a module, it runs the training."""
        model = None if self._last is None else self._last()
        if model is not None and self._guard.open_up(self._part):
            self._session.exit()
            self._trainers = self._trainers or weakref.WeakSet()
            self._trainers.add(model)

    def _watch_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        guard, search, part = self._guard, self._search, self._part
        watched = surround(
            original, guard, part, before=self._begin, after=self._end, leave=self._session.exit, trains=True
        )

        @functools.wraps(original)
        def watched_quickly(self: nn.Module, *args: Any, **options: Any) -> Any:
            if guard.inside:  # as the original does, without a call of it
                return (self._compiled_call_impl or self._call_impl)(*args, **options)
            if search.repeated != id(self) or guard.thread != get_ident():
                return watched(self, *args, **options)
            guard.inside, guard.part = 1, part
            try:
                return (self._compiled_call_impl or self._call_impl)(*args, **options)
            finally:
                if guard.inside:  # it has not been opened up
                    guard.inside -= 1

        # What `watched_quickly` does in place of the original must be all that the original does.
        known = getattr(getattr(original, "__code__", None), "co_names", ())
        if set(known) != {"_compiled_call_impl", "_call_impl"}:
            return watched
        watched_quickly.__qualname__ = "Module.__call__"  # where pickle finds it: the original's name is another place
        leave_out_of_warnings(watched_quickly)
        skip_compile(watched_quickly)
        watched_quickly._torchdynamo_inline = original  # type: ignore[attr-defined]
        return watched_quickly

    def _begin(self, args: Arguments, options: Options) -> bool | None:
        if torch._C._is_tracing():  # torch.jit.trace records what is called: ours must not be in it
            return None
        model = args[0]
        if self._trainers is not None and model in self._trainers:
            return None
        if self._last is None or self._last() is not model:
            self._last_has_parameters, self._last = self._meet(model), weakref.ref(model)
        grad_on = torch.is_grad_enabled()
        found = self._search.begin_forward(model, grad_on=grad_on, has_parameters=self._last_has_parameters)
        if found and grad_on:
            if squared_lengths := square_lengths(args[1:], options):
                self._session.add_sequences(squared_lengths)
            elif self._search.only_counts:
                self._search.repeated = id(model)
        return found and self._session.enter(_FORWARD)

    def _end(self, args: Arguments, result: Any) -> None:
        if not self._search.settled:
            self._search.end_forward()

    @unseen
    def _meet(self, model: nn.Module) -> bool:
        """Whether a model has parameters; one that is called for the first time is watched."""
        has_parameters = self._has_parameters.get(model)
        if has_parameters is None:
            has_parameters = next(model.parameters(), None) is not None
            self._has_parameters[model] = has_parameters
            if has_parameters and self._num_watched < MAX_MODELS:
                self._num_watched += 1
                self._models.run(self._session.watch, model)
                self._models.run(self._session.see_call, model)
        return has_parameters

    def _watch_made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        models, session, guard = self._models, self._session, self._guard

        @functools.wraps(original)
        def watched(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
            original(self, *args, **options)
            if not guard.inside:
                models.run(session.watch, self)  # now: the reducer's group is to be replaced before its first backward

        leave_out_of_warnings(watched)
        return watched

    def _watch_mode(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def change(args: Arguments, options: Options) -> bool:
            model, training = args[0], bool(args[1] if len(args) > 1 else options.get("mode", True))
            has_parameters = next(model.parameters(), None) is not None
            self._search.change_mode(model, training=training, has_parameters=has_parameters)
            return False

        return surround(original, self._guard, self._modes, before=change, leave=self._session.exit)
