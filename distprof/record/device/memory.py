"""How much memory a rank uses, and how often the allocator of its GPU has to ask the driver for more.

The background thread reads it. Of a GPU that is one look at the allocator's counters, which asks the device nothing.
"""

from __future__ import annotations

import os
import resource
from typing import Any

import torch


def read_memory(device: torch.device) -> tuple[int | None, int | None]:
    """Memory in use and its peak so far, bytes: allocated by torch (CUDA) or resident (CPU). Reads a file."""
    if device.type == "cuda":
        allocated = _read_allocator(device).get("allocated_bytes", {}).get("all", {})
        return allocated.get("current", 0), allocated.get("peak", 0)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        with open("/proc/self/statm", "rb") as file:
            in_use_bytes = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            return in_use_bytes, max(peak_bytes, in_use_bytes)  # the kernel updates the two at different times
    except (OSError, ValueError, IndexError):
        return None, peak_bytes


def read_allocations(device: torch.device) -> dict[str, float]:
    """How often the allocator has asked the driver so far, as in `distprof.facts.scheduling`; empty if there is none.

    Source: torch.cuda.memory_stats. Allocators other than PyTorch's own leave the counters at 0.
    """
    counters = _read_allocator(device) if device.type == "cuda" else {}
    named = {"driver_allocations": "num_device_alloc", "cache_flushes": "num_alloc_retries"}
    return {name: counters[counter] for name, counter in named.items() if counter in counters}


def _read_allocator(device: torch.device) -> dict[str, Any]:
    # Not memory_allocated(): it sorts all counters into another dictionary at each call.
    counters: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(device)
    return counters
