"""The fire drill: one rank is disturbed in a phase or a module, and the report, which does not know, must find it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from distprof.config.schema import InjectConfig
from distprof.facts.run import Phase

WARM_CYCLES = 20_000_000
"""About 10 ms: an idle GPU first raises its clock."""
TIMED_CYCLES = 100_000_000


class InjectedFailure(RuntimeError):
    """Raised by ``inject.action=fail``."""


def make_injection(
    config: InjectConfig, rank: int, module: nn.Module | None = None, *, device: torch.device | None = None
) -> Callable[[Phase, int], None]:
    """What the loop calls at the start of each phase, with the phase and the step; does nothing on other ranks.

    Synchronises on the affected rank if its device is to be late.

    Args:
        config: What happens, and when.
        rank: This rank.
        module: Where it happens: at the begin of its next forward. None: at the begin of the phase.
        device: The rank's, for ``inject.where=device``.
    """
    if config.rank != rank:
        return lambda phase, step: None
    suffers = Phase(config.phase) if module is None else Phase.FORWARD
    where = str(suffers) if module is None else str(config.module)
    delay: Callable[[], None] = partial(time.sleep, config.delay_ms / 1e3)
    if config.where == "device" and config.action == "delay":
        assert device is not None
        delay = make_device_delay(device, config.delay_ms)

    def inject(phase: Phase, step: int) -> None:
        if phase is not suffers or step < config.from_step:
            return
        if module is None:
            _strike(config, delay, f"{where} of step {step}")
            return

        def strike_once(*call: object) -> None:
            handle.remove()
            _strike(config, delay, f"{where} of step {step}")

        handle = module.register_forward_pre_hook(strike_once)

    return inject


def _strike(config: InjectConfig, delay: Callable[[], None], where: str) -> None:
    if config.action == "delay":
        delay()
    elif config.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise InjectedFailure(f"inject.action=fail on rank {config.rank} in {where}")


def make_device_delay(device: torch.device, delay_ms: float) -> Callable[[], None]:
    """Measures the device's clock and returns what delays its current stream. Synchronises; call it before training.

    A delay on the host is hidden from a GPU whose host runs ahead of it. `torch.cuda._sleep` spins for a number of the
    device's clock cycles, so that the device is late and the host is not.

    Args:
        device: A GPU.
        delay_ms: How long; as exact as the device's clock is steady.
    """
    cycles = round(delay_ms * _measure_cycles_per_ms(device))

    def delay() -> None:
        if cycles > 0:
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    return delay


def _measure_cycles_per_ms(device: torch.device) -> float:
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(WARM_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        torch.cuda._sleep(TIMED_CYCLES)  # type: ignore[no-untyped-call]
        end.record()
        end.synchronize()
        elapsed_ms: float = start.elapsed_time(end)
    return TIMED_CYCLES / elapsed_ms
