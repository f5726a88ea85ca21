"""A full disk, a late end: what one rank's file still holds."""

from __future__ import annotations

import contextlib
import errno
import threading
from pathlib import Path

import pytest
import torch

from distprof.facts.run import COLUMN, PHASE_CODE, PHASES, CollectiveKind, Peak, Phase, RankInfo
from distprof.record.gather.step_writer import StepWriter
from distprof.record.step.recorder import Recorder
from distprof.record.step.timeline import PhaseContext
from distprof.storage.collective_records import MAX_COLLECTIVES
from distprof.storage.rank_stream import StreamWriter, read_stream

INFO = RankInfo(
    rank=0, local_rank=0, host="h", pid=1, device="cpu", snapshot=None, peak=Peak(flops_per_s=None, source="none")
)


def make_step_writer(path: Path, warnings: list[str]) -> tuple[Recorder, StepWriter, StreamWriter]:
    recorder = Recorder()
    writer = StreamWriter(path, run_id="r", world_size=1, info=INFO)
    return (
        recorder,
        StepWriter(recorder=recorder, writer=writer, device=torch.device("cpu"), warn=warnings.append),
        writer,
    )


def record(recorder: Recorder, step: int) -> None:
    recorder.begin_step(step, warmup=False)
    recorder.end_step()


def test_steps_are_written_as_they_are_taken(tmp_path: Path) -> None:
    recorder, step_writer, _ = make_step_writer(tmp_path / "a", [])
    record(recorder, 0)
    assert [row[COLUMN["step"]] for row in step_writer.take(False)] == [0]
    assert len(read_stream(tmp_path / "a").rows) == 1  # there already, without an end
    record(recorder, 1)
    step_writer.take(False)
    step_writer.note("something was not measured")
    step_writer.end("completed")
    step_writer.end("failed")  # a second end changes nothing
    stream = read_stream(tmp_path / "a")
    assert [row[COLUMN["step"]] for row in stream.rows] == [0, 1]
    assert stream.info.ended == "completed" and stream.info.notes == ("something was not measured",)


def test_how_the_thread_gets_a_core_is_read_after_steps_and_never_at_the_end(tmp_path: Path) -> None:
    recorder, step_writer, _ = make_step_writer(tmp_path / "a", [])
    asked: list[int] = []

    def read(thread: int) -> dict[str, float] | None:
        asked.append(thread)
        counted = {"at_ns": len(asked), "thread": thread, "run_ns": 1, "wait_ns": 2}
        return counted if len(asked) != 2 else None

    step_writer.read_scheduling = read
    step_writer.take(False)  # before the first step
    for step in range(3):
        record(recorder, step)
        step_writer.take(False)
        step_writer.take(False)  # nothing new
    record(recorder, 3)
    step_writer.take(True)
    step_writer.end("completed")
    assert asked == [threading.get_native_id()] * 3
    assert read_stream(tmp_path / "a").scheduling[:, 0].tolist() == [1, 3]


def test_fault_29_what_left_a_phase_the_wrong_way_is_in_the_notes(tmp_path: Path) -> None:
    recorder, step_writer, _ = make_step_writer(tmp_path / "a", [])
    forward = PhaseContext(recorder, recorder.timeline, PHASE_CODE[Phase.FORWARD])
    data = PhaseContext(recorder, recorder.timeline, PHASE_CODE[Phase.DATA])
    for step in range(4):
        recorder.begin_step(step, warmup=False)
        if step in (1, 2):
            with contextlib.suppress(StopIteration), forward, data:
                raise StopIteration
        if step == 3:
            forward.__enter__()
        recorder.end_step()
        step_writer.take(False)
    step_writer.end("completed")
    stream = read_stream(tmp_path / "a")
    assert stream.info.notes == (
        "error: phase data was left by an exception, in 2 step(s), first in step 1",
        "error: phase forward was left open and closed with the step, in 1 step(s), first in step 3",
    )
    phases = stream.rows[:, [COLUMN[f"{phase}_host_ns"] for phase in PHASES]]
    assert phases.sum(axis=1).tolist() == stream.rows[:, COLUMN["step_host_ns"]].tolist()


def test_steps_of_too_many_collectives_are_counted_in_a_note(tmp_path: Path) -> None:
    recorder, step_writer, _ = make_step_writer(tmp_path / "a", [])
    for step, number in enumerate([MAX_COLLECTIVES + 1, 1, MAX_COLLECTIVES + 1, *[1] * 40]):
        recorder.begin_step(step, warmup=False)
        for _ in range(number):
            recorder.begin_collective(CollectiveKind.ALL_REDUCE, 8)
        recorder.end_step()
        step_writer.take(False)
    step_writer.end("failed")  # however it ended
    stream = read_stream(tmp_path / "a")
    assert stream.info.notes == ("the collectives of 2 step(s) were not kept: more than 4,096 in one step",)


def test_a_signal_ends_the_file_while_another_thread_waits_for_the_device(tmp_path: Path) -> None:
    recorder, step_writer, _ = make_step_writer(tmp_path / "a", [])
    record(recorder, 0)
    recorder.begin_step(1, warmup=False)
    recorder.enter(PHASE_CODE[Phase.BACKWARD])
    with step_writer._taking:  # as the thread that takes steps, and never comes back
        assert not step_writer.terminate("SIGTERM")
    info = read_stream(tmp_path / "a").info
    assert (info.ended, info.error) == ("terminated", "SIGTERM in step 1, backward")


def test_a_rank_that_is_failing_says_why_before_a_signal_does(tmp_path: Path) -> None:
    recorder, step_writer, _ = make_step_writer(tmp_path / "a", [])
    record(recorder, 0)
    step_writer.take(False)
    step_writer.end("failed", error="Connection closed by peer")
    assert step_writer.terminate("SIGTERM")
    assert read_stream(tmp_path / "a").info.error == "Connection closed by peer"


def test_fault_08_a_full_disk_stops_writing_once_and_training_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    recorder, step_writer, writer = make_step_writer(tmp_path / "a", warnings)
    record(recorder, 0)
    step_writer.take(False)

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(writer, "write_steps", refuse)
        record(recorder, 1)
        assert len(step_writer.take(False)) == 1  # the rows still travel to rank 0
    record(recorder, 2)
    step_writer.take(False)
    step_writer.end("completed")
    stream = read_stream(tmp_path / "a")
    assert [row[COLUMN["step"]] for row in stream.rows] == [0]
    assert warnings == ["steps are no longer written (No space left on device); training goes on"]
    assert stream.info.rows_lost == 2


def test_fault_08_whatever_fails_after_the_first_time_is_not_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    recorder, step_writer, writer = make_step_writer(tmp_path / "a", warnings)

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("write_steps", "write_end"):
        monkeypatch.setattr(writer, name, refuse)
    for step in range(3):
        record(recorder, step)
        step_writer.take(False)
    step_writer.refuse("run.json was not brought up to date", OSError(errno.EIO, "Input/output error"))
    step_writer.end("completed")
    assert warnings == ["steps are no longer written (Input/output error); training goes on"]
