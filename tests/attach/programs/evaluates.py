"""Evaluates and saves every few steps, on a loader of its own, and distributed checkpoints at the end."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader


def evaluate(net, loader):
    net.eval()
    total = torch.zeros(1)
    with torch.no_grad():
        for batch in loader:
            total += net(batch).abs().sum()
    dist.all_reduce(total)
    net.train()
    return total.item()


def train(every):
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.Linear(6, 1)))
    optimizer = torch.optim.RMSprop(net.parameters())
    train_loader, val_loader = DataLoader(torch.randn(64, 6), 4), DataLoader(torch.randn(16, 6), 4)
    for number, batch in enumerate(train_loader, 1):
        loss = net(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % every == 0:
            print(number, loss.item(), evaluate(net, val_loader))
            if dist.get_rank() == 0:
                torch.save(net.state_dict(), f"best-{number}.pt")
    dcp.save({"net": net.module.state_dict()}, checkpoint_id="last")


dist.init_process_group("gloo")
try:
    train(every=4)
finally:
    dist.destroy_process_group()
