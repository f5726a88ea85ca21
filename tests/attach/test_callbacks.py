"""No error in a callback of distprof's reaches the training, whatever release of the framework calls it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distprof.attach.framework_loop import FrameworkLoop
from distprof.errors import UsageError

CALLBACKS = {
    "lightning": ("LightningCallback", "on_fit_start"),
    "transformers": ("TransformersCallback", "on_train_begin"),
}


class Framework:
    """What a release hands to callbacks, which has nothing that is looked for."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this release has no {name}")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise TypeError("this release has slots")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) for name in CALLBACKS])
def callback(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip(request.param)
    monkeypatch.chdir(tmp_path)
    return getattr(importlib.import_module(f"distprof.attach.{request.param}"), CALLBACKS[request.param][0])


def begin(made: Any) -> None:
    names = [name for _, name in CALLBACKS.values() if name in vars(type(made))]
    call(getattr(made, *names))


def call(method: Callable[..., Any]) -> None:
    """With an empty framework for everything that it must have."""
    needed = [each for each in inspect.signature(method).parameters.values() if each.default is each.empty]
    method(*(Framework() for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD))


def test_what_a_release_does_not_have_costs_a_sentence(callback: Any, capfd: pytest.CaptureFixture[str]) -> None:
    made = callback("mine")
    names = [name for name in vars(callback) if name.startswith("on_") or name == "teardown"]
    assert len(names) >= 9
    for name in names:  # without a session
        call(getattr(made, name))
    begin(made)
    for _ in range(3):
        for name in names:
            call(getattr(made, name))
    assert f"distprof: {callback.__name__}.on_" in capfd.readouterr().err


def test_an_option_of_ours_is_refused_when_training_begins(callback: Any) -> None:
    with pytest.raises(UsageError, match="warmup_steps"):
        begin(callback("mine", warmup_steps=-1))


def test_errors_of_a_script_that_extends_a_callback_are_its_own(callback: Any) -> None:
    def raise_error(*arguments: Any) -> None:
        raise ValueError("the script's")

    extended = type("Extended", (callback,), {"on_save": raise_error})
    with pytest.raises(ValueError, match="the script's"):
        extended("mine").on_save()


def test_a_loop_whose_session_fails_goes_on() -> None:
    told: list[str] = []

    class Broken:
        open = property(lambda self: 1 / 0)

        def warn_once(self, text: str) -> None:
            told.append(text)

    loop = FrameworkLoop(Broken())  # type: ignore[arg-type]
    loop.begin_step()
    loop.end_step()
    loop.begin_stretch("evaluation")
    assert [text.split(" was")[0] for text in told] == ["begin_step", "end_step", "leave", "begin_stretch"]
