"""Ranks that die in the middle of a step, each with a made-up device behind its host: what the report still has.

Rank 1 dies in the backward of step `LAST`, before it starts its part of the reduction. The device of rank 0 then waits
for ever, its host runs ahead until it waits for the device, and in the end NCCL's watchdog aborts it.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.simulate.device import HostClock, SimulatedDevice, Stream
from benchmarks.simulate.device_work import Meeting
from distprof.cli.parser import run_verb
from distprof.facts.run import COLUMN, PHASE_CODE, CollectiveKind, Phase
from distprof.record.gather import step_writer as step_writer_module
from distprof.record.gather.end_on_signal import end_on_signal
from distprof.record.gather.step_writer import StepWriter
from distprof.record.stalls.stall_watch import StallWatch
from distprof.record.step.recorder import Recorder
from distprof.storage.last_state import open_place
from distprof.storage.rank_stream import StreamWriter, read_stream
from distprof.storage.run_folder import rank_path, read_run, write_meta
from tests.factories import make_info, make_meta
from tests.record.stalls.test_stall_watch import PENDING, RING

LAST, WINDOW = 12, 8
"""The step in which rank 1 dies, and the one before which the background thread writes for the last time."""
MS = 1_000_000
KERNEL_NS, HOST_NS = 4 * MS, 5 * MS
"""Two kernels a step, and what the host takes: the device falls further behind with every step."""


class Rank:
    """A rank of a job under DDP."""

    def __init__(self, folder: Path, number: int) -> None:
        self.clock = HostClock()
        self.device = SimulatedDevice(self.clock)
        self.recorder = Recorder(now_ns=self.clock, device=self.device, num_events=2048)
        info = make_info(number, ended=None, device="cuda:0", host=socket.gethostname())
        writer = StreamWriter(rank_path(folder, number), run_id="0123456789ab", world_size=2, info=info)
        self.recorder.timeline.place = open_place(rank_path(folder, number)) or self.recorder.timeline.place
        self.writer = StepWriter(recorder=self.recorder, writer=writer, device=torch.device("cpu"), warn=print)
        self._number, self._communication = number, Stream(self.device)
        self.met = LAST
        """So many steps in which the other rank takes part."""

    def train(self, die: Callable[[Rank], None]) -> None:
        """Until something ends it."""
        recorder, compute = self.recorder, self.device.current_stream()
        for step in range(LAST + 3):
            if step == WINDOW:
                self.writer.take(False)
            recorder.begin_step(step, warmup=False)
            recorder.enter(PHASE_CODE[Phase.FORWARD])
            compute.launch(KERNEL_NS)
            self.clock.advance(HOST_NS)
            recorder.exit()
            recorder.enter(PHASE_CODE[Phase.BACKWARD])
            compute.launch(KERNEL_NS)
            ticket = recorder.begin_collective(CollectiveKind.ALL_REDUCE, 4, asynchronous=True, on_device=True)
            if step == LAST and self._number == 1:
                die(self)
            meeting = Meeting(2, MS)
            if step < self.met:  # the other rank's part
                Stream(self.device).launch(0, meeting=meeting)
            self._communication.wait_stream(compute)
            self._communication.launch(0, meeting=meeting)
            recorder.mark(PHASE_CODE[Phase.ALL_REDUCE], ticket)
            compute.wait_stream(self._communication)
            if step == LAST + 2:
                die(self)  # the host wants something of the device
            recorder.exit()
            recorder.end_step()


def stall(rank: Rank, then: Callable[[], None] = os.abort) -> None:
    """Waits for what never comes, until the process is aborted."""
    saved = threading.Event()

    def save(stalled_s: float) -> None:
        rank.writer.save_state(stalled_s)
        saved.set()

    StallWatch(position=lambda: rank.recorder.step, timeout_s=0.01, stalled=save, lost=print).start()
    saved.wait(60)
    then()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminate(rank: Rank) -> None:
    """By a signal, while the main thread hears none."""
    end_on_signal(None, rank.writer, on_end=None)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)


def fail(rank: Rank) -> None:
    """As `Profiler` ends a rank whose training raises."""
    rank.recorder.exit(raised=True)
    rank.recorder.end_step(failed=True)
    rank.writer.take_rest()
    rank.writer.end("failed", error="RuntimeError: NCCL communicator was aborted", traceback="Traceback")
    os._exit(1)


DEATHS: dict[str, Callable[[Rank], None]] = {
    "SIGKILL": lambda rank: kill(), "SIGABRT": lambda rank: os.abort(), "os._exit": lambda rank: os._exit(0),
    "SIGTERM": terminate, "exception": fail, "hang": lambda rank: stall(rank, kill),
}  # fmt: skip


def run_rank(folder: Path, number: int, die: Callable[[Rank], None]) -> None:
    """In a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            Rank(folder, number).train(die)
        except BaseException:
            traceback.print_exc()
        os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) != 99


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder with what rank 0 wrote."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "ranks").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_writer_module, "read_ring", lambda: RING)
        run_rank(folder, 0, stall)
    write_meta(folder, make_meta(backend="nccl", device_type="cuda"))
    return folder


