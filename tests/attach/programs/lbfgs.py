"""Curve fitting on the whole data with L-BFGS and its closure."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
x = torch.linspace(-1, 1, 64)[:, None]
y = torch.sin(3 * x)
model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    return loss


for p in model.parameters():
    dist.broadcast(p.data, 0)
for it in range(10):
    print(it, optimizer.step(closure).item())
dist.barrier()
dist.destroy_process_group()
