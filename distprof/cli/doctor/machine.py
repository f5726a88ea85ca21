"""Checks of the machine: devices, clocks, memory, limits, disk and network."""

from __future__ import annotations

from collections import Counter

from distprof.cli.doctor.check_result import MachineResult, absent, ok, problem, warning
from distprof.cli.doctor.probe import UNLIMITED, Facts, Limit
from distprof.facts.hardware import look_up_peak
from distprof.render.units import format_bytes

MIB, GIB = 2**20, 2**30
COARSE_NS = 1_000
"""A clock whose reading or tick takes longer than this cannot time a small model's phases."""
FEW_FILES = 4096
SMALL_SHM_BYTES = GIB
LITTLE_DISK_BYTES = 5 * GIB
NO_DISK_BYTES = 100 * MIB
STEADY = ("performance", "schedutil")
SELF_MANAGED = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers whose "powersave" governor lets the processor choose any frequency, up to the highest."""


def check_gpus(facts: Facts) -> MachineResult:
    """Whether all GPUs are of the same model."""
    gpus = facts.torch.gpus if facts.torch is not None else ()
    if not gpus:
        return absent("GPUs", "none", "jobs run on the CPU")
    kinds = Counter(f"{gpu.name} {format_bytes(gpu.memory_bytes)}" for gpu in gpus)
    found = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    if len({gpu.name for gpu in gpus}) > 1:
        meaning = "ranks on the slower model hold the others up in every step"
        return warning("GPUs", found, meaning, "choose GPUs of one model with CUDA_VISIBLE_DEVICES")
    return ok("GPUs", found, "all alike")


def check_peak(facts: Facts) -> MachineResult:
    """Whether the devices' peak is known, which MFU needs."""
    gpus = facts.torch.gpus if facts.torch is not None else ()
    if not gpus:
        return absent("peak FLOP/s", "no table for CPUs", "on a CPU, hardware.peak=auto measures it at the start")
    peaks = {gpu.name: look_up_peak(gpu.name, "bf16") for gpu in gpus}
    unknown = [peak.source for peak in peaks.values() if peak.flops_per_s is None]
    if unknown:
        fix = "set hardware.peak=FLOP/s or hardware.peak=measure"
        return warning("peak FLOP/s", unknown[0].removesuffix(f": {fix}"), "MFU and HFU are n/a", fix)
    found = ", ".join(f"{(peak.flops_per_s or 0) / 1e12:,.0f} TFLOP/s ({peak.source})" for peak in peaks.values())
    return ok("peak FLOP/s", found, "MFU and HFU are computed against it")


def check_clock(facts: Facts) -> MachineResult:
    """Whether the host clock is fine and cheap enough for phases."""
    clock = facts.clock
    source = f", {clock.source}" if clock.source else ""
    found = f"{clock.resolution_ns} ns resolution, {clock.read_cost_ns} ns per reading{source}"
    if clock.resolution_ns <= COARSE_NS and clock.read_cost_ns <= COARSE_NS:
        return ok("clock", found, "phases are timed to well under a microsecond")
    meaning = "every phase needs two readings: short phases are lost in the noise, and recording costs too much"
    fix = (
        "use the processor's own counter: clocksource=tsc (in a virtual machine: kvm-clock) on the kernel command line"
    )
    return warning("clock", found, meaning, fix)


def check_time_of_day(facts: Facts) -> MachineResult:
    """Whether the wall clock is synchronised."""
    if facts.clock.synchronised is None:
        return absent("time of day", "the kernel does not say", "it only affects the times of day in file names")
    meaning = "not used to compare arrivals: distprof measures its hosts' clocks against each other"
    if facts.clock.synchronised:
        error_us = facts.clock.max_error_us
        bound = "" if error_us is None else f", off by {error_us / 1e3:,.1f} ms at most"
        return ok("time of day", f"synchronised{bound}", meaning)
    fix = "on several hosts run chrony or systemd-timesyncd, or the times in their logs will not match"
    return warning("time of day", "not synchronised (NTP, chrony, PTP)", meaning, fix)


def check_governor(facts: Facts) -> MachineResult:
    """Whether cores run at full speed immediately."""
    if not facts.governors:
        return absent("CPU governor", "the machine does not say", "usual in virtual machines: the host decides")
    found = ", ".join(f"{name} on {count} core(s)" for name, count in facts.governors.items())
    fine = (*STEADY, "powersave") if facts.scaling_driver in SELF_MANAGED else STEADY
    if set(facts.governors) <= set(fine):
        return ok("CPU governor", found, "cores reach full speed by themselves")
    meaning = "cores are slow when a step begins: launches and data loading take longer, and vary"
    return warning("CPU governor", found, meaning, "cpupower frequency-set -g performance (as root)")


