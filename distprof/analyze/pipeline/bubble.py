"""The bubble: how long stages idle because a pipeline fills and empties, and how much longer they do."""

from __future__ import annotations

import numpy as np

from distprof.analyze.pipeline.work import PASSES, Recorded
from distprof.report.operations_report import BubbleReport


def measure_bubble(recorded: Recorded) -> BubbleReport | None:
    """From recorded times, as `BubbleReport` says; None: there is one stage."""
    num_steps, replicas, stages = recorded.shape
    if stages < 2:
        return None
    found, rows = recorded.graph.operations, np.flatnonzero(recorded.select(*PASSES))
    worker, size = recorded.worker[rows], num_steps * replicas * stages
    start_ns, end_ns = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(start_ns, worker, found.start_ns[rows])
    np.maximum.at(end_ns, worker, found.start_ns[rows] + found.duration_ns[rows])
    busy_ns = np.bincount(worker, weights=found.duration_ns[rows], minlength=size).reshape(recorded.shape)
    start_ns, end_ns = start_ns.reshape(recorded.shape), end_ns.reshape(recorded.shape)
    first_ns, last_ns = start_ns.min(axis=2, keepdims=True), end_ns.max(axis=2, keepdims=True)
    whole_ns = float(busy_ns.sum())
    if whole_ns <= 0:
        return None
    parts = [
        float(part.sum()) / whole_ns for part in (start_ns - first_ns, end_ns - start_ns - busy_ns, last_ns - end_ns)
    ]
    forwards = len(rows) / len(PASSES) / size  # micro-batches times chunks
    theory_ratio = (stages - 1) / forwards
    return BubbleReport(
        warm_up_ratio=parts[0], steady_ratio=max(parts[1], 0.0), cool_down_ratio=parts[2], theory_ratio=theory_ratio,
        waiting_ratio=max(sum(parts) - theory_ratio, 0.0),
    )  # fmt: skip
