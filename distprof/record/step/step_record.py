"""One finished step as recorded, and what follows from it about waits. Runs on the background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct

from distprof.facts.run import KINDS, OWN_PHASES, PHASE_CODE, PHASES, Stretch
from distprof.facts.segments import Segments
from distprof.record.step.between_steps import STRETCH_CODE, BetweenRecord
from distprof.record.step.collective_log import ASYNCHRONOUS, AWAITED, IN_PLACE, ON_DEVICE, Issued
from distprof.record.step.device_clock import Anchor
from distprof.record.step.operation_log import LoggedOperations
from distprof.record.step.pauses import PauseTimes
from distprof.record.step.step_operations import assemble_operations
from distprof.record.step.timeline import Marks
from distprof.storage.collective_records import DeviceTimes
from distprof.storage.operation_records import StepOperations

QUEUED_STEPS = 8192
STEPS_AT_ONCE = 256
"""Most steps that are packed, written and sent to rank 0 together. If they queue up because the machine is busy, what
that takes in memory, which the process then keeps, does not grow with the queue."""
NO_STEP = -1
"""The number of a step that turned out to be none: it is not recorded."""
HELD_NS = 5_000
"""If the compute stream waits for less than this, the collective was over before, at an unknown time."""
NO_SEGMENTS = Segments(begin_ns=0, codes=(), durations_ns=())
_EVALUATION = list(STRETCH_CODE).index(Stretch.EVALUATION)
_OWN = {PHASE_CODE[phase]: position for position, phase in enumerate(OWN_PHASES)}


class SeenCollective(NamedTuple):
    """One collective of a step. Times on the host clock, ns."""

    kind: int
    """Index into `KINDS`."""
    group: int
    """Code of its process group."""
    phase: int
    """Code of the phase in which it was issued."""
    size_bytes: int
    arrival_ns: int
    end_ns: int | None
    """None: the host did not see it."""
    exposed_ns: int | None
    """None: not known."""


class BrokenPhase(NamedTuple):
    """A phase that did not end properly."""

    code: int
    raised: bool
    """It was left by an exception. False: it was left open, and closed with its step."""


class StepRecord(Struct, kw_only=True):
    """One finished step. `settle` derives the fields below ``device_ns``, and those that are made of ``marks``."""

    step: int
    warmup: bool
    failed: bool
    broken: BrokenPhase | None = None
    """The first phase that did not end properly. None: all did, or phases were not recorded."""
    shadow: bool = False
    """It ran without instruments."""
    micro_steps: int
    tokens: int
    squared_lengths: int = 0
    """Sum over the step's sequences. 0: not known."""
    step_host_ns: int
    marks: Marks | None = None
    """What ``segments`` and ``phase_host_ns`` are made of. None: they are there."""
    segments: Segments = NO_SEGMENTS
    phase_host_ns: list[int] | None = None
    """By phase code. None at level off, and in a shadow step."""
    segments_lost: int
    """Segments beyond `MAX_SEGMENTS`: counted in their phase on the host clock, but not in ``segments``."""
    issued: Issued | None = None
    """None: nothing is known about collectives."""
    logged: LoggedOperations | None = None
    """What ``operations`` are made of. None: there are none, or they are made."""
    scalars: tuple[float | None, float | None] = (None, None)
    """Loss and gradient norm. None: not given, not yet on the host, or not to be read."""
    between: BetweenRecord | None = None
    """The time from the step before to this one. None: not measured."""
    step_device_ns: int | None = None
    begin_device_ns: int | None = None
    """On the rank's device clock. None: the step is not timed there."""
    device_ns: list[int] | None = None
    """Length of each segment on the device clock. None: not measured, or segments were lost."""
    anchor: Anchor | None = None
    """A reading of the device's clock and the host's at the end of the step on the host. None: not taken."""
    on_streams: tuple[dict[int, int], dict[int, int]] | None = None
    """When streams of the device were ready for collectives, and when those ended, ns since the step's begin, by their
    position in the step. None: not measured in this step."""
    device_times: DeviceTimes | None = None
    """Collectives on the device clock, in the order of issue. None: not measured in this step."""
    pauses: PauseTimes | None = None
    """None: not recorded."""
    phase_device_ns: list[int] | None = None
    collectives: list[SeenCollective] | None = None
    """In the order of issue. None: not known, or not all of them."""
    operations: StepOperations | None = None
    """What was done for each micro-batch of a pipeline. None: it is none, or not all is known."""
    wait_host_ns: list[int] | None = None
    """Time waited in collectives inside own phases, by index in `OWN_PHASES`. None: not known."""
    wait_device_ns: list[int] | None = None
    exposed_host_ns: list[int | None] | None = None
    """How long compute waited for collectives of each kind, by index in `KINDS`. None: not known."""
    exposed_device_ns: list[int | None] | None = None


