"""A training loop under Ray Train, recorded by distprof: python ray_train.py [WORKERS [RUNS_DIR]]."""

import sys
from pathlib import Path

import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import distprof


def train(settings: dict) -> None:
    """Runs on each of Ray's workers, which are the ranks."""
    model = ray.train.torch.prepare_model(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Ray changes the working folder: runs_dir has to be a whole path, on a disk that the workers share if there is one.
    # Ray's workers outlive the loop, so the block ends the session, and with it the report is written.
    with distprof.start("ray", runs_dir=settings["runs_dir"]) as profiler:
        profiler.watch(model)
        for _ in profiler.steps(range(40)):
            batch = torch.randn(64, 256, device=next(model.parameters()).device)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    runs = Path(sys.argv[2] if len(sys.argv) > 2 else "runs").absolute()
    trainer = TorchTrainer(
        train,
        train_loop_config={"runs_dir": str(runs)},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(storage_path=str(runs / "ray")),
    )
    trainer.fit()
