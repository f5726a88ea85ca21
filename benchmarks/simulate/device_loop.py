"""The training loop of one made-up rank: the phases of a step, timed by a recorder as in a real job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from benchmarks.simulate.device import Scalar, SimulatedDevice, Stream
from benchmarks.simulate.device_job import BYTES_PER_NS, DeviceJob
from benchmarks.simulate.device_ranks import Program
from benchmarks.simulate.device_truth import Witness
from benchmarks.simulate.device_work import DeviceWork, Meeting
from distprof.facts.run import PHASE_CODE, CollectiveKind, Phase

_DRAWN = 1024
ALL_GATHER, ALL_REDUCE = PHASE_CODE[Phase.ALL_GATHER], PHASE_CODE[Phase.ALL_REDUCE]


class WorkCalls(Protocol):
    """What it says of its step; `distprof.record.step.step_work.StepWork`."""

    def add(self, *, tokens: int) -> None: ...
    def keep_scalars(self, *, loss: Any) -> None: ...


class RecorderCalls(Protocol):
    """What a training loop calls while it is recorded; `distprof.record.step.recorder.Recorder`."""

    def begin_step(self, step: int, *, warmup: bool) -> None: ...
    def end_step(self) -> None: ...
    def enter(self, code: int) -> None: ...
    def exit(self) -> None: ...
    def mark(self, code: int, ticket: int = -1) -> None: ...
    def discard_mark(self) -> None: ...
    def wait(self, ticket: int) -> int: ...
    def resume(self) -> int: ...
    @property
    def work(self) -> WorkCalls: ...
    def add_group(self, name: str, ranks: tuple[int, ...]) -> int: ...
    def begin_collective(
        self, kind: CollectiveKind, size_bytes: int, group: int = 0, *, asynchronous: bool, on_device: bool
    ) -> int: ...
    def end_on_device(self, ticket: int) -> None: ...


class Unrecorded:
    """Records nothing: the job as it is without a profiler."""

    @property
    def work(self) -> Unrecorded:
        """Nor this."""
        return self

    def __getattr__(self, name: str) -> Any:
        return self._ignore

    def _ignore(self, *_: object, **__: object) -> int:
        return -1


class Meetings:
    """The collectives of a job, which its ranks come to one after the other."""

    def __init__(self, job: DeviceJob) -> None:
        """Nobody has come."""
        self._job, self._groups = job, job.groups
        self._factors = {
            name: np.random.default_rng([job.seed, 1, code]).lognormal(0, job.jitter_ratio, _DRAWN)
            for code, name in enumerate(self._groups)
        }
        self._held: dict[str, list[Meeting]] = {name: [] for name in self._groups}

    def find(self, group: str, number: int, kind: CollectiveKind, *, norm: bool) -> Meeting:
        """The collective that has this number in its group."""
        held = self._held[group]
        if number == len(held):
            time_ns = self._job.find_transfer(kind, group, norm=norm) * self._factors[group][number % _DRAWN]
            held.append(Meeting(len(self._groups[group]), int(time_ns)))
        return held[number]


class RankLoop:
    """One rank; a strategy adds what comes between data and gradient norm."""

    def __init__(
        self, job: DeviceJob, rank: int, device: SimulatedDevice, recorder: RecorderCalls, meetings: Meetings
    ) -> None:
        """A rank before its first step."""
        self.job, self.rank, self.device, self.recorder = job, rank, device, recorder
        self.compute = device.current_stream()
        self.streams = [self.compute]
        self.witness = Witness(device, self.compute)
        self._meetings = meetings
        self._late = job.late if job.late is not None and job.late.rank == rank else None
        self._jitter = iter_factors(np.random.default_rng([job.seed, 2, rank]), job.jitter_ratio)
        own = [name for name, ranks in job.groups.items() if rank in ranks]
        self._codes = {name: 0 if name == "default" else recorder.add_group(name, job.groups[name]) for name in own}
        self.group = own[0]
        """All ranks or, under HSDP, those that share a copy of the model."""
        self.replicas = own[-1]
        self._numbers = dict.fromkeys(own, 0)
        self._newest: dict[str, DeviceWork] = {}  # NCCL runs a communicator's collectives one after the other

    def run(self) -> Program:
        """All steps."""
        job, recorder, witness = self.job, self.recorder, self.witness
        ends: list[DeviceWork] = []
        for step in range(job.num_steps):
            far = None if job.run_ahead is None else step - job.run_ahead - 1
            yield ends[far] if far is not None and far >= 0 else None
            witness.begin()
            recorder.begin_step(step, warmup=step < job.num_warmup)
            recorder.work.add(tokens=1024)
            self.enter(Phase.DATA)
            self.spend(job.host_data_ns * next(self._jitter) + self._find_late(Phase.DATA, 0, 1, on_host=True))
            yield None
            self.work(Phase.DATA, job.data_ns)
            self.exit()
            yield from self.train()
            self.enter(Phase.GRAD_NORM)
            self.work(Phase.GRAD_NORM, job.grad_norm_ns)
            self.reduce_norm()
            self.exit()
            yield None
            self.enter(Phase.OPTIMIZER)
            self.work(Phase.OPTIMIZER, job.optimizer_ns)
            self.exit()
            recorder.work.keep_scalars(loss=Scalar(self.device, float(step)))
            witness.end()
            recorder.end_step()
            ends.append(self.compute.tail)
        for stream in self.streams:
            yield stream.tail

    def train(self) -> Program:
        """Forward and backward of one step."""
        raise NotImplementedError

    def reduce_norm(self) -> None:
        """What the gradient norm takes beside its kernel."""

    def add_stream(self) -> Stream:
        """One more stream of this rank."""
        self.streams.append(Stream(self.device))
        return self.streams[-1]

    def enter(self, phase: Phase) -> None:
        """Begins a phase."""
        self.witness.enter(PHASE_CODE[phase])
        self.recorder.enter(PHASE_CODE[phase])

    def exit(self) -> None:
        """Ends it."""
        self.witness.exit()
        self.recorder.exit()

    def mark(self, code: int, ticket: int) -> None:
        """Begins a segment that waits, in a phase of its own."""
        self.witness.switch(code)
        self.recorder.mark(code, ticket)

    def resume(self) -> None:
        """Ends it."""
        self.witness.switch(PHASE_CODE[self.witness.phase])
        self.recorder.resume()

    def spend(self, host_ns: float) -> None:
        """Lets the host's time pass."""
        self.device.clock.advance(int(host_ns))

    def work(self, phase: Phase, usual_ns: float, unit: int = 0, units: int = 1) -> None:
        """Launches the kernel of a unit, which may take longer than usual."""
        usual_ns *= next(self._jitter)
        self.compute.launch(int(usual_ns + self._find_late(phase, unit, units, on_host=False)))

    def issue(
        self, kind: CollectiveKind, stream: Stream, group: str, *, asynchronous: bool = False, norm: bool = False
    ) -> tuple[int, DeviceWork]:
        """Launches this rank's part of a collective on a stream; the ticket stands for what the current stream has.

        Returns:
            The recorder's ticket, and the part.
        """
        size_bytes = 4 if norm else self.job.transfer_ns * BYTES_PER_NS
        ticket = self.recorder.begin_collective(
            kind, size_bytes, self._codes[group], asynchronous=asynchronous, on_device=True
        )
        current = self.device.current_stream()
        if stream is not current:
            stream.wait_stream(current)
        meeting = self._meetings.find(group, self._numbers[group], kind, norm=norm)
        self._numbers[group] += 1
        before = [self._newest[group]] if group in self._newest else []
        part = self._newest[group] = stream.launch(0, after=before, meeting=meeting)
        self.witness.join(group, kind, part, meeting)
        return ticket, part

    def _find_late(self, phase: Phase, unit: int, units: int, *, on_host: bool) -> float:
        late = self._late
        if late is None or late.phase is not phase or late.on_host is not on_host:
            return 0.0
        share_ratio = 1 / units if late.unit is None else float(unit == late.unit)
        return late.late_ns * share_ratio


def iter_factors(draws: np.random.Generator, jitter_ratio: float) -> Iterator[float]:
    """Random factors about 1, for ever."""
    while True:
        yield from draws.lognormal(0, jitter_ratio, _DRAWN).tolist()
