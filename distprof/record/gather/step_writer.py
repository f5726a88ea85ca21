"""One rank's finished steps, packed and written to its own file."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

import torch
from msgspec import structs

from distprof.facts.arrays import FloatArray
from distprof.facts.run import KINDS, PHASES, CollectiveKind
from distprof.facts.stand import GroupState, RankState, StoppedRank, has_lost_peer
from distprof.record.collectives.flight_recorder import describe_pending, drop_ring, find_unseen, keep_ring, read_ring
from distprof.record.device.gpu_sampler import GpuSampler
from distprof.record.device.memory import read_memory
from distprof.record.stalls.rank_state import add_progress, describe_position, has_passed, read_rank_state
from distprof.record.stalls.stacks import read_trace
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import QUEUED_STEPS, STEPS_AT_ONCE, BrokenPhase, StepRecord, name_unseen, settle
from distprof.record.step.step_row import pack_row
from distprof.storage.collective_records import TOO_MANY, GroupInfo, StepCollectives, describe_dropped, name_codes
from distprof.storage.last_state import drop_last_stack, drop_place
from distprof.storage.rank_stream import StreamWriter

EXCHANGES = "ranks send to each other point to point: what they wait for there is recorded as waiting"
_ALL_TO_ALL = KINDS.index(CollectiveKind.ALL_TO_ALL)
_LAST_STEPS = 32
_LAST_WINDOWS = 8
"""Windows whose steps may not all have been written yet: they end at least a round of the gather thread apart."""
FAILING_GRACE_S = 0.5
"""How long a terminated rank may take to record its own failure, which says more than the signal."""
BUSY_GRACE_S = 0.5
"""How long it then waits for a thread that is taking steps, which may be waiting for a device."""


class StepWriter:
    """Takes steps from the recorder and writes them, on the background thread and once at the end."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        writer: StreamWriter | None,
        device: torch.device,
        warn: Callable[[str], None],
        thread: int | None = None,
        clean: Callable[[str], str] = str,
    ) -> None:
        """Connects a recorder to a file.

        Args:
            recorder: The source of the steps.
            writer: The rank's file. None: rows are packed but not written, until `connect`.
            device: The device whose memory use is read.
            warn: Receives a message when writing fails, once.
            thread: The training thread's identifier. None: the caller's.
            clean: Takes the secrets out of a note.
        """
        self._clean = clean
        self._recorder, self._writer, self._device, self._warn = recorder, writer, device, warn
        self._lock, self._taking = threading.Lock(), threading.Lock()
        self._ended, self._failed = threading.Event(), False
        self._broken: dict[BrokenPhase, list[int]] = {}  # the first step, and how many
        self._unwritten = 0
        self._overfull = 0  # steps whose collectives found no room
        self._refused = False
        self._notes: list[str] = []
        self._exchanges = False
        self.gpu: GpuSampler | None = None
        """What samples the rank's GPU. None: nothing does."""
        self.watch_steps: Callable[[Sequence[StepRecord]], None] | None = None
        """Receives steps as they are packed. None: nothing does."""
        self.threads_aside: Collection[int] = ()
        """As for `find_unseen`."""
        self.forwards: int | None = None
        """Forwards without gradients of a rank that takes no step. None: it takes steps."""
        self._last: deque[StepRecord] = deque(maxlen=_LAST_STEPS)
        self._windows: deque[range] = deque(maxlen=_LAST_WINDOWS)
        self._saved: list[FloatArray] = []  # rows that were written during a stall and not returned yet
        self._thread = threading.get_ident() if thread is None else thread  # of training
        self._kernel_thread: int | None = None  # the same, as the kernel numbers it, once it has begun a step
        self.read_scheduling: Callable[[int], dict[str, float] | None] | None = None
        """Reads how that thread gets a core. None: nothing does."""
        recorder.at_next_step(self._stay_on_this_thread)
        self._stalled: RankState | None = None  # where the rank stood in a stall that has not passed
        self._passed_s: list[float] = []  # of hangs that were suspected, and ended
        self._interrupted: RankState | None = None  # where it stood when SIGINT arrived

    def connect(self, writer: StreamWriter) -> None:
        """Writes into this file from now on."""
        self._writer = writer

    def _stay_on_this_thread(self) -> None:
        self._thread, self._kernel_thread = threading.get_ident(), threading.get_native_id()

    def take(self, wait: bool, most: int = QUEUED_STEPS) -> list[FloatArray]:
        """Packs and writes the oldest steps that have finished, and returns the rows, after those written in a stall.

        Args:
            wait: Waits for the device's last steps. Synchronises; use it only after training.
            most: At most so many steps.
        """
        with self._taking:
            saved, self._saved = self._saved, []
            rows = [*saved, *self._take(wait, most)]
            if rows and not wait:
                self._write_scheduling()
        with self._lock:
            self._write_gpu()
        return rows

    def take_rest(self) -> None:
        """Writes every step that this rank knows of after its training has failed: it has nothing to wait for.

        Call it on the training thread. Steps that the device has not finished are written without device times.
        """
        with self._taking:
            self._recorder.on_device.hand_out(look=True)
            self._take()

    def _take(self, wait: bool = False, most: int = QUEUED_STEPS) -> list[FloatArray]:
        rows: list[FloatArray] = []
        while len(rows) < most and (records := self._recorder.drain(wait=wait, most=min(most, STEPS_AT_ONCE))):
            rows += self._keep(records)
        return rows

    def _keep(self, records: list[StepRecord]) -> list[FloatArray]:
        self._last.extend(records)
        for record in records:
            if record.broken is not None:
                self._broken.setdefault(record.broken, [record.step, 0])[1] += 1
            self._overfull += record.issued is not None and record.issued.lost > 0
            if self._stalled is not None and has_passed(self._stalled, record):
                self._stalled = None
            if self._interrupted is not None and has_passed(self._interrupted, record):
                self._interrupted = None
        if self.watch_steps is not None:
            self.watch_steps(records)
        in_use, peak = read_memory(self._device)
        rows = [
            pack_row(record, memory_bytes=in_use, memory_peak_bytes=peak, window=self._is_in_window(record))
            for record in records
        ]
        with self._lock:
            self._write(rows, records)
        return rows

    def mark_window(self, steps: range) -> None:
        """Marks these steps as part of a profiler's window. Call it before the first of them begins."""
        self._windows.append(steps)

    def _is_in_window(self, record: StepRecord) -> bool:
        return any(record.step in steps for steps in self._windows)

    def note(self, text: str) -> None:
        """Adds a note on what could not be measured, for the end of the file."""
        if text not in self._notes:
            self._notes.append(text)

    def note_exchange(self) -> None:
        """Ranks have sent to each other point to point inside a step."""
        self._exchanges = True
        self.note(EXCHANGES)

    def refuse(self, what: str, error: OSError, then: str = "") -> None:
        """Reports that the run folder is no longer written; only once, whatever else fails later."""
        if not self._refused:
            self._refused = True
            self._warn(f"{what} ({error.strerror}){then}")
            self.note(f"{what}: {error.strerror}")

    def end(
        self, ended: str, *, error: str | None = None, traceback: str | None = None, raised: BaseException | None = None
    ) -> None:
        """Writes how the rank ended and closes the file. Further calls do nothing.

        ``raised`` is what ended it, for its stack.

        PyTorch's Flight Recorder is searched for unseen collectives, or saved next to the file after a failure.
        """
        with self._lock:
            if self._writer is None:
                return
            if self.gpu is not None:
                self.gpu.close()
                self._write_gpu()
            unseen = None
            if ended == "completed":
                aside = tuple(self.threads_aside)  # another thread may add one meanwhile
                unseen = find_unseen(read_ring(), self._last, aside)
                self._notes += [*name_unseen(list(self._last)), *([] if unseen is None else [unseen.note])]
            self._notes += [_describe_broken(phase, seen) for phase, seen in self._broken.items()]
            self._notes += self._recorder.on_device.describe()
            if self._passed_s:
                self._notes.append(_describe_passed(self._passed_s))
            if self._overfull:
                self._notes.append(describe_dropped(self._overfull, TOO_MANY))
            lost = self._recorder.finished.lost + self._unwritten
            try:
                self._writer.write_end(
                    ended, error=error, traceback=traceback, rows_lost=lost, notes=[*map(self._clean, self._notes)],
                    unseen_per_step=0.0 if unseen is None else unseen.per_step, point_to_point=self._exchanges,
                    forwards=self.forwards or None,
                )  # fmt: skip
            except OSError as failure:
                self.refuse("the end of this rank was not written", failure)
            else:
                drop_place(self._writer.path)
                drop_last_stack(self._writer.path)
            if ended == "completed":
                drop_ring(self._writer.path)
            else:  # after the end, because it asks torch
                broken = ended == "failed" and has_lost_peer(error)
                stand = self._take_last_stand(ended, raised, broken=broken)
                self._write_state(self._writer, describe_position(self._recorder), stand, broken=broken)
            self._writer.close()
            self._writer, self._failed = None, ended == "failed"
            self._ended.set()

    def _take_last_stand(self, ended: str, raised: BaseException | None, *, broken: bool) -> RankState:
        """Where the rank stood when it ended early: as it was in a stall, unless that was noticed after its collective
        had failed.
        """
        before = self._stalled or self._interrupted
        if before is not None and not (broken and before.message is None and not any(map(_waits, before.groups))):
            return before
        failed = ended == "failed" and bool(self._last) and self._last[-1].failed
        stand = read_rank_state(self._recorder, self._thread, failed=failed)
        if raised is not None and not stand.stack:
            stack, where = read_trace(raised)
            stand = structs.replace(stand, stack=stack, where=where)
        if before is None:
            return stand
        return structs.replace(stand, stalled_s=before.stalled_s, stopped=before.stopped, phase=before.phase)

    def terminate(self, signal_name: str) -> bool:
        """Writes finished steps and the end, wherever the training thread is. Waits for a second at most.

        Does nothing if the rank has ended already, or ends within `FAILING_GRACE_S`. Returns whether it has failed.
        """
        if self._ended.wait(FAILING_GRACE_S):
            return self._failed
        where = describe_position(self._recorder)
        if self._taking.acquire(timeout=BUSY_GRACE_S):
            try:
                self._recorder.on_device.hand_out(look=False)
                self._take()
            finally:
                self._taking.release()
        self.end("terminated", error=f"{signal_name} {where}")
        return False

    def keep_interrupted_state(self) -> None:
        """Remembers where the rank stands: once KeyboardInterrupt is raised, what it waited for has failed."""
        self._interrupted = self.read_stand(None)

    def read_stand(self, stalled_s: float | None) -> RankState:
        """Where the rank stands, with its progress; no step has ended for so long, s, or that is not this rank's."""
        stand = read_rank_state(self._recorder, self._thread, stalled_s=stalled_s)
        return add_progress(stand, self._recorder, read_ring())

    def void_state(self) -> None:
        """Takes back what `save_state` has written: the rank has gone on."""
        self._stalled = None
        with self._lock, contextlib.suppress(OSError):  # as with the state itself
            if self._writer is not None:
                self._writer.write_passed()

    def hold(self) -> None:
        """As of the writer, once this process has read the run folder."""
        with self._lock:
            if self._writer is not None:
                self._writer.hold()

    def count_passed(self, seconds: float) -> None:
        """A hang was suspected, and has ended after so long."""
        self._passed_s.append(seconds)

    def save_state(
        self, stalled_s: float | None, *, stopped: tuple[StoppedRank, ...] = (), stand: RankState | None = None
    ) -> None:
        """Writes finished steps and where the rank stands, in case it ends without another chance, and the ring.

        What is written first needs nothing from torch. A step that ends later, or a good end, makes it void. Steps that
        the device has not finished are written without device times; they are written again once it has.

        Args:
            stalled_s: How long no step has ended. None: another rank has died, or suspects a hang.
            stopped: Other ranks of the host whose processes are stopped.
            stand: Where the rank stood before. None: where it stands now.
        """
        recorder = self._recorder
        why = "another rank has died" if stand is None else "another rank suspects a hang"
        why = why if stalled_s is None else f"no step had ended for {stalled_s:,.3g} s"
        text = f"{why}, {describe_position(recorder)}"
        stand = stand or read_rank_state(recorder, self._thread, stalled_s=stalled_s)
        stand = structs.replace(stand, stopped=stopped)
        if self._taking.acquire(timeout=BUSY_GRACE_S):
            try:
                self._saved += self._take()
            finally:
                self._taking.release()
        pending = [
            pack_row(settle(record), memory_bytes=None, memory_peak_bytes=None, window=self._is_in_window(record))
            for record in recorder.on_device.copy_pending()
        ]
        self._stalled = None if stalled_s is None else stand
        with self._lock:
            if self._writer is not None:
                self._write_state(self._writer, text, stand, pending)

    def _write_state(
        self,
        writer: StreamWriter,
        text: str,
        stand: RankState,
        rows: Sequence[FloatArray] = (),
        *,
        broken: bool = False,
    ) -> None:
        """Writes a state, and again with what the ring adds to it, and the ring; what fails is not tried again."""
        with contextlib.suppress(OSError):  # a full disk is reported with the steps
            writer.write_state(text, rows, stand)
        if (ring := read_ring()) is None:
            return
        stand = add_progress(stand, self._recorder, ring, broken=broken) if stand.source == "none" else stand
        self._stalled = None if self._stalled is None else stand
        pending = describe_pending(ring)
        with contextlib.suppress(OSError):
            writer.write_state(text if pending is None else f"{text}, waiting for {pending}", stand=stand)
        keep_ring(writer.path, ring)

    def _write(self, rows: list[FloatArray], records: list[StepRecord]) -> None:
        if self._writer is None or self._unwritten:
            self._unwritten += len(rows)
            return
        segments = [record.segments if record.phase_host_ns is not None else None for record in records]
        collectives = [_describe(record) for record in records]
        groups = [GroupInfo(name=name, ranks=ranks) for name, ranks in self._recorder.groups]
        try:
            self._writer.write_steps(rows, segments, collectives, groups, [record.operations for record in records])
        except OSError as error:
            self._unwritten += len(rows)
            self.refuse("steps are no longer written", error, "; training goes on")

    def _write_gpu(self) -> None:
        if self._writer is None or self.gpu is None or self._unwritten or not (spans := self.gpu.take()):
            return
        try:
            self._writer.write_gpu(self.gpu.caps, spans)
        except OSError as error:
            self.refuse("power and clocks of the GPU are no longer written", error, "; training goes on")

    def _write_scheduling(self) -> None:
        """Writes how the training thread gets a core, after steps, so that there are never more such readings."""
        if self.read_scheduling is None or self._kernel_thread is None:
            return
        reading = self.read_scheduling(self._kernel_thread)
        with self._lock, contextlib.suppress(OSError):  # a full disk is reported with the steps
            if self._writer is not None and reading is not None:
                self._writer.write_scheduling(reading)


def _describe_passed(seconds: list[float]) -> str:
    if len(seconds) == 1:
        return f"1 suspected hang, which ended {seconds[0]:,.0f} s after it was suspected"
    return f"{len(seconds):,} suspected hangs, which ended {max(seconds):,.0f} s after they were suspected, or earlier"


def _waits(group: GroupState) -> bool:
    return group.pending is not None


def _describe_broken(phase: BrokenPhase, seen: list[int]) -> str:
    first, number = seen
    what = "was left by an exception" if phase.raised else "was left open and closed with the step"
    return f"error: phase {PHASES[phase.code]} {what}, in {number} step(s), first in step {first}"


def _describe(record: StepRecord) -> StepCollectives | None:
    """A step's collectives as they are written; None: there are none, or the step failed."""
    if not record.collectives or record.failed:
        return None
    return StepCollectives(
        order=tuple(name_codes(*item[:4]) for item in record.collectives),
        arrival_ns=[item.arrival_ns for item in record.collectives],
        end_ns=[item.end_ns for item in record.collectives],
        exposed_ns=[item.exposed_ns for item in record.collectives],
        device=record.device_times,
        received_bytes=[item.size_bytes for item in record.collectives if item.kind == _ALL_TO_ALL],
    )
