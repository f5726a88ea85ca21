"""How long the training thread waits for batches of a DataLoader, how many are ready when it asks, what workers take.

Whether a worker can keep up is told by its own time for a batch, which it adds to memory that it shares with the rank
that has forked it. Nothing is put into what a worker gets, so where workers are spawned, they are as without distprof,
and their own time is not known.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections.abc import Callable
from operator import sub
from threading import get_ident
from types import ModuleType
from typing import Any, NamedTuple

import torch.utils.data.dataloader as loaders
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch as fetchers

from distprof.compiling import is_compiling, skip_compile
from distprof.error_boundary import ErrorBoundary
from distprof.facts.run import PHASE_CODE, Phase
from distprof.patching import leave_out_of_warnings, replace, require_fit
from distprof.record.step.recorder import Recorder

_DATA = PHASE_CODE[Phase.DATA]
LOSS = "what DataLoaders take is not recorded from some step on"
_BATCHES, _HOST_NS, _COLLATE_NS, _CPU_NS, _ENDED_NS = range(5)
"""What a worker counts, and when its last batch was there."""
_WIDTH = 5


class Workers:
    """What the workers of an iterator have counted, and what of it has been noted."""

    __slots__ = ("brought_ns", "counters", "seen")

    def __init__(self, number: int) -> None:
        self.counters = memoryview(mmap.mmap(-1, 8 * _WIDTH * number)).cast("q")
        """In memory that they share, one worker behind the other."""
        self.seen = [0] * _WIDTH
        """Their sums at the last batch."""
        self.brought_ns = [0, 0]
        """How long batches took that were ready, and how many these were."""


_shared: Workers | None = None
"""The counters of the workers that are being forked; a worker keeps those it was forked with. None: this process forks
none now."""
_workers: weakref.WeakKeyDictionary[Any, Workers] = weakref.WeakKeyDictionary()
"""By iterator."""


class _Replacements:
    """Functions of torch's loaders that are replaced, until `close`."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """``note`` learns of it if they fail."""
        self._boundary = ErrorBoundary(LOSS, note)
        self._undo: list[Callable[[], None]] = []

    def close(self) -> None:
        """Ends; torch's functions are as they were."""
        self._boundary.on = False
        while self._undo:
            self._undo.pop()()

    def _replace(self, module: ModuleType, kind: str, name: str, make: Callable[[Any], Any]) -> None:
        place = require_fit(module, kind)
        new = make(require_fit(place, name))
        leave_out_of_warnings(new)
        skip_compile(new)
        self._undo.append(replace([place], name, new))


