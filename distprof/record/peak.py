"""What one device can do at best, measured on the spot by a matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from distprof.run import Peak

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {"cpu": (256, 512, 1024), "cuda": (4096, 8192)}
BUDGET_S = 0.5
"""Time for each size; a size whose first product takes longer is the last one tried."""


def measure_peak(device: torch.device, precision: str) -> Peak:
    """The best of several square matrix products of random numbers; before training only.

    Synchronises. On a CPU it is what this process's threads reach; call it on one rank of a host at a time.

    Args:
        device: Where to measure.
        precision: "fp32", "tf32", "bf16" or "fp16".
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    best_flops_per_s, best_size, products = 0.0, 0, 0
    try:
        for size in SIZES[device.type]:
            left, right = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
            times_ns = _time_products(lambda left=left, right=right: left @ right, device)  # type: ignore[misc]
            products += len(times_ns)
            flops_per_s = 2 * size**3 / min(times_ns) * 1e9
            if flops_per_s > best_flops_per_s:
                best_flops_per_s, best_size = flops_per_s, size
            if min(times_ns) > BUDGET_S * 1e9:
                break
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    threads = f" on {torch.get_num_threads()} thread(s)" if device.type == "cpu" else ""
    source = f"measured here: {best_size} x {best_size} {precision} matrix product{threads}, best of {products}"
    return Peak(flops_per_s=best_flops_per_s, source=source)


def _time_products(multiply: Callable[[], torch.Tensor], device: torch.device) -> list[int]:
    """Times of single products, ns, for `BUDGET_S`; the first, which warms up, only counts when it is the only one."""
    times_ns: list[int] = []
    deadline_ns = time.monotonic_ns() + int(BUDGET_S * 1e9)
    while not times_ns or (time.monotonic_ns() < deadline_ns and len(times_ns) < 100):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start_ns = time.monotonic_ns()
        multiply()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times_ns.append(time.monotonic_ns() - start_ns)
    return times_ns[1:] or times_ns
