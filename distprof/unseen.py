"""What distprof reads of a script's tensors, without its modes of `torch.overrides` seeing that.

A mode sees every function of torch and every property of a tensor that is used inside it, whoever asks: one that counts
or logs would count distprof, and one that rewrites would be asked about what the script never called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
is_mode_on: Callable[[], bool] = getattr(torch._C, "_is_torch_function_mode_enabled", bool)
"""Whether the calling thread is inside such a mode; False, as ``bool()`` is, where a release of torch does not say."""


def unseen(read: Callable[P, T]) -> Callable[P, T]:
    """The same function; what it asks of tensors is not seen by modes."""

    @functools.wraps(read)
    def read_unseen(*args: P.args, **options: P.kwargs) -> T:
        if not is_mode_on():
            return read(*args, **options)
        with torch._C.DisableTorchFunction():
            return read(*args, **options)

    return read_unseen


@unseen
def count_bytes(tensor: Any) -> int:
    """The bytes of a tensor."""
    size_bytes: int = tensor.nbytes
    return size_bytes
