"""Finds annotations that the profiler wrote among its operators, by their names.

Up to torch 1.9 the profiler's steps and the user's ``record_function`` ranges have the operators' category. Steps of
newer profilers are found by name as well, whatever their category.
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
"""Names that PyTorch itself uses: namespaced ones, autograd nodes, and a few others."""


def is_step(name: str) -> bool:
    """Whether this is the name of a profiler step."""
    return STEP.fullmatch(name) is not None


def move_annotations(
    ops: dict[str, IntArray], ranges: dict[str, IntArray], names: tuple[str, ...], domain: int, *, old: bool
) -> None:
    """Moves annotations from the operators to the ranges.

    Args:
        ops: Rows of operators; those that are moved are removed here.
        ranges: Rows of annotations; those that are moved are added here.
        names: Names by code.
        domain: The code of the default domain.
        old: Whether the profiler wrote no annotations: then all rows without an operator's name move, else only steps.
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
    ops.update({column: values[~moved] for column, values in ops.items()})
    ranges["domain"] = np.concatenate([ranges["domain"], np.full(int(moved.sum()), domain, np.int64)])


def _select(codes: IntArray, fits: Callable[[str], bool], names: tuple[str, ...]) -> BoolArray:
    there = np.unique(codes)
    good = [code for code in there.tolist() if code != UNKNOWN and fits(names[code])]
    return np.isin(codes, good)