class FinishedSteps:
    """A queue of steps from the training thread to the writing thread. Bounded: the oldest are overwritten."""

    def __init__(self) -> None:
        self.doubted: int | None = None
        """The step that is held back until `decide`, because how it ended is not known yet."""
        self._held: StepRecord | None = None
        self._failed: int | None = None
        self._records: deque[StepRecord] = deque(maxlen=QUEUED_STEPS)
        self._put = self._taken = 0
        self.lost = 0
        """Steps that were overwritten before they were taken, as of the last `take`."""

    def put(self, record: StepRecord) -> None:
        """Adds a step, unless it is none, or in doubt."""
        if record.step == NO_STEP:
            return
        record.failed = record.failed or record.step == self._failed
        if record.step == self.doubted:
            self._held = record
            return
        self._put += 1
        self._records.append(record)

    def decide(self, *, failed: bool) -> None:
        """Adds the step that was in doubt, if there is one, even if it comes only later from a device."""
        held, step = self._held, self.doubted
        self._held = self.doubted = None
        if failed:
            self._failed = step
        if held is not None:
            self.put(held)

    def take(self, most: int = QUEUED_STEPS) -> list[StepRecord]:
        """Takes the oldest steps, at most so many. Used by one thread at a time."""
        taken = [self._records.popleft() for _ in range(min(most, len(self._records)))]
        self._taken += len(taken)
        self.lost = self._put - self._taken - len(self._records)
        return taken


def settle(record: StepRecord) -> StepRecord:
    """Adds segments, times of phases and the collectives to a record; returns the record."""
    if record.marks is not None:
        record.segments = record.marks.make_segments()
        if record.issued is not None:
            record.phase_host_ns = record.marks.sum_phases(record.segments)
        record.marks = None
    if record.device_ns is not None and record.phase_host_ns is not None:
        record.phase_device_ns = [0] * len(PHASES)
        for code, duration_ns in zip(record.segments.codes, record.device_ns, strict=True):
            record.phase_device_ns[code] += duration_ns
    issued = record.issued
    if issued is None or issued.lost:
        return record
    record.operations = _assemble_operations(record, issued)
    record.logged = record.logged if record.operations is None else None
    whole = record.segments_lost == 0
    host_ns = record.segments.durations_ns if whole else None
    exposed = _compute_exposed(issued, host_ns, on_host=True)
    ends = _compute_ends(issued, record.segments if whole and not (record.failed or record.broken) else None)
    record.collectives = [
        SeenCollective(*facts, end_ns, exposed_ns)
        for facts, end_ns, exposed_ns in zip(issued.facts, ends, exposed, strict=True)
    ]
    if host_ns is not None:
        record.exposed_host_ns = _sum_by_kind(issued, exposed)
        record.wait_host_ns = _sum_waits(issued, record.segments.codes, host_ns)
    if record.device_ns is not None:
        on_device = _compute_exposed(issued, record.device_ns, on_host=False)
        record.exposed_device_ns = _sum_by_kind(issued, on_device)
        if record.on_streams is not None:
            record.device_times = _assemble_device_times(issued, record.device_ns, on_device, *record.on_streams)
        record.wait_device_ns = _sum_waits(issued, record.segments.codes, record.device_ns)
    return record


def name_unseen(records: Sequence[StepRecord]) -> list[str]:
    """What is not known about the collectives of some steps, for the notes of the rank."""
    issued = [record.issued for record in records if record.issued is not None]
    flags = {flag for step in issued for flag in step.flags}
    awaited = any(
        item.exposed_ns is None and flag & ASYNCHRONOUS and not flag & ON_DEVICE
        for record in records
        for item, flag in zip(record.collectives or (), record.issued.flags if record.issued else (), strict=False)
    )
    facts = {
        "collectives run on the device: the host sees when they are issued, but not when they end": any(
            flag & ON_DEVICE for flag in flags
        )
        and not any(record.device_times for record in records),
        "the micro-batches of some steps are not known: sends or receives began outside of them, where the device is "
        "not timed; mark steps with profiler.step()": any(
            record.on_streams is not None and record.logged is not None and record.logged.on_device
            for record in records
        ),
        "how long compute waits for some asynchronous collectives is not known": awaited,
    }
    return [note for note, holds in facts.items() if holds]


