"""The fire drill: one rank is disturbed in a phase or a module, and the report, which does not know, must find it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import torch
from torch import nn

from distprof.config.schema import InjectConfig
from distprof.facts.run import Phase
from distprof.train.device_delay import make_device_delay


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
    delay = _make_host_delay(config)
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


def _make_host_delay(config: InjectConfig) -> Callable[[], None]:
    return lambda: time.sleep(config.delay_ms / 1e3)


def _strike(config: InjectConfig, delay: Callable[[], None], where: str) -> None:
    if config.action == "delay":
        delay()
    elif config.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise InjectedFailure(f"inject.action=fail on rank {config.rank} in {where}")
