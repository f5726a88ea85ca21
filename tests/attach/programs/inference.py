"""Embeds a data set with a model that is not trained, and gathers what comes out."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


@torch.inference_mode()
def embed(model, loader):
    parts = []
    for batch in loader:
        parts.append(torch.nn.functional.normalize(model(batch)))
    return torch.cat(parts)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    texts = torch.randint(100, (80, 12))
    encoder = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Flatten(), torch.nn.Linear(192, 8)).eval()
    mine = embed(encoder, DataLoader(texts, batch_size=4, sampler=DistributedSampler(texts, shuffle=False)))
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    print(torch.cat(everyone).double().sum().item())
    dist.destroy_process_group()
