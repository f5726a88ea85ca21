"""What one rank computes, seen from outside and the same way with and without distprof; and what is done to it.

Losses are what backwards begin with. At the end of the process parameters, buffers, the state of optimizers and random
number generators are read. A delay or a sudden end is put into the rank where the plan says.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from distprof.patching import after_import

RANK = 1
"""The rank that is slowed down or ended."""


def note_results() -> None:
    """Notes what this rank computes in ``result-RANK.json``, where `benchmarks.attach.job` says."""
    plan = json.loads(os.environ["ATTACH_BENCHMARK"])
    rank = int(os.environ["RANK"])
    notes = _Notes(Path(plan["folder"]) / f"result-{rank}.json", plan if rank == RANK else {})
    atexit.register(notes.write)  # before everybody else: called last
    after_import("torch", notes.install)


class _Notes:
    """Of one process; its children note nothing."""

    def __init__(self, path: Path, plan: dict[str, Any]) -> None:
        self._path, self._plan, self._pid = path, plan, os.getpid()
        self._losses: list[bytes] = []
        self._modules: list[Any] = []
        self._optimizers: list[Any] = []
        self._called: list[Any] = []  # of the class that is slowed down

    def install(self) -> None:
        """Right after torch was imported, so before distprof replaces anything."""
        import numpy as np
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook

        immortal = (self._modules, self._optimizers)  # torch may deadlock where the last reference to DDP goes
        random.seed(0)  # or plain and watched begin with different ones
        np.random.seed(0)
        for kept in immortal:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        _follow(torch.nn.Module, "__init__", lambda module, *args, **options: self._modules.append(module))
        _follow(torch.optim.Optimizer, "__init__", lambda made, *args, **options: self._optimizers.append(made))
        for name in ("backward", "grad"):
            _precede(torch.autograd, name, self._note_loss)
        if milliseconds := self._plan.get("data_ms"):
            from torch.utils.data._utils import fetch

            for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
                _precede(fetcher, "fetch", lambda *args, **options: time.sleep(milliseconds / 1000))
        if self._plan.get("module"):
            register_module_forward_pre_hook(self._slow_down)

    def _note_loss(self, *args: Any, **options: Any) -> None:
        import torch

        given = args[0] if args else options.get("tensors", options.get("outputs"))
        each = [given] if isinstance(given, torch.Tensor) else list(given or ())
        self._losses.append(b"".join(map(_read_bytes, each)))
        if len(self._losses) == self._plan.get("end_at"):
            _end(self._plan["end"])

    def _slow_down(self, module: Any, inputs: Any) -> None:
        """Before each module's call: finds the one to slow down when it is first called."""
        name, milliseconds = self._plan["module"]
        kind, _, number = name.partition(":")
        if type(module).__name__ == kind and not any(module is known for known in self._called):
            self._called.append(module)
            if len(self._called) == int(number or 0) + 1:
                module.forward = _precede_call(module.forward, lambda *args, **options: time.sleep(milliseconds / 1000))

    def write(self) -> None:
        """At the end of the process."""
        if os.getpid() != self._pid or "torch" not in sys.modules:
            return
        digests = {
            "losses": _digest(self._losses), "state": _digest(self._list_state()),
            "random": [_digest([part]) for part in _list_random()],
        }  # fmt: skip
        self._path.write_text(json.dumps(digests | {"num_losses": len(self._losses)}), encoding="utf-8")

    def _list_state(self) -> Iterable[bytes]:
        for module in self._modules:
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    yield name.encode()
                    yield _read_bytes(tensor)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield _read_bytes(parameter)
                    for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                        yield str(key).encode()
                        yield _read_bytes(value)


def _read_bytes(value: Any) -> bytes:
    import torch

    if not isinstance(value, torch.Tensor):
        return repr(value).encode() if isinstance(value, (int, float, bool)) else b""
    value = getattr(value, "_local_tensor", value).detach()
    if value.is_meta or value.layout is not torch.strided or type(value).__name__.startswith("Uninitialized"):
        return b""
    if not value.untyped_storage().size():
        return b"freed"
    return bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy())


def _list_random() -> Iterable[bytes]:
    import numpy as np
    import torch

    states = (np.random.get_state(), random.getstate())
    return (torch.get_rng_state().numpy().tobytes(), *(repr(state).encode() for state in states))


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _end(how: str) -> None:
    match how:
        case "raise":
            raise RuntimeError("out of data")
        case "exit":
            sys.exit(7)
        case _:
            os.kill(os.getpid(), signal.Signals[how])
            time.sleep(60)


def _precede(place: Any, name: str, action: Callable[..., object]) -> None:
    setattr(place, name, _precede_call(getattr(place, name), action))


def _precede_call(original: Callable[..., Any], action: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        action(*args, **options)
        return original(*args, **options)

    return call


def _follow(place: Any, name: str, action: Callable[..., object]) -> None:
    original = getattr(place, name)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        action(*args, **options)
        return result

    setattr(place, name, call)
