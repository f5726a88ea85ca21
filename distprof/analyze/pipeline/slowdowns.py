"""Whose durations, and those of which kind, make the steps longer than those of an ideal job?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distprof.analyze.pipeline.work import PASSES, Recorded
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.operations import NUMBERS, Kind
from distprof.report.operations_report import PipelineSlowdown

MOST_PARTS, MOST_WORKERS = 64, 16
"""Replicas or stages, and workers, that are replayed one by one: those that compute for longest, if there are more."""
LINKS = {
    "forward-pp-comm": (Kind.FORWARD_SEND, Kind.FORWARD_RECV),
    "backward-pp-comm": (Kind.BACKWARD_SEND, Kind.BACKWARD_RECV),
}
"""Kinds that are one in the table."""


def list_slowdowns(recorded: Recorded, ideal_ns: FloatArray) -> tuple[PipelineSlowdown, ...]:
    """The ideal job in which only some operations keep their durations, over the ideal job."""
    whole_ns = float(recorded.replay.compute_steps(ideal_ns).mean())
    slowdowns = []
    for by, name, rows in _list_parts(recorded):
        kept_ns = np.where(rows, recorded.graph.work_ns, ideal_ns)
        slowdown_ratio = float(recorded.replay.compute_steps(kept_ns).mean()) / whole_ns
        slowdowns.append(PipelineSlowdown(by=by, name=name, slowdown_ratio=slowdown_ratio))
    return tuple(slowdowns)


def _list_parts(recorded: Recorded) -> Iterator[tuple[str, str, BoolArray]]:
    found = recorded.graph.operations
    busy_ns = recorded.sum_work(*PASSES).mean(axis=0)
    for replica in _choose_busiest(busy_ns.sum(axis=1), MOST_PARTS):
        yield "dp", str(replica), found.replica == replica
    for stage in _choose_busiest(busy_ns.sum(axis=0), MOST_PARTS):
        yield "stage", str(stage), found.stage == stage
    for worker in _choose_busiest(busy_ns.reshape(-1), MOST_WORKERS):
        replica, stage = divmod(worker, found.num_stages)
        yield "worker", f"dp {replica}, stage {stage}", (found.replica == replica) & (found.stage == stage)
    joined = {kind: name for name, kinds in LINKS.items() for kind in kinds}
    names = {kind: (str(kind), (kind,)) for kind in NUMBERS} | {
        kind: (name, LINKS[name]) for kind, name in joined.items()
    }
    for name, kinds in dict.fromkeys(names.values()):
        rows = recorded.select(*kinds)
        if rows.any():
            yield "kind", name, rows


def _choose_busiest(busy_ns: FloatArray, most: int) -> list[int]:
    """Positions of those that compute for longest, ascending."""
    chosen: list[int] = np.sort(np.argsort(-busy_ns, kind="stable")[:most]).tolist()
    return chosen
