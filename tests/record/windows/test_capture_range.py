"""The range that starts and stops a capture, with ranks as threads and a pretended nsys."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distprof.record.windows.capture_range import CaptureRange, plan_capture, tool_captures


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


def run_capture(seed: int, num_ranks: int, meet: Callable[[], object]) -> list[str]:
    """Ranks that reach everything in a random order; what the tool has seen."""
    tool = Tool()

    def run(rank: int) -> None:
        order = random.Random(f"{seed} {rank}")
        capture = CaptureRange(
            FakeRanges(tool, rank),  # type: ignore[arg-type]
            synchronise=lambda: None, meet=meet,
        )  # fmt: skip
        for step in range(4):
            for _ in range(order.randrange(2000)):
                pass
            if step >= 1:
                capture.begin()
            tool.see(f"step {step} of rank {rank}")
        meet()  # as the ranks do when they gather their last rows
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


def test_the_range_begins_between_two_meetings() -> None:
    log = Log()
    capture = CaptureRange(log, synchronise=log.synchronise, meet=log.meet)  # type: ignore[arg-type]
    capture.begin()
    capture.begin()
    capture.end()
    assert log.events == [
        "synchronise", "meet", "begin_measured", "synchronise", "meet", "name_rank", "synchronise", "end_measured",
    ]  # fmt: skip


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

    def plan_alone(device: str, index: int = 0) -> CaptureRange | None:
        place = torch.device(device, index)
        return plan_capture(None, place, log.meet, listens=tool_captures(None, place))

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.events.append("synchronise"))
    monkeypatch.setattr(torch.cuda, "profiler", log)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "")
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "")
    assert plan_alone("cuda") is None
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/nsys.so")
    assert plan_alone("cpu") is None
    capture = plan_alone("cuda")
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
