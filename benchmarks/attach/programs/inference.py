"""Offline inference: each rank embeds its part of a data set, and the embeddings are gathered at the end."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(2))
        self.head = nn.Linear(64, 16)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    texts = torch.randint(500, (2 * 16 * 60, 32))
    model = Encoder().eval()
    parts = []
    with torch.inference_mode():
        for batch in DataLoader(texts, batch_size=16, sampler=DistributedSampler(texts, shuffle=False)):
            vectors = nn.functional.normalize(model(batch), dim=1)
            mean = vectors.mean(0)
            dist.all_reduce(mean)
            parts.append(vectors)
            print(repr(mean.sum().item()))
    mine = torch.cat(parts)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    print(torch.cat(everyone).double().sum().item())
    dist.destroy_process_group()
