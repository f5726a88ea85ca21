"""Backward, clipping, batches and checkpoints: functions of torch that are looked at where they are called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data.dataloader as loaders
from torch.distributed import checkpoint
from torch.nn.utils import clip_grad

from distprof.facts.run import PHASE_CODE, Phase
from distprof.observe.parts import Arguments, Gate, Options, Patches, Recognition, surround
from distprof.observe.reporting import Reporting
from distprof.observe.step_search import StepSearch

_BACKWARD, _GRAD_NORM, _DATA = (PHASE_CODE[phase] for phase in (Phase.BACKWARD, Phase.GRAD_NORM, Phase.DATA))
_CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")


class Functions:
    """Recognises everything that is neither a module nor an optimizer."""

    def __init__(self, session: Reporting, search: StepSearch, gate: Gate, end_backward: Callable[[], None]) -> None:
        """Looks at nothing yet.

        Args:
            session: Is told what is found.
            search: Finds the steps.
            gate: Of this rank.
            end_backward: Is called after every backward.
        """
        self._session, self._search, self._gate, self._end_backward = session, search, gate, end_backward
        self._backward, self._clipping = (
            Recognition("backward is", session),
            Recognition("gradient clipping is", session),
        )
        self._data, self._saving = (
            Recognition("getting batches is", session),
            Recognition("saving checkpoints is", session),
        )
        self._in_data = False

    def install(self, patches: Patches) -> None:
        """Looks at the functions from now on."""
        self._backward.run(patches.replace, [torch.autograd], "backward", self._watch_backward)
        for name in _CLIPPING:
            if hasattr(clip_grad, name):
                self._clipping.run(patches.replace, [clip_grad, torch.nn.utils], name, self._watch_clipping)
        iterator = loaders._BaseDataLoaderIter
        self._data.run(patches.replace, [iterator], "__next__", self._watch_fetch)
        self._data.run(patches.replace, [loaders.DataLoader], "__iter__", self._watch_start)
        self._saving.run(patches.replace, [torch.serialization, torch], "save", self._watch_saving)
        for name in ("save", "async_save"):
            if hasattr(checkpoint, name):
                places = [checkpoint.state_dict_saver, checkpoint]
                self._saving.run(patches.replace, places, name, self._watch_saving)

    def _watch_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def before(args: Arguments, options: Options) -> bool:
            if not self._search.begin_backward():
                return False
            if self._session.open:
                self._session.add_work(tokens=0)
            return self._session.enter(_BACKWARD)

        return surround(
            original, self._gate, self._backward, before=before, after=lambda args, result: self._end_backward(),
            leave=self._session.exit, trains=True,
        )  # fmt: skip

    def _watch_clipping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def after(args: Arguments, result: Any) -> None:
            if self._session.open and type(result) is torch.Tensor and result.numel() == 1:
                self._session.keep_scalars(grad_norm=result.detach())

        return surround(
            original, self._gate, self._clipping, before=lambda args, options: self._session.enter(_GRAD_NORM),
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
            self._search.end_fetch(got=not ended)

        return surround(original, self._gate, self._data, before=before, leave=leave)

    def _watch_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Making the iterator, which starts workers, is time for data in a step that is open, and begins none."""
        return surround(
            original, self._gate, self._data, before=lambda args, options: self._session.enter(_DATA),
            leave=self._session.exit,
        )  # fmt: skip

    def _watch_saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return surround(
            original, self._gate, self._saving, before=lambda args, options: self._search.begin_save(),
            leave=self._end_stretch,
        )  # fmt: skip

    def _end_stretch(self, *, raised: bool) -> None:
        self._session.end_stretch()
