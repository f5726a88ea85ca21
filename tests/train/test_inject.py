"""The fire drill strikes the named rank in the named phase from the named step, and nobody else."""

from __future__ import annotations

import os
import signal

import pytest

from distprof.config.schema import InjectConfig
from distprof.facts.run import Phase
from distprof.train import inject as module
from distprof.train.inject import InjectedFailure, make_injection


def make_config(**changes: object) -> InjectConfig:
    values: dict[str, object] = {"rank": 1, "phase": "data", "delay_ms": 250.0, "from_step": 2, "action": "delay"}
    return InjectConfig(**{**values, **changes})  # type: ignore[arg-type]


def test_a_delay_strikes_once_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    for rank in range(3):
        strike = make_injection(make_config(), rank)
        for step in range(4):
            for phase in Phase:
                strike(phase, step)
    assert slept == [0.25, 0.25]  # rank 1, data, steps 2 and 3


def test_without_a_rank_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: pytest.fail("slept"))
    make_injection(make_config(rank=None), 0)(Phase.DATA, 5)


def test_a_failure_names_its_place() -> None:
    with pytest.raises(InjectedFailure, match="rank 1 in backward of step 2"):
        make_injection(make_config(action="fail", phase="backward"), 1)(Phase.BACKWARD, 2)


def test_a_kill_is_sigkill(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(module.os, "kill", lambda pid, number: killed.append((pid, number)))
    make_injection(make_config(action="kill"), 1)(Phase.DATA, 2)
    assert killed == [(os.getpid(), signal.SIGKILL)]
