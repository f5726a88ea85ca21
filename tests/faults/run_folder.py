"""Synthetic runs as run folders on disk, as a live job leaves them."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.facts.run import Phase, Run
from distprof.storage.collective_records import GroupInfo, IssuedCollective, StepCollectives
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import rank_path, write_meta

MS = 1_000_000


def make_late_run(*, num_ranks: int = 4, late: int = 2) -> Run:
    """A DDP job of 20 steps in which one rank is 41 ms late with its data; one host."""
    job = SimulatedJob(
        num_ranks=num_ranks, ranks_per_host=num_ranks, num_steps=20,
        delays=(Delay(rank=late, phase=Phase.DATA, delay_ns=41 * MS),),
    )  # fmt: skip
    return simulate(job, seed=3).run


def write_run(folder: Path, run: Run) -> Path:
    """Writes the run; a job of one process group."""
    (folder / "ranks").mkdir(parents=True)
    write_meta(folder, run.meta)
    for position in range(len(run.ranks)):
        write_stream(folder, run, position)
    return folder


def write_stream(folder: Path, run: Run, position: int, **changes: object) -> Path:
    """Writes one rank's file; ``changes``: to the header's ``run_id`` and ``world_size``."""
    info = run.ranks[position]
    named = {"run_id": run.meta.run_id, "world_size": run.meta.world_size, **changes}
    path = rank_path(folder, info.rank)
    writer = StreamWriter(path, info=structs.replace(info, ended=None), **named)  # type: ignore[arg-type]
    (table,) = run.collectives
    order = tuple(
        IssuedCollective(kind, 0, phase, size)
        for kind, phase, size in zip(table.kinds, table.phases, table.sizes_bytes, strict=True)
    )
    group = [GroupInfo(name=table.group, ranks=None)]
    seen: list[StepCollectives | None] = [None] * run.rows.shape[1]
    for at, step in enumerate(table.steps.tolist()):
        times = (values[position, at].round().astype(int).tolist()
                 for values in (table.arrival_ns, table.end_ns, table.exposed_ns))  # fmt: skip
        arrival_ns, end_ns, exposed_ns = times
        seen[step] = StepCollectives(order=order, arrival_ns=arrival_ns, end_ns=end_ns, exposed_ns=exposed_ns)
    rows = list(run.rows[position].round())
    writer.write_steps(rows, [None] * len(rows), seen, group)
    writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=())
    writer.close()
    return path
