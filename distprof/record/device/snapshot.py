"""One look at the device a rank runs on, before its first step."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from distprof.facts.hardware import is_slice
from distprof.facts.run import DeviceSnapshot

PROC = Path("/proc")


def take_snapshot(device_type: str, device_index: int | None) -> tuple[DeviceSnapshot, tuple[str, ...]]:
    """Name, memory, utilisation, power, temperature and processes, as far as they can be read.

    Args:
        device_type: "cpu" or "cuda".
        device_index: torch's index of the GPU.

    Returns:
        The snapshot, and notes on what could not be read and what to do about it.
    """
    if device_type not in ("cpu", "cuda"):
        note = f"steps and phases are timed on the host: distprof does not read the clock of {device_type} devices"
        return DeviceSnapshot(name=device_type), (note,)
    if device_type != "cuda" or device_index is None:
        return _look_at_cpu(), ()
    name = torch.cuda.get_device_name(device_index)
    try:
        import pynvml
    except ImportError:
        return DeviceSnapshot(name=name), ("no utilisation, power, temperature: pip install nvidia-ml-py",)
    try:
        pynvml.nvmlInit()
        try:
            return _look_at_gpu(pynvml, name, device_index), ()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return DeviceSnapshot(name=name), (f"no utilisation, power, temperature: NVML says {error}",)


def _look_at_gpu(pynvml: Any, name: str, device_index: int) -> DeviceSnapshot:
    handle, sliced = _find_card(pynvml, str(torch.cuda.get_device_properties(device_index).uuid))
    if sliced and not is_slice(name):
        name = f"{name} MIG"  # some drivers leave it out

    def read(what: Callable[[Any], Any]) -> Any:
        try:
            return what(handle)
        except pynvml.NVMLError:  # not every card supports every query
            return None

    memory = read(pynvml.nvmlDeviceGetMemoryInfo)
    rates = read(pynvml.nvmlDeviceGetUtilizationRates)
    power_mw = read(pynvml.nvmlDeviceGetPowerUsage)
    temperature_c = read(lambda card: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU))
    processes = read(pynvml.nvmlDeviceGetComputeRunningProcesses)
    return DeviceSnapshot(
        name=name,
        memory_total_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        utilization_ratio=None if rates is None else rates.gpu / 100,
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=None if temperature_c is None else float(temperature_c),
        processes=None if processes is None else len(processes),
    )


def _find_card(pynvml: Any, uuid: str) -> tuple[Any, bool]:
    """The card that torch means, and whether it is a MIG slice of one.

    By UUID: NVML numbers all GPUs of the host, torch those of CUDA_VISIBLE_DEVICES in that order. torch leaves out
    what it begins with, which tells a slice from a whole card.
    """
    bare = re.sub(r"^(GPU|MIG)-", "", uuid)
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}"), False
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}"), True


def _look_at_cpu() -> DeviceSnapshot:
    """The processor's name, and the memory of the whole machine."""
    name = _find(PROC / "cpuinfo", r"^model name\s*:\s*(.+)$") or platform.processor() or platform.machine()
    total, free = (_find(PROC / "meminfo", rf"^{key}:\s*(\d+) kB$") for key in ("MemTotal", "MemAvailable"))
    total_bytes = int(total) * 1024 if total else None
    used_bytes = total_bytes - int(free) * 1024 if total_bytes is not None and free else None
    return DeviceSnapshot(name=name, memory_total_bytes=total_bytes, memory_used_bytes=used_bytes)


def _find(path: Path, pattern: str) -> str | None:
    try:
        match = re.search(pattern, path.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return match[1].strip() if match else None
