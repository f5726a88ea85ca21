"""A whole trace reduced: each part over the right windows."""

from __future__ import annotations

import numpy as np

from distprof.facts.trace import Trace
from distprof.facts.trace_summary import TraceSummary
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import reduce_trace, trace_rank
from tests.traces.reduce.real_traces import build_trace
from tests.traces.reduce.synthetic_traces import SyntheticTrace


def make_trace() -> SyntheticTrace:
    """Two steps of 100 ns on the host; the device follows 50 ns later."""
    made = SyntheticTrace()
    for step in (0, 100):
        made.range("forward", step, step + 40)
        made.launch("volta_sgemm_128x64_tn", step + 10, step + 60, step + 130)
        made.call("cudaEventSynchronize", step + 12, step + 15)
        made.call("cudaStreamSynchronize", step + 90, step + 95)
    return made


def reduce(
    trace: Trace, host: list[tuple[int, int]] | None = None, device: list[tuple[int, int]] | None = None
) -> TraceSummary:
    return reduce_trace(
        examine_device(trace),
        rank=3,
        num_steps=0 if host is None else len(host),
        host_windows=None if host is None else np.array(host),
        device_windows=None if device is None else np.array(device),
    )


def test_host_and_device_have_their_own_windows() -> None:
    found = reduce(make_trace().build(), host=[(100, 200)], device=[(150, 250)])
    assert (found.rank, found.num_steps) == (3, 1)
    assert found.device is not None
    assert (found.device.span_ns, found.device.compute_ns, found.device.idle_launch_ns) == (100, 70, 10)
    assert [(kernel.count, kernel.total_ns) for kernel in found.kernels] == [(1, 70)]
    assert [(sync.count, sync.total_ns) for sync in found.syncs] == [(1, 5), (1, 3)]
    assert found.calls_ns == 9
    assert [(item.count, item.host_ns, item.gpu_ns, item.warmup_count) for item in found.ranges] == [(1, 40, 70, 1)]
    assert found.queue is not None
    assert found.queue.max == 1
    assert found.head.notes == ()


def test_without_steps_it_is_the_whole_trace() -> None:
    found = reduce(make_trace().build())
    assert found.device is not None
    assert (found.num_steps, found.device.span_ns, found.device.compute_ns) == (0, 170, 140)
    assert (found.kernels[0].count, found.syncs[0].count, found.calls_ns) == (2, 2, 18)


def test_the_hosts_windows_stand_in_for_the_devices_and_say_so() -> None:
    made = SyntheticTrace()
    made.activity("gemm", 20, 60)
    found = reduce(made.build(), host=[(0, 50)])
    assert found.device is not None
    assert (found.device.span_ns, found.device.compute_ns) == (50, 30)
    assert "no launch is known" in found.head.notes[0]
    assert reduce(SyntheticTrace().build(), host=[(0, 50)]).head.notes == ()


def test_other_devices_are_named() -> None:
    made = make_trace()
    made.activity("gemm", 0, 10, device=4)
    assert "2 devices" in reduce(made.build()).head.notes[-1]
    assert sum("2 devices" in note for note in trace_rank(made.build(), NameMap()).notes) == 1


def test_nothing_at_all() -> None:
    for host in (None, [(0, 10)]):
        found = reduce(SyntheticTrace().build(), host=host, device=host)
        assert (found.device, found.queue, found.calls_ns) == (None, None, None)
        assert (found.kernels, found.copies, found.syncs, found.ranges) == ((), (), (), ())


def test_a_real_trace() -> None:
    found = reduce(build_trace("a100_2ranks_rank0.json.gz"))
    assert sum(kernel.count for kernel in found.kernels if kernel.category != "copy") == 2700
    assert sum(kernel.count for kernel in found.kernels if kernel.category == "communication") == 21
    assert found.queue is not None
    assert 0 < found.queue.mean <= found.queue.max
