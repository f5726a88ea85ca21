"""Sine waves predicted with L-BFGS and its closure, as torch's example does, under DDP."""

import torch
import torch.distributed as dist
from torch import nn


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 24), nn.LSTMCell(24, 24), nn.Linear(24, 1)

    def forward(self, input):
        outputs = []
        h, c, h2, c2 = (torch.zeros(input.size(0), 24) for _ in range(4))
        for each in input.split(1, dim=1):
            h, c = self.lstm1(each, (h, c))
            h2, c2 = self.lstm2(h, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


dist.init_process_group("gloo")
torch.manual_seed(0)
t = torch.arange(20.0) + torch.randint(-4, 4, (24, 1)) + 8 * dist.get_rank()
wave = torch.sin(t / 4)
seq = nn.parallel.DistributedDataParallel(Sequence())
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.5, max_iter=2, max_eval=2)
for i in range(52):

    def closure():
        optimizer.zero_grad()
        out = seq(wave[:, :-1])
        loss = criterion(out, wave[:, 1:])
        print("loss:", repr(loss.item()))
        loss.backward()
        return loss

    optimizer.step(closure)
dist.destroy_process_group()
