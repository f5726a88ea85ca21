"""Queries torch in a program of its own: `python -m distprof.cli.doctor.probe_torch` prints JSON.

In the doctor's process, importing torch would cost seconds in which other checks can run, and a crash of torch would
end the doctor.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import time
import warnings
from pathlib import Path
from typing import Any


def probe_torch() -> dict[str, Any]:
    """The fields of `TorchFacts`, as plain values."""
    begin, waited, used = time.perf_counter(), _read_waited_s(), time.process_time()
    import torch
    import torch.distributed as dist

    seconds, used = time.perf_counter() - begin, time.process_time() - used
    waited_for_core = None if waited is None else (_read_waited_s() or waited) - waited
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    distributed = dist.is_available()
    nccl = distributed and dist.is_nccl_available()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cuda_available": available,
        "cuda_problem": str(said[0].message).strip().split("\n")[0][:300] if said and not available else None,
        "driver_cuda": read_driver_cuda() if torch.version.cuda else None,
        "gpus": [_describe(torch, index) for index in range(torch.cuda.device_count())] if available else [],
        "nccl": _read_nccl(torch) if nccl and torch.version.cuda else None,
        "distributed": distributed,
        "gloo": distributed and dist.is_gloo_available(),
        "seconds_to_import": seconds,
        "seconds_computing": min(used, seconds),
        "seconds_without_core": waited_for_core,
    }


def _read_waited_s() -> float | None:
    """How long this thread was ready to run and had no core so far. None: the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _describe(torch: Any, index: int) -> dict[str, Any]:
    card = torch.cuda.get_device_properties(index)
    return {"name": str(card.name), "memory_bytes": int(card.total_memory)}


def _read_nccl(torch: Any) -> str:
    return ".".join(map(str, torch.cuda.nccl.version()))


def read_driver_cuda() -> str | None:
    """The newest CUDA that the driver knows, from the driver itself: torch has no public function for it, and some
    releases no private one either. None: there is no driver.

    Source: CUDA Driver API, cuDriverGetVersion, which needs no device; 12040 means CUDA 12.4.
    """
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (AttributeError, OSError):
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}" if not failed and number.value > 0 else None


def main() -> None:
    """Prints one line of JSON, whatever torch itself prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        facts = probe_torch()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
