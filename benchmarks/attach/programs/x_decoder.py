"""x-transformers' autoregressive wrapper under DDP, trained as its examples do: micro-batches, validation, clipping."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from x_transformers import Decoder, TransformerWrapper
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper


class TextSamplerDataset(Dataset):
    def __init__(self, data, seq_len):
        self.data, self.seq_len = data, seq_len

    def __getitem__(self, index):
        start = torch.randint(0, self.data.size(0) - self.seq_len - 1, (1,))
        return self.data[start : start + self.seq_len + 1].long()

    def __len__(self):
        return self.data.size(0) // self.seq_len


def cycle(loader):
    while True:
        yield from loader


dist.init_process_group("gloo")
torch.manual_seed(0)
layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, rotary_pos_emb=True)
model = AutoregressiveWrapper(TransformerWrapper(num_tokens=128, max_seq_len=32, attn_layers=layers))
model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
torch.manual_seed(dist.get_rank())
tokens = torch.randint(128, (4000,))
train_loader = cycle(DataLoader(TextSamplerDataset(tokens, 32), batch_size=4, drop_last=True))
val_loader = cycle(DataLoader(TextSamplerDataset(tokens, 32), batch_size=4, drop_last=True))
optim = torch.optim.Adam(model.parameters(), lr=3e-4)
for i in range(52):
    model.train()
    for _ in range(2):
        loss = model(next(train_loader))
        (loss / 2).backward()
    print(f"training loss: {loss.item()!r}")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optim.step()
    optim.zero_grad()
    if i % 10 == 0:
        model.eval()
        with torch.no_grad():
            print(f"validation loss: {model.module(next(val_loader)).item()!r}")
dist.destroy_process_group()
