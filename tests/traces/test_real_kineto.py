"""Real traces of PyTorch's profiler as columns, against a plain count of their events."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from distprof.traces.kineto.read_kineto import looks_like_kineto, read_kineto
from tests.kineto_file import (
    find_real,
)
from tests.traces.test_kineto import name_all, to_ns

REAL = {
    "a100_2ranks_rank0.json.gz": ("distributedInfo", 0, 2, 21),
    "a100_128ranks_rank0.json.gz": ("distributedInfo", 0, 128, 10),
    "a100_128ranks_rank1.json.gz": ("distributedInfo", 1, 128, 10),
    "b200_8ranks_rank0.json.gz": ("distributedInfo", 0, 8, 1),
    "h100_qwen_single.json.gz": ("not in the file", None, None, 0),
    "h100_bert_small_single.json.gz": ("not in the file", None, None, 0),
}
"""Where the rank is known from, rank, world, NCCL kernels."""
ROLES = {
    "gpu": ("kernel", "gpu_memcpy", "gpu_memset"), "calls": ("cuda_runtime", "cuda_driver"), "ops": ("cpu_op",),
    "ranges": ("user_annotation", "python_function"),
}  # fmt: skip


def naive(events: list[dict[str, Any]], role: str) -> list[tuple[int, int, str]]:
    """Begin, end and name of what belongs to the role, one event after another."""
    found = []
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in ROLES[role]:
            continue
        name = event["name"]
        if event["cat"] == "python_function":
            if not name.startswith("nn.Module: "):
                continue
            name = name.removeprefix("nn.Module: ")
        found.append((to_ns(event["ts"]), to_ns(event["ts"]) + to_ns(event["dur"]), name))
    return found


@pytest.mark.parametrize("file", REAL)
def test_real_files_hold_what_a_plain_count_finds(file: str) -> None:
    path = find_real(file)
    if path is None:
        pytest.skip("the real traces are not at hand")
    whole = json.loads(gzip.decompress(path.read_bytes()))
    events, base_ns = whole["traceEvents"], whole.get("baseTimeNanoseconds", 0)
    assert looks_like_kineto(path)
    trace = read_kineto(path)
    for role in ROLES:
        table = getattr(trace, role)
        ours = zip(table.begin_ns - base_ns, table.end_ns - base_ns, name_all(trace, table), strict=True)
        assert Counter(ours) == Counter(naive(events, role))
        assert (np.diff(table.begin_ns) >= 0).all()
    source, rank, world_size, collectives = REAL[file]
    assert (trace.head.rank_source, trace.head.rank, trace.head.world_size) == (source, rank, world_size)
    assert sum("nccl" in name for name in name_all(trace, trace.gpu)) == collectives
    assert trace.head.notes == () and trace.head.host is None
    assert (
        trace.head.pid == Counter(event["pid"] for event in events if event.get("cat") == "cpu_op").most_common()[0][0]
    )
    kinds = Counter(event.get("cat") for event in events)
    for kind, category in enumerate(ROLES["gpu"]):
        assert np.count_nonzero(trace.gpu.kind == kind) == kinds[category]


@pytest.mark.parametrize("file", REAL)
def test_every_activity_of_real_files_finds_the_call_that_launched_it(file: str) -> None:
    path = find_real(file)
    if path is None:
        pytest.skip("the real traces are not at hand")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    calls = {event["args"]["correlation"]: event for event in events if event.get("cat") in ROLES["calls"]}
    wanted = Counter()
    for event in events:
        if event.get("cat") in ROLES["gpu"]:
            call = calls.get(event["args"]["correlation"])
            launch = None if call is None else (call["name"], to_ns(call["dur"]), call["tid"])
            wanted[(event["name"], to_ns(event["dur"]), event["args"]["stream"], launch)] += 1
    trace = read_kineto(path)
    names, found = name_all(trace, trace.calls), Counter()
    for row, name in enumerate(name_all(trace, trace.gpu)):
        call = int(trace.gpu.call[row])
        lasts_ns = int(trace.calls.end_ns[call] - trace.calls.begin_ns[call])
        launch = None if call < 0 else (names[call], lasts_ns, int(trace.calls.thread[call]))
        found[(name, int(trace.gpu.end_ns[row] - trace.gpu.begin_ns[row]), int(trace.gpu.stream[row]), launch)] += 1
    assert found == wanted and any(launch for *_, launch in found)


def test_real_heads_tell_devices_groups_and_memory_and_nothing_of_the_environment() -> None:
    paths = [find_real(name) for name in ("b200_8ranks_rank0.json.gz", "h100_qwen_single.json.gz")]
    if None in paths:
        pytest.skip("the real traces are not at hand")
    b200, qwen = (read_kineto(path) for path in paths if path is not None)
    assert (b200.head.device_name, b200.head.compute_capability) == ("NVIDIA B200", (10, 0))
    assert b200.head.device_memory_bytes == 191503138816 and b200.head.backend == "nccl"
    assert b200.head.group_ranks["3"] == tuple(range(8)) and len(b200.head.group_ranks) <= 71
    (reduced,) = [row for row, name in enumerate(name_all(b200, b200.gpu)) if "nccl" in name]
    assert b200.gpu.size_bytes[reduced] == 201088 * 2 and b200.names[b200.gpu.group[reduced]] == "3"
    assert qwen.head.memory_peak_bytes == 2629828608
    assert "HF_TOKEN" in gzip.decompress(paths[1].read_bytes()).decode()  # type: ignore[union-attr]
    assert not any("TOKEN" in text or "/root" in text for text in (*qwen.names, repr(qwen.head)))
