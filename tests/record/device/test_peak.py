"""A measured peak is the best product seen, and changes nothing."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distprof.record.device import peak as module
from distprof.record.device.peak import measure_peak


def test_the_best_product_counts_and_the_first_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZES", {"cpu": (8,)})
    readings = iter([0, 0, 10, 10, 20, 520, 520, 520, 770, 770, 770, 1170, 10**9])
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: next(readings))
    peak = measure_peak(torch.device("cpu"), "fp32")
    assert peak.flops_per_s == pytest.approx(2 * 8**3 / 250e-9)
    assert "8 x 8 fp32 matrix product" in peak.source and "best of 3" in peak.source


def test_a_slow_device_is_not_given_a_larger_product(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def time_products(multiply: object, device: object) -> list[int]:
        sizes.append(len(sizes))
        return [10**10]

    monkeypatch.setattr(module, "_time_products", time_products)
    random = torch.get_rng_state()
    measure_peak(torch.device("cpu"), "bf16")
    assert len(sizes) == 1
    assert torch.equal(random, torch.get_rng_state())  # training draws the numbers that it would draw without us


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_this_machine_has_a_peak(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUDGET_S", 0.02)
    peak = measure_peak(torch.device("cpu"), precision)
    assert peak.flops_per_s is not None and 1e7 < peak.flops_per_s < 1e15


def test_tf32_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUDGET_S", 0.001)
    before = torch.backends.cuda.matmul.allow_tf32
    measure_peak(torch.device("cpu"), "tf32")
    assert torch.backends.cuda.matmul.allow_tf32 == before


PLACES = ("torch.backends", "torch.backends.cudnn", "torch.backends.cuda.matmul")


@pytest.fixture
def places() -> Iterator[list[Any]]:
    """Where torch has the newer setting, each within the one before it; as at the start again after the test."""
    found = [pkgutil.resolve_name(place) for place in PLACES]
    if not hasattr(found[-1], "fp32_precision"):
        pytest.skip("this torch has no fp32_precision")
    yield found
    for place in found:
        place.fp32_precision = "none"


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_the_newer_setting_is_left_as_it_was_wherever_the_user_made_it(
    places: list[Any], where: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def time_products(multiply: object, device: object) -> list[int]:
        seen.append(places[-1].fp32_precision)
        return [10**10]

    monkeypatch.setattr(module, "_time_products", time_products)
    for wanted in ("tf32", "ieee"):
        places[where].fp32_precision = wanted
        before = [place.fp32_precision for place in places]
        measure_peak(torch.device("cpu"), precision)
        assert [place.fp32_precision for place in places] == before
    assert seen == ["tf32" if precision == "tf32" else "ieee"] * 2
    places[0].fp32_precision = "tf32"
    assert places[-1].fp32_precision == ("tf32" if where == 0 else "ieee")  # what it inherited, it still inherits


def test_a_gpu_is_timed_on_its_own_clock_with_the_launch_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.name = ("start", "end")[len([entry for entry in queue if entry == "made"]) % 2]
            queue.append("made")

        def record(self) -> None:
            queue.append(self.name)

        def synchronize(self) -> None:
            queue.append(f"wait for {self.name}")

        def elapsed_time(self, other: Event) -> float:
            assert (self.name, other.name) == ("start", "end")
            return 1.5  # ms, as CUDA says it

    cuda = SimpleNamespace(Event=Event, device=lambda device: contextlib.nullcontext())
    monkeypatch.setattr(module.torch, "cuda", cuda)
    clock_s = iter((0.0, 0.1, 1.0))
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: int(next(clock_s) * 1e9))
    times_ns = module._time_products(lambda: queue.append("multiply"), torch.device("cuda", 0))  # type: ignore[arg-type, return-value]
    assert times_ns == [1_500_000]
    assert queue[2:7] == ["multiply", "start", "multiply", "end", "wait for end"] and queue[:2] == ["made", "made"]
