"""A classifier under DistributedDataParallel, as the tutorials write it."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Images(Dataset):
    def __init__(self, length=64):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(length, 1, 8, 8, generator=generator)
        self.labels = torch.randint(10, (length,), generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        time.sleep(float(os.environ.get("DISK_MS", "0")) / 1000)
        return self.images[index], self.labels[index]


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = Images()
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
model = DDP(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
criterion = nn.CrossEntropyLoss()
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        print(dist.get_rank(), repr(loss.item()))
    scheduler.step()
dist.destroy_process_group()
