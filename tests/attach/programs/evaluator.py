"""Three ranks train, and the fourth evaluates what they have learnt."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, trainers = dist.get_rank(), dist.new_group([0, 1, 2])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
generator = torch.Generator().manual_seed(rank)
if rank < 3:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parallel = DistributedDataParallel(model, process_group=trainers)
for step in range(16):
    if rank < 3:
        loss = parallel(torch.randn(8, 32, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(repr(loss.item()))
    if step % 4 == 3:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        if rank == 3:
            with torch.no_grad():
                print(repr(model(torch.randn(8, 32, generator=generator)).square().mean().item()))
dist.barrier()
dist.destroy_process_group()
