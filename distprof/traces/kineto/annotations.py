"""Annotations that a profiler wrote among its operators: told by their names.

Up to torch 1.9 the profiler's steps and the user's ``record_function`` ranges have the operators' own category. Today's
steps are found by their name as well, whatever their category.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from distprof.facts.trace import UNKNOWN, BoolArray, IntArray

STEP = re.compile(r"ProfilerStep#\s*(\d{1,18})")
_OPERATOR = re.compile(
    r".*::.*|.*Backward\d*|detach_?|_grad_sum_to_size|record_param_comms|<(forward|backward) op>", re.DOTALL
)
"""Names that PyTorch gives: namespaces, nodes of autograd, and a few without either."""


def is_step(name: str) -> bool:
    """Whether a range of that name is a step of the profiler."""
    return STEP.fullmatch(name) is not None


def move_annotations(
    ops: dict[str, IntArray], ranges: dict[str, IntArray], names: tuple[str, ...], domain: int, *, old: bool
) -> None:
    """Makes ranges of the operators that are annotations.

    Args:
        ops: Rows of operators; those that are moved leave it.
        ranges: Rows of annotations; the others join it.
        names: By code.
        domain: The code of the default domain.
        old: Whether the profiler knew no annotations: then all that no operator is called is moved, else steps only.
    """
    has_steps = _select(ranges["name"], is_step, names).any()
    moved = np.zeros(len(ops["name"]), dtype=bool)
    if not has_steps:
        moved |= _select(ops["name"], is_step, names)
    if old and not (ranges["domain"] == domain).any():
        moved |= _select(ops["name"], lambda name: _OPERATOR.fullmatch(name) is None, names)
    if not moved.any():
        return
    for column in ("begin_ns", "end_ns", "name", "thread"):
        ranges[column] = np.concatenate([ranges[column], ops[column][moved]])
        ops[column] = ops[column][~moved]
    ranges["domain"] = np.concatenate([ranges["domain"], np.full(int(moved.sum()), domain, np.int64)])


def _select(codes: IntArray, fits: Callable[[str], bool], names: tuple[str, ...]) -> BoolArray:
    there = np.unique(codes)
    good = [code for code in there.tolist() if code != UNKNOWN and fits(names[code])]
    return np.isin(codes, good)
