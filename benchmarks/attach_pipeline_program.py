"""torch.distributed.pipelining: a transformer in one stage per rank, under the 1F1B schedule, over gloo."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

TOKENS, BATCH, MICRO_BATCHES, CLASSES = 64, 32, 8, 16
steps, width = map(int, sys.argv[1:] or (54, 128))

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
block = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True)
first = [nn.Linear(CLASSES, width)] if rank == 0 else []
last = [nn.Linear(width, CLASSES)] if rank == size - 1 else []
model = nn.Sequential(*first, block, *last)
stage = PipelineStage(model, rank, size, torch.device("cpu"))
schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(0)
begin_s = time.perf_counter()
for _ in range(steps):
    x = torch.randn(BATCH, TOKENS, CLASSES, generator=data)
    losses: list[torch.Tensor] = []
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=x.flip(1), losses=losses)
    else:
        schedule.step()
    optimizer.step()
    if losses:
        print(repr(sum(loss.item() for loss in losses) / len(losses)))
dist.barrier()
if rank == 0:
    print(f"{steps} steps in {time.perf_counter() - begin_s:.3f} s", file=sys.stderr)
dist.destroy_process_group()
