"""A W&B that does not answer: what it did not get is said, and nobody waits for it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.config.schema import WandbConfig
from distprof.facts.run import Run
from distprof.record.gather import background_consumer
from distprof.render.wandb import wandb_thread
from distprof.render.wandb.wandb_log import WandbLogger
from distprof.render.wandb.wandb_thread import WandbThread
from tests.factories import make_run

CONFIG = WandbConfig(name="wandb", project="test", entity=None, group=None, mode="offline", init_timeout_s=1e6)


class SilentWandb:
    """A wandb that never comes back from one of its calls."""

    offline, summary = True, SimpleNamespace(update=lambda told: None)
    Settings = Table = SimpleNamespace

    def Image(self, *_: Any, **__: Any) -> None:  # noqa: N802
        """Takes it."""

    def __init__(self, place: str, folder: Path) -> None:
        self.place, self.logged, self.dir = place, 0, str(folder / "run" / "files")

    def init(self, **_: Any) -> SilentWandb:
        self.call("init")
        return self

    def call(self, place: str) -> None:
        if place == self.place:
            threading.Event().wait()

    def define_metric(self, *_: Any, **__: Any) -> None:
        """Takes it."""

    def log(self, told: dict[str, Any]) -> None:
        self.logged += "step" in told
        if "ranks_by_phase" in told:
            self.call("table")
        if self.logged > 2:
            self.call("log")

    def status(self) -> None:
        if self.logged > 2:
            self.call("status")

    def finish(self) -> None:
        self.call("finish")

    def teardown(self) -> None:
        self.call("teardown")


def log_whole_run(run: Run, folder: Path) -> tuple[str | None, list[str]]:
    """Its steps in two parts; what W&B missed, and what was said."""
    said: list[str] = []
    wandb = WandbThread(meta=run.meta, config=CONFIG, folder=folder, print_line=said.append)
    wandb.start()
    wandb.enqueue(run.rows[:, :2])
    wandb.enqueue(run.rows[:, 2:])
    return wandb.finish(analyze(run), run), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "missed"),
    [
        ("init", "W&B did not get 5 of 5 steps and the tables and the summary: it gave no answer in time"),
        ("log", "W&B did not get 3 of 5 steps and the tables and the summary: it gave no answer in time"),
        ("status", "W&B did not get 3 of 5 steps and the tables and the summary: it gave no answer in time"),
        ("table", "W&B did not get the tables and the summary: it gave no answer in time"),
        ("finish", None),
        ("teardown", None),
        ("nowhere", None),
    ],
)
def test_fault_31_wherever_wandb_blocks_the_end_of_the_job_is_bounded_and_says_what_is_missing(
    place: str, missed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SilentWandb(place, tmp_path))  # type: ignore[arg-type]
    for module, name in ((background_consumer, "CALL_LIMIT_S"), (wandb_thread, "INIT_GRACE_S")):
        monkeypatch.setattr(module, name, 1.0)
    monkeypatch.setattr(wandb_thread, "FINISH_TIMEOUT_S", 1e6)  # for an upload, and nothing is uploaded here
    note, said = log_whole_run(make_run(num_steps=5), tmp_path)
    assert note == missed
    if missed is not None:
        assert said[-1] == f"wandb: {missed}; {tmp_path} holds everything"
    elif place != "nowhere":
        assert said[-1] == f"wandb: the upload is not done after 1 s; later: wandb sync {tmp_path / 'run'}"
    else:
        assert len(said) == 1 and said[0].startswith("wandb: offline")


def test_fault_10_a_run_that_could_not_be_opened_is_missing_and_one_that_nobody_wanted_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = SilentWandb("nowhere", tmp_path)
    monkeypatch.setattr(broken, "init", lambda **_: 1 / 0)
    monkeypatch.setitem(sys.modules, "wandb", broken)  # type: ignore[arg-type]
    note, said = log_whole_run(make_run(num_steps=5), tmp_path)
    assert note == "W&B did not get 5 of 5 steps and the tables and the summary" and len(said) == 2
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(sys.modules[__name__], "CONFIG", structs.replace(CONFIG, mode="auto"))
    assert log_whole_run(make_run(num_steps=5), tmp_path) == (None, ["wandb: disabled by WANDB_MODE"])


def test_fault_10_what_wandb_refuses_is_missing_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SilentWandb("nowhere", tmp_path))  # type: ignore[arg-type]

    def refuse(logger: WandbLogger, rows: object) -> None:
        raise RuntimeError("key=canary is wrong")

    monkeypatch.setattr(WandbLogger, "_log", refuse)
    note, said = log_whole_run(make_run(num_steps=5), tmp_path)
    assert note == "W&B did not get 5 of 5 steps and the tables and the summary" and "canary" not in str(said)
    assert said[1] == "wandb: logging stopped, RuntimeError; the run folder holds everything"
