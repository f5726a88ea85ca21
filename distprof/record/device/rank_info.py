"""Describes a rank before its first step: its host, its device, and the device's peak."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace

from distprof.config.schema import HardwareConfig
from distprof.facts.hardware import is_slice, look_up_peak
from distprof.facts.run import DeviceSnapshot, Peak, RankInfo
from distprof.record.device.peak import measure_peak
from distprof.world import World, all_reduce_max, wait_for_ranks

PROC = Path("/proc")


def describe_rank(
    world: World,
    precision: str | None,
    hardware: HardwareConfig,
    group: dist.ProcessGroup | None,
    measured: Peak | None = None,
) -> RankInfo:
    """This rank. Collective where a peak is measured; may synchronise then.

    Args:
        world: This process among the ranks.
        precision: Number format of the matrix products. None: not known, and then there is no peak.
        hardware: Where the peak comes from.
        group: distprof's own group. None: there is one rank.
        measured: A peak that was measured already; see `measure_beside_others`.
    """
    index = world.device.index if world.device.type == "cuda" else None
    snapshot, notes = take_snapshot(world.device.type, index)
    return RankInfo(
        rank=world.rank, local_rank=world.identity.local_rank, host=world.host, pid=os.getpid(),
        device=str(world.device), device_uuid=_read_uuid(index), snapshot=snapshot, notes=notes,
        peak=measured or _choose_peak(world, precision, hardware, snapshot, group),
    )  # fmt: skip


def measure_beside_others(world: World, precision: str | None, hardware: HardwareConfig) -> Peak | None:
    """The peak, without waiting for the turns of other ranks, which may compute meanwhile. Synchronises.

    None: it needs no measurement.
    """
    if precision is None or not _is_measured(world, precision, hardware):
        return None
    peak = measure_peak(world.device, precision)
    if world.identity.local_world_size == 1 or world.device.type == "cuda":
        return peak
    return replace(peak, source=f"{peak.source}, while other ranks of the host may have been at work")


def _is_measured(world: World, precision: str, hardware: HardwareConfig) -> bool:
    return hardware.peak == "measure" or (hardware.peak == "auto" and world.device.type != "cuda")


def _read_uuid(index: int | None) -> str | None:
    with contextlib.suppress(AttributeError, RuntimeError, AssertionError):
        return None if index is None else str(torch.cuda.get_device_properties(index).uuid)
    return None


def _choose_peak(
    world: World,
    precision: str | None,
    hardware: HardwareConfig,
    snapshot: DeviceSnapshot | None,
    group: dist.ProcessGroup | None,
) -> Peak:
    wanted = hardware.peak
    if isinstance(wanted, float):
        return Peak(flops_per_s=wanted, source="hardware.peak, as configured")
    if wanted == "none":
        return Peak(flops_per_s=None, source="hardware.peak=none")
    if precision is None:
        return Peak(flops_per_s=None, source="the precision of the job is not known")
    if not _is_measured(world, precision, hardware):
        return look_up_peak(snapshot.name if snapshot else "unknown device", precision)
    measured = Peak(flops_per_s=None, source="not measured")
    turns = all_reduce_max(world.identity.local_world_size, group=group)  # hosts may hold different numbers of ranks
    for turn in range(turns):  # one at a time: the ranks of a host share its cores
        if turn == world.identity.local_rank:
            measured = measure_peak(world.device, precision)
        wait_for_ranks(group)
    return measured


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
    handle, sliced = look_up_card(pynvml, str(torch.cuda.get_device_properties(device_index).uuid))
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


def look_up_card(pynvml: Any, uuid: str) -> tuple[Any, bool]:
    """The card that torch means, and whether it is a MIG slice of one.

    By UUID: NVML numbers all GPUs of the host, torch those of CUDA_VISIBLE_DEVICES in that order. torch leaves out
    the prefix that distinguishes a slice from a whole card.
    """
    bare = re.sub(r"^(GPU|MIG)-", "", uuid)
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}"), False
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}"), True


def _look_at_cpu() -> DeviceSnapshot:
    """The processor's name, and the memory of the whole machine."""
    name = _find(PROC / "cpuinfo", r"^model name\s*:\s*(.+)$") or platform.machine()
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
