"""How ranks got the cores of their hosts, as parts of a report."""

from __future__ import annotations

import enum

from msgspec import Struct


class SchedulingReport(Struct, frozen=True, kw_only=True):
    """How a rank's training thread got a core, in the measured steps, as its kernel counts it. The backward pass of a
    model on a GPU runs on other threads. None: not read."""

    run_ns: float
    """On a core, per step; midmean over windows of at least two steps, as are the next three."""
    wait_ns: float
    """Ready, and waiting for a core, per step."""
    preempted: float | None
    """How often it was taken off a core while it had work, per step."""
    major_faults: float | None
    """How often it waited for a page of its memory to be read from a disk, per step."""
    cores: float | None
    """On how many it may run: its affinity, or its cgroup's quota if that is less."""
    threads: float | None
    """Of its process, those that compute: that use a tenth or more of the processor time of the busiest; median."""
    throttled_ratio: float | None
    """How long its cgroup was stopped because its quota was used up, summed over cores, over the time."""
    steal_ratio: float | None
    """Of the time in which the host's cores had work, what other guests of its machine took."""
    driver_allocations: float | None = None
    """How often PyTorch's allocator of its GPU asked the driver for memory, per step."""
    cache_flushes: float | None = None
    """How often it had to give back what it had cached first, for which it waits until the GPU is done, per step."""


class OffCpuReason(enum.StrEnum):
    """Why a thread has to wait for a core."""

    QUOTA = "quota"
    """Its cgroup is throttled for half as long as the thread waits, or longer."""
    THREADS = "threads"
    """The ranks that may run on these cores compute with more threads than these are, and the other ones of these
    threads are on them for half as long as the thread waits, or longer."""
    STEAL = "steal"
    """Its host is a guest: while the thread was ready or on its core, others took as much of that as half of what the
    thread waits, or more."""
    OTHERS = "others"
    """None of these: other processes run there."""


class OffCpu(Struct, frozen=True, kw_only=True):
    """A training thread that was ready and had no core, which explains half or more of what its rank is late by."""

    wait_ns: float
    """How long it waited for a core per step, midmean over windows; of a host, the median of its ranks."""
    others_ns: float
    """The median of the other ranks."""
    reason: OffCpuReason | None
    """None: threads and cores are not known."""
    cores: float | None
    """As ``SchedulingReport.cores``. None, here and below: not known, or of a host, not the same for its ranks."""
    threads: int | None
    """Threads that compute on these cores, of all ranks that share them."""
    ranks: int
    """How many these are; if their cores are not known, how many the cause is about."""
