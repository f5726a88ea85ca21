"""The time of modules: of their calls in forward, and of the autograd nodes that they made in backward.

Each interval belongs to a path, and may lie inside another. What is not inside an inner one is its own; own times add
up. On a GPU, events on the current stream take the stamps, so that the times are the device's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distprof.modules.calls import OUTSIDE, ModuleCalls, ModulePass, list_tensors


class _Interval:
    __slots__ = ("begin", "end", "inside", "path", "stage")

    def __init__(self, path: int, stage: ModulePass, begin: Any, inside: _Interval | None) -> None:
        self.path, self.stage, self.begin, self.inside = path, stage, begin, inside
        self.end: Any = None


class ModuleTimer:
    """Times the calls and the backward of modules, pass by pass."""

    def __init__(self, device: torch.device) -> None:
        """By the host's clock on a CPU, by the device's on a GPU."""
        self.clock = "device" if device.type == "cuda" else "host"
        self._stamp: Callable[[], Any] = _record_event if self.clock == "device" else time.perf_counter_ns
        self._open = threading.local()
        self._intervals: list[_Interval] = []
        self._handles: list[Any] = []

    def enter(self, path: int, stage: ModulePass, module: nn.Module, inputs: Any, output: Any) -> None:
        """A module's call begins."""
        self._begin(path, stage)

    def exit(self, path: int, stage: ModulePass, module: nn.Module, inputs: Any, output: Any) -> None:
        """A module's call ends."""
        self._finish()

    def watch_backward(self, calls: ModuleCalls, output: Any) -> None:
        """Times the nodes that modules made on the way to these outputs."""
        pending = [tensor.grad_fn for tensor in list_tensors(output) if tensor.grad_fn is not None]
        seen = set(pending)
        while pending:
            node: Any = pending.pop()
            path = calls.look_up_maker(node)
            if path != OUTSIDE:
                self._watch_node(node, path)
            following = {inner for inner, _ in node.next_functions if inner is not None} - seen
            seen |= following
            pending += following

    def take(self) -> dict[tuple[int, ModulePass], float]:
        """Own time since the last call, ns, by path and stage. Waits for the device."""
        if self.clock == "device":
            torch.cuda.synchronize()
        intervals = [each for each in self.drop() if each.end is not None]
        own_ns: dict[tuple[int, ModulePass], float] = {}
        for each in intervals:
            length_ns = self._measure(each)
            own_ns[each.path, each.stage] = own_ns.get((each.path, each.stage), 0.0) + length_ns
            if each.inside is not None and each.inside.end is not None:
                outer = each.inside.path, each.inside.stage
                own_ns[outer] = own_ns.get(outer, 0.0) - length_ns
        return own_ns

    def drop(self) -> list[_Interval]:
        """Forgets what was seen since the last call of `take`, without waiting for the device, and returns it."""
        for handle in self._handles:
            handle.remove()
        intervals, self._handles, self._intervals = self._intervals, [], []
        self._open = threading.local()
        return intervals

    def _measure(self, interval: _Interval) -> float:
        if self.clock == "device":
            return float(interval.begin.elapsed_time(interval.end)) * 1e6
        return float(interval.end - interval.begin)

    def _watch_node(self, node: Any, path: int) -> None:
        self._handles += [
            node.register_prehook(lambda gradients: self._begin(path, ModulePass.BACKWARD)),
            node.register_hook(lambda inputs, outputs: self._finish()),
        ]

    def _begin(self, path: int, stage: ModulePass) -> None:
        inside: _Interval | None = getattr(self._open, "interval", None)
        interval = self._open.interval = _Interval(path, stage, self._stamp(), inside)
        self._intervals.append(interval)

    def _finish(self) -> None:
        interval: _Interval | None = getattr(self._open, "interval", None)
        if interval is not None:
            interval.end = self._stamp()
            self._open.interval = interval.inside


def _record_event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
