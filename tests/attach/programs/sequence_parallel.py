"""Sequence parallelism by hand: each rank has a part of every sequence, and gathers keys and values of the others."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.nn.functional import all_gather

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
query, both, out = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(16, 16)
weights = [*query.parameters(), *both.parameters(), *out.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.1)
data = torch.Generator().manual_seed(1)
for _ in range(8):
    whole = torch.randn(2, 8 * size, 16, generator=data)
    x = whole[:, 8 * rank : 8 * (rank + 1)]
    keys, values = torch.cat(all_gather(both(x)), dim=1).chunk(2, dim=2)
    mixed = nn.functional.scaled_dot_product_attention(query(x), keys, values)
    loss = (out(mixed) - x.flip(2)).square().mean()
    loss.backward()
    for weight in weights:
        dist.all_reduce(weight.grad)
        weight.grad /= size
    optimizer.step()
    optimizer.zero_grad()
    print(repr(loss.item()))
dist.destroy_process_group()
