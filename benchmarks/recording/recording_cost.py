"""What the recorder takes on the training thread of a job on GPUs, measured without one.

Its calls are made as a training step makes them, on a device whose events cost a method call and are done at once: what
is left is the recorder's own time. A real event costs about 1 us more to record; how many there are is counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from distprof.facts.run import PHASE_CODE, CollectiveKind, Phase
from distprof.record.step.collective_log import ON_DEVICE
from distprof.record.step.recorder import KIND_CODE

STEP_NS = 100_000_000
"""The step that costs are compared with."""
LIMIT_RATIO = 0.003
"""What recording may take of it."""
ROUNDS = 200
NUM_EVENTS = 2048
"""Of a recorder; twelve steps have room."""
BUCKETS = 13
"""Of gpt2_small under DDP: 124 M parameters in fp32, in buckets of 25 MiB after a first one of 1 MiB, by layers."""
UNITS = 13
"""Of gpt2_small under FSDP2: 12 layers and the rest. Each is gathered in forward and in backward, and scattered."""
SHARDS = 3 * UNITS
PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER)
_CODES = tuple(PHASE_CODE[phase] for phase in PHASES)
_FORWARD, _BACKWARD = PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.BACKWARD]
_ALL_REDUCE = KIND_CODE[CollectiveKind.ALL_REDUCE]
_GATHER, _REDUCE = PHASE_CODE[Phase.ALL_GATHER], PHASE_CODE[Phase.ALL_REDUCE]


class StepCost(Struct, frozen=True, kw_only=True):
    """The host's time in the recorder's calls of one step, ns."""

    name: str
    fastest_ns: float
    """Of the rounds: what the code takes."""
    median_ns: float
    """Includes disturbances by the machine."""
    events: int
    """Device events that it records."""


class RecordingCost(Struct, frozen=True, kw_only=True):
    """What was measured."""

    step: StepCost
    """A step without anything in it."""
    phases: StepCost
    """With `PHASES`."""
    ddp: StepCost
    """gpt2_small under DDP."""
    ddp_timed: StepCost
    """The same in a step whose collectives are timed on the device."""
    fsdp: StepCost
    """gpt2_small under FSDP2."""
    fsdp_timed: StepCost
    fsdp_wrapped: StepCost
    """The same through what distprof puts around FSDP2's methods."""
    background_ns: float
    """What the background thread takes for the row of a step under FSDP2, median; it holds the interpreter's lock."""

    @property
    def phase_ns(self) -> float:
        """One phase."""
        return (self.phases.fastest_ns - self.step.fastest_ns) / len(PHASES)

    @property
    def bucket_ns(self) -> float:
        """One collective under DDP that is timed."""
        return (self.ddp_timed.fastest_ns - self.phases.fastest_ns) / BUCKETS

    @property
    def wrapper_ns(self) -> float:
        """What is around one method of FSDP2 that issues a collective, and the one that waits for it."""
        return (self.fsdp_wrapped.fastest_ns - self.fsdp_timed.fastest_ns) / SHARDS

    @property
    def shard_ns(self) -> float:
        """One collective under FSDP2 that is timed, and the wait for it."""
        return (self.fsdp_timed.fastest_ns - self.phases.fastest_ns) / SHARDS


def find_stride(plain: StepCost, timed: StepCost, collectives: int) -> int:
    """In every how many steps the recorder times collectives, if steps take `STEP_NS`."""
    from distprof.record.step.collective_log import CollectiveStride

    stride = CollectiveStride(None)
    stride.begin(0, 0)
    stride.spend(round(timed.fastest_ns - plain.fastest_ns), collectives=collectives)
    stride.begin(1, STEP_NS)
    return stride.every


def find_mean_ns(plain: StepCost, timed: StepCost, every: int) -> float:
    """Per step, if every so many steps have their collectives timed."""
    return plain.fastest_ns + (timed.fastest_ns - plain.fastest_ns) / every


class _Event:
    """Done as soon as it is recorded."""

    __slots__ = ("_device",)

    def __init__(self, device: NullDevice) -> None:
        self._device = device

    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Any) -> float:
        return 0.001


class _CountedEvent(_Event):
    __slots__ = ()

    def record(self, stream: Any) -> None:
        self._device.recorded += 1


class NullDevice:
    """Implements `distprof.record.step.protocols.Accelerator` in no time."""

    def __init__(self, *, counts: bool = False) -> None:
        """``counts``: whether it counts, which takes time."""
        self.recorded, self._kind = 0, _CountedEvent if counts else _Event

    def make_events(self, number: int, *, timing: bool) -> list[Any]:
        """Events that record nothing."""
        return [self._kind(self) for _ in range(number)]

    def current_stream(self) -> Any:
        """The only one."""
        return self

    def make_stream(self, priority: int) -> Any:
        """The same."""
        return self

    def is_capturing(self) -> bool:
        """Never."""
        return False

    def adopt_thread(self) -> None:
        """There is no other."""

    def make_buffer(self, number: int) -> Any:
        """Nothing is written to it."""
        return [0.0] * number

    def holds(self, value: Any) -> bool:
        """Nothing lies on it."""
        return False

    def copy_scalar(self, value: Any, buffer: Any, position: int) -> None:
        """Never called."""


