"""How long the training thread waits for a core, by step: from a file that the test writes, and from Linux."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from distprof.facts.run import COLUMN
from distprof.record.step.core_wait_watch import SCHEDSTAT, CoreWaitWatch
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_row import pack_row
from tests.fakes import FakeClock

NAN = float("nan")


class Steps:
    """Steps of a recorder, and the file that says how long the thread has waited by their ends, ns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recorder = Recorder(now_ns=FakeClock())
        self.watch = CoreWaitWatch(self.recorder, path)
        self.watch.open()
        self._number = 0

    def run(self, *waited: int | str, shadow: bool = False) -> list[float]:
        """One step after the other; what their rows say."""
        for each in waited:
            self.recorder.begin_step(self._number, warmup=False, shadow=shadow)
            self._number += 1
            self.path.write_text(f"123456 {each} 78\n")
            self.recorder.end_step()
        rows = [pack_row(record, memory_bytes=None, memory_peak_bytes=None) for record in self.recorder.drain()]
        return [float(row[COLUMN["core_wait_ns"]]) for row in rows]


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path / "schedstat")


def test_a_step_waits_from_the_end_of_the_one_before_to_its_own(steps: Steps) -> None:
    """The first opens the file, and the second has none before it."""
    np.testing.assert_array_equal(steps.run(10, 20, 50, 50, 57), [NAN, NAN, 30, 0, 7])


def test_after_a_step_that_was_not_recorded_it_is_not_known(steps: Steps) -> None:
    steps.run(10, 20, 50)
    steps.run(60, 70, shadow=True)
    np.testing.assert_array_equal(steps.run(80, 95), [NAN, 15])


@pytest.mark.parametrize("content", ["", "5", "none of these", "1 x 3"])
def test_what_cannot_be_read_is_not_asked_for_again(content: str, tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd") if SCHEDSTAT.exists() else []
    steps = Steps(tmp_path / "schedstat")
    recorder = steps.recorder
    for step in range(3):
        recorder.begin_step(step, warmup=False)
        steps.path.write_text(content)
        recorder.end_step()
    assert recorder.pauses.read_core_wait is None
    assert all(np.isnan(each) for each in steps.run())
    if before:
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    recorder = Recorder(now_ns=FakeClock())
    CoreWaitWatch(recorder, tmp_path / "missing").open()
    recorder.begin_step(0, warmup=False)
    recorder.end_step()
    assert recorder.pauses.read_core_wait is None


def test_of_another_thread_it_begins_anew(steps: Steps) -> None:
    steps.run(10, 20)
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.extend(steps.run(500, 510, 515)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found, [NAN, NAN, 5])


def test_the_file_is_closed(steps: Steps) -> None:
    open_before = len(os.listdir("/proc/self/fd")) if SCHEDSTAT.exists() else None
    steps.run(10, 20)
    steps.watch.close()
    steps.watch.close()
    assert steps.recorder.pauses.read_core_wait is None
    np.testing.assert_array_equal(steps.run(30), [NAN])
    if open_before is not None:
        assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="this kernel does not say how long threads wait")
def test_linux_counts_the_thread_itself() -> None:
    recorder = Recorder()
    watch = CoreWaitWatch(recorder)
    watch.open()
    for step in range(4):
        recorder.begin_step(step, warmup=False)
        recorder.end_step()
    rows = [pack_row(record, memory_bytes=None, memory_peak_bytes=None) for record in recorder.drain()]
    watch.close()
    waits_ns = np.array([row[COLUMN["core_wait_ns"]] for row in rows])
    assert np.isnan(waits_ns[:2]).all() and (waits_ns[2:] >= 0).all()
    assert waits_ns[2:].sum() <= int(SCHEDSTAT.read_text().split()[1])
