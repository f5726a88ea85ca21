"""DeepSpeed's engine, by one that does as little: the real one is in tests/attach/test_frameworks.py."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from distprof.observe.finder import Finder
from tests.observe.told import Told

ENGINE = """\
import torch

class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, module, optimizer):
        super().__init__()
        self.module, self.basic_optimizer, self.micro_steps = module, optimizer, 0

    def forward(self, batch):
        return self.module(batch)

    def step(self):
        self.micro_steps += 1
        if self.micro_steps % 2 == 0:
            self._take_model_step()

    def _take_model_step(self):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        groups = self.basic_optimizer.param_groups
        for group in groups:  # as ZeRO does
            self.basic_optimizer.param_groups = [group]
            self.basic_optimizer.step()
        self.basic_optimizer.param_groups = groups
        self.zero_grad()
"""


@pytest.fixture
def _importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "deepspeed" / "runtime").mkdir(parents=True)
    for path, text in (("__init__.py", ""), ("runtime/__init__.py", ""), ("runtime/engine.py", ENGINE)):
        (tmp_path / "deepspeed" / path).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "deepspeed"}
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "deepspeed"]:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("imported", [False, True])
def test_an_update_is_one_optimizer_step(imported: bool) -> None:
    if imported:
        importlib.import_module("deepspeed.runtime.engine")
    told, places = Told(), list(sys.meta_path)
    finder = Finder(told)
    finder.begin()
    DeepSpeedEngine = importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine  # noqa: N806
    update = DeepSpeedEngine._take_model_step
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1)
    engine = DeepSpeedEngine(model, optimizer)
    for _ in range(4):
        engine(torch.ones(3, 2)).sum().backward()
        engine.step()
    micro_step = "forward / backward /"
    assert told.text == " ".join([f"begin {micro_step} {micro_step} optimizer / end"] * 2)
    finder.finish()
    finder.undo()
    assert DeepSpeedEngine._take_model_step is not update and sys.meta_path == places


@pytest.mark.usefixtures("_importable")
def test_nothing_waits_for_deepspeed_after_the_end() -> None:
    told, places = Told(), list(sys.meta_path)
    finder = Finder(told)
    finder.begin()
    assert sys.meta_path != places
    finder.undo()
    assert sys.meta_path == places
