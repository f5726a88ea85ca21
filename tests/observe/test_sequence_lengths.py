"""Which sequences a model is called with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from distprof.observe.sequence_lengths import MAX_SEQUENCES, square_lengths

TOKENS = torch.zeros(2, 5, dtype=torch.int64)
ENDS = torch.tensor([0, 3, 7, 8], dtype=torch.int32)


@pytest.mark.parametrize(
    ("args", "options", "expected"),
    [
        ((TOKENS,), {}, 2 * 25),
        ((), {"input_ids": TOKENS, "attention_mask": TOKENS}, 2 * 25),
        ((torch.zeros(2, 5, dtype=torch.int64, device="meta"),), {}, 2 * 25),  # only the shape is read
        ((TOKENS[:1],), {"cu_seq_lens_q": ENDS}, 9 + 16 + 1),
        ((TOKENS[:1],), {"cu_seqlens": ENDS.to("meta")}, 0),
        ((TOKENS[:1],), {"position_ids": TOKENS[:1]}, 0),
        ((TOKENS,), {"position_ids": TOKENS}, 2 * 25),
        ((TOKENS[:1],), {"cu_seqlens": torch.arange(MAX_SEQUENCES + 1)}, 0),
        ((torch.zeros(2, 3, 8, 8),), {"labels": torch.zeros(2, dtype=torch.int64)}, 0),  # images
        ((None, "text", TOKENS), {}, 2 * 25),
        ((), {}, 0),
    ],
)
def test_squares_by_hand(args: tuple[Any, ...], options: dict[str, Any], expected: int) -> None:
    assert square_lengths(args, options) == expected


def test_no_operation_runs_on_a_tensor() -> None:
    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(func)

    with Sees():
        assert square_lengths((TOKENS,), {}) == 50
        assert square_lengths((TOKENS,), {"cu_seqlens": ENDS}) == 26
