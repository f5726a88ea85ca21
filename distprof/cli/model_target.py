"""Builds a model and looks at its modules, on the meta device or for real."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distprof.config.check import check
from distprof.config.compose import compose, read_request
from distprof.config.decode import decode
from distprof.config.schema import Config, FsdpConfig
from distprof.errors import DataError, UsageError
from distprof.modules.memory import predict_memory
from distprof.modules.names import unwrap
from distprof.modules.profile import MODES, profile_model
from distprof.report.module_report import ModuleReport
from distprof.train.model import Transformer

RANKS = re.compile(r"ranks=([1-9]\d{0,6})")
INPUT = re.compile(r"(?:([A-Za-z_]\w*)=)?([a-z]+\d*):(\d+(?:x\d+)*|scalar)", re.ASCII)
MAX_ELEMENTS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What was found."""

    report: ModuleReport
    memory: dict[str, dict[str, int | None]]
    """Bytes by kind, by a name for the rank. Empty: how it is distributed was not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """A model, and how to run it."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    name: str
    mode: str
    config: Config | None
    num_ranks: int


def look_inside(target: Sequence[str], *, inputs: Sequence[str], mode: str | None, passes: int | None) -> Inside:
    """Profiles what a command line names.

    Args:
        target: A function as ``package.module:name``, or overrides of a training job.
        inputs: Tensors as ``[name=]dtype:shape``, for a function's model.
        mode: "forward" or "forward_backward". None: as the configuration says, else with backward.
        passes: Timed passes on this machine. None: nothing is computed or allocated.

    Raises:
        UsageError: Something in it is wrong.
        DataError: The model cannot be built or run.
    """
    named = ":" in target[0] and "=" not in target[0]
    built = _name_function(target, inputs, mode) if named else _configure(target, inputs, mode)
    device = torch.device("meta" if passes is None else "cpu" if not torch.cuda.is_available() else "cuda")
    with device:
        model = _require("built", built.make, built.name)
        given = built.inputs()
    report = _require(
        "run", lambda: profile_model(model, given, mode=built.mode, passes=passes or 0, name=built.name), built.name
    )
    if report.rows[0].calls == 0:
        raise DataError(f"{built.name}: its forward was not called")
    return Inside(report=report, memory=_predict(model, report, built))


def _require(what: str, make: Callable[[], Any], name: str) -> Any:
    try:
        return make()
    except (UsageError, DataError, KeyboardInterrupt):
        raise
    except Exception as error:
        said = str(error).strip().splitlines()
        raise DataError(f"{name}: cannot be {what} ({type(error).__name__}: {said[0] if said else ''})") from error


def _name_function(target: Sequence[str], inputs: Sequence[str], mode: str | None) -> _Built:
    if len(target) > 1:
        raise UsageError(f"{target[1]}: overrides are for distprof's own model; a function is given --input")
    module_name, _, function_name = target[0].partition(":")

    def make() -> nn.Module:
        if "" not in sys.path:
            sys.path.insert(0, "")  # the current folder, as `python -m` has it
        found: Any = importlib.import_module(module_name)
        for part in function_name.split("."):
            found = getattr(found, part)
        model = found()
        if not isinstance(model, nn.Module):
            raise DataError(f"{target[0]}: returned {type(model).__name__}, which is no torch.nn.Module")
        return model

    parts = [_read_input(text) for text in inputs]

    def fill() -> Any:
        by_name = {name: _make_tensor(dtype, shape) for name, dtype, shape in parts if name is not None}
        if len(by_name) == len(parts):
            return by_name
        return [_make_tensor(dtype, shape) for _, dtype, shape in parts]

    if len({name is None for name, _, _ in parts}) > 1:
        raise UsageError("--input: name all of them, or none")
    return _Built(
        make=make, inputs=fill, name=target[0], mode=mode or MODES[1], config=None, num_ranks=1,
    )  # fmt: skip


def _read_input(text: str) -> tuple[str | None, torch.dtype, tuple[int, ...]]:
    found = INPUT.fullmatch(text)
    dtype = getattr(torch, found[2], None) if found else None
    if found is None or not isinstance(dtype, torch.dtype):
        raise UsageError(f"--input {text}: expected DTYPE:SHAPE, such as int64:4x128, or NAME=float32:8x3x32x32")
    shape = () if found[3] == "scalar" else tuple(map(int, found[3].split("x")))
    elements = 1
    for size in shape:
        elements *= size
    if elements > MAX_ELEMENTS:
        raise UsageError(f"--input {text}: more than 2**40 elements")
    return found[1], dtype, shape


def _make_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Ones where they may be indices, which every vocabulary has."""
    return torch.randn(shape, dtype=dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)


def _configure(target: Sequence[str], inputs: Sequence[str], mode: str | None) -> _Built:
    if inputs:
        raise UsageError(
            "--input: distprof's own model is given tokens; train.micro_batch and train.seq_len say how many"
        )
    counts = [found for text in target if (found := RANKS.fullmatch(text))]
    overrides = [text for text in target if not text.startswith("ranks=")]
    if len(overrides) + len(counts) != len(target) or len(counts) > 1:
        raise UsageError("ranks=: expected one whole number, such as ranks=64")
    num_ranks = int(counts[0][1]) if counts else 1
    request = read_request([*overrides, "hydra.mode=RUN"])  # also of an experiment that is a sweep
    if request.shows_only or request.flags.multirun:
        raise UsageError("distprof model: takes overrides of one job, without flags of Hydra")
    (job,) = compose(request, launched=num_ranks > 1, arguments=overrides)
    config = decode(Config, job.values)
    check(config, world_size=num_ranks, device_type="cpu")
    train = config.train
    return _Built(
        make=lambda: Transformer(train.model, activation_checkpointing=train.activation_checkpointing),
        inputs=lambda: [torch.zeros(train.micro_batch, train.seq_len, dtype=torch.int64) for _ in range(2)],
        name=config.name, mode=mode or ("forward" if train.mode == "forward" else MODES[1]), config=config,
        num_ranks=num_ranks,
    )  # fmt: skip


def _predict(model: nn.Module, report: ModuleReport, built: _Built) -> dict[str, dict[str, int | None]]:
    if built.config is None:
        return {}
    strategy = built.config.strategy
    shards = built.num_ranks // strategy.replicas if isinstance(strategy, FsdpConfig) else 1
    kept = report.rows[0].activation_bytes if built.mode != "forward" else None
    found: dict[str, dict[str, int | None]] = {}
    for rank in dict.fromkeys((0, shards - 1)):
        memory = predict_memory(
            unwrap(model).parameters(), unwrap(model).buffers(), num_shards=shards, rank=rank,
            mode=built.config.train.mode, activation_bytes=kept,
        )  # fmt: skip
        name = "every" if shards == 1 else f"{rank}"
        found[name] = {**dataclasses.asdict(memory), "total": memory.total}
    return found
