"""Describes a rank before its first step: its host, its device, and the device's peak."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import torch
import torch.distributed as dist

from distprof.config.schema import HardwareConfig
from distprof.facts.hardware import find_peak
from distprof.facts.run import DeviceSnapshot, Peak, RankInfo
from distprof.record.device.peak import measure_peak
from distprof.record.device.snapshot import take_snapshot
from distprof.world import World, find_largest, wait_for_ranks


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
        return find_peak(snapshot.name if snapshot else "unknown device", precision)
    measured = Peak(flops_per_s=None, source="not measured")
    turns = find_largest(world.identity.local_world_size, group=group)  # hosts may hold different numbers of ranks
    for turn in range(turns):  # one at a time: the ranks of a host share its cores
        if turn == world.identity.local_rank:
            measured = measure_peak(world.device, precision)
        wait_for_ranks(group)
    return measured
