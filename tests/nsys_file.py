"""Nsight Systems exports for the tests. `benchmarks.synthetic_nsys` is the builder; here is one known job."""

from __future__ import annotations

from benchmarks.synthetic_nsys import Copy, EventType, Memory, SyntheticExport, pack_pid
from benchmarks.synthetic_nsys_schema import Generation

__all__ = ["Copy", "EventType", "Generation", "Memory", "SyntheticExport", "make_training_export", "pack_pid"]

MS = 1_000_000
"""Nanoseconds."""
STEP_NS = 100 * MS
GEMM = "void gemm_kernel<float, 128>(float const*, float*)"
ADD = "void add_kernel<float>(float*)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GPU_MEMORY_BYTES = 80 * 2**30
PIDS = (4101, 4102, 4103, 4104)


def make_training_export(
    *, num_ranks: int = 2, num_steps: int = 3, generation: Generation = Generation.PRESENT, marks: bool = True
) -> SyntheticExport:
    """A job whose ranks all do the same, each on its own device, in one file. Correlation ids overlap.

    Rank r is process ``PIDS[r]``. Step s begins at ``(s + 1) * 100 ms``, and of it, in ms from its begin:
    data 0-10 (a pageable copy of 4096 bytes to the device, called 1, runs 2-3; a pinned one, called 4, runs 5-6);
    forward 10-30 (GEMM called 11, runs 12-32; ADD called 20, runs 32-34);
    backward 30-80 (GEMM called 31, runs 34-74; NCCL called 40 on stream 20, runs 60-84; in it all_reduce 70-80, a
    start/end range, which waits in cudaStreamSynchronize 70-80);
    optimizer 80-95 (a memset of 1024 bytes called 81, runs 84-85; a graph launched at 85, runs 86-90 as one);
    other: the rest. The ranges are distprof's own, with the step as payload; a user's domain "app" has a range "model"
    at 10.5-29.5, inside forward, and the default domain one range "open" that is never closed, on another thread.

    Args:
        num_ranks: At most 4.
        num_steps: Steps, from 0.
        generation: The generation of the tables.
        marks: Whether each rank writes its mark.
    """
    export = SyntheticExport(generation=generation)
    for rank in range(num_ranks):
        pid = PIDS[rank]
        export.add_process(pid)
        export.add_gpu(rank, name="NVIDIA H100 80GB HBM3", memory_bytes=GPU_MEMORY_BYTES, capability=(9, 0))
        if marks:
            export.name_rank(pid, rank=rank, world_size=num_ranks, at_ns=10 * MS + rank)
        export.add_range(pid, "open", 50 * MS, None, thread=pid + 1, registered=False)
        for step in range(num_steps):
            _add_step(export, pid, rank, step)
    export.add_process(4000, name="torchrun")
    export.add_os_call(4000, "poll", 1 * MS, 2 * MS)
    return export


def _add_step(export: SyntheticExport, pid: int, rank: int, step: int) -> None:
    begin_ns = (step + 1) * STEP_NS

    def at(ms: float) -> int:
        return begin_ns + int(ms * MS)

    def own(name: str, begin: float, end: float, event: EventType = EventType.PUSH_POP) -> None:
        export.add_range(pid, name, at(begin), at(end), domain="distprof", payload=step, event=event)

    def launch(name: str, called: float, begin: float, end: float, stream: int = 7) -> None:
        export.launch(pid, name, at(called), at(begin), at(end), device=rank, stream=stream)

    own("step", 0, 100)
    own("data", 0, 10)
    for called, source in ((1, Memory.PAGEABLE), (4, Memory.PINNED)):
        call = export.add_call(pid, "cudaMemcpyAsync_v3020", at(called), at(called + 0.5))
        export.add_copy(pid, Copy.HOST_TO_DEVICE, 4096, at(called + 1), at(called + 2), correlation=call, device=rank,
                        source=source)  # fmt: skip
    export.add_os_call(pid, "read", at(7), at(9))
    own("forward", 10, 30)
    export.add_range(pid, "model", at(10.5), at(29.5), domain="app", registered=False)
    launch(GEMM, 11, 12, 32)
    launch(ADD, 20, 32, 34)
    own("backward", 30, 80)
    launch(GEMM, 31, 34, 74)
    launch(NCCL, 40, 60, 84, stream=20)
    own("all_reduce", 70, 80, EventType.START_END)
    export.add_call(pid, "cudaStreamSynchronize_v3020", at(70), at(80))
    own("optimizer", 80, 95)
    call = export.add_call(pid, "cudaMemsetAsync_v3020", at(81), at(81.5))
    export.add_memset(pid, 1024, at(84), at(85), correlation=call, device=rank)
    call = export.add_call(pid, "cudaGraphLaunch_v10000", at(85), at(85.5))
    export.add_graph(pid, 1, at(86), at(90), correlation=call, device=rank)
