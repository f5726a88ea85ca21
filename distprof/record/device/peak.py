"""The peak FLOP/s of one device, measured with matrix products."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

from distprof.facts.run import Peak

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {"cpu": (256, 512, 1024), "cuda": (4096, 8192)}
BUDGET_S = 0.5
"""Time for each size; after a size whose fastest product takes longer, no larger one is tried."""


def measure_peak(device: torch.device, precision: str) -> Peak:
    """The best of several square matrix products of random numbers. Synchronises; use it only before training.

    On a CPU it is what this process's threads reach; call it on one rank of a host at a time.

    Args:
        device: Where to measure.
        precision: "fp32", "tf32", "bf16" or "fp16".
    """
    best_flops_per_s, best_size, products = 0.0, 0, 0
    own = torch.Generator(device)  # training's random numbers stay what they are without us
    with _allow_tf32(precision == "tf32"):
        for size in SIZES[device.type]:
            left, right = (torch.randn(size, size, device=device, generator=own).to(DTYPES[precision]) for _ in "ab")
            times_ns = _time_products(lambda left=left, right=right: left @ right, device)  # type: ignore[misc]
            products += len(times_ns)
            flops_per_s = 2 * size**3 / min(times_ns) * 1e9
            if flops_per_s > best_flops_per_s:
                best_flops_per_s, best_size = flops_per_s, size
            if min(times_ns) > BUDGET_S * 1e9:
                break
    threads = f" on {torch.get_num_threads()} thread(s)" if device.type == "cpu" else ""
    source = f"measured here: {best_size} x {best_size} {precision} matrix product{threads}, best of {products}"
    return Peak(flops_per_s=best_flops_per_s, source=source)


@contextlib.contextmanager
def _allow_tf32(allowed: bool) -> Iterator[None]:
    """Whether fp32 products use TF32, in the block.

    torch has two settings for it and refuses to read the older one once the newer one (``fp32_precision``, since torch
    2.9) says otherwise, so the newer one is used where there is one. It reads as the setting that it inherits unless it
    has one of its own; in the first case it goes on inheriting.
    """
    matmul, whole = torch.backends.cuda.matmul, torch.backends.cudnn
    if not hasattr(matmul, "fp32_precision"):
        before = matmul.allow_tf32
        matmul.allow_tf32 = allowed
        try:
            yield
        finally:
            matmul.allow_tf32 = before
        return
    own, inherited = matmul.fp32_precision, whole.fp32_precision
    matmul.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = "none" if own == inherited else own


def _time_products(multiply: Callable[[], torch.Tensor], device: torch.device) -> list[int]:
    """Times of single products, ns, for `BUDGET_S`; the first is a warm-up and counts only if it is the only one."""
    times_ns: list[int] = []
    deadline_ns = time.monotonic_ns() + int(BUDGET_S * 1e9)
    while not times_ns or (time.monotonic_ns() < deadline_ns and len(times_ns) < 100):
        times_ns.append(_time_on_gpu(multiply, device) if device.type == "cuda" else _time_on_cpu(multiply))
    return times_ns[1:] or times_ns


def _time_on_cpu(multiply: Callable[[], torch.Tensor]) -> int:
    """Host clock, ns."""
    start_ns = time.monotonic_ns()
    multiply()
    return time.monotonic_ns() - start_ns


def _time_on_gpu(multiply: Callable[[], torch.Tensor], device: torch.device) -> int:
    """Device clock, ns; synchronises."""
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        multiply()  # not timed: it keeps the device busy while the next one is launched
        start.record()
        multiply()
        end.record()
        end.synchronize()
        elapsed_ms: float = start.elapsed_time(end)
    return round(elapsed_ms * 1e6)
