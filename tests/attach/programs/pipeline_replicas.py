"""Two stages by two replicas: torch.distributed.pipelining along one dimension of a mesh, DDP along the other."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
at, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
torch.manual_seed(at)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), process_group=mesh.get_group("dp"))
stage = PipelineStage(model, at, 2, torch.device("cpu"), group=mesh.get_group("pp"))
schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(replica)
for _ in range(8):
    x, losses = torch.randn(8, 16, generator=data), []
    if at == 0:
        schedule.step(x)
    else:
        schedule.step(target=x.flip(1), losses=losses)
    optimizer.step()
    optimizer.zero_grad()
    print([loss.item() for loss in losses] or sum(weight.sum().item() for weight in model.parameters()))
dist.destroy_process_group()
