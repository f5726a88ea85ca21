"""Two stages by two replicas: 1F1B along one dimension of a mesh, DDP along the other."""

import torch
import torch.distributed as dist
from timed import Delay, build_layers, make_loader, read_arguments
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.parallel import DistributedDataParallel

options = read_arguments()
dist.init_process_group("gloo")
mesh, batches = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp")), options.micro_batches
at = mesh.get_local_rank("pp")
torch.manual_seed(at)
delay = Delay(options.delay, batches)

model = DistributedDataParallel(build_layers(options, at, delay), process_group=mesh.get_group("dp"))
stage = PipelineStage(model, at, 2, torch.device("cpu"), group=mesh.get_group("pp"))
schedule = getattr(schedules, options.schedule)(stage, batches, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in make_loader(options, 4 * batches, delay):
    if at == 0:
        schedule.step(x)
    else:
        schedule.step(target=x.flip(1))
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
