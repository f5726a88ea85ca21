"""The fire drill: one rank is disturbed in a phase or a module, and the report, which does not know, must find it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from torch import nn

from distprof.config.schema import InjectConfig
from distprof.facts.run import Phase


class InjectedFailure(RuntimeError):
    """Raised by ``inject.action=fail``."""


def make_injection(config: InjectConfig, rank: int, module: nn.Module | None = None) -> Callable[[Phase, int], None]:
    """What the loop calls at the start of each phase, with the phase and the step; does nothing on other ranks.

    Args:
        config: What happens, and when.
        rank: This rank.
        module: Where it happens: at the begin of its next forward. None: at the begin of the phase.
    """
    if config.rank != rank:
        return lambda phase, step: None
    suffers = Phase(config.phase) if module is None else Phase.FORWARD
    where = str(suffers) if module is None else str(config.module)

    def inject(phase: Phase, step: int) -> None:
        if phase is not suffers or step < config.from_step:
            return
        if module is None:
            _strike(config, f"{where} of step {step}")
            return

        def strike_once(*call: object) -> None:
            handle.remove()
            _strike(config, f"{where} of step {step}")

        handle = module.register_forward_pre_hook(strike_once)

    return inject


def _strike(config: InjectConfig, where: str) -> None:
    if config.action == "delay":
        time.sleep(config.delay_ms / 1e3)
    elif config.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise InjectedFailure(f"inject.action=fail on rank {config.rank} in {where}")
