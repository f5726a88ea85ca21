"""A loop with Accelerate, as its documentation writes it: accumulation, clipping, evaluation, a saved state."""

import argparse
import os
import tempfile
import time

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, length):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(length, 64, generator=generator)
        self.labels = torch.randint(10, (length,), generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        time.sleep(float(os.environ.get("DISK_MS", "0")) / 1000)
        return self.images[index], self.labels[index]


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--tracker")
args = parser.parse_args()
trackers = None
if args.tracker:
    from distprof.attach.accelerate import AccelerateTracker

    trackers = AccelerateTracker("accelerate", run_dir=args.tracker, warmup_steps=1, shadow_every=0)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=trackers)
accelerator.init_trackers("loop", config={"epochs": args.epochs})
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
train_loader, eval_loader = DataLoader(Images(80), batch_size=2), DataLoader(Images(8), batch_size=2)
model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
criterion = nn.CrossEntropyLoss()
for epoch in range(args.epochs):
    model.train()
    for images, labels in train_loader:
        with accelerator.accumulate(model):
            loss = criterion(model(images), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        print(epoch, repr(loss.item()))
        accelerator.log({"loss": loss.item()})
    model.eval()
    with torch.no_grad():
        found = [accelerator.gather(model(images).argmax(-1)) for images, labels in eval_loader]
    print(epoch, torch.cat(found).tolist())
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
accelerator.end_training()
