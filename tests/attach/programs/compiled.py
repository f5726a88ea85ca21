"""Training under torch.compile, in the forms that PyTorch documents."""

import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


KEPT = []


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 1024), nn.Linear(1024, 4))


def shard(net):
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(net)


def compute_loss(model, x):
    return model(x).square().mean()


def reduce_loss(model, x):
    loss = compute_loss(model, x)
    return loss + 0 * functional.all_reduce(loss.detach(), "sum", dist.group.WORLD)


def step(model, optimizer, x):
    loss = compute_loss(model, x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def step_by_hand(model, optimizer, x):
    loss = compute_loss(model, x)
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        parameter.grad = gradient
    optimizer.step()
    return loss


def train(name, model, step=step):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(4):
        loss = step(model, optimizer, torch.randn(4, 16, generator=generator))
        print(name, repr(loss.item()))


def main():
    dist.init_process_group("gloo")
    torch._dynamo.reset()
    train("model", torch.compile(DDP(make(), bucket_cap_mb=1), backend="eager"))
    train("inside", DDP(torch.compile(make(), backend="eager"), bucket_cap_mb=1))
    if hasattr(torch.cpu.Stream, "record_event"):  # torch 2.6 cannot shard on a CPU
        train("method", torch.compile(shard(make()), backend="eager"))
    else:  # the end of its groups can wait for a thread that waits for the GIL to let go of a tensor
        KEPT.append(dist.group.WORLD)
    torch._dynamo.reset()
    train("step", DDP(make(), bucket_cap_mb=1), torch.compile(step, backend="eager"))
    train("gradients", make(), torch.compile(step_by_hand, backend="aot_eager"))
    loss = torch.compile(reduce_loss, backend="aot_eager", fullgraph=True)
    net = make()
    for _ in range(2):
        loss(net, torch.ones(4, 16)).backward()
    print("reduced", [repr(parameter.grad.sum().item()) for parameter in net.parameters()])
    dist.destroy_process_group()


with warnings.catch_warnings():
    warnings.filterwarnings("error", "(?s).*file an issue")
    main()
