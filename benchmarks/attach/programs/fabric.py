"""Lightning Fabric, as its documentation writes a loop: setup, no_backward_sync, clip_gradients, save."""

import tempfile

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = L.Fabric(accelerator="cpu", devices=2, strategy=L.fabric.strategies.DDPStrategy(process_group_backend="gloo"))
fabric.launch()
fabric.seed_everything(5)
model = nn.Sequential(nn.Linear(128, 384), nn.SiLU(), nn.Linear(384, 384), nn.SiLU(), nn.Linear(384, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = fabric.setup(model, optimizer)
length = 2 * 16 * 104
data = DataLoader(TensorDataset(torch.randn(length, 128), torch.randint(10, (length,))), batch_size=16, shuffle=True)
data = fabric.setup_dataloaders(data)
model.train()
for i, (x, y) in enumerate(data):
    accumulating = i % 2 == 0
    with fabric.no_backward_sync(model, enabled=accumulating):
        loss = nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
    if not accumulating:
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(i, repr(loss.item()))
    if i == 61:
        with tempfile.TemporaryDirectory() as folder:
            fabric.save(f"{folder}/state.ckpt", {"model": model, "optimizer": optimizer, "i": i})
