"""An image classifier as torch's examples write it: DistributedSampler, validation and a checkpoint after each epoch."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count = name, 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None if inplanes == planes else nn.Conv2d(inplanes, planes, 1)

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + identity)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = BasicBlock(3, 16), BasicBlock(16, 24)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(24, 10)

    def forward(self, x):
        return self.fc(self.avgpool(self.layer2(self.layer1(x))).flatten(1))


def train(loader, model, criterion, optimizer, epoch):
    losses = AverageMeter("Loss")
    model.train()
    for i, (images, target) in enumerate(loader):
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Epoch: [{epoch}][{i}/{len(loader)}] Loss {loss.item()!r} ({losses.sum / losses.count!r})")


def validate(loader, model, criterion):
    losses = AverageMeter("Loss")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            losses.update(criterion(model(images), target).item(), images.size(0))
    total = torch.tensor([losses.sum, losses.count])
    dist.all_reduce(total)
    print(f"* Loss {(total[0] / total[1]).item()!r}")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(640, 3, 16, 16), torch.randint(10, (640,)))
    val = TensorDataset(torch.randn(64, 3, 16, 16), torch.randint(10, (64,)))
    model = nn.parallel.DistributedDataParallel(ResNet())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    sampler = DistributedSampler(data)
    train_loader = DataLoader(data, batch_size=16, sampler=sampler)
    val_loader = DataLoader(val, batch_size=16, sampler=DistributedSampler(val, shuffle=False, drop_last=True))
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            train(train_loader, model, criterion, optimizer, epoch)
            validate(val_loader, model, criterion)
            scheduler.step()
            if dist.get_rank() == 0:
                state = {"epoch": epoch, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, os.path.join(folder, "checkpoint.pth.tar"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
