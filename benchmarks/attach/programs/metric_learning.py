"""A trainer of pytorch-metric-learning: trunk and embedder, each under DDP with an optimizer of its own."""

import logging

import torch
import torch.distributed as dist
from pytorch_metric_learning import losses, trainers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

logging.getLogger().setLevel(logging.ERROR)
dist.init_process_group("gloo")
torch.manual_seed(0)
trunk = DistributedDataParallel(nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 256), nn.ReLU()))
embedder = DistributedDataParallel(nn.Linear(256, 32))
torch.manual_seed(dist.get_rank())
data = TensorDataset(torch.randn(32 * 18, 128), torch.randint(8, (32 * 18,)))
values = []
trainer = trainers.MetricLossOnly(
    models={"trunk": trunk, "embedder": embedder},
    optimizers={
        "trunk_optimizer": torch.optim.Adam(trunk.parameters(), lr=1e-4),
        "embedder_optimizer": torch.optim.Adam(embedder.parameters(), lr=1e-4),
    },
    batch_size=32,
    loss_funcs={"metric_loss": losses.ContrastiveLoss()},
    dataset=data,
    dataloader_num_workers=0,
    data_device=torch.device("cpu"),
    end_of_iteration_hook=lambda trainer: values.append(trainer.losses["total_loss"].item()),
)
trainer.pbar = None
trainer.train(num_epochs=3)
print(*map(repr, values), sep="\n")
dist.destroy_process_group()
