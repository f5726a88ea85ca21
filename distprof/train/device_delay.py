"""A delay on the GPU: a kernel that spins, so that the device is late and the host is not.

A delay on the host is hidden from a GPU whose host runs ahead of it. `torch.cuda._sleep` spins for a number of the
device's clock cycles, whose length is measured first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_CYCLES = 20_000_000
"""About 10 ms: an idle GPU first raises its clock."""
TIMED_CYCLES = 100_000_000


def make_device_delay(device: torch.device, delay_ms: float) -> Callable[[], None]:
    """Measures the device's clock and returns what delays its current stream. Synchronises; call it before training.

    Args:
        device: A GPU.
        delay_ms: How long; as exact as the device's clock is steady.
    """
    cycles = round(delay_ms * _measure_cycles_per_ms(device))

    def delay() -> None:
        if cycles > 0:
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    return delay


def _measure_cycles_per_ms(device: torch.device) -> float:
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(WARM_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        torch.cuda._sleep(TIMED_CYCLES)  # type: ignore[no-untyped-call]
        end.record()
        end.synchronize()
        elapsed_ms: float = start.elapsed_time(end)
    return TIMED_CYCLES / elapsed_ms
