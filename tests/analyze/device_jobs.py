"""Jobs on devices by three rules, with their truth: streams do one thing after the other, a collective ends everywhere
when its last member has started it and its data have moved, and a stream that waits for it goes on then.

Each rank tells its times on a clock of its own, which began at another time and runs at another rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct, structs

from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, CollectiveKind, Collectives, Phase, Run
from tests.factories import MS, make_run

EXPOSED = {
    CollectiveKind.ALL_GATHER: Phase.ALL_GATHER, CollectiveKind.REDUCE_SCATTER: Phase.ALL_REDUCE,
    CollectiveKind.ALL_REDUCE: Phase.ALL_REDUCE,
}  # fmt: skip


class Op(Struct):
    """One thing that a rank's host launches."""

    phase: Phase
    own_ns: FloatArray | None = None
    """Of a kernel on the compute stream, ``[num_ranks, num_steps]``."""
    issues: str | None = None
    """A collective by this name, on the group's stream, ready as soon as compute passed ``after``, if given."""
    after: str | None = None
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    transfer_ns: float = 0.0
    group: str = "default"
    stream: str | None = None
    """What it is issued on, besides its group's: it is ready when the one before there is over."""
    waits: str | None = None
    """The compute stream waits for this collective."""
    marks: str | None = None
    """What compute passes here."""


@dataclass
class Job:
    """A program and when everything happened, on a true clock."""

    ops: Sequence[Op]
    num_ranks: int
    num_steps: int
    between_ns: float = 0.05 * MS
    groups: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    """The members of each group of a name. Without an entry: all ranks."""
    begin_ns: FloatArray = field(init=False)
    end_ns: FloatArray = field(init=False)
    through_ns: FloatArray = field(init=False)
    """When each rank left its last wait, ``[num_ranks, num_steps]``."""
    arrival_ns: FloatArray = field(init=False)
    """``[num_ranks, num_steps, num_collectives]``, like the next four."""
    over_ns: FloatArray = field(init=False)
    exposed_ns: FloatArray = field(init=False)
    left_ns: FloatArray = field(init=False)
    last_ns: FloatArray = field(init=False)
    """When the data of each began to move."""
    phase_ns: dict[Phase, FloatArray] = field(init=False)

    def __post_init__(self) -> None:
        self.issued = [op for op in self.ops if op.issues is not None]
        shape = (self.num_ranks, self.num_steps, len(self.issued))
        self.arrival_ns, self.over_ns = np.empty(shape), np.empty(shape)
        self.exposed_ns, self.left_ns = np.zeros(shape), np.full(shape, np.nan)
        self.last_ns = np.empty(shape)
        self.begin_ns, self.end_ns, self.through_ns = (np.empty(shape[:2]) for _ in range(3))
        self.phase_ns = {phase: np.zeros(shape[:2]) for phase in Phase}
        now = np.zeros(self.num_ranks)
        for step in range(self.num_steps):
            self.begin_ns[:, step] = now
            now = self._play(step, now)
            self.end_ns[:, step] = now
            now = now + self.between_ns

    def find_groups(self, name: str) -> list[list[int]]:
        """The members of each group of a name."""
        return [list(members) for members in self.groups.get(name, [range(self.num_ranks)])]

    def _play(self, step: int, now: FloatArray) -> FloatArray:
        passed: dict[str, FloatArray] = {}
        over: defaultdict[str | None, FloatArray] = defaultdict(lambda: np.full(self.num_ranks, -np.inf))
        where = {op.issues: index for index, op in enumerate(self.issued)}
        for op in self.ops:
            if op.own_ns is not None:
                now = now + op.own_ns[:, step]
                self.phase_ns[op.phase][:, step] += op.own_ns[:, step]
            if op.issues is not None:
                cell = (slice(None), step, where[op.issues])
                ready = now if op.after is None else passed[op.after]
                self.arrival_ns[cell] = ready if op.stream is None else np.maximum(ready, over[f"on {op.stream}"])
                started = np.maximum(self.arrival_ns[cell], over[op.group])
                for members in self.find_groups(op.group):
                    started[members] = started[members].max()
                self.last_ns[cell] = started
                self.over_ns[cell] = over[op.group] = over[f"on {op.stream}"] = started + op.transfer_ns
            if op.waits is not None:
                cell = (slice(None), step, where[op.waits])
                self.exposed_ns[cell] = np.maximum(self.over_ns[cell] - now, 0)
                self.phase_ns[EXPOSED[self.issued[cell[2]].kind]][:, step] += self.exposed_ns[cell]
                now = self.left_ns[cell] = np.maximum(now, self.over_ns[cell])
                self.through_ns[:, step] = now
            if op.marks is not None:
                passed[op.marks] = now
        return now

    @property
    def cycle_ns(self) -> FloatArray:
        """From the end of one step's last wait to that of the next, ``[num_ranks, num_steps - 1]``."""
        cycle_ns: FloatArray = np.diff(self.through_ns, axis=1)
        return cycle_ns

    def record(self, *, every: int = 1, hosts: int = 1, apart: bool = True) -> Run:
        """The run as the ranks record it, collectives in every so many steps."""
        rate = 1 + 50e-6 * np.linspace(-1, 1, self.num_ranks) * apart
        shift_ns = 1e9 * np.arange(self.num_ranks) * apart

        def tell(times_ns: FloatArray) -> FloatArray:
            extra: tuple[None, ...] = (None,) * (times_ns.ndim - 1)
            told: FloatArray = times_ns * rate[:, *extra] + shift_ns[:, *extra]
            return told

        steps = np.arange(0, self.num_steps, every)
        tables = []
        for name in dict.fromkeys(op.group for op in self.issued):
            own = [index for index, op in enumerate(self.issued) if op.group == name]
            for number, members in enumerate(self.find_groups(name)):
                cells = np.ix_(members, steps, own)
                tables.append(
                    Collectives(
                        group=f"{name} {number}", ranks=np.array(members), size=len(members), clock=Clock.DEVICE,
                        steps=steps, kinds=tuple(self.issued[index].kind for index in own),
                        phases=tuple(self.issued[index].phase for index in own), sizes_bytes=(1_000_000,) * len(own),
                        arrival_ns=tell(self.arrival_ns)[cells], end_ns=tell(self.over_ns)[cells],
                        left_ns=tell(self.left_ns)[cells], exposed_ns=(self.exposed_ns * rate[:, None, None])[cells],
                    )
                )  # fmt: skip
        run = make_run(
            num_ranks=self.num_ranks, num_steps=self.num_steps, meta={"backend": "nccl"},
            infos={rank: {"host": f"host-{rank * hosts // self.num_ranks}"} for rank in range(self.num_ranks)},
            device_ns={phase: own_ns * rate[:, None] for phase, own_ns in self.phase_ns.items()},
            columns={"begin_device_ns": tell(self.begin_ns)},
        )  # fmt: skip
        return structs.replace(run, device_collectives=tuple(tables))


