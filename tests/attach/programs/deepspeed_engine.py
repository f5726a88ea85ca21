"""DeepSpeed's engine, as its documentation writes it: accumulation, clipping, ZeRO, a saved checkpoint."""

import argparse
import os
import tempfile
import time

import deepspeed
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


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
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--engine")
args = parser.parse_args()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
weights, biases = ([p for p in model.parameters() if p.ndim == n] for n in (2, 1))
config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0}]),
    config=config,
)
dataset = Images(2 * 2 * 2 * args.steps)
loader = DataLoader(dataset, batch_size=2, sampler=DistributedSampler(dataset))
if args.engine:
    from distprof.attach.deepspeed import watch_engine

    profiler = watch_engine(engine, "engine", run_dir=args.engine, warmup_steps=1, shadow_every=0)
criterion = nn.CrossEntropyLoss()
for images, labels in loader:
    loss = criterion(engine(images), labels)
    engine.backward(loss)
    engine.step()
    print(engine.global_steps, repr(loss.item()))
    if engine.micro_steps == 2 * 20:
        with tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder)
if args.engine:
    profiler.close()
torch.distributed.destroy_process_group()
