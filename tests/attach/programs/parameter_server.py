"""Rank 0 holds the parameters and the optimizer; the others send it gradients, and receive parameters."""

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Linear(32, 32)
parameters = list(model.parameters())
generator = torch.Generator().manual_seed(rank)
optimizer = torch.optim.SGD(parameters, lr=0.01) if rank == 0 else None
for _ in range(12):
    if optimizer is not None:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        for worker in range(1, size):
            for parameter in parameters:
                part = torch.empty_like(parameter)
                dist.recv(part, worker)
                parameter.grad += part / (size - 1)
        optimizer.step()
        print(repr(parameters[0].sum().item()))
        for worker in range(1, size):
            for parameter in parameters:
                dist.send(parameter.data, worker)
    else:
        loss = model(torch.randn(8, 32, generator=generator)).square().mean()
        model.zero_grad()
        loss.backward()
        print(repr(loss.item()))
        for parameter in parameters:
            dist.send(parameter.grad, 0)
        for parameter in parameters:
            dist.recv(parameter.data, 0)
dist.destroy_process_group()
