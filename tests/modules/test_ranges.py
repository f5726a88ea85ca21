"""Annotations around calls of modules: in order, closed after an error, gone afterwards, none inside of compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distprof.modules import ranges
from distprof.modules.ranges import ModuleRanges
from tests.fakes import FakeAnnotation


class Fails(nn.Module):
    def forward(self, given: Tensor) -> Tensor:
        raise ValueError("on purpose")


@pytest.fixture
def annotations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeAnnotation.log, FakeAnnotation.open = [], []
    monkeypatch.setattr(ranges, "record_function", FakeAnnotation)
    return FakeAnnotation.log


def label(*names: str) -> list[str]:
    return [f"/distprof.module.{name[1:]}" if name[0] == "/" else f"distprof.module.{name}" for name in names]


def is_clean(model: nn.Module) -> bool:
    return not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_each_call_is_annotated_inside_its_caller_and_nothing_stays(annotations: list[str]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    with ModuleRanges(model):
        model(torch.ones(1, 2))
    inside = ("0:Linear", "/0:Linear", "1:Sequential", "1.0:ReLU", "/1.0:ReLU", "/1:Sequential")
    assert annotations == label(":Sequential", *inside, "/:Sequential")
    model(torch.ones(1, 2))
    assert len(annotations) == 8 and is_clean(model)


def test_an_error_closes_what_is_open(annotations: list[str]) -> None:
    model = nn.Sequential(nn.Sequential(Fails()))
    with ModuleRanges(model):
        with pytest.raises(ValueError, match="on purpose"):
            model(torch.ones(1))
        assert annotations[3:] == label("/0.0:Fails", "/0:Sequential", "/:Sequential") and not FakeAnnotation.open
    assert is_clean(model)


def test_a_compiled_module_is_annotated_as_a_whole_and_said(annotations: list[str]) -> None:
    model: Any = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU())

    def call(given: Tensor) -> Tensor:
        return given + 1

    model[0]._compiled_call_impl = call  # as model[0].compile() sets it
    notes: list[str] = []
    with ModuleRanges(model, notes.append):
        assert model(torch.ones(1)).item() == 2
        assert not model[0][0]._forward_hooks and not model[0]._forward_hooks  # they would be compiled
    expected = ("0:Sequential", "/0:Sequential", "1:ReLU", "/1:ReLU")
    assert annotations == label(":Sequential", *expected, "/:Sequential")
    assert model[0]._compiled_call_impl is call and is_clean(model)
    assert notes == [
        "compiled modules (1) are annotated as a whole: what runs inside counts for them, not for their submodules"
    ]
