"""A GAN of two convolutional networks, each under DDP with an optimizer of its own, as the tutorial trains it."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

nz, ngf, ndf, nc = 16, 12, 12, 3


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input).view(-1)


dist.init_process_group("gloo")
torch.manual_seed(7)
netG = DistributedDataParallel(Generator(), broadcast_buffers=False)
netD = DistributedDataParallel(Discriminator(), broadcast_buffers=False)
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
dataset = TensorDataset(torch.randn(2 * 16 * 54, nc, 16, 16))
dataloader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
for i, (real,) in enumerate(dataloader):
    netD.zero_grad()
    label = torch.full((real.size(0),), 1.0)
    output = netD(real)
    errD_real = criterion(output, label)
    errD_real.backward()
    fake = netG(torch.randn(real.size(0), nz, 1, 1))
    label.fill_(0.0)
    errD_fake = criterion(netD(fake.detach()), label)
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    errG = criterion(netD(fake), label)
    errG.backward()
    optimizerG.step()
    print(f"[{i}/{len(dataloader)}] Loss_D: {(errD_real + errD_fake).item()!r} Loss_G: {errG.item()!r}")
dist.destroy_process_group()
