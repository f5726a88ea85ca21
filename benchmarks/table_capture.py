"""A large synthetic nsys export: two processes that launch kernels in nested ranges, and read files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.synthetic_nsys import (
    CUDA_CALL_CLASS,
    OS_CALL_CLASS,
    Copy,
    EventType,
    Memory,
    SyntheticExport,
    pack_pid,
    pack_thread,
)
from distprof.facts.arrays import IntArray

PIDS = (4101, 4102)
ROWS_PER_OP = 3.21
"""A range, a call and a kernel; the rest are copies, memsets, system calls, and ranges around several."""
OPS_PER_LAYER, OPS_PER_STEP, OPS_PER_COPY, OPS_PER_OS_CALL = 50, 2_000, 20, 10
KERNELS, RANGES, OS_CALLS = 120, 80, 30
CALLS = ("cudaLaunchKernel_v7000", "cudaLaunchKernelExC_v11060", "cuLaunchKernel", "cudaMemsetAsync_v3020")
STEP_GAP_NS = 1_000_000


def make_capture(path: Path, *, rows: int, seed: int = 0) -> int:
    """Writes the export, and returns its number of event rows.

    Args:
        path: The file.
        rows: The approximate number of event rows.
        seed: Seed of the durations and of what is launched.
    """
    export, draw = SyntheticExport(), np.random.default_rng(seed)
    for device, pid in enumerate(PIDS):
        export.add_process(pid)
        export.add_gpu(device, name="Synthetic GPU", memory_bytes=80 << 30, capability=(9, 0))
        export.name_rank(pid, rank=device, world_size=len(PIDS))
        _add_process(export, pid, device, max(int(rows / ROWS_PER_OP / len(PIDS)), OPS_PER_LAYER), draw)
    export.write(path)
    return sum(len(export.rows[table]) for table in export.rows if table.startswith(("NVTX", "CUPTI", "OSRT")))


def _add_process(export: SyntheticExport, pid: int, device: int, ops: int, draw: np.random.Generator) -> None:
    """Adds consecutive operations, each a range around the call that launches a kernel."""
    host_ns = draw.integers(8_000, 40_000, ops)
    begin_ns = STEP_GAP_NS + np.cumsum(host_ns) - host_ns + np.arange(ops) // OPS_PER_STEP * STEP_GAP_NS
    lasts_ns = np.exp(draw.normal(9.5, 1.2, ops)).astype(np.int64) + 500
    kernel_end_ns = np.maximum.accumulate(begin_ns + np.cumsum(lasts_ns) - lasts_ns) + lasts_ns
    _add_ranges(export, pid, begin_ns, begin_ns + host_ns - 1_000, draw)
    which = draw.integers(0, len(CALLS) - 1, ops)
    which[::OPS_PER_COPY] = len(CALLS) - 1
    thread, correlation = pack_thread(pid, None), np.arange(ops) + 1
    names = np.array([export.intern(name) for name in CALLS])[which]
    export.add_columns("CUPTI_ACTIVITY_KIND_RUNTIME", {
        "start": (begin_ns + 2_000).tolist(), "end": (begin_ns + 5_000 + host_ns % 997).tolist(),
        "eventClass": CUDA_CALL_CLASS, "globalTid": thread, "correlationId": correlation.tolist(),
        "nameId": names.tolist(), "returnValue": 0,
    })  # fmt: skip
    copies = which == len(CALLS) - 1
    where = {"deviceId": device, "contextId": 1, "streamId": 7, "globalPid": pack_pid(pid)}
    times = {"start": kernel_end_ns - lasts_ns, "end": kernel_end_ns, "correlationId": correlation}
    kernels = {name: values[~copies].tolist() for name, values in times.items()}
    codes = [export.intern(f"void kernel_{number}<float, {number}>(float*, int)") for number in range(KERNELS)]
    drawn = np.array(codes)[(draw.random(int((~copies).sum())) ** 3 * KERNELS).astype(np.int64)].tolist()
    shapes = dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), 1) | {"blockX": 128}
    named = {"demangledName": drawn, "shortName": drawn, "mangledName": drawn}
    export.add_columns("CUPTI_ACTIVITY_KIND_KERNEL", {**kernels, **where, **named, **shapes})
    _add_copies(export, {name: values[copies] for name, values in times.items()}, where, draw)


def _add_ranges(
    export: SyntheticExport, pid: int, begin_ns: IntArray, end_ns: IntArray, draw: np.random.Generator
) -> None:
    """Adds one range per operation, layers around some and steps around many; and system calls on a thread."""
    domain, ops = export.add_domain(pid, "distprof"), len(begin_ns)
    kinds = {"globalTid": pack_thread(pid, None), "eventType": EventType.PUSH_POP.value}
    codes = np.array([export.intern(f"operation {number}") for number in range(RANGES)])
    for domain_id, every, names in (
        (0, 1, codes[draw.integers(0, RANGES, ops)]),
        (0, OPS_PER_LAYER, np.full(ops, export.intern("layer"))),
        (domain, OPS_PER_STEP, np.full(ops, export.intern("step"))),
    ):
        first = np.arange(0, ops, every)
        last = np.minimum(first + every, ops) - 1
        export.add_columns("NVTX_EVENTS", {
            "start": (begin_ns[first] - (every > 1) - (every > OPS_PER_LAYER)).tolist(),
            "end": (end_ns[last] + (every > 1) + (every > OPS_PER_LAYER)).tolist(),
            "textId": names[first].tolist(), "domainId": domain_id, **kinds,
            "int64Value": (first // OPS_PER_STEP).tolist() if every == OPS_PER_STEP else None,
        })  # fmt: skip
    called = begin_ns[::OPS_PER_OS_CALL]
    codes = np.array([export.intern(f"os_call_{number}") for number in range(OS_CALLS)])
    export.add_columns("OSRT_API", {
        "start": called.tolist(), "end": (called + draw.integers(500, 10**6, len(called))).tolist(),
        "nameId": codes[draw.integers(0, OS_CALLS, len(called))].tolist(), "globalTid": pack_thread(pid, pid + 1),
        "eventClass": OS_CALL_CLASS, "nestingLevel": 0, "returnValue": 0,
    })  # fmt: skip


def _add_copies(
    export: SyntheticExport, times: dict[str, IntArray], where: dict[str, int], draw: np.random.Generator
) -> None:
    """Adds copies of all kinds, and a memset for every second one."""
    count = len(times["start"])
    sizes = (2 ** draw.uniform(2, 30, count)).astype(np.int64)
    export.add_columns("CUPTI_ACTIVITY_KIND_MEMCPY", {
        **{name: values.tolist() for name, values in times.items()}, **where, "bytes": sizes.tolist(),
        "copyKind": draw.choice(list(map(int, Copy)), count).tolist(), "srcKind": Memory.PAGEABLE.value,
        "dstKind": Memory.DEVICE.value,
    })  # fmt: skip
    export.add_columns("CUPTI_ACTIVITY_KIND_MEMSET", {
        **{name: values[::2].tolist() for name, values in times.items()}, **where, "bytes": sizes[::2].tolist(),
        "value": 0, "memKind": Memory.DEVICE.value,
    })  # fmt: skip
