"""Synthetic GPU jobs as traces, one per rank, with the truth: forward, backward, one all-reduce, optimizer, a sync."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distprof.facts.trace import Trace
from tests.traces.reduce.synthetic_traces import SyntheticTrace

MS = 1_000_000
FORWARD_NS, BACKWARD_NS, TRANSFER_NS, OPTIMIZER_NS = 30 * MS, 60 * MS, 4 * MS, 6 * MS
LAUNCH_NS = 10_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def make_job(
    *,
    num_ranks: int,
    num_steps: int,
    delay_ns: Mapping[int, int] | None = None,
    clock_ns: Mapping[int, int] | None = None,
    jitter_ns: int = 0,
    seed: int = 0,
    world_size: int | None = None,
) -> list[Trace]:
    """Every rank's trace. All ranks leave a step's all-reduce at the same true time.

    Args:
        num_ranks: Ranks with a trace.
        num_steps: Steps, all measured.
        delay_ns: By rank, how much longer its forward takes on the device.
        clock_ns: By rank, how far its clock is ahead of the first rank's.
        jitter_ns: Largest random addition to each rank's forward.
        seed: Seed of the jitter.
        world_size: The world size stated in the traces. None: ``num_ranks``.
    """
    random = np.random.default_rng(seed)
    made = [SyntheticTrace() for _ in range(num_ranks)]
    free_ns = np.full(num_ranks, 10_000 * MS)
    for step in range(num_steps):
        forward_ns = FORWARD_NS + random.integers(0, jitter_ns + 1, num_ranks)
        for rank, more_ns in (delay_ns or {}).items():
            forward_ns[rank] += more_ns
        arrival_ns = free_ns + LAUNCH_NS + forward_ns + BACKWARD_NS
        left_ns = int(arrival_ns.max()) + TRANSFER_NS
        for rank, trace in enumerate(made):
            shift_ns = (clock_ns or {}).get(rank, 0)
            over_ns = left_ns + OPTIMIZER_NS
            _add_step(trace, step, int(free_ns[rank]) + shift_ns, int(forward_ns[rank]), left_ns + shift_ns)
            free_ns[rank] = over_ns
    return [
        trace.build(
            rank=rank, world_size=world_size or num_ranks, path=f"rank{rank}.json", tool="kineto", host=None,
            rank_source="distributedInfo", backend="nccl", device_name="NVIDIA H100 80GB HBM3",
        )
        for rank, trace in enumerate(made)
    ]  # fmt: skip


def _add_step(trace: SyntheticTrace, step: int, begin_ns: int, forward_ns: int, left_ns: int) -> None:
    """The host launches everything at once, one microsecond per call, and then waits for the device."""
    over_ns = left_ns + OPTIMIZER_NS
    on_device_ns = begin_ns + LAUNCH_NS
    trace.range(f"ProfilerStep#{step}", begin_ns, over_ns)
    trace.range("## forward ##", begin_ns, begin_ns + 2_000)
    trace.launch("ampere_sgemm_128x64_tn", begin_ns, on_device_ns, on_device_ns + forward_ns, call_ns=1_000)
    trace.range("## backward ##", begin_ns + 2_000, begin_ns + 5_000)
    arrival_ns = on_device_ns + forward_ns + BACKWARD_NS
    trace.launch("ampere_sgemm_128x64_nn", begin_ns + 2_000, on_device_ns + forward_ns, arrival_ns, call_ns=1_000)
    call = trace.call("cudaLaunchKernelExC", begin_ns + 4_000, begin_ns + 4_500)
    trace.activity(ALL_REDUCE, arrival_ns, left_ns, call=call, stream=20, size_bytes=1 << 20, group="0")
    trace.range("Optimizer.step#AdamW.step", begin_ns + 5_000, over_ns)
    trace.launch("multi_tensor_apply_kernel", begin_ns + 5_000, left_ns, over_ns, call_ns=1_000)
    trace.call("cudaDeviceSynchronize", begin_ns + 6_000, over_ns)
