"""Writes where the ranks are when they wait for each other at their first steps, before there is a job.

A process without a first step takes part in the job of those that have had one, as an evaluator's may never.

A thread of each process looks at torch's Flight Recorder. The first rank that has waited in one collective for 0.8 of
its group's time-out makes a run folder, and tells the others by the group's key-value store, which needs no rank's
training thread; each of them then writes where it stands. If the wait ends well, all of that is deleted.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from distprof.config.schema import HardwareConfig
from distprof.errors import DistprofError
from distprof.facts.stand import RankState
from distprof.profiler.job.agreement import Rendezvous, clone_store
from distprof.profiler.job.model_inspection import infer_device
from distprof.profiler.job.run_files import JobPlan, describe_run, name_start
from distprof.record.collectives.flight_recorder import OWN_GROUP, read_ring
from distprof.record.device.rank_info import describe_rank
from distprof.record.gather.step_writer import StepWriter
from distprof.record.stalls.rank_state import add_progress, read_rank_state
from distprof.record.stalls.stall_watch import LOOKS, STALL_RATIO, read_timeout_s
from distprof.record.step.recorder import Recorder
from distprof.storage.generations import find_root
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import rank_path, write_meta
from distprof.world import World, read_world

NAP_S = 0.5
"""How often it is looked whether there is a process group."""
LONGEST_NAP_S = 10.0
"""A rank learns within this time that another one has waited for too long."""
STAND_BY_NAP_S = 2.0
"""This process learns within this time that the ranks which have had their first step need it."""
HELD_WITHIN_S = 1.0
"""The longest time for which the training thread waits here."""


class EarlyWatch(threading.Thread):
    """Watches from the start of a session until its job's ranks have met; costs the training thread nothing."""

    def __init__(
        self,
        *,
        plan: JobPlan,
        print_line: Callable[[str], None],
        rendezvous: Rendezvous,
        stand_by: Callable[[World], None],
        is_over: Callable[[], bool],
        find_recorder: Callable[[], Recorder | None],
    ) -> None:
        """Prepares the thread; `start` starts it. Call it on the training thread.

        Args:
            plan: Of the job.
            print_line: Says a line to the user.
            rendezvous: Of the session.
            stand_by: Called when other ranks need this one, which has had no step, for their job.
            is_over: Whether there is a job now, which watches itself.
            find_recorder: Of the steps of a job whose ranks have not met yet. None: there has been no step.
        """
        super().__init__(name="distprof-early", daemon=True)
        self._plan, self._print_line, self._rendezvous = plan, print_line, rendezvous
        self._stand_by, self._is_over, self._find_recorder = stand_by, is_over, find_recorder
        self._training = threading.get_ident()
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._round = 0
        self._waited = False  # in this round this rank has waited for too long itself
        self._made = False  # in this round this rank has made the folder
        self._stream: Path | None = None
        self._store: Any = None
        self._rank = -1
        self._writer: StepWriter | None = None
        self.world: World | None = None
        """This process among the ranks. None: there has been no process group yet."""
        self.folder: Path | None = None
        """Where it was written. None: nowhere."""

    def drop(self) -> None:
        """The first step begins: what was written is void."""
        with self._held() as held:
            if held and self._writer is not None and self._store is not None:
                self._store.set(self._key("over"), "1")
                self._begin_again()

    def close(self) -> None:
        """Watches no longer: the process groups are left."""
        self._closed.set()
        with self._held() as held:
            if held:
                self._store = None

    def end(self, ended: str, error: str, raised: BaseException | None) -> Path | None:
        """The process ends without a step: writes how, if anything was written. On rank 0 returns where."""
        self._closed.set()
        if self.is_alive():
            self.join(HELD_WITHIN_S)  # no thread is to be inside torch when Python ends
        with self._held() as held:
            if held and self._writer is not None:
                self._writer.end(ended, error=error, raised=raised)
                return self.folder if self._rank == 0 else None
        return None

    @contextlib.contextmanager
    def _held(self) -> Iterator[bool]:
        """Whether the thread does nothing meanwhile: it may wait for a store whose process has stopped."""
        held = self._lock.acquire(timeout=HELD_WITHIN_S)
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    def run(self) -> None:
        """Looks until `close`. What fails ends it: nobody has been promised anything yet."""
        asked = False
        with contextlib.suppress(AttributeError, DistprofError, OSError, RuntimeError, ValueError):
            while not dist.is_initialized():
                if self._closed.wait(NAP_S):
                    return
            self._store = clone_store()
            world = self.world = read_world(infer_device([]))
            self._rank = world.rank
            timeout_s = read_timeout_s()
            if world.size == 1 or timeout_s is None:
                return
            self._rendezvous.open(rank=world.rank, size=world.size)
            limit_s, due_s = timeout_s * STALL_RATIO, -math.inf
            while not self._closed.wait(min(limit_s / LOOKS, STAND_BY_NAP_S)):
                if self._is_over():
                    self.drop()
                    return
                if (now_s := time.monotonic()) >= due_s:
                    due_s = now_s + min(limit_s / LOOKS, LONGEST_NAP_S)
                    with self._lock:
                        self._look(world, limit_s)
                if not asked and self._rendezvous.is_waited_for(now_s):
                    asked = True
                    self._stand_by(world)

    def _look(self, world: World, limit_s: float) -> None:
        waits = _has_waited(limit_s)
        if self._writer is None:
            # On a busy machine, making the folder may take until the wait has timed out.
            stand = self._read_stand(limit_s) if waits else None
            if waits and self._store.add(self._key("first"), 1) == 1:
                self._make(world)
            if self._store.check([self._key("folder")]):
                self._waited = waits
                self._write(world, limit_s, stand)
        elif self._store.check([self._key("over")]):
            self._begin_again()
        elif self._waited and not waits:  # it came after all
            self._store.set(self._key("over"), "1")
            self._begin_again()

    def _read_stand(self, limit_s: float) -> RankState:
        recorder = self._find_recorder() or Recorder(phases=False)
        return add_progress(read_rank_state(recorder, self._training, stalled_s=limit_s), recorder, read_ring())

    def _make(self, world: World) -> None:
        """Makes the folder, and publishes its path to the others."""
        launch = self._plan.describe_launch([name_start(world)], world, is_early=True)
        folder, run_id = self._plan.make_folder(launch), uuid.uuid4().hex
        self._made = True
        write_meta(folder, describe_run(world, self._plan, run_id, launch))
        self._store.set(self._key("folder"), json.dumps([str(folder.absolute()), run_id]))

    def _write(self, world: World, limit_s: float, stand: RankState | None) -> None:
        path, run_id = json.loads(self._store.get(self._key("folder")))
        if not Path(path, "ranks").is_dir():  # of another host
            self._closed.set()
            return
        info = describe_rank(world, None, HardwareConfig(peak="none"), None)
        self.folder, self._stream = Path(path), rank_path(Path(path), world.rank)
        stream = StreamWriter(self._stream, run_id=run_id, world_size=world.size, info=info)
        self._writer = StepWriter(
            recorder=self._find_recorder() or Recorder(phases=False), writer=stream, device=world.device,
            warn=self._print_line, thread=self._training,
        )  # fmt: skip
        self._writer.save_state(limit_s, stand=stand)
        if self._made:
            self._print_line(
                f"distprof: ranks wait for each other at their first steps: distprof report {find_root(Path(path))}"
            )

    def _begin_again(self) -> None:
        """Deletes what this rank has written; the last one deletes the folder."""
        writer, folder, stream = self._writer, self.folder, self._stream
        self._writer = self.folder = self._stream = None
        self._waited = self._made = False
        self._round += 1
        if writer is None or folder is None or stream is None:
            return
        writer.end("completed")
        with contextlib.suppress(OSError):
            stream.unlink()
            stream.parent.rmdir()
            (folder / "run.json").unlink()
            folder.rmdir()

    def _key(self, what: str) -> str:
        return f"distprof/early/{self._round}/{what}"


def _has_waited(limit_s: float) -> bool:
    """Whether some collective of the script was issued so long ago, s, and has not ended."""
    ring = read_ring()
    if ring is None:
        return False
    latest_ns = time.time_ns() - int(limit_s * 1e9)
    return any(
        entry.get("retired") is False and int(entry["time_created_ns"]) <= latest_ns
        and OWN_GROUP not in (entry.get("process_group") or ())
        for entry in ring["entries"]
    )  # fmt: skip
