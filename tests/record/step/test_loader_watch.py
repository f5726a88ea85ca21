"""What DataLoaders take of a step: real ones and scripted ones, against clocks that the test moves by hand."""

from __future__ import annotations

import gc
import threading
from array import array
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data import dataloader as loaders
from torch.utils.data._utils import fetch as fetchers

from distprof.facts.columns import LOADER_FIELDS
from distprof.facts.run import COLUMN, PHASE_CODE, Phase
from distprof.record.step import loader_watch
from distprof.record.step.loader_watch import LoaderWatch, WorkerWatch
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_row import pack_row
from tests.fakes import FakeClock

DATA = PHASE_CODE[Phase.DATA]
TAKES_NS = 7
PLACES = [
    (loaders._SingleProcessDataLoaderIter, "_next_data"), (loaders._MultiProcessingDataLoaderIter, "_next_data"),
    (loaders._MultiProcessingDataLoaderIter, "__init__"), (fetchers._MapDatasetFetcher, "fetch"),
    (fetchers._IterableDatasetFetcher, "fetch"),
]  # fmt: skip


class Numbers(Dataset[int]):
    """Of which each takes so long on a clock, if there is one."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if self.clock is not None:
            self.clock.now += TAKES_NS
        return index


class Stream(IterableDataset[int]):
    """The same numbers, shared out over the workers."""

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        return iter(range(8) if worker is None else range(worker.id, 8, worker.num_workers))


@pytest.fixture(name="clock")
def hand_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(name="recorder")
def watched_recorder(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    before = [vars(place)[name] for place, name in PLACES]
    recorder, notes = Recorder(now_ns=clock), list[str]()
    watches = WorkerWatch(notes.append), LoaderWatch(recorder, notes.append, clock)
    for watch in watches:
        watch.open()
    yield recorder
    for watch in watches[::-1]:
        watch.close()
    assert [vars(place)[name] for place, name in PLACES] == before and notes == []


def take(recorder: Recorder, get: Callable[[], Any], *, step: int = 0) -> Any:
    """Takes a batch in phase data of a step."""
    recorder.begin_step(step, warmup=False)
    recorder.enter(DATA)
    batch = get()
    recorder.exit()
    recorder.end_step()
    return batch


def read_rows(recorder: Recorder) -> list[dict[str, float]]:
    """What is known of each step, without zeros."""
    rows = [pack_row(record, memory_bytes=None, memory_peak_bytes=None) for record in recorder.drain()]
    return [{name: row[COLUMN[name]] for name in LOADER_FIELDS if row[COLUMN[name]] not in (0, None)} for row in rows]


def test_without_workers_a_batch_takes_what_its_samples_take(recorder: Recorder, clock: FakeClock) -> None:
    batches = iter(DataLoader(Numbers(clock), batch_size=2))
    assert take(recorder, lambda: next(batches)).tolist() == [0, 1]
    recorder.between.enter(1)  # getting batches
    next(batches)
    recorder.between.exit()
    next(batches)
    take(recorder, lambda: None, step=1)
    first, second = read_rows(recorder)
    first.pop("worker_cpu_ns", None)
    second.pop("worker_cpu_ns", None)
    made = {"loader_batches": 1, "worker_batches": 1, "worker_host_ns": 2 * TAKES_NS}
    assert first == made | {"data_loader_host_ns": 2 * TAKES_NS}
    waits = {"between_data_loader_host_ns": 2 * TAKES_NS, "between_loader_host_ns": 2 * TAKES_NS}
    assert second == {name: 2 * count for name, count in made.items()} | waits


def test_batches_elsewhere_do_not_count(recorder: Recorder, clock: FakeClock) -> None:
    batches = iter(DataLoader(Numbers(clock)))
    next(batches)  # before the first step
    take(recorder, lambda: None)
    recorder.between.enter(2)  # evaluation
    next(batches)
    recorder.between.exit()
    thread = threading.Thread(target=lambda: take_in(batches))
    recorder.begin_step(1, warmup=False)
    recorder.enter(DATA)
    thread.start()
    thread.join()
    recorder.exit()
    recorder.enter(PHASE_CODE[Phase.FORWARD])
    next(batches)
    recorder.exit()
    recorder.end_step()
    recorder.begin_step(2, warmup=False, shadow=True)
    next(batches)
    recorder.end_step()
    take(recorder, lambda: None, step=3)
    assert not any(value > 0 for row in read_rows(recorder) for value in row.values())


def take_in(batches: Iterator[Any]) -> None:
    next(batches)


def make_iterator(**changes: Any) -> Any:
    """As torch's with two workers, of which the second makes the next batch."""
    queue = SimpleNamespace(qsize=lambda: 1)
    usual = {
        "_num_workers": 2, "_prefetch_factor": 3, "_task_info": {4: (1,), 5: (0,), 6: (1, "early"), 7: (0,)},
        "_rcvd_idx": 4, "_worker_result_queue": queue, "_data_queue": queue, "_in_order": True,
    }  # fmt: skip

    class Scripted:
        pass

    iterator = Scripted()
    vars(iterator).update(usual | changes)
    return iterator


