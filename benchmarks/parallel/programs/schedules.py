"""One stage per rank, or two under an interleaved schedule: torch.distributed.pipelining."""

import torch
import torch.distributed as dist
from timed import Delay, build_layers, make_loader, read_arguments
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

options = read_arguments()
dist.init_process_group("gloo")
rank, size, batches = dist.get_rank(), dist.get_world_size(), options.micro_batches
chunks = 2 if "Interleaved" in options.schedule else 1
torch.manual_seed(rank)
delay = Delay(options.delay, batches)
models = [build_layers(options, rank, delay if chunk == 0 else Delay("", 1)) for chunk in range(chunks)]
stages = [
    PipelineStage(model, rank + size * chunk, size * chunks, torch.device("cpu")) for chunk, model in enumerate(models)
]
schedule = getattr(schedules, options.schedule)(
    stages if chunks > 1 else stages[0], batches, loss_fn=nn.functional.mse_loss
)
optimizer = torch.optim.SGD([weight for model in models for weight in model.parameters()], lr=0.1)
for x in make_loader(options, 4 * batches, delay):
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=x.flip(1))
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
