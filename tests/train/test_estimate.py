"""A model that cannot fit is refused, by a sum that can be done by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from distprof.errors import UsageError
from distprof.train.estimate import require_memory


def make_config(mode: str, strategy: str) -> Any:
    return SimpleNamespace(train=SimpleNamespace(mode=mode), strategy=SimpleNamespace(name=strategy))


@pytest.mark.parametrize(
    ("mode", "strategy", "needed_bytes"),
    [
        ("train", "ddp", 4 * 100 * 4 * 4),  # weights, gradients, two moments: four copies on four ranks
        ("train", "accelerate", 4 * 100 * 4 * 4),
        ("train", "fsdp", 4 * 100 * (4 + 3)),
        ("forward_backward", "ddp", 4 * 100 * 4 * 2),
        ("forward", "fsdp", 4 * 100 * 4),
    ],
)
def test_the_limit_is_where_the_sum_says(mode: str, strategy: str, needed_bytes: int) -> None:
    require_memory(make_config(mode, strategy), 100, num_ranks=4, total_bytes=needed_bytes)
    with pytest.raises(UsageError, match="100 parameters on 4 rank"):
        require_memory(make_config(mode, strategy), 100, num_ranks=4, total_bytes=needed_bytes - 1)


def test_this_machine_holds_a_small_model() -> None:
    require_memory(make_config("train", "ddp"), 1_000_000, num_ranks=2)
