"""Peak performance of devices: dense FLOP/s by precision, each with its source.

Dense figures, without structured sparsity, at the boost clock the vendor states, accumulating in fp32 as training does.
A device that is not in the table has no peak: it is never given another device's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from distprof.facts.run import Peak

TERA = 1e12


class Device(NamedTuple):
    """One device as its vendor describes it; TFLOP/s here, because that is how the sources print them."""

    pattern: str
    """Must match the whole name that the driver reports, without vendor and brand words."""
    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float
    source: str


_AMD = re.compile(r"\b(AMD|Instinct|Radeon)\b", re.IGNORECASE)
MEMORY = r"( ?\d+ ?GB?)?( HBM3e?)?"
"""HBM3 only: an H100 with HBM2e need not be the SXM board."""
HALF_RATE = "fp16 and bf16 at the half rate of fp32 accumulation"

DEVICES = (
    Device(r"V100-SXM\d(-\d+GB)?(-LS)?", 15.7, None, None, 125, "NVIDIA V100 datasheet, SXM2"),
    Device(r"V100S-PCIE-\d+GB", 16.4, None, None, 130, "NVIDIA V100 datasheet, V100S PCIe"),
    Device(r"V100-(PCIE|FHHL)(-\d+GB)?", 14, None, None, 112, "NVIDIA V100 datasheet, PCIe"),
    Device(r"T4", 8.1, None, None, 65, "NVIDIA T4 datasheet"),
    Device(r"A10", 31.2, 62.5, 125, 125, "NVIDIA A10 datasheet"),
    Device(r"A10G", 31.52, 35, 70, 70, "NVIDIA A10G datasheet"),
    Device(r"A30", 10.3, 82, 165, 165, "NVIDIA A30 datasheet"),
    Device(r"A40", 37.4, 74.8, 149.7, 149.7, "NVIDIA A40 datasheet"),
    Device(r"A[18]00(-(SXM\d?|PCIE|PG\d+))?(-\d+GB)?( \d+GB PCIe)?", 19.5, 156, 312, 312, "NVIDIA A100 datasheet"),
    Device(r"L4", 30.3, 60, 121, 121, "NVIDIA L4 datasheet, sparse figures halved"),
    Device(r"L40", 90.5, 90.5, 181.05, 181.05, "NVIDIA L40 datasheet"),
    Device(r"L40S", 91.6, 183, 362.05, 362.05, "NVIDIA L40S datasheet"),
    Device(r"RTX 2080 Ti", 13.45, None, None, 53.8, f"NVIDIA Turing whitepaper, {HALF_RATE}"),
    Device(r"RTX 3080", 29.8, 29.8, 59.5, 59.5, f"NVIDIA GA102 whitepaper, {HALF_RATE}"),
    Device(r"RTX 3090", 35.6, 35.6, 71, 71, f"NVIDIA GA102 whitepaper, {HALF_RATE}"),
    Device(r"RTX 4080", 48.7, 48.7, 97.5, 97.5, f"NVIDIA Ada whitepaper, {HALF_RATE}"),
    Device(r"RTX 4090", 82.6, 82.6, 165.2, 165.2, f"NVIDIA Ada whitepaper, {HALF_RATE}"),
    Device(r"RTX 5090", 104.8, 104.8, 209.5, 209.5, f"NVIDIA RTX Blackwell whitepaper, {HALF_RATE}"),
    Device(r"RTX 6000 Ada Generation", 91.1, 182.1, 364.2, 364.2, "NVIDIA Ada professional whitepaper"),
    Device(r"(RTX )?A6000", 38.7, 77.4, 154.8, 154.8, "NVIDIA RTX A6000 datasheet"),
    Device(rf"H[18]00( SXM5)?{MEMORY}", 66.9, 494.7, 989.4, 989.4, "NVIDIA H100 datasheet, SXM"),
    Device(r"H[18]00 PCIe", 51.2, 378, 756, 756, "NVIDIA H100 datasheet, PCIe"),
    Device(r"H100 NVL", 60, 417.5, 835.5, 835.5, "NVIDIA H100 datasheet, NVL, sparse figures halved"),
    Device(rf"H200( SXM5)?{MEMORY}", 66.9, 494.7, 989.4, 989.4, "NVIDIA H200 datasheet, sparse figures halved"),
    Device(r"H20(-3e)?", 44, 74, 148, 148, "NVIDIA H20 specification"),
    Device(rf"GH200{MEMORY}", 66.9, 494.7, 989.4, 989.4, "NVIDIA GH200 datasheet, sparse figures halved"),
    Device(rf"B200{MEMORY}|B300( SXM6)?( AC)?{MEMORY}", 75, 1125, 2250, 2250, "NVIDIA HGX datasheet, one of 8, halved"),
    Device(rf"GB200{MEMORY}", 80, 1250, 2500, 2500, "NVIDIA GB200 NVL72 datasheet, one GPU, sparse figures halved"),
    Device(rf"GB300{MEMORY}", 80, 1250, 2500, 2500, "NVIDIA GB300 NVL72, one GPU, as published by Verda"),
    Device(r"MI210", 45.3, None, 181, 181, "AMD Instinct MI210 datasheet, matrix figures"),
    Device(r"MI250", 45.3, None, 181, 181, "AMD Instinct MI250 datasheet, one of its two dies, matrix figures"),
    Device(r"MI250X( / MI250)?", 47.9, None, 191.5, 191.5, "AMD Instinct MI250X datasheet, one die, matrix figures"),
    Device(r"MI3(00|25)X( OAM)?", 163.4, 653.7, 1307.4, 1307.4, "AMD Instinct MI300X and MI325X datasheets"),
    Device(r"MI350X( OAM)?", 144.2, None, 2306.9, 2306.9, "AMD Instinct MI350X datasheet"),
    Device(r"MI355X( OAM)?", 157.3, None, 2516.6, 2516.6, "AMD Instinct MI355X datasheet"),
)


def is_amd(device_name: str) -> bool:
    """Whether this is the name of an AMD device."""
    return bool(_AMD.search(device_name))


def is_slice(device_name: str) -> bool:
    """Whether this is the name of a MIG slice of a card: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"."""
    return bool(re.search(r"\bMIG\b", device_name))


def look_up_peak(device_name: str, precision: str) -> Peak:
    """Peak FLOP/s of a device in a precision, with its source.

    Args:
        device_name: As the driver reports it: "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X".
        precision: "fp32", "tf32", "bf16" or "fp16".

    Returns:
        If the table has no answer, ``flops_per_s`` is None and ``source`` says why and what to do.
    """
    remedy = "set hardware.peak=FLOP/s or hardware.peak=measure"
    if is_slice(device_name):
        return Peak(flops_per_s=None, source=f"{device_name} is a slice of a card: {remedy}")
    bare = re.sub(r"^(NVIDIA|AMD|Tesla|Quadro|GeForce|Instinct|Graphics Device| )+", "", device_name).strip()
    for device in DEVICES:
        if re.fullmatch(device.pattern, bare):
            tera: float | None = getattr(device, precision)
            if tera is None:
                return Peak(flops_per_s=None, source=f"{device_name} has no {precision} units: {remedy}")
            return Peak(flops_per_s=tera * TERA, source=f"{device.source}, dense {precision}")
    return Peak(flops_per_s=None, source=f"{device_name} is not in the table: {remedy}")