def check_shared_memory(facts: Facts) -> MachineResult:
    """Whether /dev/shm has room for DataLoader workers and NCCL."""
    if facts.shm_bytes is None:
        meaning = "DataLoader workers and NCCL pass data through it"
        return absent("/dev/shm", "not mounted", meaning, "mount a tmpfs on /dev/shm; in a container: --shm-size=8g")
    found = format_bytes(facts.shm_bytes)
    if facts.shm_bytes >= SMALL_SHM_BYTES:
        return ok("/dev/shm", found, "room for DataLoader workers and NCCL")
    meaning = "once it is full, DataLoader workers die of a bus error, or NCCL does not start"
    return warning("/dev/shm", found, meaning, "in a container: --shm-size=8g or --ipc=host")


def check_open_files(facts: Facts) -> MachineResult:
    """Whether enough files may be open."""
    limit, found = facts.open_files, _show_limit(facts.open_files)
    if limit.soft == UNLIMITED or limit.soft >= FEW_FILES:
        return ok("open files", found, "enough for ranks, DataLoader workers and their sockets")
    meaning = "many ranks or DataLoader workers fail with: Too many open files"
    reachable = limit.hard == UNLIMITED or limit.hard >= FEW_FILES
    fix = "ulimit -n 65536" if reachable else "raise nofile in /etc/security/limits.conf, or --ulimit nofile=65536"
    return warning("open files", found, meaning, fix)


def check_locked_memory(facts: Facts) -> MachineResult:
    """Whether RDMA may pin memory."""
    found = _show_limit(facts.locked_memory, memory=True)
    if not facts.infiniband:
        return ok("locked memory", found, "no RDMA device here that would need more")
    if facts.locked_memory.soft == UNLIMITED:
        return ok("locked memory", found, "RDMA may pin what it needs")
    meaning = "NCCL over InfiniBand or RoCE fails to register its buffers"
    return warning("locked memory", found, meaning, "ulimit -l unlimited; in a container: --ulimit memlock=-1")


def check_core_files(facts: Facts) -> MachineResult:
    """Whether a crashing rank writes its whole memory to disk."""
    found = _show_limit(facts.core_files, memory=True)
    piped = (facts.core_pattern or "").startswith("|")
    if facts.core_files.soft == 0 or piped:
        return ok("core files", found + (", into a program" if piped else ""), "a crash leaves no file behind")
    meaning = "each rank that crashes writes its memory to disk, gigabytes, while the others wait"
    return warning("core files", found, meaning, "ulimit -c 0, unless you need such files")


def check_perf_events(facts: Facts) -> MachineResult:
    """Whether nsys may sample the CPU."""
    level = facts.perf_event_paranoid
    if level is None:
        return absent("perf events", "the kernel does not say", "needed only for nsys' CPU sampling")
    found = f"perf_event_paranoid={level}"
    if level <= 2:
        return ok("perf events", found, "nsys may sample the CPU (launch/nsys.sh -s process-tree)")
    meaning = "nsys cannot sample the CPU; this does not affect NVTX and CUDA, which launch/nsys.sh captures"
    if facts.nsys is None:
        return absent("perf events", found, meaning)
    return warning("perf events", found, meaning, "sysctl kernel.perf_event_paranoid=2 (as root)")


def check_disk(facts: Facts) -> MachineResult:
    """Whether runs can be written."""
    name = "disk"
    if facts.runs_dir_problem is not None:
        return problem(
            name, facts.runs_dir_problem, "no job can start: its run folder cannot be created", "set runs_dir=..."
        )
    if facts.free_bytes is None:
        return absent(name, f"{facts.runs_dir}: unknown", "the free space could not be read")
    found = f"{format_bytes(facts.free_bytes)} free for {facts.runs_dir}/"
    fix = "free some space, or set runs_dir=... to another disk"
    if facts.free_bytes < NO_DISK_BYTES:
        return problem(name, found, "a job stops recording when the disk is full; its report is then partial", fix)
    if facts.free_bytes < LITTLE_DISK_BYTES:
        return warning(name, found, "enough for run folders, not for captures: nsys needs gigabytes", fix)
    return ok(name, found, "room for runs and captures")


def check_hostname(facts: Facts) -> MachineResult:
    """Whether gloo finds an address to listen on."""
    chosen = facts.environment.get("GLOO_SOCKET_IFNAME")
    if chosen:
        return ok("host name", f"{facts.hostname}, gloo on {chosen}", "GLOO_SOCKET_IFNAME names the interface")
    meaning = "gloo listens on the address of the machine's own host name"
    fix = "name the network interface: export GLOO_SOCKET_IFNAME=eth0; or add the name to /etc/hosts"
    if not facts.addresses:
        found = f"{facts.hostname} does not resolve"
        return warning("host name", found, f"{meaning}: ranks on other hosts cannot reach it", fix)
    found = f"{facts.hostname} is {', '.join(facts.addresses[:3])}"
    if all(address.startswith("127.") or address == "::1" for address in facts.addresses):
        return ok("host name", found, f"{meaning}: enough for one host; for several set GLOO_SOCKET_IFNAME")
    return ok("host name", found, meaning)


def _show_limit(limit: Limit, *, memory: bool = False) -> str:
    def show(value: int) -> str:
        return "unlimited" if value == UNLIMITED else format_bytes(value) if memory else f"{value:,}"

    return show(limit.soft) if limit.soft == limit.hard else f"{show(limit.soft)} (at most {show(limit.hard)})"
