"""Carries rows from the recorder to the rank's own file, and to rank 0 over a process group of its own.

One background thread per rank does all of it every ``window_s`` seconds, so that training never waits for a disk or a
network. Its collectives use a gloo group that nothing else uses. If a rank dies, the other threads notice in the next
window and go on writing their own files; what was written stays.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.error_boundary import ErrorBoundary
from distprof.errors import read_first_line
from distprof.facts.arrays import FloatArray
from distprof.facts.gpu import GpuReading
from distprof.facts.run import ROW_WIDTH
from distprof.record.collectives.flight_recorder import OWN_GROUP
from distprof.record.gather.thinning import Thinner, Thinning
from distprof.record.gather.window_agreement import WindowMessage, WindowTalk
from distprof.record.step.step_record import STEPS_AT_ONCE
from distprof.world import hold_reference

LONGEST_NAP_S = 0.1
"""How often it is looked whether a collective has ended. A thread that waited inside torch would end a process that
leaves before the others: Python stops it at the end, and C++ then aborts."""
FIRST_NAP_S, FIRST_NAP_AT_END_S = 0.02, 0.0005
"""Each look takes the interpreter from the training thread for a moment, and until the end nobody waits for rows."""
_SAME_ROUND = 0.01
"""Who wakes up so shortly before the next round, as a share of the window, has woken up for it."""
STEPPED_ON_WAIT_S = 5.0
"""How long a rank that has finished waits for others that have begun a step it never begins: they may wait for it."""
_DONE = 2
"""Of a rank: it has sent its last rows. 1: it has unless it steps again."""
GIVING_UP_S = 1.0
"""How long it then takes at most, unless a disk does not respond."""
_C10D: Any = distributed_c10d


def choose_devices() -> list[Any]:
    """What a group's connections use on this host: that of the script's default group if it is gloo's, and otherwise
    what torch itself would choose.

    A device is a thread that wakes up a hundred times a second, and takes 3 ms of a processor in that.

    Raises:
        RuntimeError: There is none, such as with an interface that does not exist in GLOO_SOCKET_IFNAME.
    """
    if devices := list_script_devices():
        return devices
    gloo, names = _C10D.ProcessGroupGloo, os.environ.get("GLOO_SOCKET_IFNAME", "")
    if names:
        return [gloo.create_device(interface=name) for name in names.split(",")]
    return [gloo.create_default_device()]


def list_script_devices() -> list[Any]:
    """What the script's default group uses. Empty: there is none, it is another backend's, or torch does not say."""
    group: Any = dist.group.WORLD
    try:
        return list(group._get_backend(torch.device("cpu")).options._devices)
    except (AttributeError, RuntimeError, TypeError):
        return []


def make_own_group(store: Any, *, rank: int, size: int, devices: list[Any], timeout_s: float) -> dist.ProcessGroup:
    """A gloo group of all ranks that nothing else uses, and that the script's groups know nothing of. Collective.

    It is made over the store of the script's default group: ``torch.distributed.new_group`` would count it among the
    script's own, and has to be called by all ranks in the same order.

    Args:
        store: Which the ranks use for no other group.
        rank: Of this process.
        size: The number of ranks.
        devices: From `choose_devices`.
        timeout_s: How long the ranks try to connect, and how long the group's collectives wait for a missing rank.

    Raises:
        RuntimeError: The ranks did not connect.
    """
    options = _C10D.ProcessGroupGloo._Options()
    options._devices, options._timeout = devices, timedelta(seconds=timeout_s)
    backend = _C10D.ProcessGroupGloo(store, rank, size, options)
    group: Any = dist.ProcessGroup(store, rank, size)
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), kind, backend)
    group._set_group_name(OWN_GROUP)
    group._set_group_desc(OWN_GROUP)
    made: dist.ProcessGroup = group
    return made


class _Head(NamedTuple):
    """What a rank says in an exchange."""

    num_rows: int
    done: int
    asked: int
    pausing: int
    wish: Thinning
    word: WindowMessage
    gpu: GpuReading

    def pack(self) -> list[int]:
        return [*self[:4], *self.wish, *self.word, *self.gpu]

    @classmethod
    def unpack(cls, numbers: list[int]) -> _Head:
        # In every round, once for each rank of the job: no generators.
        num_rows, done, asked, pausing = numbers[:4]
        wish, word = Thinning(*numbers[4:_WORD]), WindowMessage(*numbers[_WORD:_GPU])
        return cls(num_rows, done, asked, pausing, wish, word, GpuReading(*numbers[_GPU:]))


_WORD = 4 + len(Thinning._fields)
_GPU = _WORD + len(WindowMessage._fields)
"""Where these begin among the numbers of a head."""


class Exchange:
    """Brings the rows of all ranks to rank 0."""

    def __init__(self, group: dist.ProcessGroup | None, thinner: Thinner | None = None) -> None:
        """Takes a gloo group that nothing else uses; None: this rank is alone. And what agrees on the steps that are
        recorded; None: all are."""
        self.group = group
        """It may be set before the first exchange."""
        self._pending: list[FloatArray] = []
        self.broken: str | None = None
        """Why rows no longer reach rank 0: a rank left. None: they do."""
        self.stop_recording = False
        """Whether rank 0 has asked every rank to stop recording phases, as of the last exchange."""
        self.paused = False
        """Whether phases are not to be recorded for now, as of the last exchange."""
        self.resting = False
        """Whether the job ends on this rank, too, once it does on another one: the script has left its groups."""
        self.word = WindowMessage()
        """What this rank says in the next exchange."""
        self.read_gpu: Callable[[], GpuReading] = GpuReading
        """What it says of its GPU."""
        self.gpus: list[GpuReading] = []
        """What the ranks have said of their GPUs in the last exchange; another thread may read it."""
        self.words: list[WindowMessage] = []
        """What the ranks have said in the last exchange."""
        self.thinner = thinner or Thinner()
        """What this rank would leave out, and what the ranks have agreed on in the last exchange."""
        self.done: list[bool] = []
        """Whether each rank had sent its last rows by then."""
        self._asked = self._pausing = self._last = False
        self.given_up = False
        """Whether this rank no longer waits for the others."""
        self.behind = False
        """Whether some rank had so many rows in the last exchange that the next should follow at once."""

    def ask_to_pause(self, paused: bool) -> None:
        """On rank 0: makes every rank, including this one, pause recording, or go on, after the next exchange."""
        self._pausing = paused

    def ask_to_stop(self) -> None:
        """On rank 0: makes every rank, including this one, stop recording phases after the next exchange."""
        self._asked = True

    def list_ranks_ahead(self) -> list[int]:
        """The ranks that have begun a step that this one has not, and have not sent their last rows."""
        own = self.word.next_step
        return [
            rank for rank, (word, done) in enumerate(zip(self.words, self.done, strict=False))
            if word.next_step > own and not done
        ]  # fmt: skip

    def stop_waiting(self) -> None:
        """Has a `send` that waits for the other ranks raise RuntimeError soon; may be called on another thread."""
        self.given_up = True

    def _wait(self, work: Any) -> None:
        hold_reference(work)
        nap_s = FIRST_NAP_AT_END_S if self._last else FIRST_NAP_S
        while not work.is_completed():
            if self.given_up:
                raise RuntimeError("this rank ends before others have")
            time.sleep(nap_s)
            nap_s = min(1.5 * nap_s, LONGEST_NAP_S)
        work.wait()

    def send(self, rows: list[FloatArray], *, last: bool) -> tuple[list[FloatArray], bool]:
        """One exchange, of at most `STEPS_AT_ONCE` rows of each rank; the rest waits for the next one. Collective among
        the background threads.

        Args:
            rows: This rank's new rows.
            last: Whether these are this rank's last rows.

        Returns:
            The new rows of every rank on rank 0, ``[num_new_rows, ROW_WIDTH]`` each, and an empty list elsewhere; and
            whether every rank has sent its last rows.
        """
        self._pending.extend(rows)
        self._last = last
        batch, self._pending = self._pending[:STEPS_AT_ONCE], self._pending[STEPS_AT_ONCE:]
        table = np.stack(batch) if batch else np.empty((0, ROW_WIDTH))
        done = 0 if self._pending else _DONE if last else int(self.resting)
        own = _Head(len(batch), done, self._asked, self._pausing, self.thinner.wish, self.word, self.read_gpu())
        heads = self._share(own)
        self.stop_recording, self.paused = bool(heads[0].asked), bool(heads[0].pausing)
        enough = 1 if any(head.done == _DONE for head in heads) else _DONE
        self.words, self.gpus = [head.word for head in heads], [head.gpu for head in heads]
        self.done = [head.done >= enough for head in heads]
        self.thinner.follow([head.wish for head in heads])
        counts, everyone = [head.num_rows for head in heads], all(self.done)
        self.behind = max(counts) >= STEPS_AT_ONCE
        if self.group is None:
            return [table], everyone
        world = len(heads)
        if max(counts) == 0:
            return [np.empty((0, ROW_WIDTH))] * world if self.group.rank() == 0 else [], everyone
        padded = torch.zeros(max(counts), ROW_WIDTH, dtype=torch.float64)
        padded[: len(batch)] = torch.from_numpy(table)
        received = [torch.empty_like(padded) for _ in range(world)] if self.group.rank() == 0 else []
        self._wait(self.group.gather([received] if received else [], [padded], dist.GatherOptions()))
        tables = [item[:count].numpy() for item, count in zip(received, counts, strict=False)]
        return tables, everyone

    def _share(self, own: _Head) -> list[_Head]:
        """The heads of all ranks, by rank."""
        if self.group is None:
            return [own]
        numbers = torch.tensor(own.pack())
        heads = torch.empty(self.group.size(), len(numbers), dtype=numbers.dtype)
        self._wait(self.group.allgather([list(heads.unbind())], [numbers]))
        return [_Head.unpack(head) for head in heads.tolist()]


class GatherThread(threading.Thread):
    """The background thread of one rank."""

    def __init__(
        self,
        *,
        take: Callable[[bool], list[FloatArray]],
        end: Callable[[], None],
        exchange: Exchange,
        window_s: float,
        lost: Callable[[str], None],
        begin: Callable[[], bool] = lambda: True,
        bystander: bool = False,
        deliver: Callable[[list[FloatArray]], None] | None = None,
        together: Callable[[], object] | None = None,
        stop_recording: Callable[[], None] | None = None,
        wants_pause: Callable[[], bool] | None = None,
        pause: Callable[[bool], None] | None = None,
        talk: WindowTalk | None = None,
    ) -> None:
        """Prepares the thread; `start` starts it.

        Args:
            take: Takes and writes this rank's finished steps and returns their rows; it is called again at once if they
                are `STEPS_AT_ONCE` or more. True: also waits for the device.
            end: Writes the end of this rank's file; called once, after the last rows.
            exchange: Transports them.
            window_s: Seconds between two rounds.
            lost: Receives a message about what went wrong.
            begin: Called first; returns whether there is anything to do. Collective among the background threads.
            bystander: Whether this rank has no rows, and nobody waits for its end.
            deliver: See `deliver`.
            together: See `together`.
            stop_recording: Called once, when rank 0 has asked every rank to stop recording phases.
            wants_pause: See `wants_pause`.
            pause: Called on every rank whenever that has changed.
            talk: Says something in each round, and hears what the others have said.
        """
        super().__init__(name="distprof-gather", daemon=True)
        self._take, self._end, self._exchange, self._begin = take, end, exchange, begin
        self._bystander = bystander
        self._window_s, self._lost = window_s, lost
        self._stop_recording, self._pause = stop_recording, pause
        self.deliver = deliver
        """On rank 0: receives the new rows of every rank. This and the two below may be set in ``begin``."""
        self.together = together
        """Called once, when every rank has sent its last rows. Collective among the background threads."""
        self.wants_pause = wants_pause
        """On rank 0: looked up in each round, whether recording is to pause."""
        self._paused, self._talk = exchange.paused, talk
        self._wake, self.begun = threading.Event(), threading.Event()
        """Set once ``begin`` has ended."""
        self.finishing = self._alone = False
        """Whether the job ends on this rank."""
        self.received: Counter[int] = Counter()
        """On rank 0: number of rows received from each rank."""
        self.complete = False
        """Whether every rank has sent its last rows."""

    def finish(self, *, alone: bool, timeout_s: float) -> bool:
        """Sends what is left and stops.

        Args:
            alone: True after a failure: writes this rank's file and does not wait for the others.
            timeout_s: How long to wait for the slowest rank.

        Returns:
            Whether the thread ended in time.
        """
        self._alone = self._alone or alone
        self.finishing = True
        self._wake.set()
        if self.ident is not None:
            self._join(timeout_s)
            if self.is_alive():
                self._exchange.stop_waiting()
                self.join(GIVING_UP_S)
        return not self.is_alive()

    def _join(self, timeout_s: float) -> None:
        """Waits for the thread, and less long once others are seen to go on without this rank."""
        end_s, stepped_on = time.monotonic() + timeout_s, False
        while self.is_alive() and (left_s := end_s - time.monotonic()) > 0:
            self.join(min(left_s, LONGEST_NAP_S))
            if not stepped_on and self._exchange.list_ranks_ahead():
                stepped_on, end_s = True, min(end_s, time.monotonic() + STEPPED_ON_WAIT_S)

    def wait_for_begin(self, limit_s: float) -> None:
        """Returns once ``begin`` has ended, or after so many seconds, and then makes it give up."""
        if self.ident is not None and not self.begun.wait(limit_s):
            self._exchange.stop_waiting()
            self.begun.wait(GIVING_UP_S)

    def run(self) -> None:
        """Rounds until every rank is done."""
        try:
            if not self._guard("the start", self._begin):
                return
        finally:
            self.begun.set()
        ended, behind, due_s = False, False, -math.inf
        while True:
            pace_s = math.inf if self._talk is None else self._talk.pace_s
            self._wake.wait(0.0 if ended or behind else min(self._compute_nap_s(), pace_s))
            finishing = self.finishing
            rows: list[FloatArray] = []
            if finishing or behind or pace_s >= self._window_s or time.monotonic() >= due_s:  # urgent: words only
                due_s = time.monotonic() + self._window_s
                rows = self._guard("recording", self._take, finishing and not self._alone) or []
            behind = len(rows) >= STEPS_AT_ONCE
            if finishing and not ended and not behind:
                self._guard("recording", self._end)
                ended = True
            if self._alone or self._exchange.broken:
                if self._talk is not None:
                    self._talk.break_off()
                self._exchange.thinner.follow_own()
                if ended:
                    return
                continue
            if self.wants_pause is not None:
                self._exchange.ask_to_pause(bool(self._guard("pausing", self.wants_pause)))
            if self._talk is not None:
                self._exchange.word = self._guard("a window", self._talk.make_message) or WindowMessage()
            try:
                tables, everyone = self._exchange.send(rows, last=ended or self._bystander)
            except (RuntimeError, ValueError) as error:  # ValueError: the script has destroyed its process groups
                self._exchange.broken = read_first_line(error)
                if not self._exchange.given_up:
                    self._lost(f"the ranks' rows no longer reach rank 0: {self._exchange.broken}")
                continue
            behind = self._exchange.behind
            if self._exchange.stop_recording and self._stop_recording is not None:
                self._guard("recording", self._stop_recording)
                self._stop_recording = None
            if self._exchange.paused != self._paused and self._pause is not None:
                self._paused = self._exchange.paused
                self._guard("pausing", self._pause, self._paused)
            if self._talk is not None:
                self._guard("a window", self._talk.take_messages, self._exchange.words, self._exchange.done)
            self.received.update({rank: len(table) for rank, table in enumerate(tables)})
            if self.deliver is not None:
                self._guard("delivery", self.deliver, tables)
            if everyone:
                if not (ended or self._bystander):
                    while self._guard("recording", self._take, False):
                        pass
                    self._guard("recording", self._end)
                self.complete = True
                if self.together is not None:
                    self._guard("the end of the job", self.together)
                return

    def _compute_nap_s(self) -> float:
        """How long until the next round. It begins at a multiple of the window on the wall clock, on all ranks at once.

        Ranks that train together wait for whichever is held up; what holds all up at once holds the job up once.
        """
        left_s = self._window_s - time.time() % self._window_s
        return left_s if left_s > _SAME_ROUND * self._window_s else left_s + self._window_s

    def _guard(self, what: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Does a part of the thread's work, which may fail, and is tried again in the next round."""
        return ErrorBoundary(f"{what} stopped", self._lost).run(work, *arguments)
