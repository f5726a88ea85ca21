"""A module of Lightning under DDP: accumulation, clipping, validation, checkpoints."""

import argparse
import os
import tempfile
import time

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import torch.nn as nn
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


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        print(self.global_step, repr(loss.item()))
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(images), labels), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--callback")
args = parser.parse_args()
callbacks = []
if args.callback:
    from distprof.attach.lightning import LightningCallback

    callbacks = [LightningCallback("lightning", run_dir=args.callback, warmup_steps=1, shadow_every=0)]
with tempfile.TemporaryDirectory() as folder:
    torch.manual_seed(0)
    model = Classifier()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=pl.strategies.DDPStrategy(process_group_backend="gloo"),
        max_steps=args.steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=20,
        logger=False,
        callbacks=[*callbacks, pl.callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=10)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Images(96), batch_size=2), DataLoader(Images(8), batch_size=2))
    print(trainer.global_step, sum(float(each.detach().double().sum()) for each in model.parameters()))
    dist.barrier()
dist.destroy_process_group()
