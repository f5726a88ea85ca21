"""What a trace claims about its job: when it ran, and the device's vendor."""

from __future__ import annotations

import pytest

from distprof.traces.one_job import read_claim
from tests.traces.reduce.synthetic_traces import SyntheticTrace

UNIX = 1_700_000_000 * 10**9


def test_the_extent_is_from_the_first_begin_to_the_last_end_of_anything() -> None:
    made = SyntheticTrace()
    made.op("aten::mm", UNIX + 50, UNIX + 60)
    made.range("step", UNIX + 20, None)
    made.launch("gemm", UNIX + 30, UNIX + 40, UNIX + 95)
    assert read_claim(made.build()).extent_ns == (UNIX + 20, UNIX + 95)


def test_a_clock_that_counts_from_a_session_is_not_compared() -> None:
    made = SyntheticTrace()
    made.launch("gemm", 30, 40, 95)
    assert read_claim(made.build()).extent_ns is None
    assert read_claim(SyntheticTrace().build()).extent_ns is None


@pytest.mark.parametrize(
    ("device", "call", "vendor"),
    [
        ("Tesla V100-SXM2-32GB", "hipLaunchKernel", "NVIDIA"), ("NVIDIA B200", "x", "NVIDIA"),
        ("AMD Instinct MI300X", "x", "AMD"), ("AMD Radeon Graphics", "x", "AMD"), (None, "hipLaunchKernel", "AMD"),
        (None, "cudaLaunchKernel", "NVIDIA"), (None, "cuLaunchKernel", "NVIDIA"), (None, "x", None),
        ("Some Accelerator", "currentDevice", None),
    ],
)  # fmt: skip
def test_the_maker_is_told_by_the_devices_name_else_by_the_runtime(
    device: str | None, call: str, vendor: str | None
) -> None:
    made = SyntheticTrace()
    made.call(call, 1, 2)
    assert read_claim(made.build(device_name=device)).vendor == vendor
