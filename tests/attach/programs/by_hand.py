"""No wrapper: gradients come from torch.autograd.grad, are averaged here, and an optimizer that is made is not used."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group(backend="gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for x, y in DataLoader(TensorDataset(torch.randn(48, 32), torch.randn(48, 1)), batch_size=4):
    loss = (model(x) - y).square().mean()
    gradients = torch.autograd.grad(loss, model.parameters())
    for gradient in gradients:
        dist.all_reduce(gradient)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= 0.01 * gradient / dist.get_world_size()
    print(loss.item(), mean.item())
dist.destroy_process_group()
