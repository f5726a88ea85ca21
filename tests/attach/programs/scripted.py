"""A model that TorchScript has compiled, under DistributedDataParallel."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.jit.script(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.full((8, 32), 0.1 * step + dist.get_rank())).square().mean()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
dist.destroy_process_group()
