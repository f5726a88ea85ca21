"""A small valid run folder as three ranks would have written it, to be changed afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distprof.facts.arrays import FloatArray
from distprof.facts.run import (
    COLUMN,
    KINDS,
    PHASE_CODE,
    ROW_WIDTH,
    ClockReading,
    CollectiveKind,
    DeviceSnapshot,
    LinkReading,
    Peak,
    Phase,
    RankInfo,
    RunMeta,
    Work,
)
from distprof.facts.segments import Segments
from distprof.facts.stand import GroupState, Pending, RankState
from distprof.storage.collective_records import GroupInfo, IssuedCollective, StepCollectives
from distprof.storage.rank_stream import StreamWriter

RANKS, STEPS, WARMUP = 3, 22, 2
SHADOW_EVERY = 3
MS = 1_000_000
PARTS = ((Phase.DATA, 5), (Phase.FORWARD, 30), (Phase.BACKWARD, 45), (Phase.ALL_REDUCE, 8), (Phase.GRAD_NORM, 3),
         (Phase.OPTIMIZER, 10), (Phase.OTHER, 2))  # fmt: skip
"""A step, in ms."""
GROUPS = (GroupInfo(name="default", ranks=None), GroupInfo(name="pair", ranks=(0, 2)))


def make_sound_run(folder: Path) -> tuple[RunMeta, list[Path]]:
    """Writes one file per rank, and returns the run's metadata and the files."""
    paths = []
    for rank in range(RANKS):
        paths.append(folder / f"rank-{rank:05d}.jsonl")
        _write_rank(paths[-1], rank)
    work = Work(
        parameters=1000, model_flops_per_micro_step=2 * 10**9, hardware_flops_per_micro_step=3 * 10**9,
        analytic_flops_per_micro_step=2 * 10**9,
    )  # fmt: skip
    clocks = tuple(
        ClockReading(rank=rank, at_ns=at, offset_ns=1000 * rank, bound_ns=500 * bool(rank))
        for at in (0, 10**10)
        for rank in range(RANKS)
    )
    meta = RunMeta(
        run_id="synthetic", name="synthetic", started_utc="2026-01-02T03:04:05+00:00", world_size=RANKS, backend="gloo",
        device_type="cpu", strategy="ddp", precision="fp32", work=work, versions={"torch": "2.6.0"}, git=None,
        config={"seed": 1, "train": {"steps": STEPS - WARMUP, "warmup_steps": WARMUP}}, notes=("synthetic",),
        clock_readings=clocks, link_readings=(LinkReading(rank=2, bytes_per_s=1e9),),
    )  # fmt: skip
    return meta, paths


def _write_rank(path: Path, rank: int) -> None:
    info = RankInfo(
        rank=rank, local_rank=rank, host=f"host-{rank // 2}", pid=100 + rank, device="cpu",
        snapshot=DeviceSnapshot(name="CPU", memory_total_bytes=10**9, utilization_ratio=0.5),
        peak=Peak(flops_per_s=1e12, source="measured"), notes=("synthetic",),
    )  # fmt: skip
    writer = StreamWriter(path, run_id="synthetic", world_size=RANKS, info=info)
    steps = [_make_step(rank, step) for step in range(STEPS)]
    rows, segments, collectives = zip(*steps, strict=True)
    writer.write_steps(rows, segments, collectives, GROUPS)
    writer.write_state(f"no step had ended for 480 s, in step {STEPS}", stand=_make_stand(rank))
    writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=("done",))
    writer.close()


def _make_stand(rank: int) -> RankState:
    """Where a rank stood if it had not completed: ranks 0 and 2 wait for rank 1."""
    pending = None if rank == 1 else Pending(number=9, kind="all_reduce", in_step=2)
    group = GroupState(group="default", backend="gloo", ranks=None, issued=9 - (rank == 1), pending=pending)
    return RankState(
        source="ring", step=STEPS, inside=True, phase="backward", stalled_s=480.0, where="train.py:41 step",
        stack=("threading.py:327 wait", "train.py:41 step"), groups=(group,),
    )  # fmt: skip


def _make_step(rank: int, step: int) -> tuple[FloatArray, Segments | None, StepCollectives | None]:
    begin_ns = 10**9 + 110 * MS * step
    shadow = step % SHADOW_EVERY == 0
    parts_ns = [int(ms * MS * (1 + (0.1 if rank == 1 and phase is Phase.FORWARD else 0.0))) for phase, ms in PARTS]
    parts_ns[3] += 3 * MS * (rank != 1)  # the ranks that rank 1 keeps waiting
    row = np.full(ROW_WIDTH, np.nan)
    known: dict[str, float] = {
        "step": step, "warmup": step < WARMUP, "failed": 0, "shadow": shadow, "window": 0, "micro_steps": 1,
        "tokens": 1024, "begin_host_ns": begin_ns, "step_host_ns": sum(parts_ns), "memory_bytes": 10**8,
        "memory_peak_bytes": 2 * 10**8, "loss": 2.5, "grad_norm": 0.5, "segments_lost": 0,
    }  # fmt: skip
    if not shadow:
        known |= {f"{phase}_host_ns": part for (phase, _), part in zip(PARTS, parts_ns, strict=True)}
        known |= {"all_gather_host_ns": 0, "grad_norm_wait_host_ns": MS, "all_reduce_count": 2,
                  "all_reduce_bytes": 8000, "all_reduce_busy_host_ns": 9 * MS,
                  "all_reduce_exposed_host_ns": 8 * MS}  # fmt: skip
        known |= {f"{kind}_{fact}": 0 for kind in KINDS if kind != "all_reduce" for fact in ("count", "bytes")}
    for name, value in known.items():
        row[COLUMN[name]] = value
    if shadow:
        return row, None, None
    codes = tuple(PHASE_CODE[phase] for phase, _ in PARTS)
    arrival_ns = begin_ns + sum(parts_ns[:3])
    order = (
        *[IssuedCollective(CollectiveKind.ALL_REDUCE, 0, Phase.BACKWARD, 4000)] * 2,
        *((IssuedCollective(CollectiveKind.OTHER, 1, Phase.GRAD_NORM, 8),) if rank != 1 else ()),
    )  # fmt: skip
    seen = StepCollectives(
        order=order, arrival_ns=[arrival_ns - MS, arrival_ns, arrival_ns + 12 * MS][: len(order)],
        end_ns=[arrival_ns + MS, arrival_ns + parts_ns[3], None][: len(order)],
        exposed_ns=[0, parts_ns[3], None][: len(order)],
    )  # fmt: skip
    return row, Segments(begin_ns=begin_ns, codes=codes, durations_ns=tuple(parts_ns)), seen
