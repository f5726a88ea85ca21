"""Graph classification with PyTorch Geometric: its DataLoader, DDP, a test after each epoch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool


class GCN(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(16, hidden), GCNConv(hidden, hidden)
        self.lin = nn.Linear(hidden, 2)

    def forward(self, x, edge_index, batch):
        x = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return self.lin(F.dropout(global_mean_pool(x, batch), p=0.5, training=self.training))


dist.init_process_group("gloo")
torch.manual_seed(12345)
graphs = [
    Data(x=torch.randn(20, 16), edge_index=torch.randint(20, (2, 60)), y=torch.randint(2, (1,)))
    for _ in range(2 * 8 * 18)
]
sampler = DistributedSampler(graphs)
train_loader, test_loader = DataLoader(graphs, batch_size=8, sampler=sampler), DataLoader(graphs[:32], batch_size=16)
model = nn.parallel.DistributedDataParallel(GCN())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    for data in train_loader:
        loss = F.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(repr(loss.item()))


@torch.no_grad()
def test(loader):
    model.eval()
    return sum(int((model(d.x, d.edge_index, d.batch).argmax(1) == d.y).sum()) for d in loader) / len(loader.dataset)


for epoch in range(3):
    sampler.set_epoch(epoch)
    train()
    print(f"Epoch: {epoch:03d}, {test(test_loader)}")
dist.destroy_process_group()