def _assemble_operations(record: StepRecord, issued: Issued) -> StepOperations | None:
    if record.logged is None or record.failed:
        return None
    evaluated = record.between is not None and record.between.stretches_ns[_EVALUATION] > 0
    device = None
    if record.device_ns is not None and record.begin_device_ns is not None:
        device = Segments(
            begin_ns=record.begin_device_ns, codes=record.segments.codes, durations_ns=tuple(record.device_ns)
        )
    return assemble_operations(record.logged, record.segments, issued, evaluated=evaluated, device=device)


def _compute_ends(issued: Issued, segments: Segments | None) -> list[int | None]:
    """When each collective was over, host ns. None: not seen.

    DDP's buckets are over when the backward goes on. The thread that sees their ends may come to say so only later, as
    Python's lock is free before that and often is not afterwards.

    Args:
        issued: Of a step.
        segments: Of the step. None: not all are known, or an error may have ended the backward.
    """
    tickets = range(issued.first_ticket, issued.first_ticket + len(issued.flags))
    ends = [at_ns if ticket == own else None for own, (ticket, at_ns) in zip(tickets, issued.ends, strict=True)]
    if segments is not None and issued.waits:
        after_ns = list(accumulate(segments.durations_ns, initial=segments.begin_ns))[1:]
        last_waits, over_ns = {at: segment for segment, at in issued.waits}, None
        for at in reversed(range(len(ends))):
            if issued.flags[at] & AWAITED:
                over_ns = after_ns[last_waits[at]] if at in last_waits else over_ns
                ends[at] = min((ns for ns in (ends[at], over_ns) if ns is not None), default=None)
    return ends


def _compute_exposed(issued: Issued, durations_ns: Sequence[int] | None, *, on_host: bool) -> list[int | None]:
    """How long compute waited for each collective on one clock, ns; None: not known."""
    if durations_ns is None:
        return [None] * len(issued.flags)
    waited: list[int | None] = [None if flags & ASYNCHRONOUS else 0 for flags in issued.flags]
    for segment, collective in issued.waits:
        waited[collective] = (waited[collective] or 0) + durations_ns[segment]
    if not on_host:
        return waited
    return [None if flags & ON_DEVICE else ns for flags, ns in zip(issued.flags, waited, strict=True)]


def _assemble_device_times(
    issued: Issued,
    durations_ns: Sequence[int],
    exposed_ns: Sequence[int | None],
    arrivals_ns: Mapping[int, int],
    ends_ns: Mapping[int, int],
) -> DeviceTimes:
    """Puts together what is known of each collective on the device.

    One that the compute stream waits for where it is issued has no events of its own: it lasts as long as the wait. And
    where the compute stream demonstrably waited, the collective ended when it went on.
    """
    number = len(issued.flags)
    begins = [0, *accumulate(durations_ns)]
    arrival, end = [arrivals_ns.get(at) for at in range(number)], [ends_ns.get(at) for at in range(number)]
    left: list[int | None] = [None] * number
    for segment, at in issued.waits:
        if not issued.flags[at] & ON_DEVICE:
            continue
        left[at] = begins[segment + 1]
        in_place = bool(issued.flags[at] & IN_PLACE)
        if in_place and arrival[at] is None:
            arrival[at] = begins[segment]
        if at not in ends_ns and (in_place or (at in arrivals_ns and durations_ns[segment] > HELD_NS)):
            end[at] = begins[segment + 1]
    return DeviceTimes(arrival_ns=arrival, end_ns=end, exposed_ns=exposed_ns, left_ns=left)


def _sum_by_kind(issued: Issued, exposed: Sequence[int | None]) -> list[int | None]:
    totals: list[int | None] = [0] * len(KINDS)
    for (kind, *_), ns in zip(issued.facts, exposed, strict=True):
        so_far = totals[kind]
        totals[kind] = None if ns is None or so_far is None else so_far + ns  # one unknown wait makes the sum unknown
    return totals


def _sum_waits(issued: Issued, codes: Sequence[int], durations_ns: Sequence[int]) -> list[int]:
    """Waits inside own phases, ns; for a device's collective on the host clock, the time in the call."""
    totals = [0] * len(OWN_PHASES)
    for segment in (*(segment for segment, _ in issued.waits), *issued.exchanges):
        own = _OWN.get(codes[segment])
        if own is not None:
            totals[own] += durations_ns[segment]
    return totals
