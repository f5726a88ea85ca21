"""FairScale's OSS and ShardedDataParallel: optimizer state in shards, gradients reduced to their owner."""

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10))
optimizer = OSS(params=model.parameters(), optim=torch.optim.SGD, lr=0.01, momentum=0.9)
model = ShardedDataParallel(model, optimizer)
length = 2 * 16 * 54
data = TensorDataset(torch.randn(length, 128), torch.randint(10, (length,)))
for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
dist.destroy_process_group()
