"""A small language model in the manner of nanoGPT: no DataLoader, estimate_loss(), the next batch fetched early."""

import os

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

eval_interval, eval_iters, max_iters, gradient_accumulation_steps, block_size, batch_size = 5, 2, 12, 2, 8, 4


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50, 16), nn.Embedding(block_size, 16)
        self.h, self.lm_head = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True), nn.Linear(16, 50)

    def forward(self, idx, targets=None):
        logits = self.lm_head(self.h(self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))))
        return logits, F.cross_entropy(logits.view(-1, 50), targets.view(-1))


init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
master_process = ddp_rank == 0
torch.manual_seed(1337 + ddp_rank)
tokens = torch.randint(50, (1000,))


def get_batch(split):
    ix = torch.randint(len(tokens) - block_size, (batch_size,))
    return torch.stack([tokens[i : i + block_size] for i in ix]), torch.stack(
        [tokens[i + 1 : i + 1 + block_size] for i in ix]
    )


model = DDP(GPT())
raw_model = model.module
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            losses[k] = model(*get_batch(split))[1].item()
        out[split] = losses.mean()
    model.train()
    return out


X, Y = get_batch("train")
iter_num = 0
while True:
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.9f}, val loss {losses['val']:.9f}")
        if iter_num > 0:
            torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        logits, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {loss.item():.12f}")
    iter_num += 1
    if iter_num >= max_iters:
        break
destroy_process_group()
