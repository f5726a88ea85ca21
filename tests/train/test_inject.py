"""The fire drill strikes the named rank in the named phase from the named step, and nobody else."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
import torch
from torch import nn

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


def test_a_module_suffers_once_a_step_in_its_forward_and_keeps_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    strike = make_injection(make_config(module="1"), 1, model[1])
    assert make_injection(make_config(module="1"), 0, model[1])(Phase.FORWARD, 5) is None
    for step in range(4):
        for phase in Phase:
            strike(phase, step)
            for _ in range(2 * (phase is Phase.FORWARD)):  # two micro-steps
                before = len(slept)
                model[0](torch.ones(2))
                assert len(slept) == before
                model[1](torch.ones(2))
    assert slept == [0.25, 0.25]  # steps 2 and 3
    assert not any(each._forward_pre_hooks for each in model.modules())


def test_a_failure_in_a_module_names_it() -> None:
    model = nn.Linear(2, 2)
    make_injection(make_config(action="fail", module="blocks.1"), 1, model)(Phase.FORWARD, 2)
    with pytest.raises(InjectedFailure, match=r"rank 1 in blocks\.1 of step 2"):
        model(torch.ones(2))


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


class FakeEvent:
    """An event of a pretended GPU, whose clock advances by what it sleeps: a million cycles per ms."""

    spun: list[int]

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self._at = 0

    def record(self) -> None:
        self._at = sum(self.spun)

    def synchronize(self) -> None:
        self.spun.append(0)

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other._at - self._at) / 1e6


def test_a_delay_on_the_device_spins_there_for_as_long_and_the_host_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    spun: list[int] = []
    FakeEvent.spun = spun
    monkeypatch.setattr(module.time, "sleep", lambda seconds: pytest.fail("slept"))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "_sleep", spun.append)
    device = torch.device("cuda", 0)
    make_injection(make_config(where="device"), 0, device=device)
    make_injection(make_config(where="device", action="fail"), 1, device=device)
    assert spun == []  # another rank, and what is no delay, measure nothing
    strike = make_injection(make_config(where="device"), 1, device=device)
    spun.clear()
    for step in range(4):
        for phase in Phase:
            strike(phase, step)
    assert spun == [250_000_000] * 2  # steps 2 and 3
