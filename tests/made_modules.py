"""Module profiles made by hand: a test chooses what each module takes on each rank, and so knows the conclusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from distprof.facts.arrays import FloatArray
from distprof.facts.modules import ModuleTable
from distprof.facts.run import Run
from tests.factories import MS, make_run

LEAVES: Mapping[str, float] = {
    "embedding": 1, "blocks.0.attention": 4, "blocks.0.mlp": 6, "blocks.1.attention": 4, "blocks.1.mlp": 6, "head": 3,
}  # fmt: skip
"""Milliseconds of forward; backward takes twice as long."""
NAMES = ("", "embedding", "blocks", "blocks.0", "blocks.0.attention", "blocks.0.mlp", "blocks.1", "blocks.1.attention",
         "blocks.1.mlp", "head")  # fmt: skip
KINDS = ("Model", "Embedding", "ModuleList", "Block", "Attention", "MLP", "Block", "Attention", "MLP", "Linear")
PARENTS = (None, 0, 0, 2, 3, 3, 2, 6, 6, 0)
STEPS = 5


def make_table(
    rank: int,
    *,
    forward_ms: Mapping[str, npt.ArrayLike] | None = None,
    backward_ms: Mapping[str, npt.ArrayLike] | None = None,
    noise: np.random.Generator | None = None,
    num_steps: int = STEPS,
    **changes: Any,
) -> ModuleTable:
    """One rank of a model with two blocks.

    Args:
        rank: Its number.
        forward_ms: What modules take beyond the usual, by name, in each step or in all; in the module itself.
        backward_ms: Likewise.
        noise: Lengthens everything at random by up to a tenth.
        num_steps: Timed steps.
        changes: Other fields.
    """
    count = len(NAMES)
    usual: dict[str, Any] = {
        "rank": rank, "model": "Model", "clock": "host", "counted_step": 4,
        "timed_steps": tuple(range(6, 6 + num_steps)), "names": NAMES, "kinds": KINDS, "parents": PARENTS,
        "calls": (1, 1, 0, *[1] * (count - 3)), "own_parameters": (0, 10, 0, 0, 40, 60, 0, 40, 60, 30),
        "parameters": (240, 10, 200, 100, 40, 60, 100, 40, 60, 30),
        "held_parameters": (120, 5, 100, 50, 20, 30, 50, 20, 30, 15),
        "flops": tuple((2_000 * size, 4_000 * size, 0) for size in (23, 1, 20, 10, 4, 6, 10, 4, 6, 3)),
        "outside_flops": (0, 0, 0), "forward_ns": _add_up(forward_ms or {}, 1, noise, num_steps),
        "backward_ns": _add_up(backward_ms or {}, 2, noise, num_steps),
        "recomputed_ns": np.full((count, num_steps), np.nan), "memory": None, "predicted_memory": None,
        "peak_bytes": None, "notes": (),
    }  # fmt: skip
    return ModuleTable(**{**usual, **changes})


def _add_up(
    more_ms: Mapping[str, npt.ArrayLike], factor: float, noise: np.random.Generator | None, num_steps: int
) -> FloatArray:
    own_ms = np.zeros((len(NAMES), num_steps))
    for row, name in enumerate(NAMES):
        own_ms[row] = factor * LEAVES.get(name, 0.1) * (1 if noise is None else noise.uniform(1, 1.1, num_steps))
        own_ms[row] += np.asarray(more_ms.get(name, 0), dtype=float)
    for row in reversed(range(1, len(NAMES))):
        parent = PARENTS[row]
        assert parent is not None
        own_ms[parent] += own_ms[row]
    return own_ms * MS


def make_module_run(tables: Sequence[ModuleTable] = (make_table(0), make_table(1, forward_ms={"head": 2}))) -> Run:
    """A run of eleven steps: a warm-up, three measured ones, and seven in which its modules were profiled."""
    columns = {"window": np.arange(11) >= 4}
    run = make_run(num_ranks=len(tables), num_steps=11, columns=columns)
    return structs.replace(run, modules=tuple(tables))
