"""A script that counts the functions of torch that it uses: DDP, clipping, collectives of its own, messages."""

import collections
import pickle

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader


class Counts(TorchFunctionMode):
    def __init__(self):
        self.seen = collections.Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen[f"{getattr(func, '__objclass__', '')} {getattr(func, '__qualname__', func)}"] += 1
        return func(*args, **(kwargs or {}))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = DataLoader(torch.arange(240).reshape(40, 6) % 50, batch_size=4)
with Counts() as counts:
    for tokens in data:
        optimizer.zero_grad()
        loss = model(tokens).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, async_op=True).wait()
        both = [torch.zeros(2) for _ in range(2)]
        dist.all_gather(both, torch.ones(2))
        sent, got = torch.ones(3), torch.zeros(3)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
        ):
            work.wait()
        print(loss.item(), mean.item(), functional.all_reduce(got, "sum", dist.group.WORLD).sum().item())
print(sorted(counts.seen.items()))
print(all(pickle.loads(pickle.dumps(part.__call__)) is part.__call__ for part in (nn.Module, nn.Sequential)))
dist.destroy_process_group()
