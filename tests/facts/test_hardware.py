"""Peaks: the right card, the right precision, and never another card's figure."""

from __future__ import annotations

import pytest

from distprof.facts.hardware import DEVICES, look_up_peak


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("Tesla V100S-PCIE-32GB", "fp16", 130),
        ("Tesla T4", "fp16", 65),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", 70),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156),
        ("NVIDIA A100 80GB PCIe", "bf16", 312),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA RTX 6000 Ada Generation", "bf16", 364.2),
        ("NVIDIA RTX A6000", "fp32", 38.7),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200", "fp32", 66.9),
        ("NVIDIA H20", "bf16", 148),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA GH200 144G HBM3e", "bf16", 989.4),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA B300 SXM6 AC", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA GB300", "tf32", 1250),
        ("AMD Instinct MI250X / MI250", "bf16", 191.5),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI355X", "fp16", 2516.6),
    ],
)
def test_names_as_drivers_report_them(name: str, precision: str, tera: float) -> None:
    peak = look_up_peak(name, precision)
    assert peak.flops_per_s == pytest.approx(tera * 1e12)
    assert precision in peak.source and ("NVIDIA" in peak.source or "AMD" in peak.source)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H999", "NVIDIA A1000 Laptop GPU", "NVIDIA A100X", "NVIDIA RTX 4090 Laptop GPU", "NVIDIA L400",
        "NVIDIA GeForce RTX 4080 SUPER", "Intel Xeon", "", "NVIDIA", "NVIDIA B2000",
        "NVIDIA H100 80GB HBM2e", "NVIDIA H200 NVL", "AMD Instinct MI300X VF",
    ],
)  # fmt: skip
def test_an_unknown_card_has_no_peak_and_a_remedy(name: str) -> None:
    peak = look_up_peak(name, "bf16")
    assert peak.flops_per_s is None
    assert "not in the table" in peak.source and "hardware.peak=" in peak.source


@pytest.mark.parametrize(("name", "precision"), [("Tesla V100-SXM2-16GB", "tf32"), ("Tesla T4", "bf16")])
def test_a_precision_the_card_lacks_has_no_peak(name: str, precision: str) -> None:
    peak = look_up_peak(name, precision)
    assert peak.flops_per_s is None and f"no {precision} units" in peak.source


def test_a_slice_of_a_card_is_not_the_card() -> None:
    assert look_up_peak("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16").flops_per_s is None


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.pattern)
def test_the_table_is_plausible(device: object) -> None:
    fp32, tf32, bf16, fp16 = (getattr(device, name) for name in ("fp32", "tf32", "bf16", "fp16"))
    assert 5 < fp32 < 200 and fp16 >= fp32
    assert tf32 is None or fp32 <= tf32 <= fp16
    assert bf16 is None or bf16 == fp16
