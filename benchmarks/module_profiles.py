"""Compares what profilers count inside small models with what their work is by hand."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.module_cases import ModuleCase, list_cases
from distprof.modules.profile import profile_model

Counted = tuple[int | None, int | None, int | None]
"""Multiply-adds of forward and of backward, and parameters. None: not told."""


def print_table() -> None:
    """Prints the table of all models and installed profilers."""
    console = Console(highlight=False)
    names = [name for name in PROFILERS if importlib.util.find_spec(name) is not None]
    heads = [f"{name} {version(name)}" for name in names]
    console.print(_join(["model", "", "by hand", *heads]), soft_wrap=True, markup=False)
    console.print(_join(["---", "---", *["---:"] * (len(heads) + 1)]), soft_wrap=True, markup=False)
    for case in list_cases():
        for line in list_rows(case, names):
            console.print(line, soft_wrap=True, markup=False)


def list_rows(case: ModuleCase, names: Sequence[str]) -> list[str]:
    """A row for forward, one for backward where that is known, and one for the parameters.

    Args:
        case: The model.
        names: Of the profilers, as in `PROFILERS`.
    """
    counted = [_run_quietly(PROFILERS[name], case) for name in names]
    rows = []
    truths = {"forward": case.multiply_adds, "backward": case.backward, "parameters": case.parameters}
    for index, (what, truth) in enumerate(truths.items()):
        if truth is not None:
            found = [_show(item[index], truth) for item in counted]
            rows.append(_join([case.name if index == 0 else "", what, f"{truth:,}", *found]))
    return rows


def _run_quietly(ask: Callable[[nn.Module, list[Tensor]], Counted], case: ModuleCase) -> Counted:
    with contextlib.redirect_stdout(io.StringIO()), torch.set_grad_enabled(case.backward is not None):
        return ask(case.make(), case.give())


def _show(found: int | None, truth: int) -> str:
    if found is None:
        return "n/a"
    return "right" if found == truth else f"**{found:,}**"


def _ask_distprof(model: nn.Module, inputs: list[Tensor]) -> Counted:
    mode = "forward_backward" if torch.is_grad_enabled() else "forward"
    row = profile_model(model, inputs, mode=mode, passes=0).rows[0]
    return row.total_flops.forward // 2, row.total_flops.backward // 2, row.parameters


def _ask_deepspeed(model: nn.Module, inputs: list[Tensor]) -> Counted:
    """It reports twice the forward as backward."""
    logging.disable(logging.WARNING)
    profiler = importlib.import_module("deepspeed.profiling.flops_profiler")
    _, multiply_adds, parameters = profiler.get_model_profile(
        model, args=tuple(inputs), print_profile=False, as_string=False, warm_up=0
    )
    return int(multiply_adds), 2 * int(multiply_adds), int(parameters)


def _ask_torchinfo(model: nn.Module, inputs: list[Tensor]) -> Counted:
    told = importlib.import_module("torchinfo").summary(model, input_data=inputs, verbose=0, mode=_find_mode(model))
    return int(told.total_mult_adds), None, int(told.total_params)


def _find_mode(model: nn.Module) -> str:
    return "train" if model.training else "eval"


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


PROFILERS: dict[str, Callable[[nn.Module, list[Tensor]], Counted]] = {
    "distprof": _ask_distprof, "deepspeed": _ask_deepspeed, "torchinfo": _ask_torchinfo,
}  # fmt: skip
"""By the name of their package."""
