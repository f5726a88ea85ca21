"""The sum of squares of a batch's sequence lengths, from what a model is called with.

Attention compares each token of a sequence with each other, so its time goes with the square of the length. Only shapes
are read, and values that lie on the host: nothing waits for a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

WHOLE = (torch.int64, torch.int32)
"""Types of token numbers, and of positions."""
MAX_SEQUENCES = 4096
"""Of a packed batch; more are not looked at."""


def square_lengths(args: Sequence[Any], options: Mapping[str, Any]) -> int:
    """The sum over the sequences of one call; 0: not known.

    Of a padded batch every row counts with its padding, which is computed too. Sequences that are packed into one row
    are told by ``cu_seqlens`` (or ``cu_seq_lens_q``) or by ``position_ids`` that begin anew.

    Args:
        args: Positional arguments of the model.
        options: Its keyword arguments.
    """
    for name, value in options.items():
        if name.startswith("cu_seq") and isinstance(value, torch.Tensor):
            return _square_ends(value)
    tokens = next((value for value in (*args, *options.values()) if _is_tokens(value)), None)
    if tokens is None:
        return 0
    rows, length = tokens.shape
    positions = options.get("position_ids")
    if rows == 1 and isinstance(positions, torch.Tensor):
        return _square_positions(positions, length)
    return int(rows * length * length)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in WHOLE and value.dim() == 2


def _square_ends(ends: torch.Tensor) -> int:
    """Of the places where sequences end, with a 0 before the first."""
    if not ends.is_cpu or ends.dim() != 1 or not 1 < len(ends) <= MAX_SEQUENCES:
        return 0
    return int((ends[1:] - ends[:-1]).long().square().sum())


def _square_positions(positions: torch.Tensor, length: int) -> int:
    """Of positions within sequences, each of which begins with 0."""
    if not positions.is_cpu or positions.numel() != length:
        return 0
    begins = [*(positions.reshape(-1) == 0).nonzero().reshape(-1).tolist(), length]
    return sum((after - before) ** 2 for before, after in zip(begins[:-1], begins[1:], strict=True))
