"""Orders for kernel windows: from a file in the run folder, one at a time, each with an answer."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from distprof.profiler.windows.window_coordinator import WindowCoordinator
from distprof.record.gather.window_agreement import WindowOutcome
from distprof.storage.window_files import (
    REQUEST,
    STATE,
    WindowRequest,
    WindowState,
    publish_request,
    read_state,
    withdraw_request,
)

MINE = WindowRequest(id="mine", steps=4)


def make_coordinator(
    folder: Path, said: list[str], obstacle: str | None = None, apart: tuple[int, ...] = ()
) -> WindowCoordinator:
    return WindowCoordinator(
        folder, kept_steps=3, apart=apart, describe_obstacle=lambda: obstacle, print_line=said.append
    )


def test_a_request_is_taken_once_and_followed_to_its_end(tmp_path: Path) -> None:
    said: list[str] = []
    coordinator = make_coordinator(tmp_path, said, apart=(1,))
    assert coordinator.look() == 0 and read_state(tmp_path) is None
    assert publish_request(tmp_path, MINE)
    assert coordinator.look() == 4 == coordinator.look() and not (tmp_path / REQUEST).exists()
    assert read_state(tmp_path) == WindowState(id="mine", state="taken")
    coordinator.agreed(9, 4)
    agreed = WindowState(id="mine", state="agreed", steps=(10, 11, 12, 13), folder="kernels/step-00000010")
    assert read_state(tmp_path) == agreed
    coordinator.ended(
        [WindowOutcome.WRITTEN, WindowOutcome.WRITTEN, WindowOutcome.FAILED, WindowOutcome.OTHER_PROFILER]
    )
    state = read_state(tmp_path)
    assert state is not None and state.state == "ended" and state.steps == agreed.steps
    assert [text.partition(":")[0] for text in state.missing] == ["rank 2", "rank 3", "rank 1"]
    assert coordinator.look() == 0
    assert said[:2] == [
        "distprof: kernel window of steps 10 to 13, because distprof window has asked for it",
        f"distprof: kernel window: {tmp_path / agreed.folder}",
    ]
    assert [path.name for path in tmp_path.iterdir()] == [STATE]


@pytest.mark.parametrize("links", [True, False])
def test_two_ask_and_one_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", lambda *given: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    assert publish_request(tmp_path, MINE)
    assert not publish_request(tmp_path, WindowRequest(id="other", steps=None))
    withdraw_request(tmp_path, WindowRequest(id="other", steps=None))
    assert make_coordinator(tmp_path, []).look() == 4
    assert publish_request(tmp_path, MINE)
    withdraw_request(tmp_path, MINE)
    assert not (tmp_path / REQUEST).exists() and len(list(tmp_path.iterdir())) == 1


def test_who_asks_while_a_window_is_open_waits_for_its_end(tmp_path: Path) -> None:
    coordinator = make_coordinator(tmp_path, [])
    publish_request(tmp_path, WindowRequest(id="other", steps=None))
    assert coordinator.look() == 3
    publish_request(tmp_path, MINE)
    coordinator.agreed(4, 3)
    assert coordinator.look() == 3
    coordinator.ended([WindowOutcome.WRITTEN])
    assert coordinator.look() == 4


def test_what_stands_in_the_way_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    coordinator = make_coordinator(tmp_path, said, obstacle="there is no profiler")
    publish_request(tmp_path, MINE)
    assert coordinator.look() == 0
    assert read_state(tmp_path) == WindowState(id="mine", state="refused", text="there is no profiler")
    assert said == ["distprof: no kernel window: there is no profiler"]
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(free=5 << 20))
    coordinator = make_coordinator(tmp_path, said)
    publish_request(tmp_path, MINE)
    assert (
        coordinator.look() == 0
        and said[1] == "distprof: no kernel window: 5 MiB are free in the run folder, and 256 MiB are the least"
    )


def test_the_end_of_the_job_answers_whoever_waits(tmp_path: Path) -> None:
    coordinator = make_coordinator(tmp_path, [])
    coordinator.close()
    assert read_state(tmp_path) is None
    publish_request(tmp_path, MINE)
    coordinator.close()
    assert read_state(tmp_path) == WindowState(id="mine", state="refused", text="the job has ended")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": "distprof.window/1.0", "id": "a", "steps": 100000}', '{"schema": "other/1.0"}']
)
def test_a_file_that_makes_no_sense_is_said_and_removed(tmp_path: Path, text: str) -> None:
    said: list[str] = []
    (tmp_path / REQUEST).write_text(text)
    assert make_coordinator(tmp_path, said).look() == 0
    assert len(said) == 1 and str(tmp_path / REQUEST) in said[0] and not (tmp_path / REQUEST).exists()


def test_the_files_are_plain_json(tmp_path: Path) -> None:
    publish_request(tmp_path, MINE)
    told = json.loads((tmp_path / REQUEST).read_text())
    assert told == {"schema": "distprof.window/1.0", "id": "mine", "steps": 4}


def test_a_request_that_cannot_be_taken_away_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    coordinator = make_coordinator(tmp_path, said)
    (tmp_path / REQUEST).mkdir()
    for _ in range(3):
        assert coordinator.look() == 0
    coordinator.close()
    assert len(said) == 1 and said[0].endswith("window.request: not a file: a folder")
    (tmp_path / REQUEST).rmdir()
    assert publish_request(tmp_path, MINE) and make_coordinator(tmp_path, said).look() == 4


@pytest.mark.parametrize("text", ["5", "null", "[]", "true"])
def test_a_request_that_is_no_object_is_said_and_taken_away(text: str, tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / REQUEST).write_text(text)
    assert make_coordinator(tmp_path, said).look() == 0
    assert len(said) == 1 and not (tmp_path / REQUEST).exists()
