"""Refuses a model that cannot fit into memory, before the operating system kills processes."""

from __future__ import annotations

import os

from distprof.config.schema import Config
from distprof.errors import UsageError

FLOAT_BYTES = 4


def require_memory(config: Config, parameters: int, *, num_ranks: int, total_bytes: int | None = None) -> None:
    """Compares the least memory that weights, gradients and AdamW's two moments need with what the host has.

    Args:
        config: The mode and the strategy.
        parameters: Of the whole model.
        num_ranks: Ranks that share the host's memory.
        total_bytes: The host's memory. None: asks the operating system.

    Raises:
        UsageError: The model cannot fit.
    """
    copies = {"forward": 0, "backward": 1, "forward_backward": 1, "train": 3}[config.train.mode]
    holders = 1 if config.strategy.name == "fsdp" else num_ranks
    # Every rank builds the whole model, even under FSDP, which shards it afterwards.
    needed_bytes = FLOAT_BYTES * parameters * (num_ranks + copies * holders)
    if total_bytes is None:
        total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes > total_bytes:
        raise UsageError(
            f"{parameters:,} parameters on {num_ranks} rank(s) need at least {needed_bytes / 2**30:.0f} GiB, and this "
            f"host has {total_bytes / 2**30:.0f} GiB: use a smaller train=..., fewer ranks, or strategy=fsdp"
        )
