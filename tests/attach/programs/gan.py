"""Two networks against each other, each with an optimizer of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group(backend="gloo")
torch.manual_seed(0)
G = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
D = DistributedDataParallel(
    nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)), broadcast_buffers=False
)
optG, optD = (torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (G, D))
bce = nn.BCEWithLogitsLoss()
real_data = torch.randn(56, 2) + 3
for epoch in range(2):
    for real in DataLoader(real_data, batch_size=4, shuffle=True):
        # discriminator
        D.zero_grad()
        loss_real = bce(D(real), torch.ones(len(real), 1))
        loss_real.backward()
        fake = G(torch.randn(len(real), 4))
        loss_fake = bce(D(fake.detach()), torch.zeros(len(real), 1))
        loss_fake.backward()
        optD.step()
        # generator
        G.zero_grad()
        loss_g = bce(D(fake), torch.ones(len(real), 1))
        loss_g.backward()
        optG.step()
        print(loss_real.item(), loss_fake.item(), loss_g.item())
dist.destroy_process_group()