def repeat(value_ns: float, num_ranks: int, num_steps: int) -> FloatArray:
    """The same time everywhere."""
    return np.full((num_ranks, num_steps), float(value_ns))


class Times:
    """Own times of ranks that are alike but for chance, and for one of them."""

    def __init__(self, num_ranks: int, num_steps: int, *, seed: int = 0, noise: float = 0.01) -> None:
        self.draws, self.shape, self.noise = np.random.default_rng(seed), (num_ranks, num_steps), noise
        self.late: dict[Phase, tuple[int, float]] = {}
        """By phase the rank that is late in it, and its own time over the others'."""

    def draw(self, phase: Phase, mean_ns: float) -> FloatArray:
        """A kernel's time, log-normal."""
        drawn: FloatArray = mean_ns * self.draws.lognormal(0, self.noise, self.shape)
        if phase in self.late:
            rank, factor = self.late[phase]
            drawn[rank] *= factor
        return drawn


def make_ddp(times: Times, *, transfers_ns: Sequence[float] = (2 * MS, 2 * MS, 2 * MS)) -> Job:
    """Forward of 30 ms, backward of 60 ms in as many pieces as there are buckets, optimizer of 5 ms."""
    ops = [Op(Phase.DATA, times.draw(Phase.DATA, MS)), Op(Phase.FORWARD, times.draw(Phase.FORWARD, 30 * MS))]
    for number, transfer_ns in enumerate(transfers_ns):
        ops.append(Op(Phase.BACKWARD, times.draw(Phase.BACKWARD, 60 * MS / len(transfers_ns))))
        ops.append(Op(Phase.BACKWARD, issues=f"bucket {number}", transfer_ns=transfer_ns))
    ops.append(Op(Phase.BACKWARD, waits=ops[-1].issues))
    ops.append(Op(Phase.OPTIMIZER, times.draw(Phase.OPTIMIZER, 5 * MS)))
    return Job(ops, *times.shape)


