"""What the programs have in common: layers that take a known time, as on a device of their own, and one rank's delay.

Several ranks share the cores of a small machine: layers that computed would hold each other up. These sleep.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FORWARD_S, BACKWARD_S = 0.004, 0.008
"""Of one layer and micro-batch."""
WIDTH = 16


def read_arguments() -> argparse.Namespace:
    """What to do. ``delay``: where a rank sleeps in each step, and for how long."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--schedule", default="Schedule1F1B")
    parser.add_argument("--delay", default="", help="RANK:PLACE:SECONDS")
    parser.add_argument("--layers", default="", help="of each stage or rank, comma-separated; one each where empty")
    parser.add_argument("--work", type=float, default=1.0, help="how many times as long each layer takes")
    return parser.parse_args()


class Delay:
    """Sleeps where a rank is told to."""

    def __init__(self, told: str, parts: int) -> None:
        """``parts``: passes of a step, which share a delay of forwards or backwards."""
        rank, place, time_s = told.split(":") if told else ("-1", "", "0")
        self._place = place if int(rank) == int(os.environ["RANK"]) else ""
        self._time_s = float(time_s) / (parts if place in ("forward", "backward") else 1)

    def pause(self, place: str) -> None:
        """Sleeps if that is the place."""
        if place == self._place:
            time.sleep(self._time_s)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, layer: TimedLayer) -> torch.Tensor:
        context.layer = layer
        time.sleep(FORWARD_S * layer.work)
        if layer.delay is not None:
            layer.delay.pause("forward")
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(BACKWARD_S * context.layer.work)
        if context.layer.delay is not None:
            context.layer.delay.pause("backward")
        return gradients[0], None


class TimedLayer(nn.Module):
    """A linear layer that takes a known time."""

    def __init__(self, work: float, delay: Delay | None = None) -> None:
        """``delay``: of this rank, if it acts in this layer."""
        super().__init__()
        self.linear, self.work, self.delay = nn.Linear(WIDTH, WIDTH), work, delay

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes, and sleeps."""
        made: torch.Tensor = _Sleep.apply(torch.tanh(self.linear(x)), self)
        return made


def build_layers(options: argparse.Namespace, at: int, delay: Delay) -> nn.Sequential:
    """The layers of a stage or rank; the delay acts in the first one."""
    count = int(options.layers.split(",")[at]) if options.layers else 1
    return nn.Sequential(TimedLayer(options.work, delay), *(TimedLayer(options.work) for _ in range(count - 1)))


class _Numbers(Dataset[torch.Tensor]):
    def __init__(self, size: int, count: int, delay: Delay) -> None:
        self._size, self._count, self._delay = size, count, delay

    def __len__(self) -> int:
        return self._size * self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % self._size == 0:
            self._delay.pause("data")
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def make_loader(options: argparse.Namespace, size: int, delay: Delay) -> DataLoader[torch.Tensor]:
    """A batch of random numbers for each step; a delay of data acts once in each of them."""
    return DataLoader(_Numbers(size, options.steps, delay), batch_size=size)
