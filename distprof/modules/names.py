"""The modules of a model, by the names that they have without wrappers."""

from __future__ import annotations

from msgspec import Struct, field
from torch import nn

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module"})
"""Parts of a name that torch.compile, checkpoint_wrapper, FSDP and Accelerate add."""
COMPILED = "OptimizedModule"
"""The class of what ``torch.compile(module)`` returns."""
HOLDERS = frozenset({"DistributedDataParallel", "DataParallel", COMPILED, "FullyShardedDataParallel"})
"""Classes that hold a model in an attribute and add nothing of their own."""


class NamedModule(Struct):
    """One module of a model."""

    module: nn.Module
    name: str
    parent: int | None
    depth: int
    aliases: list[str] = field(default_factory=list)


def unwrap(module: nn.Module) -> nn.Module:
    """The user's module inside DDP, FSDP1, torch.compile and wrappers for checkpointing."""
    while type(module).__name__ in HOLDERS or not WRAPPERS.isdisjoint(module._modules.keys()):
        inner = next((each for each in module._modules.values() if each is not None), None)
        if inner is None:
            break
        module = inner
    return module


def is_compiled(module: nn.Module) -> bool:
    """By ``torch.compile(module)``, or by ``module.compile()``."""
    return type(module).__name__ == COMPILED or module._compiled_call_impl is not None


def list_modules(model: nn.Module) -> list[NamedModule]:
    """Every module once, each before its submodules, under its first name; the model itself is named "".

    Wrappers inside the model have no row. What they do counts for the module that holds them.
    """
    found: list[NamedModule] = []
    rows: dict[nn.Module, int] = {}
    root = unwrap(model)
    pending: list[tuple[nn.Module, str, int | None, int]] = [(root, "", None, 0)]
    while pending:
        module, name, parent, depth = pending.pop()
        if module in rows:
            found[rows[module]].aliases.append(name)
            continue
        rows[module] = row = len(found)
        found.append(NamedModule(module=module, name=name, parent=parent, depth=depth))
        pending += [
            (child, f"{name}.{part}".lstrip("."), row, depth + 1) for part, child in reversed(_list_children(module))
        ]
    return found


def _list_children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """By name; in place of a wrapper what it wraps."""
    return [(part, unwrap(child)) for part, child in module._modules.items() if child is not None]
