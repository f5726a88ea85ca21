"""``distprof model``: published sizes, one's own function, wrong use, and the file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from distprof.cli.parser import run_verb
from distprof.facts.modules import MEMORY_KINDS

FUNCTIONS = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 4))

def number():
    return 3

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 5)
    def forward(self, *, images, scale=None):
        return self.line(images)

def huge():
    return nn.Linear(200_000, 200_000)

def nothing_returned():
    build()

class OfBatch(nn.Module):
    def __init__(self, asks):
        super().__init__()
        self.line, self.asks = nn.Linear(3, 5), asks
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
    def forward(self, batch):
        states = self.line(batch["images"])
        return states * 2 if self.asks and states.sum() > 0 else states

def with_batch():
    return OfBatch(asks=False), ({"images": torch.randn(2, 3)},)

def with_question():
    return OfBatch(asks=True), ({"images": torch.randn(2, 3)},)

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights, self.line = nn.Parameter(torch.zeros(4, 3, 5)), nn.Linear(5, 2)
    def forward(self, states):
        return self.line(torch.einsum("bi,eio->bo", states, self.weights))

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = Experts()
    def forward(self, states):
        return self.experts(states)

class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.embedding.weight.requires_grad_(False)
    def forward(self, tokens):
        states = self.embedding(tokens)
        for block in self.blocks:
            states = block(states).relu()
        return states

def fails():
    raise LookupError("no weights\\nand more")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of functions, which is the current one."""
    (tmp_path / "ours.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "ours", raising=False)
    return tmp_path


def run_model(*arguments: str) -> int:
    return run_verb(["model", *arguments])


def read_profile(*arguments: str) -> Any:
    assert run_model(*arguments, "--json", "found.json") == 0
    return json.loads(Path("found.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_gpt2_small_over_64_tokens_is_what_is_published(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Per token 12 layers of 12 w^2 weights and a head of w v; attention 2 n^2 w per layer; n = 64, w = 768."""
    found = read_profile("train=gpt2_small", "train.seq_len=64", "train.micro_batch=1", "strategy=fsdp", "ranks=64")
    whole = found["rows"][0]
    assert whole["parameters"] == 124_439_808
    macs = 12 * 12 * 768**2 * 64 + 768 * 50257 * 64 + 12 * 2 * 64**2 * 768
    assert whole["total_flops"]["forward"] == 2 * macs and round(macs / 1e9, 2) == 7.98
    again = 12 * 64**2 * 768  # fused attention computes its scores again, of which it keeps none
    assert whole["total_flops"]["backward"] == 4 * macs + 2 * again and whole["total_flops"]["recomputed"] == 0
    (head,) = (row for row in found["rows"] if row["name"] == "head")
    assert (head["own_parameters"], head["parameters"]) == (0, 50257 * 768)  # tied to the token embedding
    assert whole["parameters"] + head["parameters"] == 163_037_184  # untied
    ranks = found["memory_bytes"]
    assert list(ranks) == ["0", "63"] and all(item["optimizer"] == 2 * item["parameters"] for item in ranks.values())
    assert ranks["0"]["parameters"] == pytest.approx(4 * 124_439_808 / 64, rel=0.01)
    assert sum(row["total_time"]["forward_ns"] is not None for row in found["rows"]) == 0
    shown = capsys.readouterr().out
    assert "7.98 G multiply-adds" in shown and "0-11 (12 x)" in shown and "written: found.json" in shown


def test_a_total_holds_everything_also_in_half_precision(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {}
    for precision in ("fp32", "bf16"):
        found = read_profile("train=gpt2_tiny", f"train.precision={precision}")
        (whole,) = found["memory_bytes"].values()
        assert whole["activations"] == found["rows"][0]["activation_bytes"] > 0 and whole["communication"] == 0
        assert whole["total"] == sum(whole[kind] for kind in (*MEMORY_KINDS, "inputs", "returned", "working"))
        assert whole["inputs"] == 2 * 8 * found["rows"][0]["input_bytes"] // 16 and whole["working"] > 0
        kept[precision] = whole["activations"]
        assert re.search(r"^total +\d", capsys.readouterr().out, re.MULTILINE)
    real = read_profile("train=gpt2_tiny", "train.precision=bf16", "--measure", "--passes", "1")
    assert kept["bf16"] == pytest.approx(real["rows"][0]["activation_bytes"], rel=0.01) and kept["bf16"] != kept["fp32"]


def test_ones_own_function_is_built_and_measured(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_profile("ours:build", "--input", "int64:4x16", "--measure", "--passes", "2", "--out", "tables")
    assert [row["kind"] for row in found["rows"]] == ["Sequential", "Embedding", "Linear"]
    assert found["rows"][2]["total_flops"]["forward"] == 2 * 4 * 16 * 8 * 4
    assert (found["device"], found["timed_passes"], found["schema"]) == ("cpu", 2, "distprof.modules/1")
    assert found["rows"][2]["total_time"]["forward_ns"] > 0
    (memory,) = found["memory_bytes"].values()
    assert (memory["parameters"], memory["optimizer"], memory["inputs"]) == (4 * 436, 8 * 436, 8 * 4 * 16)
    shown = capsys.readouterr().out
    lines = (place / "tables" / "modules.csv").read_text().splitlines()
    assert len(lines) == 4 and lines[3].startswith("1,Linear,") and "written: modules.csv" in shown
    assert "ours:build, given int64:4x16, on cpu" in shown and "every rank" in shown


def test_a_table_that_cannot_be_written_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_model("ours:build", "--input", "int64:4x16", "--out", "ours.py") == 3
    said = capsys.readouterr().err
    assert said.startswith("distprof: ours.py: cannot be created (") and said.endswith("choose another --out\n")


def test_inputs_by_name_and_a_model_that_fits_nowhere(place: Path) -> None:
    given = ["--input", "images=float32:2x3", "--mode", "forward"]
    assert read_profile("ours:Named", *given)["rows"][0]["total_flops"]["forward"] == 2 * 2 * 3 * 5
    huge = read_profile("ours:huge", "--input", "float32:1x200000")
    assert huge["rows"][0]["parameter_bytes"] == 4 * (200_000**2 + 200_000) and huge["device"] == "meta"


def test_ones_own_model_under_fsdp(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four blocks of 64 x 64 + 64 numbers, and a frozen embedding of 1000 x 64, on eight ranks."""
    given = ["--input", "int64:2x8"]
    found = read_profile("ours:Tower", "strategy=fsdp", "ranks=8", "train.precision=bf16", *given)
    block, embedding, states = 64 * 64 + 64, 1000 * 64, 2 * 8 * 64
    assert list(found["memory_bytes"]) == ["0", "7"]
    for rank in found["memory_bytes"].values():
        assert rank["parameters"] == 4 * (4 * block + embedding) // 8
        assert rank["gradients"] == 4 * 4 * block // 8 and rank["optimizer"] == 2 * rank["gradients"]
        # The rest twice; three blocks, a block's gradients, and those in fp32 to be reduced.
        assert rank["communication"] == 2 * 2 * embedding + 2 * (3 + 1) * block + 4 * block
        # In bf16, by the parameters: the embedding's output and each ReLU's, and what the first block is given again.
        assert rank["activations"] == 2 * 5 * states and rank["returned"] == 0
        assert rank["total"] == sum(size for kind, size in rank.items() if kind != "total")
    assert found["rows"][0]["parameter_bytes"] == 4 * (4 * block + embedding)
    shown = capsys.readouterr().out
    assert "FSDP2 gathers blocks.0-3 each by itself, and the rest" in shown and "rank 7" in shown
    (alone,) = read_profile("ours:Tower", *given)["memory_bytes"].values()
    assert alone["communication"] == 0 and alone["parameters"] == 4 * (4 * block + embedding)
    (copied,) = read_profile("ours:Tower", "strategy=ddp", "ranks=8", *given)["memory_bytes"].values()
    assert copied["communication"] == copied["gradients"] == 4 * 4 * block  # DDP's buckets beside the gradients


def test_a_function_may_return_its_inputs(place: Path) -> None:
    found = read_profile("ours:with_batch")
    assert found["rows"][0]["total_flops"]["forward"] == 2 * 2 * 3 * 5 and found["inputs"] == "float32:2x3"


def test_what_asks_for_values_gets_everything_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_model("ours:with_question", "--json", "found.json") == 3
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and "work and activations are not known: it asks for values" in shown.err
    assert "ours.py:" in shown.err
    assert "multiply-adds" not in shown.out.split("Memory of a rank")[0].split("By depth")[0]
    assert "no total, because not everything is known: activations, outputs, backward's own" in shown.out
    assert not re.search(r"^total ", shown.out, re.MULTILINE)
    (memory,) = json.loads(Path("found.json").read_text(encoding="utf-8"))["memory_bytes"].values()
    assert memory["parameters"] == 80 and memory["activations"] is None and memory["total"] is None


def test_the_layers_hold_all_parameters(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a module that has parameters and submodules."""
    assert run_model("ours:Mixed", "--input", "float32:2x3", "--width", "200") == 0
    lines = capsys.readouterr().out.split("\nLayers ")[1].split("\nMemory ")[0].splitlines()[3:]
    listed = {line.split()[2]: int(line.split()[4]) for line in lines if line[:1].isalpha() and "x" in line}
    assert listed == {"experts": 4 * 3 * 5, "experts.line": 5 * 2 + 2}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ours:nothing"], 1, "ours:nothing: cannot be built (AttributeError: "),
        (["nowhere:build"], 1, "nowhere:build: cannot be built (ModuleNotFoundError: "),
        (["ours:number"], 1, "ours:number: returned int, which is not a torch.nn.Module: return the model"),
        (["ours:nothing_returned"], 1, "ours:nothing_returned: returned None, which is not a torch.nn.Module"),
        (["ours:Named", "--input", "pictures=float32:2x3"], 1, "argument 'pictures'); its forward takes (*, images"),
        (
            ["ours:with_batch", "--input", "float32:2x3"],
            2,
            "--input: ours:with_batch returns its model's inputs itself",
        ),
        (["ours:build", "strategy=fsdpp", "--input", "int64:4"], 2, "Could not find 'strategy/fsdpp'"),
        (["ours:build", "ranks=0", "--input", "int64:4"], 2, "ranks=: expected one whole number, such as ranks=64"),
        (["ours:fails"], 1, "ours:fails: cannot be built (LookupError: no weights)"),
        (["ours:build"], 1, "ours:build: cannot be run (TypeError: "),
        (["ours:build", "train=gpt2_tiny"], 2, "train=gpt2_tiny: overrides are for distprof's own model"),
        (["ours:build", "--input", "int63:4"], 2, "--input int63:4: expected DTYPE:SHAPE"),
        (["ours:build", "--input", "nn:4"], 2, "--input nn:4: expected DTYPE:SHAPE"),
        (["ours:build", "--input", "int64:9x99999999999999"], 2, "more than 2**40 elements"),
        (["ours:build", "--input", "x=int64:4", "--input", "int64:4"], 2, "--input: name all of them, or none"),
        (["ours:build", "--passes", "0"], 2, "--passes 0: must be a whole number, 1 or more"),
        (["train=gpt2_tiny", "ranks=0"], 2, "ranks=: expected one whole number, such as ranks=64"),
        (["train=gpt2_tiny", "--input", "int64:4"], 2, "--input: distprof's own model is given tokens"),
        (["train=nope"], 2, "Could not find 'train/nope'"),
        (["train=gpt2_tiny", "experiment=scaling", "strategy=single", "ranks=2"], 2, "strategy=single is one process"),
    ],
)
def test_a_slip_is_one_line(
    arguments: list[str], code: int, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_model(*arguments) == code
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""
