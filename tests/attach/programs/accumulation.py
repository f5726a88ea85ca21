"""Gradient accumulation with no_sync, unscaled gradients clipped, and a GradScaler that skips a step."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
loader = DataLoader(TensorDataset(torch.randn(160, 8), torch.randn(160, 1)), batch_size=4)
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
for i, (x, y) in enumerate(loader):
    last = (i + 1) % ACCUMULATE == 0
    with contextlib.nullcontext() if last else net.no_sync():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(net(x), y) / ACCUMULATE
        scaler.scale(loss if i != 11 else loss * float("inf")).backward()
    if last:
        scaler.unscale_(opt)
        norm = clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        print(i, loss.item().hex(), norm.item().hex(), scaler.get_scale())
dist.destroy_process_group()
