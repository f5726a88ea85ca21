"""Poutyne's Model.fit around a network under DDP: batch metrics, validation, a checkpoint."""

import torch
import torch.distributed as dist
from poutyne import Callback, Model
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Shows(Callback):
    def on_train_batch_end(self, batch_number, logs):
        print(batch_number, repr(logs["loss"]))


dist.init_process_group("gloo")
torch.manual_seed(0)
network = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, 5))
)
data = TensorDataset(torch.randn(2 * 16 * 18, 128), torch.randint(5, (2 * 16 * 18,)))
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
valid = DataLoader(TensorDataset(*data[:64]), batch_size=16)
model = Model(network, torch.optim.Adam(network.parameters(), lr=1e-3), "cross_entropy", batch_metrics=["accuracy"])
model.fit_generator(loader, valid, epochs=3, callbacks=[Shows()], progress_options={"coloring": False}, verbose=False)
dist.destroy_process_group()
