"""Builds a model and looks at its modules, on the meta device or for real."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct, structs
from torch import Tensor, nn

import distprof
from distprof.config.check import check
from distprof.config.compose import compose, read_request
from distprof.config.decode import decode
from distprof.config.schema import AccelerateConfig, Config
from distprof.errors import DataError, UsageError
from distprof.facts.plain import make_plain
from distprof.modules.calls import list_tensors
from distprof.modules.memory import list_units, predict_gathered
from distprof.modules.names import list_modules, unwrap
from distprof.modules.profile import MODES, ModuleProfiler, describe, profile_model
from distprof.modules.unallocated import VALUES_NEEDED, Building, Unallocated
from distprof.report.module_report import ModuleReport
from distprof.train.estimate import count_shards, predict_rank
from distprof.train.model import Transformer
from distprof.train.strategy import AUTOCAST_DTYPES

RANKS = re.compile(r"ranks=([1-9]\d{0,6})")
INPUT = re.compile(r"(?:([A-Za-z_]\w*)=)?([a-z]+\d*):(\d+(?:x\d+)*|scalar)", re.ASCII)
MAX_ELEMENTS = 2**40
OF_FUNCTIONS = ("strategy=", "strategy.", "ranks=", "train.precision=", "train.mode=")
"""Overrides that go with a function: how its model is trained."""


class Inside(Struct, frozen=True, kw_only=True):
    """What is known of a model and its memory."""

    report: ModuleReport
    memory: dict[str, dict[str, int | None]]
    """Bytes by kind, by a name for the rank."""
    units: tuple[str, ...]
    """Modules that FSDP2 gathers by themselves; empty without FSDP2."""
    failure: str
    """Why the model could not be run, so that its work and its activations are not known. Empty: it was."""


class _Built(Struct, frozen=True, kw_only=True):
    """A model, and how to run it."""

    make: Callable[[], tuple[nn.Module, Any]]
    """The model and what it is given."""
    name: str
    config: Config
    is_own: bool
    """Whether it is distprof's own model."""
    num_ranks: int


def look_inside(target: Sequence[str], *, inputs: Sequence[str], mode: str | None, passes: int | None) -> Inside:
    """Profiles what a command line names.

    Args:
        target: A function as ``package.module:name``, with or without how it is trained, or overrides of a job.
        inputs: Tensors as ``[name=]dtype:shape``, for a function's model.
        mode: "forward" or "forward_backward". None: as the configuration says, else with backward.
        passes: Timed passes on this machine. None: nothing is computed or allocated.

    Raises:
        UsageError: Something in it is wrong.
        DataError: The model cannot be built or run.
    """
    named = ":" in target[0] and "=" not in target[0]
    built = _name_function(target, inputs) if named else _configure(target, inputs)
    mode = mode or ("forward" if built.config.train.mode == "forward" else MODES[1])
    device = torch.device("cuda" if passes is not None and torch.cuda.is_available() else "cpu")
    with device if passes is not None else Building():
        model, given = _require("built", built.make, built.name)
    report, failure = _profile(model, given, built, mode, passes)
    if not failure and report.rows[0].calls == 0:
        raise DataError(f"{built.name}: its forward was not called: return the module whose forward computes")
    is_sharded = _read_strategy(built.config) == "fsdp" and count_shards(built.config, built.num_ranks) > 1
    names = {item.module: item.name for item in list_modules(model)}
    units = [names[each] for each in list_units(unwrap(model)) if each in names] if is_sharded else []
    return Inside(
        report=report, memory=_predict(unwrap(model), given, report, built, mode), units=tuple(units), failure=failure
    )


def _profile(model: nn.Module, given: Any, built: _Built, mode: str, passes: int | None) -> tuple[ModuleReport, str]:
    """The profile; where the model asks for values that there are not, that of its parameters, and why."""
    half = AUTOCAST_DTYPES.get(built.config.train.precision)
    # FSDP2 casts parameters, and everything else operations; Accelerate does both.
    casts = passes is None and _read_strategy(built.config) == "fsdp"
    autocast = None if casts and built.config.strategy.name == "fsdp" else half
    run = Unallocated() if passes is None else None
    failure = ""

    def profile() -> ModuleReport:
        nonlocal failure
        try:
            return profile_model(
                model, given, mode=mode, passes=passes or 0, name=built.name, unallocated=run,
                dtype=half if casts else None, autocast=autocast,
            )  # fmt: skip
        except VALUES_NEEDED as error:
            failure = f"it asks for values, which are not computed ({_first_line(error)}, {_locate_raise(error)})"
            found = ModuleProfiler(model, activations=False).report(mode=mode, inputs=describe(given), name=built.name)
            return structs.replace(found, device="meta", notes=(f"work and activations are not known: {failure}",))

    return _require("run", profile, built.name, model), failure


def _read_strategy(config: Config) -> str:
    """The wrapper: "single", "ddp" or "fsdp"."""
    return config.strategy.wrap if isinstance(config.strategy, AccelerateConfig) else config.strategy.name


def _require(what: str, make: Callable[[], Any], name: str, model: nn.Module | None = None) -> Any:
    try:
        return make()
    except (UsageError, DataError, KeyboardInterrupt):
        raise
    except Exception as error:
        wanted = ""
        if model is not None and isinstance(error, TypeError) and "argument" in str(error):
            wanted = f"; its forward takes {inspect.signature(unwrap(model).forward)}"
        raise DataError(f"{name}: cannot be {what} ({type(error).__name__}: {_first_line(error)}){wanted}") from error


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return said[0] if said else ""


