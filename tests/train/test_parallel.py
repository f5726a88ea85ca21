"""A model that is cut into stages and over tensor-parallel ranks trains as one that is whole."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import pipelining

from distprof.config.compose import compose, read_request
from distprof.config.decode import decode
from distprof.config.schema import Config
from distprof.errors import UsageError
from distprof.storage.run_folder import read_run
from distprof.train.strategy import require_torch
from tests.forked_ranks import fork_alone, fork_ranks
from tests.render.files.perfetto_file import read_timeline

SCALES = "scale_grads" in inspect.signature(pipelining.Schedule1F1B).parameters
QUICK = (
    "train=gpt2_tiny", "train.steps=4", "train.warmup_steps=0", "train.grad_accum=2", "profile.shadow_every=0",
    "logger=none", "hardware.peak=1e13",
)  # fmt: skip


@pytest.mark.skipif(not SCALES, reason=f"torch {torch.__version__} is older than 2.7")
def test_stages_and_tensor_parallel_ranks_have_the_losses_of_one_process(tmp_path: Path) -> None:
    alone = fork_alone([*QUICK, "strategy=single", "run_dir=whole"], tmp_path)
    assert alone.returncode == 0, alone.stderr
    cut = fork_ranks(4, [*QUICK, "parallel.pp=2", "parallel.tp=2", "run_dir=cut"], tmp_path)
    assert cut.returncode == 0, cut.stderr
    whole, run = (read_run(tmp_path / name) for name in ("whole", "cut"))
    assert whole.meta.strategy == "single" and run.meta.strategy == "pp 2 x tp 2"
    losses = run.column("loss")
    assert np.isnan(losses[:2]).all()  # the first stage does not know it
    assert losses[2:] == pytest.approx(np.tile(whole.column("loss"), (2, 1)), rel=1e-5)
    assert run.column("grad_norm") == pytest.approx(np.tile(whole.column("grad_norm"), (4, 1)), rel=1e-5)
    assert run.column("tokens").sum(axis=0).tolist() == whole.column("tokens")[0].tolist()
    for phase in ("data", "forward", "backward", "grad_norm", "optimizer"):
        assert (run.column(f"{phase}_host_ns") > 0).all()
    expected = {rank: (rank // 2, rank % 2) for rank in range(4)}
    assert run.meta.mesh is not None and run.meta.mesh.axes == ("pp", "tp")
    assert {place.rank: place.at for place in run.meta.mesh.places} == expected
    assert run.meta.work is None and any("FLOPs per rank and MFU are n/a" in note for note in run.meta.notes)
    timeline = read_timeline((tmp_path / "cut" / "trace.json.gz").read_bytes())
    passes = {event["name"] for event in timeline.on_track("micro-batches", pid=3)}
    assert {"forward 0", "backward 1"} <= passes
    sent = {(points[0]["pid"], points[1]["pid"]) for points in timeline.flows.values() if len(points) == 2}
    assert {(0, 2), (2, 0), (1, 3), (3, 1)} <= sent, "activations down, gradients up"
    (typical, *_) = json.loads((tmp_path / "cut" / "report.json").read_text())["timelines"]
    assert len(typical["lanes"]) == 4 and set(typical["transfers"]["backward"]) == {True, False}


def test_a_torch_that_is_too_old_for_pipelines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def __init__(self, stage: object, n_microbatches: int) -> None: ...

    monkeypatch.setattr(pipelining, "Schedule1F1B", Old)
    config = make_config("parallel.pp=2")
    with pytest.raises(UsageError, match=r"parallel.pp=2: pipelines need torch 2.7, and this is"):
        require_torch(config, torch.device("cpu"))
    require_torch(make_config(), torch.device("cpu"))


def make_config(*arguments: str) -> Config:
    (job,) = compose(read_request(list(arguments)), launched=False, arguments=list(arguments))
    return decode(Config, job.values)
