"""Callbacks in the real frameworks, on two ranks: the same losses, the right steps, the slow rank named."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.facts.run import PHASES, Run
from distprof.traces.load_run import load_run
from tests.faults.forked import make_rank, run
from tests.ranks import find_ports


class Framework(NamedTuple):
    """A program of the framework, and what is to be found in it."""

    program: str
    option: str
    """Which tells the program to use what distprof has for the framework, and its folder."""
    short: tuple[str, str]
    """Fewer steps, for what is slow."""
    stretches: dict[str, list[int]]
    """By stretch, the steps before which there is one."""
    page: str
    """Which has a recipe for it."""
    given: str
    """What the recipe leaves to its reader."""
    tokens: int = 0
    """In each step."""
    clips: bool = True
    """Whether clipping is a phase of its own."""


GIVEN_TRANSFORMERS = """\
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2))
dataset = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 96
args = TrainingArguments("out", max_steps=6, use_cpu=True, ddp_backend="gloo", report_to="none", save_strategy="no")
"""
GIVEN_LIGHTNING = """\
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
model, loader = BoringModel(), torch.utils.data.DataLoader(torch.randn(64, 32), batch_size=4)
"""
GIVEN_ACCELERATE = """\
import os, torch
os.environ["ACCELERATE_USE_CPU"] = "true"  # as `accelerate launch --cpu` does
from accelerate import Accelerator
model, loader = torch.nn.Linear(32, 2), torch.utils.data.DataLoader(torch.randn(48, 32), batch_size=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
GIVEN_DEEPSPEED = """\
import deepspeed, torch
model, loader = torch.nn.Linear(32, 2), torch.utils.data.DataLoader(torch.randn(24, 32), batch_size=4)
adam = {"type": "AdamW", "params": {"torch_adam": True}}
config = {"train_micro_batch_size_per_gpu": 4, "optimizer": adam, "zero_optimization": {"stage": 1}}
"""
ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = {
    "transformers": Framework(
        "trainer", "--callback", ("--steps", "24"),
        {"evaluation": [20, 40], "checkpoint": [20, 40], "logging": [*range(1, 50)]},
        "README.md", GIVEN_TRANSFORMERS, tokens=2 * 2 * 8,
    ),
    "lightning": Framework(
        "lightning_fit", "--callback", ("--steps", "24"),
        {"evaluation": [10, 22, 34, 46], "checkpoint": [10, 20, 30, 40]},
        "docs/api.md", GIVEN_LIGHTNING,
    ),
    "accelerate": Framework(
        "accelerate_loop", "--tracker", ("--epochs", "3"),
        {"evaluation": [10, 20, 30, 40], "checkpoint": [10, 20, 30, 40]},
        "docs/api.md", GIVEN_ACCELERATE,
    ),
    "deepspeed": Framework(
        "deepspeed_engine", "--engine", ("--steps", "24"), {"checkpoint": [20]}, "docs/api.md", GIVEN_DEEPSPEED,
        clips=False,
    ),
}  # fmt: skip
STRETCHES = ("evaluation", "checkpoint", "logging")
SLOW = {"1": "25"}
"""ms for each sample, on rank 1 only."""


class Trained(NamedTuple):
    """What a framework's runs have left."""

    name: str
    framework: Framework
    folder: Path
    ranks: list[dict[str, Any]]

    def read(self, name: str) -> Run:
        """The run folder of one of them."""
        return load_run(self.folder / name)


pytestmark = pytest.mark.first


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in FRAMEWORKS])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"needs {request.param}: see CONTRIBUTING.md")
    framework, folder = FRAMEWORKS[request.param], tmp_path_factory.mktemp(request.param)
    script = folder / "recipe.py"
    script.write_text(framework.given + read_recipe(request.param), encoding="utf-8")
    runs: dict[str, dict[str, Any]] = {
        "plain": {}, "told": {"arguments": [framework.option, str(folder / "told")]},
        "slow": {"arguments": [framework.option, str(folder / "slow"), *framework.short], "disk_ms": SLOW},
        "attached": {
            "watched": True,
            "overrides": [f"run_dir={folder / 'attached'}", "profile.shadow_every=0", "warmup_steps=1"],
        },
        "recipe": {"program": str(script.with_suffix(""))},
    }  # fmt: skip
    ports = find_ports(len(runs) + 1)
    common = {
        "program": framework.program, "arguments": [], "watched": False, "disk_ms": {}, "alone": False, "broken": [],
        "overrides": [],
    }  # fmt: skip
    plan = {name: {**common, **each, "port": port} for (name, each), port in zip(runs.items(), ports[1:], strict=True)}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    before = f"from tests.attach.framework_ranks import start; raise SystemExit(start({request.param!r}))"
    (done,) = run(make_rank(0, 2, ports[0], ["plan.json"], before=before), cwd=folder)
    assert done.code == 0, done.err
    ranks = [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    return Trained(request.param, framework, folder, ranks)


def read_recipe(framework: str) -> str:
    page = (ROOT / FRAMEWORKS[framework].page).read_text(encoding="utf-8")
    programs: list[str] = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (recipe,) = (text for text in programs if f"distprof.attach.{framework} import" in text)
    return recipe


def test_the_recipe_runs_as_written(trained: Trained) -> None:
    assert len(read_recipe(trained.name).splitlines()) <= 10
    assert [rank["recipe"]["error"] for rank in trained.ranks] == [None, None]
    (folder,) = trained.folder.glob("runs/*_my-run")
    assert (folder / "report.html").exists() and load_run(folder).column("step").shape == (2, 6)


def test_losses_are_the_same_to_the_last_bit(trained: Trained) -> None:
    for rank in trained.ranks:
        losses = {name: [line for line in rank[name]["out"].splitlines() if line[0] != "["] for name in rank}
        assert len(losses["plain"]) > 50  # and DeepSpeed's log, which has the time in it
        assert losses["told"] == losses["plain"] and losses["attached"] == losses["plain"]


def test_steps_and_micro_steps_are_those_of_the_framework(trained: Trained) -> None:
    for name in ("told", "attached"):
        run = trained.read(name)
        assert run.column("step").shape == (2, 50) and not np.nansum(run.column("failed"))
        assert (run.column("micro_steps") == 2).all()
    assert (trained.read("told").column("tokens") == trained.framework.tokens).all()


def test_phases_are_found_and_what_is_no_step_is_apart(trained: Trained) -> None:
    for name in ("told", "attached"):
        run = trained.read(name)
        found = {str(phase) for phase in PHASES if np.nansum(run.column(f"{phase}_host_ns")) > 0}
        clipping = {"grad_norm"} if trained.framework.clips else set()
        assert found == {"data", "forward", "backward", "all_reduce", "optimizer", "other"} | clipping
    for rank in (0, 1):
        spent = {name: trained.read("told").column(f"{name}_host_ns")[rank] for name in STRETCHES}
        steps = {name: np.flatnonzero(times > 0).tolist() for name, times in spent.items() if np.nansum(times) > 0}
        assert steps == trained.framework.stretches


def test_a_slow_dataset_is_named(trained: Trained) -> None:
    verdict = analyze(trained.read("slow")).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.cause) == ("slow_rank", 1, "data", "input")


def test_nothing_is_missing(trained: Trained) -> None:
    notes = analyze(trained.read("told")).coverage.notes
    assert [note for note in notes if "finding and recording steps and phases took" not in note] == []
