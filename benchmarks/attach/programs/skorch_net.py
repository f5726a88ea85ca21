"""skorch: a network with the interface of scikit-learn, fitted around a module under DDP."""

import numpy as np
import torch
import torch.distributed as dist
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn


class MyModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense0, self.nonlin, self.dense1 = nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 256)
        self.output = nn.Linear(256, 2)

    def forward(self, X):
        X = self.nonlin(self.dense1(self.nonlin(self.dense0(X))))
        return torch.softmax(self.output(X), dim=-1)


class Shows(Callback):
    def on_batch_end(self, net, training, loss=None, **kwargs):
        print("train" if training else "valid", repr(loss.item()))


dist.init_process_group("gloo")
random = np.random.default_rng(0)
X, y = random.normal(size=(2 * 32 * 18 * 5 // 4, 96)).astype(np.float32), random.integers(0, 2, 2 * 32 * 18 * 5 // 4)
mine = slice(dist.get_rank(), None, dist.get_world_size())
torch.manual_seed(0)
module = nn.parallel.DistributedDataParallel(MyModule())
net = NeuralNetClassifier(module, max_epochs=3, lr=0.05, batch_size=32, callbacks=[Shows()], verbose=0)
net.fit(X[mine], y[mine])
dist.destroy_process_group()