@pytest.mark.parametrize(
    ("changes", "waited_ns", "counted"),
    [
        ({}, 30, {"loader_ready": 2}),  # one in the queue, one early; brought in the 10 ns that follow
        ({"_in_order": False}, 40, {"loader_ready": 2}),
        ({"_task_info": {}}, 40, {"loader_ready": 1}),
        ({"_data_queue": SimpleNamespace(qsize=lambda: 3)}, 40, {"loader_ready": 4, "loader_unpinned": 1}),
    ],
    ids=["in-order", "any-order", "a-worker-has-ended", "pinned"],
)  # fmt: skip
def test_a_worker_is_waited_for_until_its_batch_is_there(
    changes: dict[str, Any], waited_ns: int, counted: dict[str, int], recorder: Recorder, clock: FakeClock
) -> None:
    iterator = make_iterator(**changes)
    workers = loader_watch._workers[iterator] = loader_watch.Workers(2)
    workers.counters[0] = 1

    def bring(iterator: Any) -> str:
        workers.counters[5:] = array("q", [4, 400, 20, 100, clock.now + 30])
        clock.now += 40
        return "batch"

    watch = LoaderWatch(recorder, lambda text: pytest.fail(text), clock)
    next_data = watch._watch_next(bring)
    for step in range(2):
        assert take(recorder, lambda: next_data(iterator), step=step) == "batch"
    first, second = read_rows(recorder)
    usual = {"data_loader_host_ns": waited_ns, "loader_batches": 1, "loader_workers": 2, "loader_prefetch": 3}
    made = {"worker_batches": 5, "worker_host_ns": 400, "worker_collate_host_ns": 20, "worker_cpu_ns": 100}
    assert first == usual | counted | made  # those made before the first are its own
    assert second == usual | counted


def test_what_a_batch_that_is_ready_takes_is_no_wait(recorder: Recorder, clock: FakeClock) -> None:
    """Two are ready, and brought in 10 and 20 ns; the third is late by 60 of 100 ns, and brought in longer than these;
    the fourth by 95, and sooner."""
    iterator, moments = make_iterator(), iter([(-1, 10), (-5, 20), (60, 100), (95, 100)])
    workers = loader_watch._workers[iterator] = loader_watch.Workers(2)

    def bring(iterator: Any) -> None:
        late_ns, lasted_ns = next(moments)
        workers.counters[9] = clock.now + late_ns
        clock.now += lasted_ns

    next_data = LoaderWatch(recorder, lambda text: pytest.fail(text), clock)._watch_next(bring)
    clock.now = 1000
    for step in range(4):
        take(recorder, lambda: next_data(iterator), step=step)
    assert [row.get("data_loader_host_ns", 0) for row in read_rows(recorder)] == [0, 0, 100 - 15, 95]


def test_a_release_whose_loaders_are_otherwise_is_left_alone_and_noted(recorder: Recorder, clock: FakeClock) -> None:
    notes: list[str] = []
    next_data = LoaderWatch(recorder, notes.append, clock)._watch_next(lambda iterator: "batch")
    iterator = make_iterator(_task_info=None)
    assert [take(recorder, lambda: next_data(iterator), step=step) for step in range(2)] == ["batch", "batch"]
    assert len(notes) == 1 and notes[0].startswith("what DataLoaders take is not recorded")
    assert not any(value > 0 for row in read_rows(recorder)[1:] for value in row.values())


def collate(samples: list[int]) -> list[int]:
    """Of the script's own."""
    return [10 * sample for sample in samples]


@pytest.mark.parametrize("make", [Numbers, Stream], ids=["map", "iterable"])
def test_workers_that_are_forked_count_their_batches(make: Callable[[], Any], recorder: Recorder) -> None:
    loader = DataLoader(
        make(), batch_size=2, num_workers=2, collate_fn=collate, multiprocessing_context="fork",
        persistent_workers=True,
    )  # fmt: skip
    for epoch in range(2):
        got: list[list[int]] = take(recorder, lambda: list(loader), step=epoch)
        assert sorted(number for batch in got for number in batch) == [10 * number for number in range(8)]
    rows = read_rows(recorder)
    assert [row["loader_batches"] for row in rows] == [4, 4]
    assert sum(row["worker_batches"] for row in rows) == 8
    assert all(row["worker_host_ns"] >= row["worker_collate_host_ns"] > 0 for row in rows)
    assert (rows[0]["loader_workers"], rows[0]["loader_prefetch"]) == (2, 2)
    assert loader.collate_fn is collate and loader._iterator._collate_fn is collate  # type: ignore[union-attr]


def test_counters_go_with_their_iterator(recorder: Recorder) -> None:
    del recorder
    loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    assert len(loader_watch._workers[batches].counters) == 5 and loader_watch._shared is None
    next(batches)
    number = len(loader_watch._workers)
    del batches
    gc.collect()
    assert len(loader_watch._workers) == number - 1


@pytest.mark.slow
def test_workers_that_are_spawned_are_left_alone(recorder: Recorder) -> None:
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert [batch.tolist() for batch in take(recorder, lambda: list(loader))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    (row,) = read_rows(recorder)
    assert row["loader_batches"] == 2 and "worker_batches" not in row
