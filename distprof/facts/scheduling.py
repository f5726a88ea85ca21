"""How a rank's training thread got a core, and its allocator memory of the GPU: readings of counters, about one per
window.

A reading is one row of float64; NaN means *not read*. Counters go on counting, so that any two readings of one thread
tell about the time between them, whatever was lost or left out between.
"""

from __future__ import annotations

SCHEDULING_FIELDS = (
    "at_ns", "thread", "run_ns", "wait_ns", "preempted", "major_faults", "cores", "core_set", "used_ns", "threads",
    "busy_ns", "steal_ns", "throttled_ns", "driver_allocations", "cache_flushes",
)  # fmt: skip
"""
- ``at_ns``: host clock of the rank.
- ``thread``: the training thread, as the kernel numbers it. Counters of different threads are not compared.
- ``run_ns``, ``wait_ns``: it was on a core, and it was ready and waited for one.
- ``preempted``: how often it was taken off a core while it had work. ``major_faults``: how often it waited for a page.
- ``cores``: on how many it may run: its affinity, or its cgroup's quota if that is less. ``core_set``: a checksum of
  its affinity, the same for ranks that share their cores.
- ``used_ns``: on a core, of all threads of its process.
- ``threads``: those of them that computed since the last such reading; read now and then, as the next two.
- ``busy_ns``, ``steal_ns``: of all cores of the host: not idle, stolen time included; and stolen by other guests of its
  machine.
- ``throttled_ns``: how long its cgroup was stopped because its quota was used up, summed over cores.
- ``driver_allocations``, ``cache_flushes``: of PyTorch's allocator of its GPU, how often it asked the driver for
  memory, and how often it had to give back what it had cached first, for which it waits until the GPU is done.
"""
SCHEDULING = {name: index for index, name in enumerate(SCHEDULING_FIELDS)}
