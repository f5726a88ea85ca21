"""In a step that is not recorded, further micro-steps are only counted: everything else is found as if it were."""

from __future__ import annotations

import gc
import io
import itertools
import random
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from distprof.observe.finder import Finder
from tests.observe.told import Told, make_model


class Counted(Told):
    """Also counts micro-steps; phases are left out, since only one of two kinds of steps has any."""

    def __init__(self, *, recording: bool) -> None:
        super().__init__()
        self.recording = recording

    def watch(self, model: Any) -> None:
        pass

    def see_call(self, model: Any) -> None:
        pass

    def enter(self, code: int) -> bool:
        return self.open and self.recording

    def exit(self, *, raised: bool = False) -> None:
        pass

    def see_micro_step(self) -> None:
        self.log.append("micro-step")


@contextmanager
def find(*, recording: bool) -> Iterator[tuple[Counted, Finder]]:
    told = Counted(recording=recording)
    finder = Finder(told)
    finder.begin()
    try:
        yield told, finder
    finally:
        finder.finish()
        finder.undo()


def run_program(seed: int) -> None:
    """A loop of a few micro-steps with what programs do between them, which depends on the seed only."""
    draw = random.Random(seed)
    models = [make_model() for _ in range(draw.choice([1, 1, 2]))]
    parts = [part for model in models for part in ([model] if draw.random() < 0.5 else [model[0], model[2]])]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
    loader = DataLoader(torch.ones(400, 4), batch_size=2)
    batches = iter(loader) if draw.random() < 0.5 else itertools.repeat(torch.ones(2, 4))
    unusual = draw.choice([0.0, 0.2])

    def do_something_else() -> None:
        what = draw.choice(["evaluate", "teacher", "save", "raise", "backward"])
        if what == "evaluate":
            model.eval()
            with torch.no_grad():
                model(next(batches))
            model.train()
        elif what == "teacher":
            with torch.no_grad():
                make_model()(torch.ones(2, 4))
        elif what == "save":
            torch.save({"a": 1}, io.BytesIO())
        elif what == "raise":
            with pytest.raises(RuntimeError):
                model(torch.ones(2, 7))
        else:
            model[0].weight.sum().backward()

    for _ in range(8):
        batch = next(batches)
        for optimizer in optimizers:
            for _ in range(draw.choice([1, 3, 4])):
                model = draw.choice(models)
                if draw.random() < unusual:
                    do_something_else()
                model(batch if draw.random() < 0.5 else next(batches)).sum().backward()
            if draw.random() > unusual:
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("seed", range(60))
def test_steps_and_micro_steps_are_the_same_recorded_or_not(seed: int) -> None:
    logs = []
    for recording in (True, False):
        with find(recording=recording) as (told, _):
            run_program(seed)
        logs.append(told.log)
    assert logs[0] == logs[1] and logs[0].count("micro-step") >= 8


def test_a_repeated_forward_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    with find(recording=False) as (told, finder):
        begin_forward = finder._search.begin_forward

        def look(*args: Any, **options: Any) -> bool:
            looked.append(args)
            return begin_forward(*args, **options)

        monkeypatch.setattr(finder._search, "begin_forward", look)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            for _ in range(4):
                model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert told.text == " ".join(["begin", *["micro-step"] * 4, "end"] * 3)
    assert len(looked) == 4 + 1 + 1, "in the first step nothing is known yet of its optimizer"


def test_a_model_of_an_unfinished_step_is_freed() -> None:
    with find(recording=False):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        model(torch.ones(2, 4)).sum().backward()
        known = weakref.ref(model)
        del model, optimizer
        gc.collect()
        assert known() is None