def make_fsdp(
    times: Times, *, num_layers: int = 4, transfer_ns: float = 2 * MS, shards: Sequence[Sequence[int]] | None = None,
    own_streams: bool = False, num_micro_steps: int = 1,
) -> Job:  # fmt: skip
    """FSDP2: each layer is gathered while the one before computes, in both directions, and its gradients are reduced
    behind that. Compute waits for a gather before it needs the layer, and for reductions at the end.

    Args:
        times: Draws own times.
        num_layers: Of the model.
        transfer_ns: Of every collective.
        shards: HSDP: the members of each group of shards. Ranks at the same place in several of them reduce gradients.
        own_streams: Gathers are ready for the next only when the one before is over, and so are reductions.
        num_micro_steps: Of a step; each reduces its gradients.
    """
    ops = [Op(Phase.DATA, times.draw(Phase.DATA, MS))]
    for number in range(num_micro_steps):
        passes = _list_passes(times, num_layers, transfer_ns, shards is not None, own_streams)
        ops += [_rename(op, f"{number}:") for op in passes]
    ops.append(Op(Phase.OPTIMIZER, times.draw(Phase.OPTIMIZER, 5 * MS)))
    groups = {} if shards is None else {"shards": shards, "replicas": list(zip(*shards, strict=True))}
    ops = [structs.replace(op, group="shards" if shards and op.group == "default" else op.group) for op in ops]
    return Job(ops, *times.shape, groups=groups)


def _list_passes(times: Times, num_layers: int, transfer_ns: float, hybrid: bool, own_streams: bool) -> list[Op]:
    ops: list[Op] = []
    gathers, scatters = "gathers" if own_streams else None, "scatters" if own_streams or hybrid else None
    for name, phase, mean_ns, order in (
        ("f", Phase.FORWARD, 30 * MS, range(num_layers)), ("b", Phase.BACKWARD, 60 * MS, range(num_layers)[::-1]),
    ):  # fmt: skip
        layers = list(order)
        for place, layer in enumerate(layers):
            if place == 0:
                ops.append(Op(phase, marks=f"{name} begins"))
            ahead = [layer] * (place == 0) + layers[place + 1 : place + 2]
            for other in ahead:
                after = f"{name} begins" if place == 0 else f"{name}{layers[place - 1]} gathered"
                ops.append(
                    Op(phase, issues=f"{name}{other}", after=after, kind=CollectiveKind.ALL_GATHER,
                       transfer_ns=transfer_ns, stream=gathers)
                )  # fmt: skip
            ops.append(Op(phase, waits=f"{name}{layer}", marks=f"{name}{layer} gathered"))
            ops.append(Op(phase, times.draw(phase, mean_ns / num_layers), marks=f"{name}{layer} done"))
            if phase is Phase.BACKWARD:
                ops.append(
                    Op(phase, issues=f"r{layer}", after=f"b{layer} done", kind=CollectiveKind.REDUCE_SCATTER,
                       transfer_ns=transfer_ns, stream=scatters)
                )  # fmt: skip
                if hybrid:
                    ops.append(
                        Op(phase, issues=f"a{layer}", after=f"b{layer} done", group="replicas", stream=scatters,
                           transfer_ns=transfer_ns / 2)
                    )  # fmt: skip
    return [*ops, Op(Phase.BACKWARD, waits=f"{'a' if hybrid else 'r'}0")]


def _rename(op: Op, prefix: str) -> Op:
    names = {name: getattr(op, name) for name in ("issues", "after", "waits", "marks")}
    return structs.replace(op, **{name: prefix + value for name, value in names.items() if value is not None})
