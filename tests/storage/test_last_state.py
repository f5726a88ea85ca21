"""Where a rank stood when it was killed: known from what outlives its process."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

import pytest

from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.step.recorder import Recorder
from distprof.record.step.timeline import PhaseContext
from distprof.storage.last_state import describe_place, drop_place, open_place, read_place


def read(folder: Path) -> str | None:
    inside = os.open(folder, os.O_RDONLY)
    try:
        place = read_place(folder / "rank-00000.jsonl", inside=inside)
        return None if place is None else describe_place(place)
    finally:
        os.close(inside)


def stop(recorder: Recorder, where: str) -> None:
    """Goes through steps up to a place."""
    backward = PhaseContext(recorder, recorder.timeline, PHASE_CODE[Phase.BACKWARD])
    recorder.begin_step(6, warmup=False)
    recorder.end_step()
    if where == "between":
        return
    recorder.begin_step(7, warmup=False, shadow=where == "shadow")
    if where == "begin":
        return
    backward.__enter__()
    if where == "mark":
        recorder.mark(PHASE_CODE[Phase.ALL_REDUCE])
    elif where == "after":
        backward.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("between", "after step 6, before the next"), ("begin", "in step 7, other"), ("phase", "in step 7, backward"),
        ("mark", "in step 7, all_reduce"), ("after", "in step 7, other"), ("shadow", "in step 7"),
    ],
)  # fmt: skip
def test_a_process_that_is_killed_has_said_where_it_stood(where: str, told: str, tmp_path: Path) -> None:
    place = open_place(tmp_path / "rank-00000.jsonl")
    assert place is not None
    child = os.fork()
    if not child:
        try:
            recorder = Recorder()
            recorder.timeline.place = place
            stop(recorder, where)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert read(tmp_path) == told
    drop_place(tmp_path / "rank-00000.jsonl")
    assert read(tmp_path) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 15, b"x" * 17, struct.pack("=qq", -1, -1), struct.pack("=qq", 3, 99), struct.pack("=qq", 2**60, 1)],
)
def test_what_makes_no_sense_is_not_told(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank-00000.position").write_bytes(data)
    assert read(tmp_path) is None


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(struct.pack("=qq", 3, 1))
    (tmp_path / "rank-00000.position").symlink_to(tmp_path / "other")
    assert read(tmp_path) is None
    (tmp_path / "rank-00000.position").unlink()
    os.mkfifo(tmp_path / "rank-00000.position")
    assert read(tmp_path) is None


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    assert open_place(tmp_path / "missing" / "rank-00000.jsonl") is None
