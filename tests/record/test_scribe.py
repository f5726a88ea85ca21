"""A full disk, a late end: what one rank's file still holds."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from distprof.record.recorder import Recorder
from distprof.record.scribe import Scribe
from distprof.run import COLUMN, Peak, RankInfo
from distprof.stream import StreamWriter, read_stream

INFO = RankInfo(
    rank=0, local_rank=0, host="h", pid=1, device="cpu", snapshot=None, peak=Peak(flops_per_s=None, source="none")
)


def make_scribe(path: Path, warnings: list[str]) -> tuple[Recorder, Scribe, StreamWriter]:
    recorder = Recorder()
    writer = StreamWriter(path, run_id="r", world_size=1, info=INFO)
    return recorder, Scribe(recorder=recorder, writer=writer, device=torch.device("cpu"), warn=warnings.append), writer


def record(recorder: Recorder, step: int) -> None:
    recorder.begin_step(step, warmup=False)
    recorder.end_step()


def test_steps_are_written_as_they_are_taken(tmp_path: Path) -> None:
    recorder, scribe, _ = make_scribe(tmp_path / "a", [])
    record(recorder, 0)
    assert [row[COLUMN["step"]] for row in scribe.take(False)] == [0]
    assert len(read_stream(tmp_path / "a").rows) == 1  # there already, without an end
    record(recorder, 1)
    scribe.take(False)
    scribe.note("something was not measured")
    scribe.end("completed")
    scribe.end("failed")  # a second end changes nothing
    stream = read_stream(tmp_path / "a")
    assert [row[COLUMN["step"]] for row in stream.rows] == [0, 1]
    assert stream.info.ended == "completed" and stream.info.notes == ("something was not measured",)


def test_fault_08_a_full_disk_stops_writing_once_and_training_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    recorder, scribe, writer = make_scribe(tmp_path / "a", warnings)
    record(recorder, 0)
    scribe.take(False)

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(writer, "write_steps", refuse)
        record(recorder, 1)
        assert len(scribe.take(False)) == 1  # the rows still travel to rank 0
    record(recorder, 2)
    scribe.take(False)
    scribe.end("completed")
    stream = read_stream(tmp_path / "a")
    assert [row[COLUMN["step"]] for row in stream.rows] == [0]
    assert warnings == ["steps are no longer written (No space left on device); training goes on"]
    assert stream.info.rows_lost == 2


def test_fault_08_whatever_fails_after_the_first_time_is_not_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    recorder, scribe, writer = make_scribe(tmp_path / "a", warnings)

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("write_steps", "write_end"):
        monkeypatch.setattr(writer, name, refuse)
    for step in range(3):
        record(recorder, step)
        scribe.take(False)
    scribe.refuse("run.json was not brought up to date", OSError(errno.EIO, "Input/output error"))
    scribe.end("completed")
    assert warnings == ["steps are no longer written (Input/output error); training goes on"]
