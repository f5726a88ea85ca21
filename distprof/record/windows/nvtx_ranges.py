"""Phases and modules as NVTX ranges, for external tools.

Domain `OWN_DOMAIN`, one category per phase, the step number as payload and never in the message. Nothing is created
unless a tool listens, so it costs nothing otherwise. The module-level functions of the ``nvtx`` package are used,
because its domain objects differ between releases.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from distprof.compiling import is_compiling
from distprof.facts.range_names import OWN_DOMAIN, OWN_MEASURED
from distprof.facts.run import PHASES


def tool_listens(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a tool such as Nsight Systems has injected itself into NVTX, which this variable announces."""
    return bool(environment.get("NVTX_INJECTION64_PATH"))


class NvtxRanges:
    """Pushes and pops ranges. Safe on any thread: marks that may end on another thread are start/end ranges."""

    def __init__(self, *, rank: int, world_size: int, host: str, pid: int) -> None:
        """Names the rank with a mark, which identifies it in a capture of several processes."""
        import nvtx

        self._nvtx = nvtx
        self._step = 0
        self._depth = 0
        self._open_mark: Any = None
        self._measured: Any = None
        self._name = f"rank={rank} world={world_size} host={host} pid={pid}"
        self.name_rank()

    def name_rank(self) -> None:
        """Marks this process's rank: once at the start, and again inside a capture that begins later."""
        self._nvtx.mark(self._name, domain=OWN_DOMAIN, category="meta")

    def begin_measured(self) -> None:
        """Opens the range over the measured steps."""
        self._measured = self._nvtx.start_range(OWN_MEASURED, domain=OWN_DOMAIN, category="meta")

    def end_measured(self) -> None:
        """Closes the range over the measured steps, if it is open."""
        if self._measured is not None:
            self._nvtx.end_range(self._measured)
            self._measured = None

    def step(self, step: int) -> None:
        """Opens the range of a step."""
        self._step, self._depth = step, 0
        self._nvtx.push_range("step", domain=OWN_DOMAIN, category="step", payload=step)

    def enter(self, code: int) -> None:
        """Opens the range of a phase."""
        self._depth += 1
        self._nvtx.push_range(PHASES[code].value, domain=OWN_DOMAIN, category=PHASES[code].value, payload=self._step)

    def exit(self) -> None:
        """Closes the range of a phase, and a mark left open inside it."""
        self.end_mark()
        if self._depth > 0:
            self._depth -= 1
            self._nvtx.pop_range(domain=OWN_DOMAIN)

    def error(self, code: int) -> None:
        """Marks the open phase with ``error``, in its category: left by an exception, or left open."""
        self._nvtx.mark("error", domain=OWN_DOMAIN, category=PHASES[code].value, payload=self._step)

    def begin_mark(self, code: int) -> None:
        """Opens the range of exposed communication inside a phase."""
        self.end_mark()
        name = PHASES[code].value
        self._open_mark = self._nvtx.start_range(name, domain=OWN_DOMAIN, category=name, payload=self._step)

    def end_mark(self) -> None:
        """Closes the range that `begin_mark` opened, if it is open."""
        if self._open_mark is not None:
            self._nvtx.end_range(self._open_mark)
            self._open_mark = None

    def end_step(self) -> None:
        """Closes whatever the step left open, and the step."""
        while self._depth > 0:
            self.exit()
        self._nvtx.pop_range(domain=OWN_DOMAIN)

    def begin_stretch(self, name: str) -> None:
        """Opens the range of a stretch between two steps; its payload is the step before."""
        self._nvtx.push_range(name, domain=OWN_DOMAIN, category=name, payload=self._step)

    def end_stretch(self) -> None:
        """Closes the range of a stretch."""
        self._nvtx.pop_range(domain=OWN_DOMAIN)

    def module_hooks(self, name: str) -> tuple[Any, Any]:
        """A forward pre-hook and a forward hook that show a module as a range called ``name``.

        The forward hook may be called alone, for example if the module raises before its forward. Both do nothing while
        torch compiles a function that calls the module: they leave its graph whole.
        """
        opened: list[int] = []  # thread ids: a recomputed forward runs on an autograd thread

        def open_range(*_: Any) -> None:
            if is_compiling():
                return
            opened.append(threading.get_ident())
            self._nvtx.push_range(name, domain=OWN_DOMAIN, category="module", payload=self._step)

        def close_range(*_: Any) -> None:
            if is_compiling():
                return
            if threading.get_ident() in opened:
                opened.remove(threading.get_ident())
                self._nvtx.pop_range(domain=OWN_DOMAIN)

        return open_range, close_range


def show_modules(model: nn.Module, ranges: NvtxRanges, *, depth: int) -> None:
    """Shows every call of a module inside a model as a range with its name.

    A compiled module is one range, and nothing below it is shown: hooks there would cut its graph.

    Args:
        model: Unwrapped; it has no range itself.
        ranges: This rank's.
        depth: How deep modules lie at most; 1: the model's own children.
    """
    below: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(below):
            continue
        compiled = getattr(module, "_compiled_call_impl", None)
        if compiled is not None or type(module).__name__ == "OptimizedModule":
            below += (f"{name}." if name else "",)
        if not name or name.count(".") >= depth:
            continue
        before, after = ranges.module_hooks(name)
        if compiled is not None:  # by ``module.compile()``, which compiles the module's hooks too
            module._compiled_call_impl = _surround(compiled, before, after)
        else:
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after, always_call=True)


def _surround(call: Callable[..., Any], before: Callable[[], None], after: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(call)
    def surrounded(*args: Any, **options: Any) -> Any:
        before()
        try:
            return call(*args, **options)
        finally:
            after()

    return surrounded
