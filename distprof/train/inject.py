"""The fire drill: one rank is disturbed in one phase, and the report, which knows nothing of it, must find it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from distprof.config.schema import InjectConfig
from distprof.facts.run import Phase


class InjectedFailure(RuntimeError):
    """Raised by ``inject.action=fail``."""


def make_injection(config: InjectConfig, rank: int) -> Callable[[Phase, int], None]:
    """What the loop calls at the start of each phase, with the phase and the step; does nothing on other ranks."""
    if config.rank != rank:
        return lambda phase, step: None
    suffers = Phase(config.phase)

    def inject(phase: Phase, step: int) -> None:
        if phase is not suffers or step < config.from_step:
            return
        if config.action == "delay":
            time.sleep(config.delay_ms / 1e3)
        elif config.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise InjectedFailure(f"inject.action=fail on rank {rank} in {phase} of step {step}")

    return inject
