"""The columns of one rank's step, written out so that a search for a column's name finds this file.

``PHASE_CLOCK_ns`` is how long a `Phase` took on a clock; ``PHASE_wait_CLOCK_ns`` is the part of the phase in which the
rank waited in a collective inside it. ``KIND_count``, ``KIND_bytes``, ``KIND_busy_CLOCK_ns`` (the union of the
intervals) and ``KIND_exposed_CLOCK_ns`` (the part that the rank's compute waited for) belong to a `CollectiveKind`.
So ``all_reduce_host_ns`` is the *phase* all_reduce: exposed gradient synchronisation, by whatever collective.
``all_reduce_exposed_host_ns`` is the *kind* all_reduce, in whatever phase.
"""

from __future__ import annotations

LOADER_FIELDS: tuple[str, ...] = (
    "data_loader_host_ns", "between_loader_host_ns", "between_data_loader_host_ns",
    "loader_batches", "loader_ready", "loader_unpinned",
    "worker_batches", "worker_host_ns", "worker_collate_host_ns", "worker_cpu_ns",
    "loader_workers", "loader_prefetch",
)  # fmt: skip
"""What DataLoaders took: a part of the columns of a step."""
ROW_FIELDS: tuple[str, ...] = (
    "step", "warmup", "failed", "shadow", "window", "micro_steps", "tokens", "squared_lengths", "begin_host_ns",
    # phases on the host clock, and the waits inside them
    "step_host_ns",
    "data_host_ns", "forward_host_ns", "backward_host_ns", "all_gather_host_ns",
    "all_reduce_host_ns", "grad_norm_host_ns", "optimizer_host_ns", "other_host_ns",
    "data_wait_host_ns", "forward_wait_host_ns", "backward_wait_host_ns",
    "grad_norm_wait_host_ns", "optimizer_wait_host_ns", "other_wait_host_ns",
    # phases on the device clock, and the waits inside them
    "step_device_ns",
    "data_device_ns", "forward_device_ns", "backward_device_ns", "all_gather_device_ns",
    "all_reduce_device_ns", "grad_norm_device_ns", "optimizer_device_ns", "other_device_ns",
    "data_wait_device_ns", "forward_wait_device_ns", "backward_wait_device_ns",
    "grad_norm_wait_device_ns", "optimizer_wait_device_ns", "other_wait_device_ns",
    # collectives by kind
    "all_reduce_count", "all_reduce_bytes",
    "all_reduce_busy_host_ns", "all_reduce_exposed_host_ns",
    "all_reduce_busy_device_ns", "all_reduce_exposed_device_ns",
    "reduce_scatter_count", "reduce_scatter_bytes",
    "reduce_scatter_busy_host_ns", "reduce_scatter_exposed_host_ns",
    "reduce_scatter_busy_device_ns", "reduce_scatter_exposed_device_ns",
    "all_gather_count", "all_gather_bytes",
    "all_gather_busy_host_ns", "all_gather_exposed_host_ns",
    "all_gather_busy_device_ns", "all_gather_exposed_device_ns",
    "all_to_all_count", "all_to_all_bytes",
    "all_to_all_busy_host_ns", "all_to_all_exposed_host_ns",
    "all_to_all_busy_device_ns", "all_to_all_exposed_device_ns",
    "other_count", "other_bytes",
    "other_busy_host_ns", "other_exposed_host_ns", "other_busy_device_ns", "other_exposed_device_ns",
    "memory_bytes", "memory_peak_bytes", "loss", "grad_norm", "segments_lost",
    # between the step before and this one
    "between_count", "between_wait_host_ns", "between_after_host_ns",
    "between_data_host_ns", "evaluation_host_ns", "checkpoint_host_ns", "logging_host_ns",
    # Python's garbage collector on the training thread, in own phases and between the step before and this one
    "data_gc_host_ns", "forward_gc_host_ns", "backward_gc_host_ns",
    "grad_norm_gc_host_ns", "optimizer_gc_host_ns", "other_gc_host_ns",
    "between_data_gc_host_ns", "between_gc_host_ns",
    # torch.compile on the training thread
    "forward_compile_host_ns", "backward_compile_host_ns", "optimizer_compile_host_ns", "other_compile_host_ns",
    # the training thread without a core
    "core_wait_ns",
    # torch's DataLoader, asked by the training thread
    *LOADER_FIELDS,
    # the device clock: where the step begins on it, and a reading of it together with the host clock
    "begin_device_ns", "anchor_device_ns", "anchor_host_ns", "anchor_bound_ns",
)  # fmt: skip
"""``begin_host_ns`` is a monotonic time, not a duration. ``squared_lengths``: the sum of the squares of the lengths of
the step's sequences. ``shadow``: the step ran without instruments, to see what they
cost; it has a step time, what the training loop reported, and no phases. ``window``: the step ran under a kernel
window, which slows it down. ``between_count``: collectives issued between the step before and this one;
``between_wait_host_ns``: how long the rank waited in them; ``between_after_host_ns``: from the end of the last of those
waits to the begin of this step. ``between_data_host_ns`` is its own time there for getting the next batch, and
a `Stretch` column its own time in such a stretch there, without the waits.

``PHASE_gc_host_ns`` is the part of the phase in which Python collected garbage on the training thread, and
``between_data_gc_host_ns`` and ``between_gc_host_ns`` that of the time for the next batch and of the remainder between
steps; what is collected in a `Stretch` is part of that. ``PHASE_compile_host_ns`` is the part of the phase in which
torch.compile compiled on the training thread; what is collected meanwhile is part of that too.

``core_wait_ns`` is how long the training thread was ready to run and waited for a core since the end of the step
before, which was recorded too, as Linux counts it.

``data_loader_host_ns`` is the part of phase data in which the training thread waited for a DataLoader to have a batch,
and ``between_data_loader_host_ns`` and ``between_loader_host_ns`` that of the time for the next batch and of the
remainder between steps. Without workers it makes the batch meanwhile. Of the ``loader_batches`` that were taken in the
step and before it, ``loader_ready`` is the sum of how many were ready each time that one was asked for, and
``loader_unpinned`` of how many had yet to be copied into pinned memory. Since the batch before, the workers, or without
them the training thread, made ``worker_batches``, in ``worker_host_ns``, of which collating took workers
``worker_collate_host_ns``; on a core they were for ``worker_cpu_ns``. All four are 0 if their own time is not known.
``loader_workers`` and ``loader_prefetch`` are ``num_workers`` and ``prefetch_factor``.

Each rank has its own device clock, 0 at the begin of the first step that was timed on it: ``begin_device_ns`` is a time
on it. When it showed ``anchor_device_ns``, the rank's host clock showed ``anchor_host_ns``, give or take
``anchor_bound_ns``; such a reading is taken about once a second, at the end of a step on the host.
"""
COLUMN: dict[str, int] = {name: index for index, name in enumerate(ROW_FIELDS)}
ROW_WIDTH = len(ROW_FIELDS)
