"""The stopwatch of one rank: a step is a sequence of segments, each with one phase.

Every change of phase closes the running segment at the stamp that opens the next, so the phases of a step add up to the
step on each clock by construction. Nothing here synchronises with a device, waits, or does I/O, and nothing grows:
lists are allocated once, and finished steps wait in a bounded queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from distprof.facts.run import KINDS, PHASE_CODE, CollectiveKind, Phase
from distprof.record.step.between_steps import BetweenRecord, BetweenSteps
from distprof.record.step.collective_log import ASYNCHRONOUS, AWAITED, IN_PLACE, ON_DEVICE, CollectiveLog
from distprof.record.step.last_buckets import LastBuckets
from distprof.record.step.operation_log import MAX_OPERATIONS, OperationLog
from distprof.record.step.pauses import Pauses
from distprof.record.step.pending_steps import NUM_EVENTS, DeviceSteps
from distprof.record.step.protocols import Accelerator, PhaseRanges
from distprof.record.step.step_record import NO_STEP, QUEUED_STEPS, BrokenPhase, FinishedSteps, StepRecord, settle
from distprof.record.step.step_work import StepWork
from distprof.record.step.timeline import MAX_SEGMENTS, OTHER, Timeline
from distprof.storage.collective_records import MAX_COLLECTIVES

ALL_REDUCE = PHASE_CODE[Phase.ALL_REDUCE]
KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}


class Recorder:
    """Records the steps of one rank. Used by one thread at a time: training's, or autograd's while training waits."""

    def __init__(
        self,
        *,
        phases: bool = True,
        now_ns: Callable[[], int] = time.monotonic_ns,
        device: Accelerator | None = None,
        num_events: int = NUM_EVENTS,
        every: int | None = None,
        ranges: PhaseRanges | None = None,
    ) -> None:
        """Args:
        phases: False at level off, where only steps are timed.
        now_ns: The host clock, monotonic, ns.
        device: What runs behind the host, if there is a device.
        num_events: Size of the ring of events that time it.
        every: Collectives are timed on the device in every so many steps; 0: never. None: as their cost allows.
        ranges: NVTX ranges, if a tool listens.
        """
        self._now, self._phases = now_ns, phases
        self.ranges = ranges
        """Shows steps and phases to a tool; changed only between two steps. None: no tool listens."""
        self.timeline = Timeline(now_ns)
        """The open step's segments."""
        self._issued, self._operations = CollectiveLog(), OperationLog()
        self._interrupted: tuple[int, int] | None = None
        self._last_buckets = LastBuckets()
        self._tail: tuple[int, int] | None = None
        """(host ns, ticket) of a wait for a bucket of gradients, which lasts from then on unless another bucket
        follows. None: there is none, or it is a segment already."""
        self._broken: BrokenPhase | None = None
        self._before_step: list[Callable[[], None]] = []
        self.groups: list[tuple[str, tuple[int, ...] | None]] = [("default", None)]
        """Name and global ranks of each process group, by code; None: all ranks. Append-only."""
        self.step = 0
        """The open step, or the last one."""
        self._warmup = self._shadow = False
        self.work = StepWork()
        """What the open step has worked on."""
        self.pauses = Pauses()
        """What stops the training thread in the open step."""
        self._stamping = False
        self.open = False
        """Whether a step is running."""
        self.recording = False
        """Whether a step is running with instruments: neither at level off nor in a shadow step."""
        self.skipping = False
        """Whether a shadow step is running, in which what is around torch has nothing to do."""
        self.on_aside: list[Callable[[bool], None]] = []
        """Told whether what is around torch steps aside: from a shadow step on until one that is none comes."""
        self.aside = False
        """What they were told last."""
        self.between = BetweenSteps(now_ns, on=phases)
        """The time between the last step and the next."""
        self._before: BetweenRecord | None = None
        self.finished = FinishedSteps()
        self.on_device = DeviceSteps(device, self.finished, now_ns, num_events=num_events, every=every)
        """Steps until the device has finished them."""

    def begin_step(self, step: int, *, warmup: bool, shadow: bool = False) -> None:
        """Opens a step; one left open by an exception is closed as failed.

        Args:
            step: Its number.
            warmup: Left out of every statistic.
            shadow: Without instruments: only the step itself is timed.

        Raises:
            ValueError: A stretch is open.
        """
        self.between.require_no_stretch()
        if self.open:
            self.end_step(failed=True)
        while self._before_step:
            self._before_step.pop(0)()
        self._last_buckets.begin_step()
        if shadow is not self.aside:
            self.set_aside(shadow)
        self.skipping = shadow
        self.step, self._warmup, self._shadow = step, warmup, shadow
        self.work.begin_step()
        self.pauses.begin_step(warmup=warmup)
        self._broken = None
        self.open, self.recording = True, self._phases and not shadow
        if self.ranges is not None:
            self.ranges.step(step)
        self._stamping = self.on_device.times and self.on_device.open(step)
        self._before = self.between.take(self.timeline.begin(step, known=self.recording))
        self._tail = None
        if self._stamping:
            self._stamp()
        elif self.recording and self.ranges is None:
            self.timeline.room = MAX_SEGMENTS - 1

    def end_step(self, *, failed: bool = False) -> None:
        """Closes the step and queues its record."""
        now, timeline = self._now(), self.timeline
        if self._tail is not None:
            self._keep_tail()
        marks, issued, operations = timeline.end(now), self._issued.take(), self._operations.take()
        if self.recording and (timeline.phase != OTHER or timeline.around):
            self._break(raised=False)
        if self.ranges is not None:
            self.ranges.end_step()
        record = StepRecord(
            step=self.step, warmup=self._warmup, failed=failed, broken=self._broken, shadow=self._shadow,
            micro_steps=self.work.micro_steps, tokens=self.work.tokens, squared_lengths=self.work.squared_lengths,
            step_host_ns=now - timeline.stamps[0], marks=marks,
            segments_lost=timeline.lost, issued=issued if self.recording else None, between=self._before,
            logged=operations if self.recording else None, pauses=self.pauses.end_step(recorded=self.recording),
        )  # fmt: skip
        self.open = self.recording = self.skipping = False
        self.on_device.close(record, self.work.take_scalars())
        self.between.begin(now, again=self.step == NO_STEP and self._before is not None)

    def set_aside(self, aside: bool) -> None:
        """Has what is around torch step aside, or come back; not inside a step."""
        self.aside = aside
        for tell in self.on_aside:
            tell(aside)

    def enter(self, code: int) -> None:
        """Opens a phase inside the running one, by phase code. `PhaseContext` does the same itself if it can.
        Raises ValueError if no step is open."""
        if not self.open:
            raise ValueError("profiler.phase() outside profiler.step()")
        if self.recording:
            if self._tail is not None:
                self._keep_tail()
            self.timeline.enter(code)
            self._stamp()
            if self.ranges is not None:
                self.ranges.enter(code)

    def exit(self, *, raised: bool = False) -> None:
        """Closes the innermost phase and returns to the one around it; ``raised``: an exception left it."""
        if self.recording:
            if self._tail is not None:
                self._keep_tail()
            if raised:
                self._break(raised=True)
            if self.ranges is not None:
                self.ranges.exit()
            self.timeline.exit()
            self._stamp()

    def mark(self, code: int, ticket: int = -1) -> None:
        """Starts a segment of another phase inside the running one, until `resume` or until the running one is closed.
        ``ticket``: the collective that the segment waits for. -1: none in particular."""
        if self.recording:
            if self._tail is not None:
                self._keep_tail()
            self._interrupted, timeline = None, self.timeline
            timeline.switch(code)
            if self._stamping:
                self._stamp()
            if ticket >= 0 and not timeline.lost:
                self._issued.wait(ticket, timeline.count - 1)
            if self.ranges is not None:
                self.ranges.begin_mark(code)
        else:
            self.between.wait()

    def wait(self, ticket: int) -> int:
        """Starts a segment that waits for a collective but stays in the running phase, until `resume`.

        Returns when, host clock, ns, or 0: nothing is recorded."""
        if self.recording:
            if self._tail is not None:
                self._keep_tail()
            timeline, position = self.timeline, self.timeline.count - 1
            code = timeline.codes[position]
            self._interrupted = None if code == timeline.phase else (code, self._issued.ticket_of_wait(position))
            now_ns = timeline.switch(code)
            if self._stamping:
                self._stamp()
            if ticket >= 0:
                self._note_wait(ticket)
            return now_ns
        return self.between.wait()

    def wait_for_rank(self) -> int:
        """As `wait`, for an exchange with one other rank, which is no collective."""
        timeline, log = self.timeline, self._issued
        segment = timeline.count
        if segment >= timeline.room:
            now_ns = self.wait(-1)
            if self.recording and not timeline.lost:
                log.exchanges.append(timeline.count - 1)
            return now_ns
        code = timeline.codes[segment - 1]
        self._interrupted = None if code == timeline.phase else (code, log.ticket_of_wait(segment - 1))
        timeline.stamps[segment] = now_ns = self._now()
        timeline.codes[segment] = timeline.place[1] = code
        timeline.count = segment + 1
        log.exchanges.append(segment)
        return now_ns

    def resume(self) -> int:
        """Ends a segment of `mark` or `wait`; a mark interrupted by a wait continues. Returns the same as `wait`."""
        timeline = self.timeline
        segment = timeline.count
        if segment < timeline.room and self._interrupted is None:
            timeline.stamps[segment] = now_ns = self._now()
            timeline.codes[segment] = timeline.place[1] = timeline.phase
            timeline.count = segment + 1
            return now_ns
        if self.recording:
            if self._tail is not None:
                self._keep_tail()
            code, ticket = self._interrupted or (timeline.phase, -1)
            if self._interrupted is None and self.ranges is not None:
                self.ranges.end_mark()
            self._interrupted, now_ns = None, timeline.switch(code)
            if self._stamping:
                self._stamp()
            if ticket >= 0:
                self._note_wait(ticket)
            return now_ns
        return self.between.resume()

    def discard_mark(self) -> None:
        """Discards an open mark, because what followed was not a wait. The segment returns to the running phase."""
        timeline, last = self.timeline, self.timeline.count - 1
        self._last_buckets.newest = -1
        if self._tail is not None:
            self._tail, timeline.room = None, 0 if self._stamping else MAX_SEGMENTS - 1
        elif self.recording and not timeline.lost and timeline.codes[last] != timeline.phase:
            self._issued.discard_wait(last)
            timeline.discard_segment(merge=not self._stamping)  # a device has stamped both
            if self.ranges is not None:
                self.ranges.end_mark()

    def mark_tail(self, ticket: int) -> None:
        """As `mark` with the phase all_reduce, for a bucket of gradients that may be the last one of a backward.

        Unless a phase begins or ends before `discard_mark`, it leaves no trace. On a device it is a mark like others if
        backwards have ended with it before; a step in which another one turns out to be the last has no device times.
        """
        if not self.recording or self.ranges is not None or (self._stamping and self._last_buckets.issue()):
            self.mark(ALL_REDUCE, ticket)
            return
        timeline = self.timeline
        if self._tail is not None:
            self._keep_tail()
        self._tail = (self._now(), ticket)
        timeline.room, timeline.place[1] = 0, ALL_REDUCE  # whatever changes the phase now comes here first

    def begin_tail_late(self) -> None:
        """The wait that `mark_tail` has begun begins only now: until now the rank has computed something else."""
        self._tail = None if self._tail is None else (self._now(), self._tail[1])

    @property
    def running_code(self) -> int:
        """The phase of the running segment. Any thread may ask."""
        timeline = self.timeline
        return ALL_REDUCE if self._tail is not None else timeline.codes[timeline.count - 1]

    def add_collection(self, duration_ns: int) -> None:
        """Adds what Python's garbage collector has just taken of the training thread, ns."""
        if self.recording:
            self.pauses.add_collection(self.running_code, duration_ns)
        else:
            self.between.add_collection(duration_ns)

    def at_next_step(self, action: Callable[[], None]) -> None:
        """Runs an action once, just before the next step begins."""
        self._before_step.append(action)

    def add_group(self, name: str, ranks: tuple[int, ...]) -> int:
        """Assigns a code to a process group: its name, the same on all its ranks, and its global ranks in order."""
        self.groups.append((name, ranks))
        return len(self.groups) - 1

    def begin_collective(
        self,
        kind: CollectiveKind,
        size_bytes: int,
        group: int = 0,
        *,
        asynchronous: bool = False,
        on_device: bool = False,
        apart: bool = True,
        awaited: bool = False,
    ) -> int:
        """Records that a collective is issued, now and in the innermost phase.

        Args:
            kind: Its kind.
            size_bytes: The buffer reduced or, for gathers and scatters, the whole unsharded buffer.
            group: Code of its process group; 0: the default group.
            asynchronous: The caller goes on; how long it waits is known only from a later `wait` or `mark`.
            on_device: It runs on a device's stream; the host sees neither its end nor the wait. The current stream is
                ready for it now, and `end_on_device` records when it has ended.
            apart: False: the compute stream waits for it right here, which `wait` or `mark` measures exactly.
            awaited: A later `mark` of it, or of another such, lasts until it has ended.

        Returns:
            Its ticket; -1: there is no room, or no step: between two steps it is only counted.
        """
        flags = ASYNCHRONOUS * asynchronous | ON_DEVICE * on_device | IN_PLACE * (not apart) | AWAITED * awaited
        return self.log_collective(KIND_CODE[kind], size_bytes, group, flags)

    def log_collective(self, kind: int, size_bytes: int, group: int, flags: int) -> int:
        """As `begin_collective`, without a call of its own for anything that every collective of a host needs.

        Args:
            kind: Index into `KINDS`.
            size_bytes: As there.
            group: Code of its process group.
            flags: A sum of `ASYNCHRONOUS`, `AWAITED`, `IN_PLACE` and `ON_DEVICE`.
        """
        if not self.recording:
            self.between.count()
            return -1
        log = self._issued
        position = len(log.flags)
        if position >= MAX_COLLECTIVES:
            log.lost += 1
            return -1
        log.facts.append((kind, group, self.timeline.phase, size_bytes, self._now()))
        log.flags.append(flags)
        if flags & ON_DEVICE and not flags & IN_PLACE and self.on_device.times_collectives:
            self.on_device.begin_collective(position)
        return log.first_ticket + position

    def begin_held(self, kind: int, size_bytes: int, group: int, code: int) -> int:
        """A collective in which the host waits, issued and waited for from one moment on: `log_collective` and `mark`.

        Arguments are those of `log_collective`; ``code`` is the phase of the wait.
        """
        log, timeline = self._issued, self.timeline
        segment, position = timeline.count, len(log.flags)
        if segment >= timeline.room or position >= MAX_COLLECTIVES:
            ticket = self.log_collective(kind, size_bytes, group, 0)
            self.mark(code, ticket)
            return ticket
        timeline.stamps[segment] = now_ns = self._now()
        timeline.codes[segment] = timeline.place[1] = code
        timeline.count, self._interrupted = segment + 1, None
        log.facts.append((kind, group, timeline.phase, size_bytes, now_ns))
        log.flags.append(0)
        log.waits.append((segment, position))
        return log.first_ticket + position

    def end_held(self, ticket: int) -> None:
        """Ends what `begin_held` began: `resume` and `end_collective`."""
        now_ns = self.resume()
        if ticket >= 0:
            self._issued.end(ticket, now_ns)

    def begin_bucket(self, kind: int, size_bytes: int, group: int, flags: int) -> int:
        """A bucket of gradients is ready, so that the one before was not the last: `discard_mark` and `log_collective`.

        Arguments are those of `log_collective`; of ``flags`` only `ON_DEVICE` counts outside of all phases, where the
        end of a backward is not known.
        """
        timeline, log = self.timeline, self._issued
        if self._tail is not None:  # as in `discard_mark`
            self._last_buckets.newest, self._tail = -1, None
            timeline.room = 0 if self._stamping else MAX_SEGMENTS - 1
        elif timeline.codes[timeline.count - 1] != timeline.phase:
            self.discard_mark()
        phase, position = timeline.phase, len(log.flags)
        if phase == OTHER or not self.recording:
            flags = flags & ON_DEVICE | ASYNCHRONOUS
        if flags & ON_DEVICE or position >= MAX_COLLECTIVES or not self.recording:
            return self.log_collective(kind, size_bytes, group, flags)
        log.facts.append((kind, group, phase, size_bytes, self._now()))
        log.flags.append(flags)
        return log.first_ticket + position

    def begin_operation(
        self, kind: int, *, micro_batch: int = -1, stage: int = -1, peer: int = -1, tag: int = 0, size_bytes: int = 0,
        on_device: bool = False,
    ) -> int:  # fmt: skip
        """Records that a stage begins to compute, or that something is sent or received; see `facts.micro_batches`.

        Between two steps it belongs to the next one, except in a stretch. ``on_device``: it is an exchange there.
        Returns its ticket; -1: it is not recorded.
        """
        if not (self.recording or (self.between.open and not self.between.stretches)):
            return -1
        log = self._operations
        position = len(log.facts)
        if position >= MAX_OPERATIONS:
            log.lost += 1
            return -1
        now_ns = self._draw_border() if self._stamping else self._now()
        log.facts.append((kind, micro_batch, stage, peer, tag, size_bytes, now_ns))
        log.on_device = log.on_device or on_device
        return log.first_ticket + position

    def end_operation(self, ticket: int) -> None:
        """Records that an operation is over, which nobody has waited for; one of another step is ignored."""
        now_ns = self._draw_border() if self._stamping else self._now()
        log = self._operations
        if 0 <= ticket - log.first_ticket < MAX_OPERATIONS:
            log.times[ticket % MAX_OPERATIONS] = (ticket, now_ns, now_ns)

    def end_exchanges(self, tickets: Sequence[int], began_ns: int) -> None:
        """Ends what `wait_for_rank` began at this time, and records that these operations are over, as `end_operation`
        does. The first of them has the whole wait."""
        now_ns, log = self.resume(), self._operations
        if self.on_device.times and self.on_device.is_apart():  # on another stream it is not waited for now
            return
        for ticket in tickets:
            if 0 <= ticket - log.first_ticket < MAX_OPERATIONS:
                log.times[ticket % MAX_OPERATIONS] = (ticket, began_ns or now_ns, now_ns)
            began_ns = 0

    def end_on_device(self, ticket: int) -> None:
        """Records that a collective has ended where the current stream is now, which waits for it. On any thread."""
        if self.on_device.times_collectives:
            self.on_device.end_collective(self._issued.locate_ticket(ticket))

    def end_collective(self, ticket: int, at_ns: int | None = None) -> None:
        """Records that a collective has ended, now or at a host time, if the host can see that. On any thread."""
        if ticket >= 0:
            self._issued.end(ticket, self._now() if at_ns is None else at_ns)

    def drain(self, *, wait: bool = False, most: int = QUEUED_STEPS) -> list[StepRecord]:
        """Takes finished steps, at most so many of the oldest; may be called from another thread.

        ``wait``: waits for the device to finish the last steps. Synchronises; use it only after training.
        """
        if wait:
            self.on_device.wait()
        return [settle(record) for record in self.finished.take(most)]

    def _keep_tail(self) -> None:
        """The wait for a bucket is a segment: what follows is no other bucket."""
        assert self._tail is not None
        (began_ns, ticket), self._tail, timeline = self._tail, None, self.timeline
        if self._stamping:
            self.on_device.miss()
        else:
            timeline.room = MAX_SEGMENTS - 1
        timeline.insert(ALL_REDUCE, began_ns)
        self._note_wait(ticket)

    def _draw_border(self) -> int:
        """The time now, host clock. In a step whose collectives are timed on a device, a segment of the same kind
        begins there, so that it is known on the device's clock too."""
        timeline, timed = self.timeline, self.on_device
        if not (self.recording and timed.times_collectives) or timeline.lost:
            return self._now()
        position = timeline.count - 1
        ticket = self._issued.ticket_of_wait(position)
        now_ns = timeline.switch(timeline.codes[position])
        self._stamp()
        self._note_wait(ticket)
        timed.stride.spend(self._now() - now_ns, collectives=1)
        return now_ns

    def _break(self, *, raised: bool) -> None:
        """Marks the innermost open phase as one that did not end properly."""
        self._broken = self._broken or BrokenPhase(self.timeline.phase, raised)
        if self.ranges is not None:
            self.ranges.error(self.timeline.phase)

    def _note_wait(self, ticket: int) -> None:
        if ticket >= 0 and not self.timeline.lost:
            self._issued.wait(ticket, self.timeline.count - 1)

    def _stamp(self) -> None:
        """Records the begin of the newest segment on the device too, if there is one."""
        if self._stamping and not self.timeline.lost:
            self.on_device.stamp()
