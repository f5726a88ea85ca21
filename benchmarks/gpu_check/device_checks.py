"""What the device clock and the asynchronous copies rest on: a GPU alone, without a process group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu_check.check_result import CheckResult
from benchmarks.gpu_check.gpu import CheckedGpu
from distprof.config.compose import compose, read_request
from distprof.config.decode import decode
from distprof.config.schema import Config
from distprof.facts.hardware import look_up_peak
from distprof.record.device.peak import measure_peak
from distprof.record.device.rank_info import take_snapshot
from distprof.train.data import make_batches

NUM_EVENTS = 600
MAX_LAUNCHES = 20_000
STUCK_NS = 2_000_000
"""A launch that takes this long waits for room in the queue."""


def check_device(gpu: CheckedGpu, *, dry: bool) -> Iterator[CheckResult]:
    """The checks of this file; ``dry``: without a GPU."""
    yield _check_delay(gpu)
    yield from _check_events(gpu)
    yield _check_run_ahead(gpu)
    yield from _check_copies(gpu, dry=dry)
    yield from _check_card(gpu, dry=dry)


def _check_delay(gpu: CheckedGpu) -> CheckResult:
    gpu.spin(20.0)
    gpu.synchronise()
    value = gpu.time_ms(lambda: gpu.spin(20.0))
    return CheckResult(name="a delay on the device of 20 ms, ms", value=value, low=19.4, high=20.6)


def _check_events(gpu: CheckedGpu) -> Iterator[CheckResult]:
    events = gpu.make_events(NUM_EVENTS)
    host_us = _time_host_ns(lambda: [event.record() for event in events]) / NUM_EVENTS / 1e3
    yield CheckResult(name="recording an event, host, us", value=host_us, low=0.0, high=5.0)
    numbers = torch.ones(1 << 22 if gpu.name == "cuda" else 1, device=gpu.name)

    def work(marks: list[object]) -> None:
        for index in range(NUM_EVENTS):
            numbers.mul_(1.0)
            if marks:
                marks[index].record()  # type: ignore[attr-defined]

    gpu.spin(30.0)  # calibrates; later calls only launch

    def time_behind_launches(marks: list[object]) -> float:
        """The host has launched it all when the device begins."""

        def behind() -> None:
            gpu.spin(30.0)
            work(marks)

        return min(gpu.time_ms(behind) for _ in range(5))

    cost_us = (time_behind_launches(events) - time_behind_launches([])) / NUM_EVENTS * 1e3
    yield CheckResult(name="an event between two kernels, device, us", value=cost_us, low=-0.5, high=3.0)


def _check_run_ahead(gpu: CheckedGpu) -> CheckResult:
    numbers, count = torch.ones(8, device=gpu.name).add_(1), 0  # the first launch of a kernel loads it
    gpu.spin(300.0)
    gpu.synchronise()
    gpu.spin(300.0)
    while count < MAX_LAUNCHES and _time_host_ns(lambda: numbers.add_(1)) < STUCK_NS:
        count += 1
    gpu.synchronise()
    return CheckResult(name="launches that a host runs ahead", value=float(count), low=500, high=5000)


def _check_copies(gpu: CheckedGpu, *, dry: bool) -> Iterator[CheckResult]:
    """Behind a kernel of 100 ms, a copy that is not asynchronous keeps the host waiting."""
    arguments = ["train=gpt2_small", "train.micro_batch=8"]
    (job,) = compose(read_request(arguments), launched=False, arguments=arguments)
    batch = next(make_batches(decode(Config, job.values), rank=0, pinned=not dry))
    for name, tensor in zip(("tokens", "targets"), batch, strict=True):
        tensor.to(gpu.name, non_blocking=True)
        gpu.spin(100.0)
        gpu.synchronise()
        gpu.spin(100.0)
        copy: Callable[[], object] = lambda tensor=tensor: tensor.to(gpu.name, non_blocking=True)  # type: ignore[misc]  # noqa: E731
        host_ms = _time_host_ns(copy) / 1e6
        gpu.synchronise()
        yield CheckResult(name=f"copying a batch's {name} to the GPU, host, ms", value=host_ms, low=0.0, high=5.0)


def _check_card(gpu: CheckedGpu, *, dry: bool) -> Iterator[CheckResult]:
    look, notes = take_snapshot(gpu.name, None if dry else 0)
    yield CheckResult(name="what NVML does not tell", value=float(len(notes)), low=0, high=0, note="; ".join(notes))
    peak = look_up_peak(look.name, "bf16")
    if not dry and peak.flops_per_s is not None:
        measured = measure_peak(torch.device(gpu.name, 0), "bf16").flops_per_s or 0.0
        ratio = measured / peak.flops_per_s
        yield CheckResult(name="bf16 peak measured, of the table's", value=ratio, low=0.4, high=1.0, note=peak.source)


def _time_host_ns(work: Callable[[], object]) -> int:
    start_ns = time.monotonic_ns()
    work()
    return time.monotonic_ns() - start_ns
