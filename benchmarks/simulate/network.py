"""The links and buses of a simulated job, and the collectives that are under way on them."""

from __future__ import annotations

import numpy as np

from benchmarks.simulate.bandwidth import Pipe
from benchmarks.simulate.draw import Load
from benchmarks.simulate.job import SimulatedJob
from benchmarks.simulate.program import Issue, find_groups
from benchmarks.simulate.ring import Ring
from distprof.facts.run import CollectiveKind

FASTEST_RATE = 1.25
"""Of a single transfer inside a host, against its rate when one ring of all its ranks is under way."""
WHOLE = (CollectiveKind.ALL_REDUCE,)
"""Collectives that nobody leaves before all transfers have ended."""

Place = tuple[int, int, int]
"""A rank's part in a collective: rank, step, index of the collective."""


class Network:
    """Hosts with a bus each (pipe 2h) and a link to the others (pipe 2h + 1)."""

    def __init__(self, job: SimulatedJob, work: Load, issues: list[Issue]) -> None:
        self._job, self._work, self._issues = job, work, issues
        self._hosts = [rank // job.ranks_per_host for rank in range(job.num_ranks)]
        self._pipes: list[Pipe[tuple[Ring, int]]] = []
        for host in range(job.num_hosts):
            self._pipes += [Pipe(float(self._hosts.count(host)), FASTEST_RATE), Pipe(1.0, 1.0)]
        self._versions = [0] * len(self._pipes)
        self._touched: set[int] = set()
        self._groups = {op.partition: find_groups(job, op.partition).tolist() for op in issues}
        self._members: dict[str, list[list[int]]] = {
            name: [np.flatnonzero(np.array(groups) == group).tolist() for group in range(max(groups) + 1)]
            for name, groups in self._groups.items()
        }
        self._base_ns: list[list[float]] = work.link_transfer_ns.tolist()
        self._rings: dict[tuple[int, int, int], Ring] = {}

    def join(self, now_ns: float, rank: int, step: int, issue: int) -> None:
        """A rank is ready for a collective."""
        partition = self._issues[issue].partition
        group = self._groups[partition][rank]
        key = (step, issue, group)
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = self._make_ring(self._members[partition][group], step, issue)
        for edge, work_ns in ring.join(rank):
            self._begin(now_ns, ring, edge, work_ns)
        if ring.num_joined == len(ring.members):
            del self._rings[key]

    def end(self, now_ns: float, number: int, version: int) -> list[Place]:
        """Something ends in a pipe, unless this is no longer so.

        Returns:
            The ranks that have all they need of a collective.
        """
        if version != self._versions[number]:
            return []
        self._touched.add(number)
        done: list[Place] = []
        for ring, edge in self._pipes[number].take_ended(now_ns):
            more_ns, members = ring.end(edge)
            if more_ns is not None:
                self._begin(now_ns, ring, edge, more_ns)
            done += [(rank, ring.step, ring.issue) for rank in members]
        return done

    def list_next(self) -> list[tuple[int, int, float]]:
        """Pipes in which something has changed since: number, version, and when the next transfer ends."""
        found: list[tuple[int, int, float]] = []
        if not self._touched:
            return found
        for number in sorted(self._touched):
            self._versions[number] += 1
            end_ns = self._pipes[number].find_end()
            if end_ns is not None:
                found.append((number, self._versions[number], end_ns))
        self._touched.clear()
        return found

    def _begin(self, now_ns: float, ring: Ring, edge: int, work_ns: float) -> None:
        sender, receiver = ring.find_ends(edge)
        number = 2 * self._hosts[sender] + (self._hosts[sender] != self._hosts[receiver])
        self._pipes[number].add(now_ns, work_ns, (ring, edge))
        self._touched.add(number)

    def _make_ring(self, members: list[int], step: int, issue: int) -> Ring:
        """A replica's ring has only its part of the parameters to move, and shares its way with the other parts'."""
        op, size = self._issues[issue], len(members)
        base_ns = self._base_ns[step][issue] / (self._job.shards_beside if op.partition == "replica" else 1)
        base_ns += self._job.latency_ns * (size - 1).bit_length()
        hosts = [self._hosts[rank] for rank in members]
        factors = self._work.find_factors(step)
        work_ns = [
            base_ns
            * self._job.scale_transfer(max(factors.get(here, 1.0), factors.get(there, 1.0)) if here != there else 1)
            for here, there in zip(hosts, [*hosts[1:], hosts[0]], strict=True)
        ]
        around = size - 1 if op.kind in WHOLE else size // 2
        return Ring(members=members, step=step, issue=issue, work_ns=work_ns, around=around)