def run_empty(recorder: Any, number: int) -> None:
    """Nothing but the step."""
    recorder.begin_step(number, warmup=False)
    recorder.end_step()


def run_phases(recorder: Any, number: int, inside: Callable[[Any, int], None] = lambda recorder, code: None) -> None:
    """`PHASES`, with something in each."""
    recorder.begin_step(number, warmup=False)
    for code in _CODES:
        recorder.enter(code)
        inside(recorder, code)
        recorder.exit()
    recorder.end_step()


def run_ddp(recorder: Any, number: int) -> None:
    """In backward a bucket after the other, any of which may be the last, as in `distprof.record.collectives.ddp`."""
    run_phases(recorder, number, _reduce)


def run_fsdp(recorder: Any, number: int) -> None:
    """Every unit gathered and waited for, and scattered in backward, as in `distprof.record.collectives.fsdp`."""
    run_phases(recorder, number, _shard)


def _reduce(recorder: Any, code: int) -> None:
    if code == _BACKWARD:
        for _ in range(BUCKETS):
            ticket = recorder.begin_bucket(_ALL_REDUCE, 1 << 25, 0, ON_DEVICE)
            recorder.mark_tail(ticket)
            recorder.end_on_device(ticket)


def _shard(recorder: Any, code: int) -> None:
    if code in (_FORWARD, _BACKWARD):
        for _ in range(UNITS):
            _issue(recorder, CollectiveKind.ALL_GATHER, _GATHER)
            if code == _BACKWARD:
                _issue(recorder, CollectiveKind.REDUCE_SCATTER, _REDUCE)


def _issue(recorder: Any, kind: CollectiveKind, code: int) -> None:
    ticket = recorder.begin_collective(kind, 1 << 25, on_device=True)
    recorder.end_on_device(ticket)
    recorder.mark(code, ticket)
    recorder.resume()


def make_wrapped(recorder: Any) -> Callable[[int], None]:
    """The same by calls of FSDP2's methods, through what `distprof.record.collectives.fsdp` puts around them."""
    from benchmarks.recording.fsdp_stand_in import StandIn

    unit = StandIn(recorder)

    def shard(_: Any, code: int) -> None:
        if code in (_FORWARD, _BACKWARD):
            for _ in range(UNITS):
                unit.gather()
                if code == _BACKWARD:
                    unit.scatter()

    return partial(run_phases, recorder, inside=shard)


PROGRAMS: dict[str, tuple[Callable[[Any], Callable[[int], None]], int]] = {
    "step": (partial(partial, run_empty), 0), "phases": (partial(partial, run_phases), 0),
    "ddp": (partial(partial, run_ddp), 0), "ddp_timed": (partial(partial, run_ddp), 1),
    "fsdp": (partial(partial, run_fsdp), 0), "fsdp_timed": (partial(partial, run_fsdp), 1),
    "fsdp_wrapped": (make_wrapped, 1),
}  # fmt: skip
"""By the field of `RecordingCost`: what makes the calls of a recorder's steps, and every how many steps collectives are
timed."""


def measure_recording_cost(rounds: int = ROUNDS, make_device: Callable[[], Any] = NullDevice) -> RecordingCost:
    """Times the calls; every round runs every program once, each on a recorder of its own, which reads its events.

    Args:
        rounds: How often.
        make_device: The device, as `distprof.record.step.protocols.Accelerator`; one is made for each program.
    """
    from distprof.record.step.recorder import Recorder  # loads torch: only for those who measure

    recorders = {
        name: Recorder(device=make_device(), every=every, num_events=NUM_EVENTS)
        for name, (_, every) in PROGRAMS.items()
    }
    times_ns: dict[str, list[int]] = {name: [] for name in PROGRAMS}
    programs = {name: make(recorders[name]) for name, (make, _) in PROGRAMS.items()}
    for number in range(rounds):
        for name, run in programs.items():
            begin_ns = time.perf_counter_ns()
            run(number)
            times_ns[name].append(time.perf_counter_ns() - begin_ns)
    steps = {
        name: StepCost(
            name=name, fastest_ns=min(found), median_ns=statistics.median(found), events=_count_events(*PROGRAMS[name])
        )
        for name, found in times_ns.items()
    }
    return RecordingCost(**steps, background_ns=_time_background(recorders["fsdp_timed"], rounds))


def _count_events(make: Callable[[Any], Callable[[int], None]], every: int) -> int:
    from distprof.record.step.recorder import Recorder

    device = NullDevice(counts=True)
    run = make(Recorder(device=device, every=every, num_events=NUM_EVENTS))
    run(0)  # reads both clocks as well, which is done once a second
    before = device.recorded
    run(1)
    return device.recorded - before


def _time_background(recorder: Any, first: int) -> float:
    """Of packing one step under FSDP2, ns."""
    from distprof.record.step.step_row import pack_row

    found = []
    for number in range(first, first + 20):
        recorder.drain(wait=True)
        run_fsdp(recorder, number)
        recorder.on_device.wait()
        begin_ns = time.perf_counter_ns()
        for record in recorder.drain():
            pack_row(record, memory_bytes=None, memory_peak_bytes=None)
        found.append(time.perf_counter_ns() - begin_ns)
    return statistics.median(found)
