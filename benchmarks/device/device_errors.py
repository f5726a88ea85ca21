"""How far the facts and the report of a job on made-up devices are from the truth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.device.device_run import DeviceRun
from benchmarks.simulate.device_truth import TrueCollective
from distprof.facts.run import KINDS, PHASES, Clock
from distprof.report.report import Report
from distprof.storage.collective_records import choose_stride, is_kept

LEAST_NS, LEAST_RATIO = 20_000, 0.03
"""An error up to either of them is none."""


class Error(NamedTuple):
    """One number of the facts or of the report beside the true one, ns."""

    where: str
    found_ns: float
    true_ns: float

    @property
    def of_limit(self) -> float:
        """The error over what is allowed. Infinite: nothing was found."""
        allowed_ns = max(LEAST_NS, LEAST_RATIO * self.true_ns)
        return abs(self.found_ns - self.true_ns) / allowed_ns if np.isfinite(self.found_ns) else np.inf


def find_partition_error(done: DeviceRun) -> float:
    """The largest difference between a step and the sum of its phases on the device clock, ns."""
    run = done.run
    apart_ns = np.abs(run.phase_ns(Clock.DEVICE).sum(axis=2) - run.step_ns(Clock.DEVICE))
    return float(np.nanmax(apart_ns, initial=0.0))


def list_phases(done: DeviceRun) -> Iterator[Error]:
    """Every phase of every step, and the step."""
    found_ns, step_ns = done.run.phase_ns(Clock.DEVICE), done.run.step_ns(Clock.DEVICE)
    for rank, position, step in _list_timed(done):
        true = done.ranks[rank].steps[step]
        rate = done.ranks[rank].rate
        for code, true_ns in enumerate(true.sum_phases()):
            where = f"rank {rank}, step {step}, {PHASES[code]}"
            yield Error(where, float(found_ns[rank, position, code]), true_ns * rate)
        yield Error(f"rank {rank}, step {step}", float(step_ns[rank, position]), (true.end_ns - true.begin_ns) * rate)


def list_exposed(done: DeviceRun) -> Iterator[Error]:
    """How long compute waited for collectives of each kind in every step."""
    for kind in KINDS:
        found_ns = done.run.column(f"{kind}_exposed_device_ns")
        for rank, position, step in _list_timed(done):
            true_ns = done.ranks[rank].steps[step].sum_exposed(kind) * done.ranks[rank].rate
            yield Error(f"rank {rank}, step {step}, {kind}", float(found_ns[rank, position]), true_ns)


def list_waits(done: DeviceRun) -> Iterator[tuple[Error, Error]]:
    """Wait and transfer of every collective that was timed, as the facts say them without comparing clocks."""
    for table in done.run.device_collectives:
        start_ns = table.arrival_ns.copy()
        start_ns[:, :, 1:] = np.maximum(start_ns[:, :, 1:], table.end_ns[:, :, :-1])
        took_ns = table.end_ns - start_ns
        transfer_ns = took_ns.min(axis=0)
        for column, position in enumerate(table.steps):
            step = int(done.run.rows[0, position, 0])
            for row, rank in enumerate(table.ranks):
                own = select(done, int(rank), step, table.group)
                rate = done.ranks[rank].rate
                for index, true in enumerate(own):
                    where = f"{table.group}, rank {rank}, step {step}, collective {index} ({true.kind}, {true.phase})"
                    wait_ns = took_ns[row, column, index] - transfer_ns[column, index]
                    if np.isnan(wait_ns):  # see `count_untimed`
                        continue
                    yield (
                        Error(where, float(wait_ns), true.wait_ns * rate),
                        Error(where, float(transfer_ns[column, index]), true.transfer_ns * rate),
                    )


def list_reported(done: DeviceRun, report: Report) -> Iterator[tuple[Error, Error, Error]]:
    """Mean wait, transfer and exposed time of each kind of collective in the report, over the steps that were timed."""
    tables = {
        table.group: table.steps for table in done.run.device_collectives
        if np.isfinite(table.arrival_ns).all() and np.isfinite(table.end_ns).all()
    }  # fmt: skip
    for item in report.waits:
        if getattr(item, "clock", "host") != "device" or item.transfer_ns is None or item.group not in tables:
            continue
        counted = [int(done.run.rows[0, position, 0]) for position in tables[item.group]]
        steps = [step for step in counted if step >= done.job.num_warmup]
        for rank, (wait_ns, exposed_ns) in enumerate(zip(item.wait_ns, item.exposed_ns, strict=True)):
            if wait_ns is None or exposed_ns is None:
                continue
            own = [done.ranks[rank].steps[step] for step in steps]
            what = (item.group, item.kind, item.phase)
            parts = [one for step in own for one in step.collectives if (one.group, one.kind, one.phase) == what]
            waits = [one.lasted_ns for step in own for one in step.waits if (one.group, one.kind, one.phase) == what]
            where = f"report, {item.group}, {item.kind} in {item.phase}, rank {rank}"
            yield (
                Error(where, wait_ns, float(np.mean([one.wait_ns for one in parts]))),
                Error(where, item.transfer_ns, float(np.mean([one.transfer_ns for one in parts]))),
                Error(where, exposed_ns, sum(waits) / len(steps)),
            )


def count_untimed(done: DeviceRun) -> int:
    """Collectives without times, on all ranks, in steps that should have them: all members timed the step."""
    timed, found = np.isfinite(done.run.step_ns(Clock.DEVICE)), 0
    tables = {table.group: table for table in done.run.device_collectives}
    for group, members in done.job.groups.items():
        if done.job.every is not None:
            every = choose_stride(len(done.ranks[members[0]].steps[0].collectives), timed=True)
            kept = np.array([is_kept(int(step), every) for step in done.run.rows[0, :, 0]])
            expected = timed[list(members)].all(axis=0) & kept
        elif group in tables:  # the ranks chose the steps
            expected = np.isin(np.arange(timed.shape[1]), tables[group].steps)
        else:
            continue
        found += int(expected.sum()) * len(members) * len(select(done, members[0], 0, group))
        if group in tables:
            table = tables[group]
            known = np.isfinite(table.arrival_ns) & np.isfinite(table.end_ns)
            found -= int(known[:, expected[table.steps]].sum())
    return found


def select(done: DeviceRun, rank: int, step: int, group: str) -> list[TrueCollective]:
    """A rank's collectives of one group in one step, in order of issue."""
    return [one for one in done.ranks[rank].steps[step].collectives if one.group == group]


def _list_timed(done: DeviceRun) -> Iterator[tuple[int, int, int]]:
    """Rank, position on axis 1 and number of every step with device times."""
    step_ns, numbers = done.run.step_ns(Clock.DEVICE), done.run.column("step")
    for rank, position in zip(*np.nonzero(np.isfinite(step_ns)), strict=True):
        yield int(rank), int(position), int(numbers[rank, position])
