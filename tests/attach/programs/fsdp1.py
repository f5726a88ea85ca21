"""FSDP in its first form, with its own clipping."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group(backend="gloo")
torch.manual_seed(dist.get_rank())
model = FullyShardedDataParallel(
    nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)),
    auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    device_id=torch.device("cpu"),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for x, y in DataLoader(TensorDataset(torch.randn(48, 32), torch.randn(48, 1)), batch_size=4):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    norm = model.clip_grad_norm_(1.0)
    optimizer.step()
    print(loss.item(), norm.item())
dist.destroy_process_group()
