"""A pipeline of isend and irecv, written by hand: one stage per rank, all forwards, then all backwards."""

import torch
import torch.distributed as dist
from timed import WIDTH, Delay, build_layers, make_loader, read_arguments

options = read_arguments()
dist.init_process_group("gloo")
rank, size, batches = dist.get_rank(), dist.get_world_size(), options.micro_batches
first, last = rank == 0, rank == size - 1
torch.manual_seed(rank)
delay = Delay(options.delay, batches)
stage = build_layers(options, rank, delay)
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
for whole in make_loader(options, 4 * batches, delay):
    sends, kept = [], []
    for batch in whole.split(4):
        x = batch
        if not first:
            x = torch.empty(4, WIDTH)
            dist.irecv(x, rank - 1).wait()
            x.requires_grad_()
        y = stage(x)
        kept.append((x, y, batch))
        if not last:
            sends.append(dist.isend(y.detach(), rank + 1))
    for x, y, batch in kept:
        if last:
            (y - batch.flip(1)).square().mean().backward()
        else:
            gradient = torch.empty(4, WIDTH)
            dist.irecv(gradient, rank + 1).wait()
            y.backward(gradient)
        if not first:
            sends.append(dist.isend(x.grad, rank - 1))
    for send in sends:
        send.wait()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
