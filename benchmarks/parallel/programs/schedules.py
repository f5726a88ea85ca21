"""One stage per rank, or two under an interleaved schedule or one that folds: torch.distributed.pipelining."""

import torch
import torch.distributed as dist
from timed import Delay, build_layers, make_loader, read_arguments
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

options = read_arguments()
dist.init_process_group("gloo")
rank, size, batches = dist.get_rank(), dist.get_world_size(), options.micro_batches
folds = "ZBV" in options.schedule
chunks = 2 if folds or "Interleaved" in options.schedule else 1
torch.manual_seed(rank)
delay = Delay(options.delay, batches)
models = [build_layers(options, rank, delay if chunk == 0 else Delay("", 1)) for chunk in range(chunks)]
places = [rank, 2 * size - 1 - rank] if folds else [rank + size * chunk for chunk in range(chunks)]
stages = [
    PipelineStage(model, place, size * chunks, torch.device("cpu")) for place, model in zip(places, models, strict=True)
]
schedule = getattr(schedules, options.schedule)(
    stages if chunks > 1 else stages[0], batches, loss_fn=nn.functional.mse_loss
)
optimizer = torch.optim.SGD([weight for model in models for weight in model.parameters()], lr=0.1)
for x in make_loader(options, 4 * batches, delay):
    given = (x,) if rank == 0 else ()
    schedule.step(*given, **({"target": x.flip(1)} if size * chunks - 1 in places else {}))
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
