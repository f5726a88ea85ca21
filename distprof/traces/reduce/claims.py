"""What a trace says about its job, so that traces of different jobs are recognised before they are mixed."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from distprof.facts.trace import Trace, TraceHead

_DEVICE_TYPES = {"NVIDIA": "cuda", "AMD": "cuda", "Intel": "xpu", "Huawei": "npu"}
"""By vendor, what PyTorch calls its devices."""
UNIX_NS = 10**18
"""Later times are on the Unix clock: since 2001."""
_VENDORS = {
    "AMD": re.compile(r"\bAMD\b|Instinct|Radeon|^gfx\d", re.IGNORECASE),
    "NVIDIA": re.compile(r"NVIDIA|Tesla|GeForce|Quadro", re.IGNORECASE),
    "Intel": re.compile(r"\bIntel\b|\bArc\b|Data Center GPU Max|Ponte Vecchio", re.IGNORECASE),
    "Huawei": re.compile(r"\bAscend", re.IGNORECASE),
}
_CALLS = {
    "AMD": re.compile(r"hip[A-Z]"), "NVIDIA": re.compile(r"cu(?:da)?[A-Z]"),
    "Intel": re.compile(r"(?:ur|ze|xpti|sycl)[A-Z]"), "Huawei": re.compile(r"acl(?:rt|nn|op|md)"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one trace says about its job."""

    head: TraceHead
    extent_ns: tuple[int, int] | None
    """First begin and last end on the Unix clock. None: the trace uses another clock."""
    vendor: str | None
    """The device's vendor. None: there is no device, or the vendor is unknown."""


def read_claim(trace: Trace) -> Claim:
    """What the trace says about its job."""
    return Claim(head=trace.head, extent_ns=_find_extent(trace), vendor=_find_vendor(trace))


def _find_extent(trace: Trace) -> tuple[int, int] | None:
    tables = [table for table in (trace.gpu, trace.calls, trace.ops, trace.ranges) if len(table.begin_ns)]
    if not tables:
        return None
    start_ns = trace.head.session_start_ns or 0
    begin_ns = start_ns + min(int(table.begin_ns.min()) for table in tables)
    end_ns = start_ns + max(int(max(table.begin_ns.max(), table.end_ns.max())) for table in tables)
    return (begin_ns, end_ns) if begin_ns > UNIX_NS else None


def _find_vendor(trace: Trace) -> str | None:
    """From the device's name, else from the runtime that was called."""
    for vendor, pattern in _VENDORS.items():
        if trace.head.device_name and pattern.search(trace.head.device_name):
            return vendor
    called = [trace.names[code] for code in np.unique(trace.calls.name).tolist()]
    found = [vendor for vendor, pattern in _CALLS.items() if any(map(pattern.match, called))]
    return found[0] if len(found) == 1 else None


def find_device_type(trace: Trace) -> str | None:
    """What the process ran on, as PyTorch calls it; "cpu" if nothing in the file speaks of a device. None: unknown."""
    head, vendor = trace.head, _find_vendor(trace)
    if vendor is not None:
        return _DEVICE_TYPES[vendor]
    used = bool(len(trace.gpu.begin_ns))
    if "nccl" in (head.backend or "") or any(name.startswith("nccl") for name in trace.names):
        return "cuda"
    if used and head.tool == "nsys":
        return "cuda"
    dark = head.not_understood is not None or head.memory_peak_bytes is not None or head.lists_devices
    return None if used or dark else "cpu"