def _locate_raise(error: Exception) -> str:
    """The line of the model's own code that raised."""
    own = tuple(os.path.dirname(path) + os.sep for path in (torch.__file__, distprof.__file__))
    frames = traceback.extract_tb(error.__traceback__)
    last = next((each for each in reversed(frames) if not each.filename.startswith(own)), frames[-1])
    return f"{os.path.basename(last.filename)}:{last.lineno}"


def _name_function(target: Sequence[str], inputs: Sequence[str]) -> _Built:
    for text in target[1:]:
        if not text.startswith(OF_FUNCTIONS):
            raise UsageError(
                f"{text}: overrides are for distprof's own model; a function is given --input, and as overrides "
                f"{', '.join(OF_FUNCTIONS)}"
            )
    config, num_ranks = _read_config(target[1:])
    parts = [_read_input(text) for text in inputs]
    if len({name is None for name, _, _ in parts}) > 1:
        raise UsageError("--input: name all of them, or none")

    def make() -> tuple[nn.Module, Any]:
        model, own = _call_function(target[0])
        if own is not None and parts:
            raise UsageError(f"--input: {target[0]} returns its model's inputs itself")
        tensors = [(name, _make_tensor(dtype, shape)) for name, dtype, shape in parts]
        given = {name: each for name, each in tensors if name is not None} or [each for _, each in tensors]
        return model, given if own is None else own

    return _Built(make=make, name=target[0], config=config, is_own=False, num_ranks=num_ranks)


def _call_function(target: str) -> tuple[nn.Module, Any]:
    """What the function returns: a model, or a model and its inputs. None: no inputs."""
    module_name, _, function_name = target.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as `python -m` has it
    found: Any = importlib.import_module(module_name)
    for part in function_name.split("."):
        found = getattr(found, part)
    found = found()
    model, given = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(model, nn.Module):
        kind = "None" if found is None else type(found).__name__
        raise DataError(
            f"{target}: returned {kind}, which is not a torch.nn.Module: return the model, or the model and its inputs"
        )
    return model, dict(given) if isinstance(given, Mapping) else given


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
        raise UsageError(f"--input {text}: more than 2**40 elements: give a smaller shape")
    return found[1], dtype, shape


def _make_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Ones where they may be indices, which every vocabulary has."""
    return torch.randn(shape, dtype=dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)


def _configure(target: Sequence[str], inputs: Sequence[str]) -> _Built:
    if inputs:
        raise UsageError(
            "--input: distprof's own model is given tokens; train.micro_batch and train.seq_len say how many"
        )
    config, num_ranks = _read_config(target)
    train = config.train

    def make() -> tuple[nn.Module, Any]:
        model = Transformer(train.model, activation_checkpointing=train.activation_checkpointing)
        return model, [torch.zeros(train.micro_batch, train.seq_len, dtype=torch.int64) for _ in range(2)]

    return _Built(make=make, name=config.name, config=config, is_own=True, num_ranks=num_ranks)


def _read_config(target: Sequence[str]) -> tuple[Config, int]:
    """The configuration of a job, and its ranks."""
    counts = [found for text in target if (found := RANKS.fullmatch(text))]
    overrides = [text for text in target if not text.startswith("ranks=")]
    if len(overrides) + len(counts) != len(target) or len(counts) > 1:
        raise UsageError("ranks=: expected one whole number, such as ranks=64")
    num_ranks = int(counts[0][1]) if counts else 1
    request = read_request([*overrides, "hydra.mode=RUN"])  # also of an experiment that is a sweep
    if request.shows_only or request.flags.multirun:
        raise UsageError("model: takes the overrides of one job: leave out --multirun and the other flags of Hydra")
    (job,) = compose(request, launched=num_ranks > 1, arguments=overrides)
    config = decode(Config, job.values)
    check(config, world_size=num_ranks, device_type="cpu")
    if config.parallel.model_ranks > 1:
        raise UsageError(
            "parallel.pp, parallel.tp: what a rank of a model that is cut holds is not known; leave them out"
        )
    return config, num_ranks


def _predict(
    model: nn.Module, given: Any, report: ModuleReport, built: _Built, mode: str
) -> dict[str, dict[str, int | None]]:
    shards = count_shards(built.config, built.num_ranks)
    communication = _predict_communication(model, built)
    found: dict[str, dict[str, int | None]] = {}
    for rank in dict.fromkeys((0, shards - 1)):
        memory = predict_rank(
            built.config, model, num_ranks=built.num_ranks, rank=rank, communication=communication,
            activation_bytes=report.rows[0].activation_bytes,
        )  # fmt: skip
        kinds: dict[str, int | None] = {
            **make_plain(memory), "inputs": sum(each.nbytes for each in list_tensors(given)),
            "returned": report.returned_bytes, "working": report.working_bytes,
        }  # fmt: skip
        known = [each for each in kinds.values() if each is not None]
        total = sum(known) if len(known) == len(kinds) else None
        found["every" if shards == 1 else f"{rank}"] = {**kinds, "total": total}
    return found


def _predict_communication(model: nn.Module, built: _Built) -> int:
    """The most bytes that the communication's buffers take on a rank beside parameters and gradients."""
    config = built.config
    strategy, half = _read_strategy(config), AUTOCAST_DTYPES.get(config.train.precision)
    if strategy == "fsdp" and count_shards(config, built.num_ranks) > 1:
        return predict_gathered(
            model, dtype=half, reduce_dtype=torch.float32 if half else None, mode=config.train.mode,
            reshards=getattr(config.strategy, "reshard_after_forward", True),
        )  # fmt: skip
    if strategy != "ddp" or built.num_ranks == 1 or config.train.mode == "forward" or built.is_own:
        return 0  # in distprof's own jobs gradients are views of DDP's buckets
    return sum(each.nbytes for each in model.parameters() if each.requires_grad)