class LoaderWatch(_Replacements):
    """Notes each batch of the training thread in its recorder."""

    def __init__(
        self, recorder: Recorder, note: Callable[[str], None], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Nothing is noted yet.

        Args:
            recorder: Of the training thread.
            note: Learns of it if this fails.
            now_ns: The host clock, monotonic, ns.
        """
        super().__init__(note)
        self._recorder, self._now, self._pid = recorder, now_ns, os.getpid()

    def open(self) -> None:
        """Begins."""
        for kind in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
            self._boundary.run(self._replace, loaders, kind, "_next_data", self._watch_next)

    def _watch_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, boundary = self._recorder, self._boundary

        def next_data(iterator: Any) -> Any:
            training = boundary.on and get_ident() == recorder.timeline.thread and os.getpid() == self._pid
            if not training or is_compiling():
                return original(iterator)
            asked = boundary.run(_look, iterator)
            begin_ns = self._now()
            batch = original(iterator)
            boundary.run(self._add, iterator, asked or _Asked(), begin_ns)
            return batch

        return next_data

    def _add(self, iterator: Any, asked: _Asked, begin_ns: int) -> None:
        recorder, number, lasted_ns = self._recorder, iterator._num_workers, self._now() - begin_ns
        made = [0, 0, 0, 0] if number else [1, lasted_ns, 0, time.thread_time_ns() - asked.cpu_ns]
        workers = _workers.get(iterator) if number else None
        if workers is not None:
            counted = workers.counters.tolist()
            sums = [sum(counted[count::_WIDTH]) for count in range(_ENDED_NS)]
            made, workers.seen = [*map(sub, sums, workers.seen)], sums
            if asked.worker is not None:
                late_ns = counted[_WIDTH * asked.worker + _ENDED_NS] - begin_ns
                lasted_ns = _measure_wait(workers, lasted_ns, late_ns)
        inside, part = recorder.recording, recorder.between.own_part
        if recorder.running_code == _DATA if inside else part is not None:
            setting = (number, iterator._prefetch_factor if number else 0)
            counts = (1, asked.ready, asked.unpinned, *made)
            recorder.pauses.add_batch(0 if inside else 1 + (part or 0), lasted_ns, counts, setting)


def _measure_wait(workers: Workers, lasted_ns: int, late_ns: int) -> int:
    """How much sooner a batch would have been here if it had been ready: bringing it takes time, too.

    Args:
        workers: Of its iterator.
        lasted_ns: From asking for the batch until it is here.
        late_ns: From asking for it until its worker has it; below 0: it was ready.
    """
    taken = workers.brought_ns
    if late_ns <= 0:
        taken[0] += lasted_ns
        taken[1] += 1
        return 0
    return max(min(late_ns, lasted_ns), lasted_ns - taken[0] // taken[1] if taken[1] else 0)


class _Asked(NamedTuple):
    """How a loader stands when a batch is asked for."""

    ready: int = 0
    """Batches that need nothing more."""
    unpinned: int = 0
    """Those that have yet to be copied into pinned memory."""
    worker: int | None = None
    """Who makes the one that is asked for. None: it has no workers, or somebody else brings it."""
    cpu_ns: int = 0
    """The processor time of the thread that makes it if there are no workers."""


def _look(iterator: Any) -> _Asked:
    if not iterator._num_workers:
        return _Asked(cpu_ns=time.thread_time_ns())
    early = sum(len(info) > 1 for info in iterator._task_info.values())  # a batch before them is not there
    done, queue = iterator._worker_result_queue.qsize(), iterator._data_queue
    if queue is not iterator._worker_result_queue:
        return _Asked(early + queue.qsize(), done)
    task = iterator._task_info.get(iterator._rcvd_idx) if getattr(iterator, "_in_order", True) else None
    return _Asked(early + done, 0, None if task is None else task[0])


class WorkerWatch(_Replacements):
    """Has workers that are forked from now on add up their own time."""

    def open(self) -> None:
        """Begins."""
        for module, kind, name, make in (
            (loaders, "_MultiProcessingDataLoaderIter", "__init__", self._watch_start),
            (fetchers, "_MapDatasetFetcher", "fetch", _watch_fetch),
            (fetchers, "_IterableDatasetFetcher", "fetch", _watch_fetch),
        ):
            self._boundary.run(self._replace, module, kind, name, make)

    def _watch_start(self, original: Callable[..., None]) -> Callable[..., None]:
        def start(iterator: Any, *args: Any, **options: Any) -> None:
            global _shared
            before = _shared
            self._boundary.run(_share, iterator, *args, **options)
            try:
                original(iterator, *args, **options)
            finally:
                _shared = before

        return start


def _share(iterator: Any, loader: Any) -> None:
    """Makes the counters of the workers that are about to be forked."""
    global _shared
    _shared = _workers[iterator] = Workers(loader.num_workers)


def _watch_fetch(original: Callable[..., Any]) -> Callable[..., Any]:
    """What a worker gets a batch with. In other processes it does what it did."""

    def fetch(fetcher: Any, indices: Any) -> Any:
        worker = None if _shared is None else get_worker_info()
        if worker is None or _shared is None:
            return original(fetcher, indices)
        counters, first = _shared.counters, _WIDTH * worker.id
        if not isinstance(fetcher.collate_fn, _TimedCollate):
            fetcher.collate_fn = _TimedCollate(fetcher.collate_fn, counters, first + _COLLATE_NS)
        begin_ns, begin_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        batch = original(fetcher, indices)
        ended_ns = time.monotonic_ns()
        counters[first + _CPU_NS] += time.thread_time_ns() - begin_cpu_ns
        counters[first + _HOST_NS] += ended_ns - begin_ns
        counters[first + _BATCHES] += 1
        counters[first + _ENDED_NS] = ended_ns
        return batch

    return fetch


class _TimedCollate:
    """Makes a batch of samples as a function of the script does."""

    def __init__(self, original: Callable[[Any], Any], counters: memoryview[int], place: int) -> None:
        self._original, self._counters, self._place = original, counters, place

    def __call__(self, samples: Any) -> Any:
        begin_ns = time.monotonic_ns()
        batch = self._original(samples)
        self._counters[self._place] += time.monotonic_ns() - begin_ns
        return batch
