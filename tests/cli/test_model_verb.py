"""``distprof model``: published sizes, one's own function, wrong use, and the file."""

from __future__ import annotations

import json
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
    assert whole["total_flops"]["backward"] == 4 * macs and whole["total_flops"]["recomputed"] == 0
    (head,) = (row for row in found["rows"] if row["name"] == "head")
    assert (head["own_parameters"], head["parameters"]) == (0, 50257 * 768)  # tied to the token embedding
    assert whole["parameters"] + head["parameters"] == 163_037_184  # untied
    ranks = found["memory_bytes"]
    assert list(ranks) == ["0", "63"] and all(item["optimizer"] == 2 * item["parameters"] for item in ranks.values())
    assert ranks["0"]["parameters"] == pytest.approx(4 * 124_439_808 / 64, rel=0.01)
    assert sum(row["total_time"]["forward_ns"] is not None for row in found["rows"]) == 0
    shown = capsys.readouterr().out
    assert "7.98 G multiply-adds" in shown and "0-11 (12 x)" in shown and "written: found.json" in shown


def test_activations_are_foretold_for_fp32_only(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Autocast keeps others, which have not been counted."""
    (whole,) = read_profile("train=gpt2_tiny", "train.mode=train")["memory_bytes"].values()
    assert whole["activations"] > 0 and whole["total"] == sum(whole[kind] or 0 for kind in MEMORY_KINDS)
    assert "communication" not in capsys.readouterr().out.replace("buffers of the communication", "")
    (half,) = read_profile("train=gpt2_tiny", "train.precision=bf16")["memory_bytes"].values()
    assert half["activations"] is None and half["parameters"] == whole["parameters"]


def test_ones_own_function_is_built_and_measured(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_profile("ours:build", "--input", "int64:4x16", "--measure", "--passes", "2", "--out", "tables")
    assert [row["kind"] for row in found["rows"]] == ["Sequential", "Embedding", "Linear"]
    assert found["rows"][2]["total_flops"]["forward"] == 2 * 4 * 16 * 8 * 4
    assert (found["device"], found["timed_passes"], found["schema"]) == ("cpu", 2, "distprof.modules/1")
    assert found["rows"][2]["total_time"]["forward_ns"] > 0 and found["memory_bytes"] == {}
    shown = capsys.readouterr().out
    lines = (place / "tables" / "modules.csv").read_text().splitlines()
    assert len(lines) == 4 and lines[3].startswith("1,Linear,") and "written: modules.csv" in shown
    assert "ours:build, given int64:4x16, on cpu" in shown and "Memory of a rank" not in shown


def test_a_table_that_cannot_be_written_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_model("ours:build", "--input", "int64:4x16", "--out", "ours.py") == 3
    said = capsys.readouterr().err
    assert said.startswith("distprof: ours.py: cannot be created (") and said.endswith("choose another --out\n")


def test_inputs_by_name_and_a_model_that_fits_nowhere(place: Path) -> None:
    given = ["--input", "images=float32:2x3", "--mode", "forward"]
    assert read_profile("ours:Named", *given)["rows"][0]["total_flops"]["forward"] == 2 * 2 * 3 * 5
    huge = read_profile("ours:huge", "--input", "float32:1x200000")
    assert huge["rows"][0]["parameter_bytes"] == 4 * (200_000**2 + 200_000) and huge["device"] == "meta"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ours:nothing"], 1, "ours:nothing: cannot be built (AttributeError: "),
        (["nowhere:build"], 1, "nowhere:build: cannot be built (ModuleNotFoundError: "),
        (["ours:number"], 1, "ours:number: returned int, which is no torch.nn.Module"),
        (["ours:fails"], 1, "ours:fails: cannot be built (LookupError: no weights)"),
        (["ours:build"], 1, "ours:build: cannot be run (TypeError: "),
        (["ours:build", "train=gpt2_tiny"], 2, "train=gpt2_tiny: overrides are for distprof's own model"),
        (["ours:build", "--input", "int63:4"], 2, "--input int63:4: expected DTYPE:SHAPE"),
        (["ours:build", "--input", "nn:4"], 2, "--input nn:4: expected DTYPE:SHAPE"),
        (["ours:build", "--input", "int64:9x99999999999999"], 2, "more than 2**40 elements"),
        (["ours:build", "--input", "x=int64:4", "--input", "int64:4"], 2, "--input: name all of them, or none"),
        (["ours:build", "--passes", "0"], 2, "--passes 0: must be 1 or more"),
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


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        run_model("--help")
    assert leaving.value.code == 0
    assert "distprof model train=gpt2_small train.seq_len=1024 strategy=fsdp ranks=64" in capsys.readouterr().out
