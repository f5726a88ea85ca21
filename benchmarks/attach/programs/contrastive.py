"""Contrastive learning: two views, embeddings gathered from all ranks with gradients, a loader with worker processes."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class TwoViews(Dataset):
    def __init__(self, length):
        self.images = torch.randn(length, 192, generator=torch.Generator().manual_seed(4))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return image + 0.1 * torch.randn_like(image), image + 0.1 * torch.randn_like(image)


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(192, 384), nn.BatchNorm1d(384), nn.ReLU(), nn.Linear(384, 192))
        self.projector = nn.Sequential(nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 64))

    def forward(self, x):
        return F.normalize(self.projector(self.encoder(x)), dim=1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(SimCLR())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 54)
    dataset = TwoViews(2 * 32 * 54)
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset), num_workers=1)
    for first, second in loader:
        z = model(torch.cat([first, second]))
        mine = z.chunk(2)[0]
        theirs = torch.cat([each.chunk(2)[1] for each in all_gather(z)])
        target = torch.arange(len(mine)) + dist.get_rank() * len(mine)
        loss = F.cross_entropy(mine @ theirs.T / 0.1, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(repr(loss.item()), scheduler.get_last_lr())
    dist.destroy_process_group()
