"""The sum of squares of a batch's sequence lengths, from what a model is called with.

Attention compares each token of a sequence with each other, so its time goes with the square of the length. Only shapes
are read, and numbers that lie on the host: nothing waits for a device, and no operation runs on a tensor, which what
the script watches operations with would see.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from distprof.unseen import unseen

WHOLE = (torch.int64, torch.int32)
"""Types of token numbers."""
MAX_SEQUENCES = 1024
"""Of a packed batch; more are not looked at."""


@unseen
def square_lengths(args: Sequence[Any], options: Mapping[str, Any]) -> int:
    """The sum over the sequences of one call; 0: not known.

    Of a padded batch every row counts with its padding, which is computed too. Sequences that are packed into one row
    are told by ``cu_seqlens`` (``cu_seq_lens_q``) on the host; packed ones that only ``position_ids`` tell are not.

    Args:
        args: Positional arguments of the model.
        options: Its keyword arguments.
    """
    for name, value in options.items():
        if name.startswith("cu_seq") and type(value) is torch.Tensor:
            return _square_ends(value)
    for value in (*args, *options.values()):  # a micro-batch of a pipeline comes here too, so nothing is called
        if type(value) is torch.Tensor and value.dim() == 2 and value.dtype in WHOLE:
            rows, length = value.shape
            packed = rows == 1 and options.get("position_ids") is not None
            return 0 if packed else int(rows * length * length)
    return 0


def _square_ends(ends: torch.Tensor) -> int:
    """Of the places where sequences end, with a 0 before the first."""
    if not ends.is_cpu or ends.dim() != 1 or not 1 < len(ends) <= MAX_SEQUENCES:
        return 0
    return int(sum((end - begin) ** 2 for begin, end in itertools.pairwise(ends.tolist())))
