"""One job whose modules are profiled while one of them is delayed on one rank, looked at from all sides."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import numpy as np
import pytest

from distprof.facts.run import Run
from distprof.render.files.report_schema import describe_schema
from distprof.storage.run_folder import read_run
from tests.forked_ranks import fork_alone, fork_ranks

pytestmark = [pytest.mark.slow, pytest.mark.first]
MODULE, DELAY_MS = "blocks.1.feed_forward", 400
OVERRIDES = (
    "train=gpt2_tiny", "train.steps=10", "train.warmup_steps=2", "logger=none", "profile=modules", "run_dir=run",
    "hardware.peak=none", "inject.rank=1", f"inject.module={MODULE}", f"inject.delay_ms={DELAY_MS}",
)  # fmt: skip


class Job(NamedTuple):
    folder: Path
    done: subprocess.CompletedProcess[str]
    report: dict[str, Any]
    run: Run

    def find(self, name: str) -> dict[str, Any]:
        return next(row for row in self.report["modules"]["rows"] if row["name"] == name)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    done = fork_ranks(2, OVERRIDES, folder)
    assert done.returncode == 0, done.stderr
    return Job(folder / "run", done, json.loads((folder / "run" / "report.json").read_text()), read_run(folder / "run"))


def test_the_delay_is_named_down_to_the_module(job: Job) -> None:
    verdict = job.report["verdict"]
    assert (verdict["kind"], verdict["rank"], verdict["phase"]) == ("slow_rank", 1, "forward")
    slow = verdict["module"]
    assert slow["name"] == MODULE and slow["steps_used"] == 5 and slow["share_ratio"] > 0.5
    assert slow["rank_ns"] >= 1e6 * DELAY_MS > slow["others_ns"]  # a sleep is never shorter
    assert f"most of it in {MODULE};" in " ".join(job.done.stdout.split())


def test_only_that_module_and_those_that_hold_it_are_longer(job: Job) -> None:
    """In every timed step, on that rank alone; a sleep is never shorter."""
    other, late = job.run.modules
    for row, name in enumerate(late.names):
        longer = late.forward_ns[row] >= 1e6 * DELAY_MS
        assert longer.all() == (f"{MODULE}.".startswith(f"{name}.") or not name) == longer.any(), name
    assert np.median(other.forward_ns[0]) < 1e6 * DELAY_MS
    assert job.find(MODULE)["forward_ns"]["max_rank"] == 1 and job.find(MODULE)["forward_ns"]["min_rank"] == 0


def test_the_window_runs_on_top_of_the_measured_steps_and_counts_in_none(job: Job) -> None:
    assert job.run.column("window").tolist() == [[0] * 12 + [1] * 7] * 2
    assert job.run.measured().sum(axis=1).tolist() == [10 - int((job.run.column("shadow")[0] == 1).sum())] * 2
    assert [(table.counted_step, table.timed_steps) for table in job.run.modules] == [(12, (14, 15, 16, 17, 18))] * 2
    coverage, modules = job.report["coverage"], job.report["modules"]
    assert coverage["complete"] and coverage["steps_planned"] == 12
    assert [note for note in coverage["notes"] if note.startswith("7 step(s) ran in the profiler's window")]
    assert modules["step_ns"] > 0 < modules["counted_step_ns"] and modules["usual_step_ns"] > 0


def test_work_and_parameters_are_those_of_the_model(job: Job) -> None:
    modules, flops, work = job.report["modules"], job.report["flops"], job.run.meta.work
    whole = modules["rows"][0]
    assert work is not None and whole["name"] == "" and modules["ranks"] == [0, 1]
    assert whole["parameters"] == flops["parameters"] == whole["held_parameters"]["min"]
    attention = 2 * 4 * 64 * 64 * 128 * 2  # layers, scores and values, tokens squared, width, sequences
    assert whole["flops"]["forward"] == work.model_flops_per_micro_step / 3 and whole["flops"]["recomputed"] == 0
    assert whole["flops"]["backward"] == 2 * whole["flops"]["forward"] + attention / 2  # which computes scores again
    assert modules["outside_flops"] == {"forward": 0, "backward": 0, "recomputed": 0}
    blocks = [job.find(f"blocks.{number}")["flops"]["forward"] for number in (0, 1)]
    assert job.find("blocks")["flops"]["forward"] == sum(blocks) and blocks[0] == blocks[1] > 0
    assert all(row["name"].count("module.") == 0 for row in modules["rows"])  # DDP is no part of the names


def test_memory_by_kind_is_what_was_predicted_from_the_configuration(job: Job) -> None:
    kinds = {each["kind"]: each for each in job.report["modules"]["memory"]}
    held = 4 * job.report["flops"]["parameters"]
    for kind, size in {"parameters": held, "gradients": held, "optimizer": 2 * held, "buffers": 0}.items():
        for spread in (kinds[kind]["predicted_bytes"], kinds[kind]["measured_bytes"]):
            assert (spread["min"], spread["max"]) == (size, size), kind
    # Logits and their softmax, at least; scores that fused attention does not keep are foretold.
    kept, foretold = (kinds["activations"][f"{source}_bytes"]["max"] for source in ("measured", "predicted"))
    assert 2 * 4 * 256 * 2 * 64 < kept <= foretold
    assert kinds["communication"]["measured_bytes"]["max"] == 0  # gradients are views of the buckets: not twice
    assert {kinds[kind]["measured_bytes"]["max"] for kind in ("rest", "peak")} == {None}  # a CPU's allocator is silent


def test_the_report_is_valid_and_comes_again_from_the_folder(job: Job) -> None:
    jsonschema.Draft202012Validator(describe_schema()).validate(job.report)
    again = fork_alone(["report", "run", "--details", "--out", "again"], job.folder.parent)
    assert again.returncode == 0 and "memory of a rank by kind" in again.stdout, again.stderr
    assert "they count in no other number" in " ".join(again.stdout.split())
    assert json.loads((job.folder.parent / "again" / "report.json").read_text()) == job.report
    page = (job.folder / "report.html").read_text()
    assert page.count("<details open>") == 2 and "0-1 (2 x)" in page and f"most of it in {MODULE}" in page


def test_a_profile_that_is_damaged_later_is_a_note_and_nothing_more(job: Job) -> None:
    path = job.folder / "modules" / "rank-00001.json"
    whole = path.read_text()
    try:
        path.write_text(whole[:-20])
        done = fork_alone(["report", "run", "--details", "--out", "damaged"], job.folder.parent)
    finally:
        path.write_text(whole)
    assert done.returncode == 0, done.stderr
    report = json.loads((job.folder.parent / "damaged" / "report.json").read_text())
    assert report["verdict"]["rank"] == 1 and report["verdict"]["module"] is None
    assert report["modules"]["ranks"] == [0] and "1 of 2 have a profile" in done.stdout
    assert [note for note in report["coverage"]["notes"] if note.startswith("the module profile of rank 1 is left out")]
