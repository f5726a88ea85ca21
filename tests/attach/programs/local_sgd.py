"""Local SGD: ranks train alone, and average their parameters after every fourth step, in one of three ways."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=("loop", "averager", "accelerate"), default="loop")
args = parser.parse_args()
EVERY = 4
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(1)


def train_step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 32, generator=generator)).square().mean()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))


if args.how == "accelerate":
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD
    from accelerate.state import AcceleratorState

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=EVERY, enabled=True) as local_sgd:
        for step in range(52):
            train_step()
            local_sgd.step()
    accelerator.end_training()  # destroys the process group
    AcceleratorState._reset_state(reset_partial_state=True)  # what follows in this process has another
else:
    dist.init_process_group("gloo")
    averager = PeriodicModelAverager(period=EVERY)
    for step in range(52):
        train_step()
        if args.how == "averager":
            averager.average_parameters(model.parameters())
        elif step % EVERY == EVERY - 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
    dist.destroy_process_group()
