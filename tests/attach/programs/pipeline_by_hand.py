"""A pipeline of isend and irecv, written by hand: all forwards, then all backwards, with sends under way meanwhile."""

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
first, last = rank == 0, rank == size - 1
torch.manual_seed(rank)
stage = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
data = torch.Generator().manual_seed(1)
for _ in range(8):
    batches, sends, kept, total = torch.randn(4, 2, 16, generator=data), [], [], 0.0
    for batch in batches:
        x = batch
        if not first:
            x = torch.empty(2, 16)
            dist.irecv(x, rank - 1).wait()
            x.requires_grad_()
        y = stage(x)
        kept.append((x, y))
        if not last:
            sends.append(dist.isend(y.detach(), rank + 1))
    for (x, y), batch in zip(kept, batches, strict=True):
        if last:
            loss = (y - batch.flip(1)).square().mean()
            total += loss.item()
            loss.backward()
        else:
            gradient = torch.empty(2, 16)
            dist.irecv(gradient, rank + 1).wait()
            y.backward(gradient)
        if not first:
            sends.append(dist.isend(x.grad, rank - 1))
    for send in sends:
        send.wait()
    optimizer.step()
    optimizer.zero_grad()
    print(repr(total if last else sum(weight.sum().item() for weight in stage.parameters())))
dist.destroy_process_group()
