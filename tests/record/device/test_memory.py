"""Memory of a rank, and what the allocator of its GPU counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from distprof.record.device.memory import read_allocations, read_memory

COUNTERS: dict[str, Any] = {
    "num_alloc_retries": 3, "num_ooms": 0, "num_device_alloc": 41, "num_device_free": 2,
    "allocated_bytes": {"all": {"current": 700, "peak": 900, "allocated": 9_000, "freed": 8_300}},
}  # fmt: skip
"""As torch.cuda.memory_stats_as_nested_dict has them."""


def test_memory_of_this_process_is_read() -> None:
    in_use, peak = read_memory(torch.device("cpu"))
    assert in_use is not None and peak is not None and in_use > 10**7 and peak > 10**7
    assert read_allocations(torch.device("cpu")) == {}


def test_the_counters_of_the_allocator_of_its_gpu_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: asked.append(device) or COUNTERS)
    device = torch.device("cuda", 1)
    assert read_memory(device) == (700, 900)
    assert read_allocations(device) == {"driver_allocations": 41, "cache_flushes": 3}
    assert asked == [device, device]


def test_an_allocator_without_counters_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: {})  # before CUDA is used
    assert read_memory(torch.device("cuda", 0)) == (0, 0) and read_allocations(torch.device("cuda", 0)) == {}


@pytest.mark.cuda
def test_a_real_gpu_has_these_counters() -> None:
    tensors = [torch.empty(30_000_000, device="cuda") for _ in range(2)]
    in_use, peak = read_memory(torch.device("cuda", 0))
    assert in_use == peak == torch.cuda.memory_allocated() and in_use >= sum(each.nbytes for each in tensors)
    assert read_allocations(torch.device("cuda", 0))["driver_allocations"] >= 1
