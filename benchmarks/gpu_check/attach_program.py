"""A training under DDP on one rank, as others write it, for `benchmarks.gpu_check.attach_checks`. Plain PyTorch.

``python attach_program.py BATCH STEPS OUT`` writes to a file how long a step takes, ms, and the last loss.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS, TOKENS = 8, 256
WIDTH, WORDS = (768, 8192) if torch.cuda.is_available() else (48, 512)


def main() -> None:
    """Trains."""
    batch, steps, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("nccl" if cuda else "gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    torch.manual_seed(1)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(LAYERS)
    ]
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS)).to(device)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    tokens = torch.randint(WORDS, (batch, TOKENS), device=device)
    loss, begin_s = torch.zeros(()), 0.0
    for step in range(steps):
        if step == steps // 3:
            torch.cuda.synchronize() if cuda else None
            begin_s = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize() if cuda else None
    step_ms = (time.perf_counter() - begin_s) / (steps - steps // 3) * 1e3
    out.write_text(json.dumps({"step_ms": step_ms, "loss": loss.item()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
