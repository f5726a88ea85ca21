"""What a job's models show: how they are parallelised, in which precision they compute, and where."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.jit import ScriptModule
from torch.nn.parallel import DistributedDataParallel

from distprof.patching import is_fsdp2
from distprof.record.collectives.fsdp import is_fsdp1, list_groups

_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile(model)``."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def list_wrapped(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that synchronise gradients: DDP, FSDP2 or FSDP1, wherever they stand in a model."""
    model = unwrap(model)
    if isinstance(model, DistributedDataParallel) or is_fsdp2(model) or is_fsdp1(model):
        return [model]
    return [found for child in model.children() for found in list_wrapped(child)]


def describe_engine(model: nn.Module) -> str | None:
    """What DeepSpeed's engine does with the optimizer's state, gradients and parameters; None: it is no such engine."""
    stage = getattr(model, "zero_optimization_stage", None)
    if stage is None or not type(model).__module__.startswith("deepspeed."):
        return None
    return f"deepspeed, ZeRO stage {stage()}"


def name_strategies(models: Iterable[nn.Module]) -> dict[str, None]:
    """How models are parallelised: "ddp", "fsdp", an engine's name; each once, in the order of the models."""
    return dict.fromkeys(name for model in models for name in _name_strategies(model))


def describe_strategy(names: Iterable[str], *, num_ranks: int) -> str | None:
    """A job's strategy: that of its models, or "single" where they have none on one rank. None: not known."""
    return " and ".join(names) or ("single" if num_ranks == 1 else None)


def describe_wrapping(models: Iterable[nn.Module]) -> dict[str, object]:
    """The settings of the wrappers that forecasts start from, as the configuration of a job has them."""
    for model in models:
        for part in list_wrapped(model):
            if isinstance(part, DistributedDataParallel) and hasattr(part, "bucket_bytes_cap"):
                return {"strategy": {"name": "ddp", "bucket_mb": part.bucket_bytes_cap / 2**20}}
    return {}


def _name_strategies(model: nn.Module) -> list[str]:
    engine = describe_engine(model)
    return [engine] if engine else [_name_strategy(part) for part in list_wrapped(model)]


def _name_strategy(part: nn.Module) -> str:
    return "ddp" if isinstance(part, DistributedDataParallel) else "fsdp" if is_fsdp2(part) else "fsdp1"


class PrecisionWatch:
    """Learns the number format of a job's matrix products: from its parameters, and from autocast once it runs."""

    def __init__(self) -> None:
        self._autocast: str | None = None
        self._found: set[str | None] = set()  # formats of parameters
        self._on_cuda = False
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def watch(self, model: nn.Module) -> None:
        """Looks at autocast when the model is first called; nothing is left in the model then."""
        if unwrap(model) is model and not isinstance(model, ScriptModule):  # a hook would be compiled with the model
            device = infer_device([model])

            def look(module: nn.Module, inputs: object) -> None:
                handle.remove()
                self.look(device.type)

            handle = model.register_forward_pre_hook(look)
            self._hooks.append(handle)

    def look(self, device_type: str) -> None:
        """Looks at autocast now, where a model is called."""
        with contextlib.suppress(RuntimeError, TypeError):
            if torch.is_autocast_enabled(device_type):
                self._autocast = _PRECISIONS.get(torch.get_autocast_dtype(device_type))

    def learn(self, models: Sequence[nn.Module]) -> None:
        """Reads the number formats of the models that there are; without any, those of the last time count."""
        if models:
            self._found = {_PRECISIONS.get(dtype) for dtype in _list_dtypes(models)}
            self._on_cuda = infer_device(models).type == "cuda"

    def describe(self) -> str | None:
        """ "fp32", "tf32", "bf16" or "fp16". None: not known, or the models differ."""
        found = {self._autocast} if self._autocast else self._found
        if found == {"fp32"} and self._on_cuda and torch.backends.cuda.matmul.allow_tf32:
            return "tf32"
        return next(iter(found)) if len(found) == 1 else None

    def close(self) -> None:
        """Removes the hooks of models that were not called."""
        for handle in self._hooks:
            handle.remove()


def _list_dtypes(models: Sequence[nn.Module]) -> Iterator[torch.dtype]:
    """The dtypes in which parameters take part in products."""
    for model in models:
        for part in model.modules():
            policy = None
            with contextlib.suppress(AttributeError):
                policy = part._get_fsdp_state()._mp_policy.param_dtype  # type: ignore[operator]
            if policy is not None:
                yield policy
                return
        yield from {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}


def _list_targets(model: nn.Module) -> Iterator[torch.device]:
    """The devices to which the wrappers of FSDP and Accelerate bring what is kept on the host."""
    for part in model.modules():
        found = [
            getattr(part, "compute_device", None),
            getattr(getattr(part, "_hf_hook", None), "execution_device", None),
        ]
        with contextlib.suppress(AttributeError):
            found += [group.device for group in list_groups(part._get_fsdp_state())]  # type: ignore[operator]
        for device in found:
            with contextlib.suppress(RuntimeError, TypeError):  # no device, or one that this torch does not have
                yield torch.device(device)


def infer_device(models: Sequence[nn.Module]) -> torch.device:
    """Where the models compute: on the accelerator of any parameter or buffer, also if the others are kept on the host
    (offload), or on the one to which a wrapper brings them; else on the CPU. Without models, the GPU that holds most
    of the process's tensors, else the CPU.
    """
    held = [tensor.device for model in models for tensor in (*model.parameters(), *model.buffers())]
    for device in (*held, *(device for model in models for device in _list_targets(model))):
        if device.type not in ("cpu", "meta"):
            return device
    if any(device.type == "cpu" for device in held):
        return torch.device("cpu")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        current, numbers = torch.cuda.current_device(), range(torch.cuda.device_count())
        fullest = max(numbers, key=lambda number: (torch.cuda.memory_allocated(number), number == current))
        return torch.device("cuda", fullest)
    return torch.device("cpu")
