"""What the ranks of a simulated job would have recorded: times on their own clocks, as the facts of a run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.simulate.job import SimulatedJob
from benchmarks.simulate.observe_between import write_between
from benchmarks.simulate.program import PART_CODE, Issue, Program, find_groups, list_issues
from benchmarks.simulate.schedule import Schedule
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.intervals import measure_union
from distprof.facts.run import (
    COLUMN,
    KINDS,
    OWN_PHASES,
    PHASES,
    ClockReading,
    Collectives,
    DeviceSnapshot,
    LinkReading,
    Peak,
    Phase,
    RankInfo,
    Run,
    RunMeta,
    make_rows,
)

BASE_NS = 10**12
"""The first host's monotonic clock at the start of the job."""


BLOCK = 128
"""Ranks at once: intervals are sorted in copies."""
_FIRST_UNSEEN, _END_UNSEEN = COLUMN[f"{PHASES[0]}_host_ns"], COLUMN["between_count"]
"""The columns that a step without instruments does not have."""


def write_run(
    job: SimulatedJob, program: Program, tokens: FloatArray, schedule: Schedule, draws: np.random.Generator
) -> Run:
    """Converts a schedule on the true clock into what each rank observed; overwrites the schedule's arrays."""
    hosts = np.arange(job.num_ranks) // job.ranks_per_host
    offset_ns = draws.uniform(-1, 1, job.num_hosts) * job.clocks.offset_ns
    drift_ratio = draws.uniform(-1, 1, job.num_hosts) * job.clocks.drift_ratio
    offset_ns[0] = drift_ratio[0] = 0.0
    rate = 1 + drift_ratio[hosts]
    base = BASE_NS + np.round(offset_ns[hosts])
    issues = list_issues(program)
    readings = _read_clocks(job, offset_ns, drift_ratio, float(schedule.end_ns.max(initial=0)), draws)
    rows = _write_rows(job, issues, tokens, schedule, base, rate)
    write_between(job, issues, schedule, rows, rate)
    recorded = _choose_recorded(job, draws)
    rows[:, ~recorded, _FIRST_UNSEEN:_END_UNSEEN] = np.nan
    rows[:, ~recorded, COLUMN["shadow"]] = 1
    return Run(
        meta=_describe_job(job, readings, draws),
        ranks=tuple(_describe_rank(job, rank, int(hosts[rank])) for rank in range(job.num_ranks)),
        rows=rows, collectives=_tabulate(job, issues, schedule, base, rate, np.flatnonzero(recorded)),
    )  # fmt: skip


def _choose_recorded(job: SimulatedJob, draws: np.random.Generator) -> BoolArray:
    """The steps that are no shadow steps: of these, only the time of the step and of what precedes it is known."""
    recorded = np.ones(job.num_steps, dtype=bool)
    turns = np.arange(0, job.num_steps, job.shadow_every) if job.shadow_every else np.arange(0)
    shadows = turns + draws.integers(max(job.shadow_every, 1), size=len(turns))
    recorded[shadows[(shadows >= job.num_warmup) & (shadows < job.num_steps)]] = False
    return recorded


def _write_rows(
    job: SimulatedJob, issues: list[Issue], tokens: FloatArray, schedule: Schedule, base: FloatArray, rate: FloatArray
) -> FloatArray:
    rows = make_rows(job.num_ranks, job.num_steps)
    scale = rate[:, None]
    facts: dict[str, npt.ArrayLike] = {
        "step": np.arange(job.num_steps), "warmup": np.arange(job.num_steps) < job.num_warmup, "failed": 0, "shadow": 0,
        "window": 0, "micro_steps": job.micro_steps, "tokens": tokens, "segments_lost": 0,
        "begin_host_ns": np.round(base[:, None] + schedule.begin_ns * scale),
        "step_host_ns": (schedule.end_ns - schedule.begin_ns) * scale,
    }  # fmt: skip
    for name, values in facts.items():
        rows[:, :, COLUMN[name]] = values
    nothing = np.zeros((job.num_ranks, job.num_steps))
    for phase in PHASES:
        waits = [index for index, op in enumerate(issues) if op.wait is phase and not op.between]
        waited_ns = np.nansum(schedule.exposed_ns[:, :, waits], axis=2)
        own_ns = nothing if phase is Phase.DATA and job.data_between else schedule.part_ns[:, :, PART_CODE[phase]]
        rows[:, :, COLUMN[f"{phase}_host_ns"]] = (own_ns + waited_ns) * scale
        if phase in OWN_PHASES:
            rows[:, :, COLUMN[f"{phase}_wait_host_ns"]] = waited_ns * scale
    for kind in KINDS:
        own = [index for index, op in enumerate(issues) if op.kind is kind and not op.between]
        busy_ns = np.empty_like(nothing)
        for first in range(0, job.num_ranks, BLOCK):
            block = slice(first, first + BLOCK)
            begin_ns, over_ns = (values[block][:, :, own] for values in (schedule.arrival_ns, schedule.over_ns))
            busy_ns[block] = measure_union(np.nan_to_num(begin_ns), np.nan_to_num(over_ns))
        happened = np.isfinite(schedule.arrival_ns[:, :, own])
        rows[:, :, COLUMN[f"{kind}_count"]] = happened.sum(axis=2)
        rows[:, :, COLUMN[f"{kind}_bytes"]] = happened @ np.array(
            [issues[index].size_bytes for index in own], dtype=float
        )
        rows[:, :, COLUMN[f"{kind}_busy_host_ns"]] = busy_ns * scale
        rows[:, :, COLUMN[f"{kind}_exposed_host_ns"]] = np.nansum(schedule.exposed_ns[:, :, own], axis=2) * scale
    return rows


