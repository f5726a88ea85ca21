"""Synthetic runs: a test chooses the facts, so that it knows the conclusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, PHASES, ROW_WIDTH, Clock, DeviceSnapshot, Peak, RankInfo, Run, RunMeta, Work
from distprof.facts.segments import RunSegments, Segments, tabulate

MS = 1_000_000
"""Nanoseconds."""
USUAL_NS: Mapping[str, npt.ArrayLike] = {
    "data": 10 * MS, "forward": 20 * MS, "backward": 40 * MS, "all_reduce": 15 * MS, "grad_norm": 2 * MS,
    "optimizer": 8 * MS, "other": 5 * MS,
}  # fmt: skip
"""A step of 100 ms under DDP."""
WORK = Work(
    parameters=1_000_000, model_flops_per_micro_step=2_000_000_000, hardware_flops_per_micro_step=3_000_000_000,
    analytic_flops_per_micro_step=1_600_000_000,
)  # fmt: skip


def make_shadow_stall(*, lost_ns: float = 500 * MS, shadow: float = 1) -> Run:
    """41 steps, of which every fifth is a shadow step; step 20 takes longer on every rank."""
    steps = np.arange(41)
    shadows = steps % 5 == 0
    times = {"step_host_ns": 100 * MS + np.where(steps == 20, lost_ns, 0)}
    phases = {f"{phase}_host_ns": np.where(shadows, np.nan, ns) for phase, ns in USUAL_NS.items()}
    return make_run(num_steps=41, columns=times | phases | {"shadow": shadow * shadows})


def make_run(
    *,
    num_ranks: int = 2,
    num_steps: int = 4,
    num_warmup: int = 1,
    host_ns: Mapping[str, npt.ArrayLike] = USUAL_NS,
    device_ns: Mapping[str, npt.ArrayLike] | None = None,
    columns: Mapping[str, npt.ArrayLike] | None = None,
    meta: Mapping[str, Any] | None = None,
    infos: Mapping[int, Mapping[str, Any]] | None = None,
    warnings: Sequence[str] = (),
    segments: Mapping[tuple[int, int], Segments] | None = None,
) -> Run:
    """A whole run with given phase times. Arrays broadcast: a number, ``[num_ranks, 1]``, ``[num_ranks, num_steps]``.

    Args:
        num_ranks: Number of ranks, all present.
        num_steps: Number of steps, including warm-up.
        num_warmup: How many of them are warm-up.
        host_ns: Time by phase on the host clock, ns; missing phases take 0, and the step is the sum.
        device_ns: The same on the device clock. None: not measured.
        columns: Other columns of the rows by name, which override everything else; NaN: not measured.
        meta: Changes to `RunMeta`.
        infos: Changes to `RankInfo`, by rank.
        warnings: The run's warnings.
        segments: The run's segments.
    """
    rows = np.full((num_ranks, num_steps, ROW_WIDTH), np.nan)
    usual: dict[str, npt.ArrayLike] = {
        "step": np.arange(num_steps), "warmup": np.arange(num_steps) < num_warmup, "failed": 0, "shadow": 0,
        "micro_steps": 1, "tokens": 1024, "memory_bytes": 2e9, "memory_peak_bytes": 3e9, "loss": 2.5, "grad_norm": 0.5,
        "segments_lost": 0, "all_reduce_count": 3, "all_reduce_bytes": 4_000_000, "all_reduce_busy_host_ns": 30 * MS,
        "reduce_scatter_count": 0, "reduce_scatter_bytes": 0, "reduce_scatter_busy_host_ns": 0,
        "all_gather_count": 0, "all_gather_bytes": 0, "all_gather_busy_host_ns": 0,
        "other_count": 0, "other_bytes": 0, "other_busy_host_ns": 0,
    }  # fmt: skip
    usual |= make_clock(Clock.HOST, host_ns)
    if device_ns is not None:
        usual |= make_clock(Clock.DEVICE, device_ns)
    for name, values in usual.items():
        rows[:, :, COLUMN[name]] = values
    step_ns = rows[:, :, COLUMN["step_host_ns"]]
    rows[:, :, COLUMN["begin_host_ns"]] = 10**12 + np.cumsum(step_ns, axis=1) - step_ns  # one right after the other
    for name, values in (columns or {}).items():
        rows[:, :, COLUMN[name]] = values
    device_type = "cpu" if device_ns is None else "cuda"
    changes = {rank: {"device": device_type, **(infos or {}).get(rank, {})} for rank in range(num_ranks)}
    return Run(
        meta=make_meta(**{"world_size": num_ranks, "device_type": device_type, **(meta or {})}),
        ranks=tuple(make_info(rank, **changes[rank]) for rank in range(num_ranks)),
        rows=rows,
        warnings=tuple(warnings),
        segments=keep_segments(segments or {}),
    )


def keep_segments(kept: Mapping[tuple[int, int], Segments]) -> RunSegments:
    """A run's segments, by (rank, step)."""
    ranks = {rank for rank, _ in kept}
    return RunSegments({
        rank: tabulate({step: each for (of, step), each in kept.items() if of == rank}) for rank in ranks
    })  # fmt: skip


def make_clock(clock: Clock, phases_ns: Mapping[str, npt.ArrayLike]) -> dict[str, npt.ArrayLike]:
    """The columns of one clock: every phase, and their sum as the step."""
    assert set(phases_ns) <= {str(phase) for phase in PHASES}
    times = {str(phase): np.asarray(phases_ns.get(phase, 0), dtype=float) for phase in PHASES}
    total = sum(times.values(), start=np.zeros(()))
    return {**{f"{phase}_{clock}_ns": time for phase, time in times.items()}, f"step_{clock}_ns": total}


def make_meta(**changes: Any) -> RunMeta:
    """The facts of a whole job."""
    usual: dict[str, Any] = {
        "run_id": "0123456789ab", "name": "synthetic", "started_utc": "2026-01-02T03:04:05+00:00", "world_size": 2,
        "backend": "gloo", "device_type": "cpu", "strategy": "ddp", "precision": "fp32", "work": WORK,
        "versions": {"torch": "2.13.0"}, "git": None, "config": {"seed": 1},
    }  # fmt: skip
    return RunMeta(**{**usual, **changes})


def make_info(rank: int, **changes: Any) -> RankInfo:
    """One rank that completed, with a peak of 1 TFLOP/s."""
    usual: dict[str, Any] = {
        "rank": rank, "local_rank": rank, "host": "host-a", "pid": 1000 + rank, "device": "cpu",
        "snapshot": DeviceSnapshot(name="Simulated Device", memory_total_bytes=8 * 2**30, memory_used_bytes=2**30),
        "peak": Peak(flops_per_s=1e12, source="table: Simulated Device, fp32"), "ended": "completed",
    }  # fmt: skip
    return RankInfo(**{**usual, **changes})


def drop_rows(run: Run, rank: int, first_step: int, last_step: int | None = None) -> Run:
    """The run without a rank's rows from ``first_step`` to ``last_step``, inclusive; None: to the end."""
    rows = run.rows.copy()
    rows[rank, first_step : None if last_step is None else last_step + 1] = np.nan
    return structs.replace(run, rows=rows)


def permute_ranks(run: Run, order: Sequence[int]) -> Run:
    """The run in which rank ``i`` has the facts of rank ``order[i]``; identities stay."""
    rows: FloatArray = run.rows[list(order)]
    infos = tuple(structs.replace(run.ranks[source], rank=rank) for rank, source in enumerate(order))
    return structs.replace(run, rows=rows, ranks=infos)
