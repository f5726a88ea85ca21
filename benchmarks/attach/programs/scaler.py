"""Mixed precision with a GradScaler, gradient accumulation under no_sync(), clipping of unscaled gradients."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.hidden, self.out = nn.Linear(256, 384), nn.Linear(384, 384), nn.Linear(384, 1)
        self.act = nn.GELU()

    def forward(self, x):
        return self.out(self.act(self.hidden(self.act(self.inp(x)))))


dist.init_process_group("gloo")
torch.manual_seed(3)
dataset = TensorDataset(torch.randn(2 * 32 * 110, 256), torch.randn(2 * 32 * 110, 1))
loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset, seed=1))
model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=20)
accumulation = 2
for i, (x, y) in enumerate(loader):
    last = (i + 1) % accumulation == 0
    with contextlib.nullcontext() if last else model.no_sync():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x).float(), y) / accumulation
        scaler.scale(loss).backward()
    if last:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        print(i, repr(loss.item()), scaler.get_scale())
dist.destroy_process_group()
