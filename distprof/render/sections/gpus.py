"""The ranks' GPUs while they trained, as a table; a throttled one, or a lack of its memory, in a sentence with its
remedy."""

from __future__ import annotations

from collections.abc import Collection

from distprof.facts.gpu import ClockLimit
from distprof.facts.run import name_ranks
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.units import NOT_MEASURED, format_energy, format_power, format_ratio
from distprof.report.gpu_report import GpuReport, GpusReport
from distprof.report.report import Report

HEADS = ("rank", "SM clock, MHz", "limited by", "temp.", "power", "a step", "a token", "PCIe")
MAX_NAMED = 8
_REMEDIES = {
    ClockLimit.TEMPERATURE: "see to the cooling of {who}'s GPU: fans, airflow, dust, its place in the rack",
    ClockLimit.POWER_BRAKE: "check the power supply of {who}'s host: it has signalled the GPU to draw less",
    ClockLimit.POWER_CAP: "compare the power limit of {who}'s GPU with the others' (nvidia-smi -q -d POWER), and raise "
    "it (nvidia-smi -pl)",
    ClockLimit.HARDWARE: "check power cables and cooling of {who}'s GPU (nvidia-smi -q -d PERFORMANCE)",
    ClockLimit.SYNC_BOOST: "find which GPU of {who}'s sync boost group is limited (nvidia-smi -q -d PERFORMANCE)",
    ClockLimit.APPLICATION: "take back the clocks that were set on {who}'s GPU (nvidia-smi -rac, nvidia-smi -rgc)",
}


def describe_throttle(report: Report) -> str:
    """``Rank 5's GPU is throttled: power cap, 1,410 of 1,980 MHz``; empty: none is known to be."""
    found, rank = report.verdict.throttled, report.verdict.rank
    if found is None:
        return ""
    clock = f"{_format_clock(found.sm_clock_hz)} of {_format_clock(found.sm_clock_max_hz)} MHz"
    others = f"the others' run at {_format_clock(found.others_sm_clock_hz)}"
    explained = "all" if found.explained_ratio >= 1 else format_ratio(found.explained_ratio)
    return f"Rank {rank}'s GPU is throttled: {found.limit}, {clock} ({others}, which explains {explained} of it)"


def advise_throttle(report: Report) -> str:
    """What to do about it, in one line; empty: nothing is known to be throttled."""
    found = report.verdict.throttled
    return "" if found is None else _REMEDIES[found.limit].format(who=name_rank(report, report.verdict.rank))


def describe_allocator(report: Report) -> str:
    """``The allocator of rank 5's GPU asks the driver for memory 3.1 times a step``; empty: it is not known to."""
    found = report.verdict.allocator
    if found is None:
        return ""
    who, times = f"The allocator of rank {report.verdict.rank}'s GPU", f"{found.allocations:,.3g} times a step"
    after = f", {found.flushes:,.3g} of them after giving back all that it had cached" if found.flushes else ""
    others, explained = f"the others': {found.others_allocations:,.3g}", format_ratio(found.explained_ratio)
    return f"{who} asks the driver for memory {times} ({others}){after}; {explained} of the lateness goes with it"


def advise_allocator(report: Report) -> str:
    """What to do about it, in one line; empty: its allocator is not known to hold a rank up."""
    found = report.verdict.allocator
    if found is None:
        return ""
    who = name_rank(report, report.verdict.rank)
    less = f"or let {who} use less memory (smaller batches, activation checkpointing)"
    calls = f"and see whether {who} calls torch.cuda.empty_cache() in its steps"
    return f"set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, {less if found.flushes else calls}"


def show_gpus(report: Report, ranks: Collection[int]) -> Section:
    """A row for each of these ranks, and the sum over all GPUs."""
    title = "GPUs while they trained: mean clock and power, highest temperature, energy"
    found = report.gpus
    if found is None:
        return Section(key="gpus", title=title)
    rows = [_show_gpu(gpu) for gpu in found.devices if gpu.rank in ranks]
    columns = make_columns(HEADS, rows, ("limited by",), non_empty_only=True)
    return Section(key="gpus", title=title, columns=columns, notes=tuple(_list_notes(found)))


def _show_gpu(gpu: GpuReport) -> list[str]:
    clock = f"{_format_clock(gpu.sm_clock_hz)} of {_format_clock(gpu.sm_clock_max_hz)}"
    cap = "" if gpu.power_cap_w is None else f" of {format_power(gpu.power_cap_w)}"
    return [
        str(gpu.rank), NOT_MEASURED if gpu.sm_clock_hz is None else clock, ", ".join(gpu.limited_by),
        NOT_MEASURED if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} C",
        NOT_MEASURED if gpu.power_w is None else format_power(gpu.power_w) + cap,
        format_energy(gpu.energy_per_step_j), format_energy(gpu.energy_per_token_j), _format_link(gpu),
    ]  # fmt: skip


def _format_clock(clock_hz: float | None) -> str:
    return NOT_MEASURED if clock_hz is None else f"{clock_hz / 1e6:,.0f}"


def _format_link(gpu: GpuReport) -> str:
    """``4 x16``; with what it could be where that is more: ``4 x8 of 5 x16``."""
    if gpu.pcie_generation is None or gpu.pcie_lanes is None:
        return NOT_MEASURED
    link = f"{gpu.pcie_generation} x{gpu.pcie_lanes}"
    best = f"{gpu.pcie_generation_max} x{gpu.pcie_lanes_max}"
    return link if link == best or None in (gpu.pcie_generation_max, gpu.pcie_lanes_max) else f"{link} of {best}"


def _list_notes(found: GpusReport) -> list[str]:
    notes = []
    if found.energy_per_step_j is not None:
        who = "the GPU" if found.num_gpus == 1 else f"all {found.num_gpus:,} GPUs"
        token = "" if found.energy_per_token_j is None else f", {format_energy(found.energy_per_token_j)} a token"
        how = "power, integrated" if found.integrated else "the cards' counters"
        notes.append(
            f"{who}: {format_energy(found.energy_per_step_j)} a step{token}, {format_power(found.power_w)}, over "
            f"{found.steps_used:,} steps with the time between them; by {how}"
        )
    shared = [gpu.rank for gpu in found.devices if gpu.shared_with]
    if shared:
        notes.append(f"{name_ranks(shared, most=MAX_NAMED)} share GPUs, whose energy is in the sum but no rank's own")
    return notes
