"""A mixture of experts: every rank holds one, and tokens go to them and come back by all_to_all."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
router = DistributedDataParallel(nn.Linear(16, size))
torch.manual_seed(rank)
expert = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.SGD([*router.parameters(), *expert.parameters()], lr=0.1)
data = torch.Generator().manual_seed(rank)
for _ in range(8):
    x = torch.randn(32, 16, generator=data)
    weights, chosen = router(x).softmax(dim=1).max(dim=1)
    order = chosen.argsort(stable=True)
    sends = torch.bincount(chosen, minlength=size)
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends)
    sent, received = sends.tolist(), receives.tolist()
    tokens = all_to_all_single(torch.empty(sum(received), 16), x[order], received, sent)
    back = all_to_all_single(torch.empty(32, 16), expert(tokens), sent, received)
    loss = (back * weights[order].unsqueeze(1) - x[order].flip(1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(repr(loss.item()))
dist.destroy_process_group()