def _tabulate(
    job: SimulatedJob, issues: list[Issue], schedule: Schedule, base: FloatArray, rate: FloatArray, recorded: IntArray
) -> tuple[Collectives, ...]:
    tables = []
    for partition in dict.fromkeys(op.partition for op in issues if not op.between):
        own = [index for index, op in enumerate(issues) if op.partition == partition and not op.between]
        groups = find_groups(job, partition)
        for group in range(int(groups.max()) + 1):
            members = np.flatnonzero(groups == group)
            shift, scale = base[members, None, None], rate[members, None, None]
            steps = recorded[np.isfinite(schedule.arrival_ns[members[0], recorded, own[0]])]
            tables.append(
                Collectives(
                    group="default" if partition == "world" else f"{partition}-{group}",
                    ranks=members,
                    size=len(members),
                    kinds=tuple(issues[index].kind for index in own),
                    phases=tuple(issues[index].phase for index in own),
                    sizes_bytes=tuple(issues[index].size_bytes for index in own),
                    steps=steps,
                    arrival_ns=_restamp(_cut(schedule.arrival_ns, members, steps, own), scale, shift),
                    end_ns=_restamp(_cut(schedule.over_ns, members, steps, own), scale, shift),
                    exposed_ns=_restamp(_cut(schedule.exposed_ns, members, steps, own), scale, 0.0),
                )
            )
    return tuple(tables)


def _cut(values: FloatArray, members: IntArray, steps: IntArray, own: list[int]) -> FloatArray:
    """Some ranks, steps and collectives; if that is all, the array itself, which may be large."""
    whole = (len(members), len(steps), len(own)) == values.shape
    part: FloatArray = values if whole else values[np.ix_(members, steps, np.array(own))]
    return part


def _restamp(values: FloatArray, scale: FloatArray, shift: FloatArray | float) -> FloatArray:
    """Converts times from the true clock to the ranks' own clocks, in place."""
    values *= scale
    values += shift
    return values


def _read_clocks(
    job: SimulatedJob, offset_ns: FloatArray, drift_ratio: FloatArray, lasted_ns: float, draws: np.random.Generator
) -> tuple[ClockReading, ...]:
    readings = []
    for at_ns in (0.0, lasted_ns):
        for host in range(job.num_hosts):
            bound_ns = job.clocks.bound_ns if host else 0.0
            error_ns = float(draws.uniform(-1, 1)) * bound_ns * 0.99
            offset = round(offset_ns[host]) + drift_ratio[host] * at_ns + error_ns
            first = host * job.ranks_per_host
            readings += [
                ClockReading(rank=rank, at_ns=round(BASE_NS + at_ns), offset_ns=round(offset), bound_ns=round(bound_ns))
                for rank in range(first, min(first + job.ranks_per_host, job.num_ranks))
            ]
    return tuple(readings)


def _describe_job(job: SimulatedJob, readings: tuple[ClockReading, ...], draws: np.random.Generator) -> RunMeta:
    links, last_links = (_probe_links(job, step, draws) for step in (0, job.num_steps - 1))
    return RunMeta(
        run_id="simulated", name="simulated", started_utc="1970-01-01T00:00:00+00:00", world_size=job.num_ranks,
        backend="gloo", device_type="cpu", strategy=job.strategy, precision="fp32", work=None, versions={}, git=None,
        config={}, clock_readings=readings, link_readings=links, last_link_readings=last_links,
    )  # fmt: skip


def _probe_links(job: SimulatedJob, step: int, draws: np.random.Generator) -> tuple[LinkReading, ...]:
    """What a probe would read of the links as they are in a step. A probe's error is its own."""
    factors = job.slow_hosts if step >= job.slow_from_step else {}
    errors = draws.lognormal(0, job.probe_spread_ratio, job.num_hosts)
    return tuple(
        LinkReading(
            rank=host * job.ranks_per_host,
            bytes_per_s=job.link_bytes_per_s / max(factors.get(host, 1.0), factors.get(0, 1.0)) * float(errors[host]),
        )
        for host in range(1, job.num_hosts)
    )


def _describe_rank(job: SimulatedJob, rank: int, host: int) -> RankInfo:
    return RankInfo(
        rank=rank, local_rank=rank % job.ranks_per_host, host=f"host-{host}", pid=1000 + rank, device="cpu",
        snapshot=DeviceSnapshot(name="simulated"), peak=Peak(flops_per_s=None, source="simulated"), ended="completed",
    )  # fmt: skip
