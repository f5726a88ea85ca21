"""Reads and reduces all traces in parallel processes, each one file at a time to keep memory bounded.

What reads run folders and captures, and what starts processes, is imported only where it is needed: that takes as long
as reading a small trace.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from distprof.errors import DataError
from distprof.facts.run import Run
from distprof.facts.trace import Trace
from distprof.traces.assemble import assemble_run, attach_traces, list_dark
from distprof.traces.join_cycles import group_cycles, join_cycles
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.one_job import require_after
from distprof.traces.reduce.phase_names import USUAL_NAMES, NameMap
from distprof.traces.reduce.traced_rank import TracedRank, trace_rank
from distprof.traces.sources import (
    Source,
    format_unreadable,
    list_called,
    list_sources,
    list_window_traces,
    raise_nothing_readable,
)

Progress = Callable[[int, int], None]
"""Called with the number of files read so far and the total."""
MIN_PARALLEL_BYTES = 4_000_000
"""Below this total size, starting worker processes takes longer than reading."""


def _silent(done: int, total: int) -> None:
    pass


def read_paths(paths: Sequence[Path], names: NameMap, on_progress: Progress = _silent) -> Run:
    """Reads everything at the paths as one run: a run folder, its kernel windows and traces from elsewhere, in any mix.

    Unreadable files are left out and listed with the reason in ``unread``.

    Raises:
        DataError: Nothing is readable, or the inputs belong to different jobs.
    """
    sources, unread = list_sources(paths)
    folders = [source.path for source in sources if source.kind == "run"]
    if len(folders) > 1:
        raise DataError(f"{folders[0]} and {folders[1]}: two runs: pass one run folder, and traces of the same job")
    traces = [source for source in sources if source.kind != "run"]
    if folders:
        run = load_run(folders[0], names, on_progress, beside=traces)
        return dataclasses.replace(run, unread=(*unread, *run.unread))
    traced, failed = reduce_all(traces, names, on_progress)
    if not traced:
        raise_nothing_readable([*unread, *failed])
    traced = _join_all_cycles(traced, names)
    return dataclasses.replace(assemble_run(traced), unread=(*unread, *failed, *list_dark(traced)))


def load_run(
    folder: Path, names: NameMap = USUAL_NAMES, on_progress: Progress = _silent, *, beside: Sequence[Source] = ()
) -> Run:
    """Reads a run folder with its kernel windows, and other traces of the same job.

    Unreadable windows only give a warning, since the run's own records do not depend on them. Unreadable traces in
    ``beside`` are listed in ``unread``.

    Raises:
        DataError: The run is unreadable, or the run and the traces are of different jobs.
    """
    from distprof.storage.run_folder import read_run

    run = read_run(folder)
    own: list[TracedRank] = []
    try:
        sources, damaged = list_window_traces(folder)
        own, failed = reduce_all(sources, names, on_progress) if sources else ([], [])
        damaged += failed
        run = attach_traces(run, own) if own and not beside else run
    except (DataError, OSError) as error:
        own, damaged = [], [str(error)]
    if len(called := list_called(folder)) > 1:
        earlier = ", ".join(called[-2:-5:-1]) + (", ..." if len(called) > 4 else "")
        damaged.append(f"earlier ones of this job are in kernels/ ({earlier}): pass their folders")
    left_out = [f"kernel windows are left out: {reason}" for reason in damaged]
    run = dataclasses.replace(run, warnings=(*run.warnings, *left_out))
    if not beside:
        return run
    traced, failed = reduce_all(beside, names, on_progress)
    failed += list_dark(traced)
    require_after(run.meta.started_utc, [item.claim for item in traced])
    run = attach_traces(run, [*own, *traced]) if own or traced else run
    return dataclasses.replace(run, unread=(*run.unread, *failed))


def _join_all_cycles(traced: list[TracedRank], names: NameMap) -> list[TracedRank]:
    """Reads again, as one, what single processes wrote one after another."""
    kept = dict(enumerate(traced))
    for indexes in group_cycles(traced):
        parts = [kept.pop(index) for index in indexes]
        kept[indexes[0]] = trace_rank(join_cycles([read_kineto(Path(part.head.path)) for part in parts]), names)
    return [kept[index] for index in sorted(kept)]


def read_traces(source: Source, *, all_processes: bool = False, only_times: bool = False) -> list[Trace]:
    """One trace per process in the file; the options are those of `distprof.traces.nsys.read_nsys.read_nsys`."""
    if source.kind == "kineto":
        return [read_kineto(source.path)]
    import tempfile

    from distprof.traces.nsys.nsys_tool import export_report
    from distprof.traces.nsys.read_nsys import read_nsys

    if source.kind == "nsys":
        return read_nsys(source.path, all_processes=all_processes, only_times=only_times)
    with tempfile.TemporaryDirectory(prefix="distprof-") as folder:
        exported = export_report(source.path, Path(folder))
        return read_nsys(exported, all_processes=all_processes, only_times=only_times)


def reduce_all(sources: Sequence[Source], names: NameMap, on_progress: Progress) -> tuple[list[TracedRank], list[str]]:
    """Reduces every source, largest first, and returns them in the given order; and the unreadable ones with reasons.

    Raises:
        DataError: A worker process was killed.
    """
    workers = min(len(sources), len(os.sched_getaffinity(0)))
    if workers < 2 or sum(source.size_bytes for source in sources) < MIN_PARALLEL_BYTES:
        found = []
        for done, source in enumerate(sources, start=1):
            found.append(_reduce(source, names))
            on_progress(done, len(sources))
        return _part(found)
    return _part(_reduce_in_parallel(sources, names, on_progress, workers))


def _reduce_in_parallel(
    sources: Sequence[Source], names: NameMap, on_progress: Progress, workers: int
) -> list[list[TracedRank] | str]:
    """What `_reduce` finds in every source.

    Raises:
        DataError: A worker process was killed.
    """
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor, as_completed  # not to be had when Python ends
    from concurrent.futures.process import BrokenProcessPool

    results: dict[int, list[TracedRank] | str] = {}
    by_size = sorted(range(len(sources)), key=lambda index: -sources[index].size_bytes)
    start = "spawn" if "torch" in sys.modules else "fork"  # torch's threads do not survive a fork
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(start)) as pool:
        indexes: dict[Future[list[TracedRank] | str], int] = {
            pool.submit(_reduce, sources[index], names): index for index in by_size
        }
        try:
            for future in as_completed(indexes):
                results[indexes[future]] = future.result()
                on_progress(len(results), len(sources))
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise DataError("a worker process that read traces was killed, probably for lack of memory") from None
            raise
    return [results[index] for index in range(len(sources))]


def _reduce(source: Source, names: NameMap) -> list[TracedRank] | str:
    """The source's ranks, or why it cannot be read."""
    try:
        return [trace_rank(trace, names) for trace in read_traces(source)]
    except (DataError, OSError) as error:
        return format_unreadable(source.path, error)


def _part(found: Sequence[list[TracedRank] | str]) -> tuple[list[TracedRank], list[str]]:
    traced = [item for several in found if not isinstance(several, str) for item in several]
    return traced, [reason for reason in found if isinstance(reason, str)]
