"""Tensor parallelism in FSDP2 over a mesh of two by two, with accumulation over micro-batches."""

import torch
import torch.distributed as dist
from timed import WIDTH, Delay, build_layers, make_loader, read_arguments
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

options = read_arguments()
dist.init_process_group("gloo")
mesh, batches = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), options.micro_batches
torch.manual_seed(0)
delay = Delay(options.delay, batches)
timed = build_layers(options, dist.get_rank(), delay)
block = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
model = nn.Sequential(block, timed)
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for whole in make_loader(options, 4 * batches, delay):
    for x in whole.split(4):
        model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
