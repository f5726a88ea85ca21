"""Two ranks whose DataLoader has one worker, which makes batches more slowly than they are used."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import distprof
from distprof.analyze import analyze
from distprof.render.summary.next_step import describe_next
from distprof.report.loader_report import LoaderLimit
from distprof.report.wait_report import VerdictKind
from distprof.storage.run_folder import read_run
from distprof.world import World
from tests.ranks import call_on_ranks

STEPS, FETCH_S, STEP_S = 80, 0.030, 0.005


class Slow(Dataset[int]):
    """Read from a slow disk."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> int:
        time.sleep(FETCH_S)
        return index


def train(world: World, runs_dir: str) -> None:
    del world
    batches = iter(DataLoader(Slow(), num_workers=1, multiprocessing_context="fork"))  # before the session
    session = distprof.start("loader", runs_dir=runs_dir, shadow_every=0, max_overhead_ratio=None)
    del batches
    for _ in session.steps(DataLoader(Slow(), num_workers=1, multiprocessing_context="fork")):
        time.sleep(STEP_S)
        dist.all_reduce(torch.ones(1))
    session.close()


@pytest.mark.live
@pytest.mark.slow
def test_two_ranks_wait_for_their_loaders(tmp_path: Path) -> None:
    call_on_ranks(2, train, str(tmp_path), tmp_path=tmp_path)
    report = analyze(read_run(next(path.parent for path in tmp_path.glob("*/run.json"))))
    verdict = report.verdict
    assert (verdict.kind, verdict.phase, verdict.critical) == (VerdictKind.SLOW_LOADER, "data", True), report
    loader = verdict.loader
    assert loader is not None and loader.batch_ns is not None and verdict.lost_ratio is not None
    assert (loader.workers, loader.prefetch, loader.batches_per_step) == (1, 2, 1)
    assert loader.batch_ns >= FETCH_S * 1e9 and loader.step_ns >= STEP_S * 1e9
    assert loader.limit is LoaderLimit.WORKERS and (loader.workers_needed or 0) > 1
    assert f"num_workers={loader.workers_needed} (now 1)" in describe_next(report)
