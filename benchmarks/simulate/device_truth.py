"""What really happens on a made-up device: phases, waits and collectives, from the device's work and nothing else."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from benchmarks.simulate.device import SimulatedDevice, Stream
from benchmarks.simulate.device_work import DeviceWork, Meeting
from distprof.facts.run import PHASE_CODE, PHASES, CollectiveKind, Phase

OTHER = PHASE_CODE[Phase.OTHER]


class Place(NamedTuple):
    """A place in the compute stream: what it had to do before, and when the host came there."""

    before: DeviceWork
    host_ns: int

    @property
    def at_ns(self) -> int:
        """When the device passed it, true time."""
        return max(self.before.find_end(), self.host_ns)


class TrueWait(NamedTuple):
    """The compute stream waits for a collective."""

    group: str
    kind: CollectiveKind
    phase: Phase
    """In which it waits, and has issued it."""
    begin: Place
    work: DeviceWork

    @property
    def lasted_ns(self) -> int:
        """How long, true time."""
        return max(self.work.find_end() - self.begin.at_ns, 0)


class TrueCollective(NamedTuple):
    """A rank's part of a collective."""

    group: str
    kind: CollectiveKind
    phase: Phase
    """In which it is issued."""
    part: DeviceWork
    meeting: Meeting

    @property
    def wait_ns(self) -> int:
        """How much later the last rank began its part."""
        return self._find_last() - (self.part.start_ns or 0)

    @property
    def transfer_ns(self) -> int:
        """From when the last rank had begun to the end."""
        return self.part.find_end() - self._find_last()

    def _find_last(self) -> int:
        return max(part.start_ns or 0 for part in self.meeting.parts)


class TrueStep(Struct):
    """One step of one rank."""

    places: list[Place] = field(default_factory=list)
    """Where one segment ends and the next begins; the last is the end of the step."""
    codes: list[int] = field(default_factory=list)
    """The phase of each segment."""
    waits: list[TrueWait] = field(default_factory=list)
    collectives: list[TrueCollective] = field(default_factory=list)

    @property
    def begin_ns(self) -> int:
        """True time."""
        return self.places[0].at_ns

    @property
    def end_ns(self) -> int:
        """True time."""
        return self.places[-1].at_ns

    def sum_phases(self) -> list[int]:
        """Time by phase, true ns."""
        totals, times = [0] * len(PHASES), [place.at_ns for place in self.places]
        for code, begin_ns, end_ns in zip(self.codes, times, times[1:], strict=False):
            totals[code] += end_ns - begin_ns
        return totals

    def sum_exposed(self, kind: CollectiveKind) -> int:
        """How long the compute stream waited for collectives of a kind, true ns."""
        return sum(wait.lasted_ns for wait in self.waits if wait.kind is kind)


class Witness:
    """Notes what one rank's program does, step by step."""

    def __init__(self, device: SimulatedDevice, compute: Stream) -> None:
        """Nothing seen yet."""
        self._device, self._compute = device, compute
        self._around: list[int] = []
        self.steps: list[TrueStep] = []

    @property
    def phase(self) -> Phase:
        """The innermost open phase."""
        return PHASES[self._around[-1] if self._around else OTHER]

    def begin(self) -> None:
        """A step begins."""
        self.steps.append(TrueStep())
        self.switch(OTHER)

    def end(self) -> None:
        """The step ends."""
        self.steps[-1].places.append(self.look())

    def enter(self, code: int) -> None:
        """A phase begins."""
        self._around.append(code)
        self.switch(code)

    def exit(self) -> None:
        """It ends."""
        self._around.pop()
        self.switch(PHASE_CODE[self.phase])

    def switch(self, code: int) -> None:
        """Another segment begins."""
        step = self.steps[-1]
        step.places.append(self.look())
        step.codes.append(code)

    def look(self) -> Place:
        """The compute stream as it is now."""
        return Place(self._compute.tail, self._device.clock.now)

    def wait(self, group: str, kind: CollectiveKind, work: DeviceWork) -> None:
        """The compute stream waits for some work of a collective."""
        begin, there = self.look(), self._compute.launch(0, after=[work])
        self.steps[-1].waits.append(TrueWait(group, kind, self.phase, begin, there))

    def join(self, group: str, kind: CollectiveKind, part: DeviceWork, meeting: Meeting) -> None:
        """The rank takes part in a collective."""
        self.steps[-1].collectives.append(TrueCollective(group, kind, self.phase, part, meeting))
