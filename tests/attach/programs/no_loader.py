"""Reinforcement learning in miniature: batches from a function, gradients averaged by hand, no DDP."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
policy = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(10 + dist.get_rank())


def play(steps=8):
    states = torch.randn(steps, 4, generator=generator)
    rewards = states[:, :1].sign()
    return states, rewards


for episode in range(15):
    states, rewards = play()
    log_probs = torch.log_softmax(policy(states), dim=1)
    loss = -(log_probs[:, :1] * rewards).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in policy.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    torch.nn.utils.clip_grad_value_(policy.parameters(), 0.5)
    optimizer.step()
    print(episode, loss.item())
dist.destroy_process_group()