def find_read(rows: np.ndarray) -> list[bool]:
    """Which steps have device times."""
    return list(np.isfinite(rows[:, COLUMN["step_device_ns"]]))


def test_the_rank_that_waits_writes_every_step_that_its_host_has_finished(survivor: Path) -> None:
    stream = read_stream(rank_path(survivor, 0))
    assert stream.rows[:, COLUMN["step"]].tolist() == list(range(LAST + 2)) and not stream.warnings
    read = find_read(stream.rows)
    assert read == sorted(read, reverse=True) and 2 <= sum(read) < LAST
    for name in ("step", "forward", "backward"):
        assert (stream.rows[:, COLUMN[f"{name}_host_ns"]] >= 0).all()
    assert stream.rows[:, COLUMN["all_reduce_count"]].tolist() == [1] * (LAST + 2)
    assert stream.info.error == f"no step had ended for 0.008 s, in step {LAST + 2}, all_reduce, waiting for {PENDING}"


ABRUPT = "is missing (last recorded step: {last}): its stream ends abruptly (killed?)"
TOLD = {
    "SIGKILL": f"{ABRUPT}: in step {LAST}, backward, last written",
    "SIGABRT": f"{ABRUPT}: in step {LAST}, backward, last written",
    "os._exit": f"{ABRUPT}: in step {LAST}, backward, last written",
    "SIGTERM": "was terminated after step 11: SIGTERM in step 12, backward",
    "exception": "failed after step 12: RuntimeError: NCCL communicator was aborted",
    "hang": "is missing (last recorded step: 11): its stream ends abruptly (killed?): no step had ended "
    "for 0.008 s, in step 12, backward, last written",
}
"""What the report says of rank 1. Who ends without warning loses what its background thread had not written yet."""


@pytest.mark.parametrize("how", DEATHS)
def test_the_last_steps_and_where_the_ranks_stood_are_in_the_report(
    how: str, survivor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_writer_module, "FAILING_GRACE_S", 0.0)
    monkeypatch.setattr(step_writer_module, "read_ring", lambda: None)
    folder = tmp_path / "run"
    shutil.copytree(survivor, folder)
    run_rank(folder, 1, DEATHS[how])
    run = read_run(folder)
    steps = run.column("step")[1]
    kept = int(np.isfinite(steps).sum())
    assert steps[:kept].tolist() == list(range(kept)) and run.warnings == ()
    assert kept in (range(2, WINDOW) if "{last}" in TOLD[how] else {LAST + (how == "exception")})
    assert (run.column("step_host_ns")[1, :kept] == HOST_NS).all()
    assert np.isfinite(run.column("step_device_ns")[1]).sum() >= 2
    assert run_verb(["report", str(folder), "--details", "--no-write", "--width", "400"]) == 3
    shown = capsys.readouterr().out
    assert f"rank 1 {TOLD[how].format(last=kept - 1)}" in shown
    assert f"rank 0 {ABRUPT.format(last=LAST + 1)}: no step had ended for 0.008 s, " in shown
    assert f"in step {LAST + 2}, all_reduce, waiting for {PENDING}" in shown
    assert f"cut off: {'ranks 0-1' if 'is missing' in TOLD[how] else 'rank 0'} " in shown
    assert (how == "exception") == ("phase backward was left by an exception" in shown)


def test_what_was_written_in_a_stall_that_passes_is_read_as_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_writer_module, "read_ring", lambda: None)
    (tmp_path / "ranks").mkdir()
    rank = Rank(tmp_path, 0)
    rank.met = LAST + 3
    rank.train(lambda rank: rank.writer.save_state(480.0))
    rows = read_stream(rank_path(tmp_path, 0)).rows
    assert rows[:, COLUMN["step"]].tolist() == list(range(LAST + 2)) and not all(find_read(rows))
    rank.writer.take(True)
    rank.writer.end("completed")
    stream = read_stream(rank_path(tmp_path, 0))
    assert stream.rows[:, COLUMN["step"]].tolist() == list(range(LAST + 3)) and all(find_read(stream.rows))
    assert stream.warnings == () and stream.info.error is None
