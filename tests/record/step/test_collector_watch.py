"""What Python's garbage collector takes of a step: real collections, against clocks that the test moves by hand."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from distprof.facts.run import COLUMN, OWN_PHASES, PHASE_CODE, Phase
from distprof.record.step.collector_watch import CollectorWatch
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_row import pack_row
from tests.fakes import FakeClock

TAKES_NS = 7
NAMES = (*(f"{phase}_gc_host_ns" for phase in OWN_PHASES), "between_data_gc_host_ns", "between_gc_host_ns")


class ThreadClock:
    """Each collection reads it twice, and takes so long."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += TAKES_NS
        return self.now


@pytest.fixture(name="recorder")
def watched_recorder() -> Iterator[Recorder]:
    recorder = Recorder(now_ns=FakeClock())
    watch = CollectorWatch(recorder, ThreadClock())
    gc.disable()  # only the test collects
    watch.open()
    yield recorder
    watch.close()
    gc.enable()


def read_rows(recorder: Recorder) -> list[dict[str, float]]:
    """What is known of each step, without zeros."""
    rows = [pack_row(record, memory_bytes=None, memory_peak_bytes=None) for record in recorder.drain()]
    return [{name: row[COLUMN[name]] for name in NAMES if row[COLUMN[name]] != 0} for row in rows]


def test_collections_count_where_the_training_thread_was(recorder: Recorder) -> None:
    for step in range(2):
        gc.collect()  # before the first step nothing is measured
        recorder.begin_step(step, warmup=False)
        recorder.enter(PHASE_CODE[Phase.FORWARD])
        gc.collect()
        gc.collect()
        recorder.exit()
        gc.collect()
        recorder.end_step()
    first, second = read_rows(recorder)
    inside = {"forward_gc_host_ns": 2 * TAKES_NS, "other_gc_host_ns": TAKES_NS}
    assert {name: value for name, value in first.items() if value == value} == inside  # NaN: not measured
    assert second == inside | {"between_gc_host_ns": TAKES_NS}


def test_collections_on_other_threads_and_in_shadow_steps_do_not_count(recorder: Recorder) -> None:
    recorder.begin_step(0, warmup=False)
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    recorder.end_step()
    recorder.begin_step(1, warmup=False, shadow=True)
    gc.collect()
    recorder.end_step()
    recorder.begin_step(2, warmup=False)
    recorder.end_step()
    rows = read_rows(recorder)
    assert not any(value > 0 for row in rows for value in row.values())


def test_callbacks_are_as_they_were() -> None:
    before = list(gc.callbacks)
    watch = CollectorWatch(Recorder())
    watch.open()
    assert len(gc.callbacks) == len(before) + 1
    watch.close()
    watch.close()
    assert gc.callbacks == before
