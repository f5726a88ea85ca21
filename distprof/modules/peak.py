"""How much memory tensors take at once: what is made is added, and taken off when it is freed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class AlivePeak:
    """Bytes of the tensors that were made and are not freed, without gradients of parameters."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        """The most since the start, or since `restart`."""
        self._alive: dict[int, int] = {}
        self._alive_bytes = 0

    def add(self, storage: torch.UntypedStorage) -> None:
        """A tensor has been made in this memory."""
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self._alive_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self._alive_bytes)
        weakref.finalize(storage, self._take_off, key).atexit = False

    def restart(self) -> int:
        """The bytes now, from which the peak begins anew."""
        self.peak_bytes = self._alive_bytes
        return self._alive_bytes

    @contextlib.contextmanager
    def without_gradients(self, model: nn.Module) -> Iterator[None]:
        """Inside, a gradient of a parameter counts no more from the moment that it is one."""

        def leave_out(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._take_off(parameter.grad.untyped_storage()._cdata)

        wanted = [each for each in model.parameters() if each.requires_grad]
        handles = [each.register_post_accumulate_grad_hook(leave_out) for each in wanted]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _take_off(self, key: int) -> None:
        self._alive_bytes -= self._alive.pop(key, 0)
