"""A mixture of experts: every rank holds one, and tokens go to them and come back by all_to_all.

An expert takes as long as it has tokens; ``--layers`` says how many times as many tokens each of them gets.
"""

import time

import torch
import torch.distributed as dist
from timed import WIDTH, Delay, TimedLayer, make_loader, read_arguments
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel

TOKENS, TOKEN_S = 64, 0.0002
options = read_arguments()
dist.init_process_group("gloo")
rank, size, batches = dist.get_rank(), dist.get_world_size(), options.micro_batches
torch.manual_seed(0)
delay = Delay(options.delay, batches)
trunk = DistributedDataParallel(nn.Sequential(TimedLayer(options.work, delay)))
torch.manual_seed(rank)
expert = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
optimizer = torch.optim.SGD([*trunk.parameters(), *expert.parameters()], lr=0.01)
shares = torch.tensor([float(each) for each in options.layers.split(",")] if options.layers else [1.0] * size)
data = torch.Generator().manual_seed(rank)
for whole in make_loader(options, TOKENS * batches, delay):
    for x in whole.split(TOKENS):
        hidden = trunk(x)
        chosen = torch.multinomial(shares, TOKENS, replacement=True, generator=data).sort().values
        sends = torch.bincount(chosen, minlength=size)
        receives = torch.empty_like(sends)
        dist.all_to_all_single(receives, sends)
        sent, received = sends.tolist(), receives.tolist()
        tokens = all_to_all_single(torch.empty(sum(received), WIDTH), hidden, received, sent)
        time.sleep(TOKEN_S * sum(received))
        back = all_to_all_single(torch.empty(TOKENS, WIDTH), expert(tokens), sent, received)
        (back - hidden).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
