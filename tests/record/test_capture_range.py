"""The range that starts and stops a capture, with ranks as threads and a pretended nsys."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from distprof.record.capture_range import CaptureRange, agree_on_capture
from distprof.world import World
from tests.ranks import call_on_ranks


class Tool:
    """Captures between the first begin and the first end of the range, of whatever rank, as nsys does."""

    def __init__(self) -> None:
        self.capturing, self.done = False, False
        self.seen: list[str] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self.capturing = self.capturing or not self.done

    def end(self) -> None:
        with self._lock:
            self.capturing, self.done = False, True

    def see(self, what: str) -> None:
        with self._lock:
            if self.capturing:
                self.seen.append(what)


class FakeRanges:
    """What a rank tells the tool."""

    def __init__(self, tool: Tool, rank: int) -> None:
        self._tool, self._rank = tool, rank

    def begin_measured(self) -> None:
        self._tool.begin()

    def end_measured(self) -> None:
        self._tool.end()

    def name_rank(self) -> None:
        self._tool.see(f"rank {self._rank}")


def run_capture(seed: int, num_ranks: int, synchronise: Callable[[], None]) -> list[str]:
    """Ranks that reach everything in a random order; what the tool has seen."""
    tool = Tool()

    def run(rank: int) -> None:
        order = random.Random(f"{seed} {rank}")
        capture = CaptureRange(FakeRanges(tool, rank), synchronise=synchronise)  # type: ignore[arg-type]
        for step in range(4):
            for _ in range(order.randrange(2000)):
                pass
            if step >= 1:
                capture.begin()
            tool.see(f"step {step} of rank {rank}")
        capture.end()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(tool.seen)


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_every_rank_is_captured_whole_in_whatever_order_they_come(seed: int, num_ranks: int) -> None:
    seen = run_capture(seed, num_ranks, threading.Barrier(num_ranks).wait)
    ranks = range(num_ranks)
    assert seen == sorted(
        [f"rank {rank}" for rank in ranks] + [f"step {step} of rank {rank}" for step in (1, 2, 3) for rank in ranks]
    )


class Log:
    """Ranges and lining up, in the order in which they happen."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.events.append(name)


def test_the_range_begins_and_ends_between_two_meetings() -> None:
    log = Log()
    capture = CaptureRange(log, synchronise=log.synchronise)  # type: ignore[arg-type]
    capture.begin()
    capture.begin()
    capture.end()
    assert log.events == ["synchronise", "begin_measured", "synchronise", "name_rank", "synchronise", "end_measured"]


def test_on_a_gpu_cudas_profiler_is_started_and_stopped_with_the_range() -> None:
    log = Log()
    capture = CaptureRange(log, synchronise=log.synchronise, device_profiler=log)  # type: ignore[arg-type]
    capture.begin()
    capture.begin()
    capture.end()
    assert log.events == [
        "synchronise", "begin_measured", "start", "synchronise", "name_rank", "synchronise", "end_measured", "stop",
    ]  # fmt: skip


def test_a_tool_that_listens_to_cuda_alone_is_enough_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ``nsys profile -t cuda -c cudaProfilerApi``."""
    log = Log()

    def agree_alone(device: str, index: int = 0) -> CaptureRange | None:
        return agree_on_capture(None, torch.device(device, index), None, lambda: lambda: log.events.append("meet"))

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.events.append("synchronise"))
    monkeypatch.setattr(torch.cuda, "profiler", log)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "")
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "")
    assert agree_alone("cuda") is None
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/nsys.so")
    assert agree_alone("cpu") is None
    capture = agree_alone("cuda")
    assert capture is not None
    capture.begin()
    assert log.events == ["synchronise", "meet", "start", "synchronise", "meet"]


def test_a_rank_without_a_tool_meets_the_others_all_the_same() -> None:
    log = Log()
    capture = CaptureRange(None, synchronise=log.synchronise)
    capture.end()
    assert log.events == []
    capture.begin()
    capture.end()
    assert log.events == ["synchronise"] * 3


def agree(world: World, cases: list[tuple[list[bool], bool]]) -> None:
    group = dist.new_group(backend="gloo")
    for has_ranges, tool in cases:
        os.environ["NVTX_INJECTION64_PATH"] = "/nsys.so" if tool else ""
        ranges = object() if has_ranges[world.rank] else None
        capture = agree_on_capture(ranges, torch.device("cpu"), group, lambda: dist.barrier)  # type: ignore[arg-type]
        assert (capture is not None) == (tool and any(has_ranges)), (has_ranges, tool)


def test_one_rank_with_a_tool_is_enough_for_all(tmp_path: Path) -> None:
    cases = [([False, False], True), ([False, True], True), ([True, False], True), ([True, True], False)]
    call_on_ranks(2, agree, cases, tmp_path=tmp_path)
