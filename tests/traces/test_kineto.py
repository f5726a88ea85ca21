"""Traces of PyTorch's profiler as columns: by hand, synthetic, and files that lie."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.synthetic_traces import TraceGeneration, make_kineto
from distprof.facts.trace import Activities, ActivityKind, Calls, CopyKind, Ranges, Trace
from distprof.traces.kineto.read_kineto import looks_like_kineto, read_kineto
from tests.kineto_file import (
    MAIN,
    PID,
    make_event,
    make_kernel,
    make_launch,
    make_op,
    make_sound,
    write_kineto,
    write_text,
)


def to_ns(time_us: float | int) -> int:
    whole = math.floor(time_us)
    return whole * 1000 + round((time_us - whole) * 1000)


def name_all(trace: Trace, table: Activities | Calls | Ranges) -> list[str]:
    return [trace.names[code] for code in table.name]


@pytest.mark.parametrize("generation", TraceGeneration)
def test_synthetic_traces_hold_what_they_promise(tmp_path: Path, generation: TraceGeneration) -> None:
    job = {"world_size": 2, "num_events": 4000, "slow_rank": 1, "late_ns": 7_000_000, "generation": generation}
    traces, truths = [], []
    for rank in range(2):
        path = tmp_path / f"{rank}.json.gz"
        truth = make_kineto(path, rank=rank, **job)  # type: ignore[arg-type]
        trace = read_kineto(path, part_bytes=50_000)
        lasts_ns = trace.gpu.end_ns - trace.gpu.begin_ns
        is_link = np.array(["nccl" in name for name in name_all(trace, trace.gpu)])
        is_kernel = trace.gpu.kind == ActivityKind.KERNEL
        assert lasts_ns[is_link].sum() == truth.collectives_ns and is_link.sum() == truth.collectives
        assert lasts_ns[is_kernel & ~is_link].sum() == truth.compute_ns
        assert np.count_nonzero(is_kernel & ~is_link) == truth.compute_kernels
        assert lasts_ns[~is_kernel].sum() == truth.copies_ns and np.count_nonzero(~is_kernel) == truth.copies
        assert (len(trace.calls.name), len(trace.ops.name)) == (truth.calls, truth.operators)
        steps = trace.ranges.payload >= 0
        assert trace.ranges.payload[steps].tolist() == [0, 1, 2, 3] and len(steps) == truth.annotations
        assert (trace.ranges.end_ns - trace.ranges.begin_ns)[steps].tolist() == truth.step_ns
        assert trace.ranges.begin_ns[steps][0] == truth.begin_ns and trace.ranges.end_ns.max() == truth.end_ns
        assert (trace.gpu.call >= 0).all() and abs(truth.num_events - 4000) < 400
        said = [trace.names[code] for code in trace.gpu.group[is_link]] if generation is TraceGeneration.PRESENT else []
        assert said == ["0"] * len(said) and (trace.gpu.group[~is_link] == -1).all()
        truths.append(truth)
        traces.append((trace, is_link))
    ends = [trace.gpu.end_ns[is_link].tolist() for trace, is_link in traces]
    assert ends[0] == ends[1], "a collective ends everywhere at once"
    assert (truths[0].collectives_ns - truths[1].collectives_ns) / 4 >= 7_000_000 - 1000


def test_by_hand(tmp_path: Path) -> None:
    copy = make_event(
        "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 140, 2, tid=7, pid=0,
        device=1, stream=9, correlation=4, bytes=4096,
    )  # fmt: skip
    reduce = make_kernel(
        "ncclDevKernel_AllReduce", 150, 5, 13, stream=20, dtype="BFloat16", In_msg_nelems=10, Out_msg_nelems=30,
        Process_Group_Name="dp",
    )  # fmt: skip
    module = make_event("python_function", "nn.Module: Block_1", 100, 20)
    left_out = [
        make_event("python_function", "train.py(3): main", 90, 90),
        make_event("gpu_user_annotation", "ProfilerStep#3", 100, 50),
        make_event("Trace", "PyTorch Profiler (0)", 0, 500, pid="Spans", tid="PyTorch Profiler"),
        make_event("overhead", "Buffer Flush", 0, 5, pid=-1),
        {"ph": "s", "id": 9, "pid": PID, "tid": MAIN, "ts": 102, "cat": "ac2g", "name": "ac2g"},
        {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": 1, "args": {"name": "python"}},
        {"ph": "i", "name": "Iteration Start", "s": "g", "pid": "Traces", "tid": "Trace", "ts": 1},
    ]
    launches = [make_launch(141, 1, 13, "cudaLaunchKernelExC", tid=78), make_launch(130, 1, 4, "cudaMemcpyAsync")]
    path = write_kineto(
        tmp_path / "t.json",
        [*launches, reduce, copy, module, *left_out, *make_sound()],
        {"baseTimeNanoseconds": 10**18},
    )
    trace = read_kineto(path)
    base_ns = 10**18
    assert name_all(trace, trace.gpu) == ["gemm", "Memcpy HtoD (Pageable -> Device)", "ncclDevKernel_AllReduce"]
    assert (trace.gpu.begin_ns - base_ns).tolist() == [110_250, 140_000, 150_000]
    assert (trace.gpu.end_ns - base_ns).tolist() == [130_750, 142_000, 155_000]
    assert trace.gpu.kind.tolist() == [ActivityKind.KERNEL, ActivityKind.MEMCPY, ActivityKind.KERNEL]
    assert trace.gpu.stream.tolist() == [7, 9, 20] and trace.gpu.device.tolist() == [0, 1, 0]
    assert trace.gpu.size_bytes.tolist() == [-1, 4096, 60]
    assert trace.gpu.copy.tolist() == [CopyKind.NONE, CopyKind.HOST_TO_DEVICE, CopyKind.NONE]
    assert trace.gpu.pageable.tolist() == [-1, 1, -1]
    assert [name_all(trace, trace.calls)[call] for call in trace.gpu.call] == [
        "cudaLaunchKernel", "cudaMemcpyAsync", "cudaLaunchKernelExC",
    ]  # fmt: skip
    assert trace.calls.thread.tolist() == [MAIN, MAIN, 78]
    assert name_all(trace, trace.ops) == ["aten::mm"] and len(trace.os_calls.name) == 0
    assert name_all(trace, trace.ranges) == ["ProfilerStep#3", "Block_1"], "the outer one first"
    assert [trace.names[code] for code in trace.ranges.domain] == ["", "module"]
    assert trace.ranges.payload.tolist() == [3, -1]


def test_old_spellings_and_amd(tmp_path: Path) -> None:
    events = [
        make_event("Operator", "aten::mm", 1, 9, pid="77", tid="77"),
        make_event("Runtime", "hipLaunchKernel", 2, 1, correlation=5),
        make_event("Kernel", "Cijk_Ailk", 5, 2, tid="stream 3", pid=1, correlation=5),
        make_event("Memcpy", "CopyHostToDevice", 8, 1, tid="stream 3", pid=1),
        make_event("Memset", "Memset", 9, 1, tid="what?", pid="GPU", bytes=8),
    ]
    trace = read_kineto(write_kineto(tmp_path / "t.json", events))
    assert trace.gpu.stream.tolist()[:2] == [3, 3] and trace.gpu.stream[2] < -1
    assert trace.gpu.device.tolist()[:2] == [1, 1]
    assert trace.gpu.call.tolist() == [0, -1, -1]
    assert trace.gpu.copy.tolist() == [CopyKind.NONE, CopyKind.HOST_TO_DEVICE, CopyKind.NONE]
    assert trace.gpu.pageable.tolist() == [-1, -1, -1] and trace.ops.thread.tolist() == [77]


def test_copies_by_their_names(tmp_path: Path) -> None:
    wanted = {
        "Memcpy DtoH (Device -> Pinned)": (CopyKind.DEVICE_TO_HOST, 0),
        "Memcpy DtoH (Device -> Pageable)": (CopyKind.DEVICE_TO_HOST, 1),
        "Memcpy DtoD (Device -> Device)": (CopyKind.DEVICE_TO_DEVICE, 0),
        "Memcpy PtoP (Device -> Device)": (CopyKind.PEER_TO_PEER, 0),
        "Memcpy HtoD (Host -> Device)": (CopyKind.HOST_TO_DEVICE, -1),
        "Memcpy HtoD (Unknown -> Device)": (CopyKind.HOST_TO_DEVICE, -1),
        "Memcpy AtoA": (CopyKind.OTHER, -1),
    }
    events = [make_event("gpu_memcpy", name, place, 1) for place, name in enumerate(wanted)]
    trace = read_kineto(write_kineto(tmp_path / "t.json", events))
    assert list(zip(trace.gpu.copy, trace.gpu.pageable, strict=True)) == list(wanted.values())


@pytest.mark.parametrize("pairs", [
    {"1682725898236567.123": 1_682_725_898_236_567_123, "1682725898236567.124": 1_682_725_898_236_567_124},
    {"8999999999999.999": 8_999_999_999_999_999, "8999999999999.001": 8_999_999_999_999_001},
    {"4458676522690.655": 4_458_676_522_690_655, "4458676522690.656": 4_458_676_522_690_656},
    {"1682725898236568": 1_682_725_898_236_568_000, "1682725898236568.9": 1_682_725_898_236_568_900},
])  # fmt: skip
def test_whole_nanoseconds_come_out_exactly_whatever_the_clock(tmp_path: Path, pairs: dict[str, int]) -> None:
    """Fractions of a microsecond on the unix clock are finer than a float can tell apart."""
    text = ", ".join(json.dumps(make_op("a", "@", 0.001)).replace('"@"', begin) for begin in pairs)
    trace = read_kineto(write_text(tmp_path / "t.json", f"[{text}]"))
    assert trace.ops.begin_ns.tolist() == sorted(pairs.values())
    assert (trace.ops.end_ns - trace.ops.begin_ns == 1).all()


def test_missing_and_absurd_ranks(tmp_path: Path) -> None:
    def read(name: str = "t.json", **info: Any) -> tuple[Any, ...]:
        path = write_kineto(tmp_path / name, make_sound(), **({"distributedInfo": info} if info else {}))
        head = read_kineto(path).head
        return head.rank, head.world_size, head.rank_source, len(head.notes)

    assert read(rank=3, world_size=8) == (3, 8, "distributedInfo", 0)
    assert read(rank=3) == (3, None, "distributedInfo", 0)
    assert read(world_size=8) == (None, 8, "not in the file", 0)
    assert read("job_rank_5.json", world_size=8) == (5, 8, "the file's name", 0)
    assert read("job_rank_5.json", world_size=4) == (None, 4, "not in the file", 0)
    assert read("job_rank_5.json", rank=2, world_size=4) == (2, 4, "distributedInfo", 0)
    assert read("host_r12.1.pt.trace.json") == (12, None, "the file's name", 0)
    assert read("rank0_of_rank8.json") == (None, None, "not in the file", 0)
    assert read(rank=8, world_size=8) == (None, 8, "not in the file", 1)
    assert read(rank=-1, world_size=8) == (None, 8, "not in the file", 1)
    assert read(rank="3", world_size=0) == (3, None, "distributedInfo", 1)
    assert read(rank="third", world_size=0) == (None, None, "not in the file", 2)
    assert read(rank=True, world_size=1e300) == (None, None, "not in the file", 2)
    assert read(rank=10**30) == (None, None, "not in the file", 1)


def test_the_account_may_stand_behind_the_events_and_be_of_any_shape(tmp_path: Path) -> None:
    devices = [7, {"id": 1, "name": "other"}, {"id": 0, "name": "H100", "totalGlobalMem": -1, "computeMajor": "9"}]
    groups = [3, {"pg_name": "dp", "ranks": [0, 1]}, {"pg_name": "tp", "ranks": [0, 9]}, {"pg_name": "x", "ranks": "0"}]
    info = {"rank": 1, "world_size": 2, "backend": "nccl", "pg_config": groups}
    path = write_kineto(tmp_path / "t.json", make_sound(), {"distributedInfo": info, "deviceProperties": devices})
    head = read_kineto(path).head
    assert (head.rank, head.backend, head.group_ranks) == (1, "nccl", {"dp": (0, 1)})
    assert (head.device_name, head.device_memory_bytes, head.compute_capability) == ("H100", None, None)
    broken = {"distributedInfo": [1], "deviceProperties": {"id": 0}, "baseTimeNanoseconds": -5}
    head = read_kineto(write_kineto(tmp_path / "t.json", make_sound(), **broken)).head
    assert (head.rank, head.device_name) == (None, None) and "baseTimeNanoseconds is '-5'" in head.notes[0]


def test_the_base_is_not_added_to_times_on_the_unix_clock(tmp_path: Path) -> None:
    events = [make_op("a", 1_682_725_898_236_567, 1)]
    trace = read_kineto(write_kineto(tmp_path / "t.json", events, baseTimeNanoseconds=4 * 10**18))
    assert trace.ops.begin_ns.tolist() == [1_682_725_898_236_567_000] and "not added" in trace.head.notes[0]


def test_what_looks_like_a_trace(tmp_path: Path) -> None:
    def looks(text: str | bytes, name: str = "anything") -> bool:
        return looks_like_kineto(write_text(tmp_path / name, text))

    sound = json.dumps({"metadata": {"a": "b" * 100_000}, "traceEvents": make_sound()})
    assert looks(sound) and looks(sound, "any.gz") and looks(json.dumps(make_sound()))
    assert (
        not looks("")
        and not looks('{"step": 1}')
        and not looks("[1]", "trace.json")
        and not looks(b"SQLite format 3\0")
    )
    assert (
        not looks(b"\0" * 10_000, "zeros.gz")
        and not looks_like_kineto(tmp_path)
        and not looks_like_kineto(tmp_path / "no")
    )
    (tmp_path / "cut.gz").write_bytes(gzip.compress(sound.encode())[:-20])
    assert looks_like_kineto(tmp_path / "cut.gz"), "so that reading says what is wrong with it"


def test_a_kernel_window_of_distprof_tells_its_host_and_without_a_group_its_rank(tmp_path: Path) -> None:
    own = {"rank": 3, "world_size": 4, "host": "node-a", "pid": 1, "steps": [5]}
    alone = read_kineto(write_kineto(tmp_path / "t.json", make_sound(), {"distprof": own}))
    assert (alone.head.rank, alone.head.world_size, alone.head.host) == (3, 4, "node-a")
    assert alone.head.rank_source == "the metadata of distprof"
    info = {"rank": 0, "world_size": 4}
    both = read_kineto(write_kineto(tmp_path / "u.json", make_sound(), {"distprof": own}, distributedInfo=info))
    assert (both.head.rank, both.head.host, both.head.rank_source) == (0, "node-a", "distributedInfo")
    broken = read_kineto(write_kineto(tmp_path / "v.json", make_sound(), {"distprof": {"host": 7, "rank": "x"}}))
    assert (broken.head.rank, broken.head.host) == (None, None)
