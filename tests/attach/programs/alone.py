"""One process that knows nothing of torch.distributed."""

import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(48, 3), torch.randn(48, 1)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = optim.Adam(model.parameters())
for x, y in data:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    print(loss.item())
if sys.argv[1:] == ["fail"]:
    raise RuntimeError("no more data")
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
