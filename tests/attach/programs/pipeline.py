"""Four stages under a schedule of torch.distributed.pipelining, which the argument names; interleaved: two each."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, schedules

dist.init_process_group("gloo")
rank, size, name = dist.get_rank(), dist.get_world_size(), sys.argv[1]
chunks = 2 if "Interleaved" in name else 1
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(size * chunks)]
own = range(rank, len(layers), size)
stages = [PipelineStage(layers[at], at, len(layers), torch.device("cpu")) for at in own]
schedule = getattr(schedules, name)(stages if chunks > 1 else stages[0], 4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD([weight for at in own for weight in layers[at].parameters()], lr=0.1)
data = torch.Generator().manual_seed(1)
for _ in range(8):
    x, losses = torch.randn(8, 16, generator=data), []
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=x.flip(1), losses=losses)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
    print([loss.item() for loss in losses] or sum(weight.sum().item() for weight in layers[own[0]].parameters()))
dist.destroy_process_group()
