"""Reads and reduces all traces in parallel, each worker one file at a time to keep memory bounded.

What reads captures, and what starts processes, is imported only where it is needed: that takes as long as reading a
small trace.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from distprof import __version__
from distprof.errors import DataError, DistprofError
from distprof.facts.trace import Trace
from distprof.traces.join_cycles import group_cycles, join_cycles
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.reduce.phase_names import USUAL_NAMES, NameMap
from distprof.traces.reduce.traced_rank import TracedRank, trace_rank
from distprof.traces.reduced_file import read_reduced
from distprof.traces.sources import Source, fetch, format_unreadable

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with the number of files read so far and the total."""
MIN_PARALLEL_BYTES = 4_000_000
"""Below this total size, starting worker processes takes longer than reading."""


def show_nothing(done: int, total: int) -> None:
    """Progress that nobody looks at."""


def reduce_traces(
    sources: Sequence[Source], names: NameMap, on_progress: Progress = show_nothing, executor: str | None = None
) -> tuple[list[TracedRank], list[str]]:
    """As `reduce_all`, and what single processes wrote one after another is read again, as one.

    Raises:
        DistprofError: As of `reduce_all`, or a cycle of a process cannot be read again.
    """
    traced, failed = reduce_all(sources, names, on_progress, executor)
    groups = group_cycles(traced)
    if not groups:
        return traced, failed
    by_name = {str(source): source for source in sources}
    cycles: list[tuple[Source, ...]] = []
    for indexes in groups:
        heads = [traced[index].head.path for index in indexes]
        if any(path not in by_name for path in heads):
            raise DataError(f"{heads[0]} and {heads[1]}: traces of one process: reduce them with one command")
        cycles.append(tuple(by_name[path] for path in heads))
    kept = dict(enumerate(traced))
    for indexes, result in zip(groups, _reduce_tasks(cycles, names, show_nothing, executor), strict=True):
        for index in indexes:
            del kept[index]
        if isinstance(result, str):
            raise DataError(result)
        kept[indexes[0]] = result[0]
    return [kept[index] for index in sorted(kept)], failed


def read_traces(source: Source, *, all_processes: bool = False, only_times: bool = False) -> list[Trace]:
    """One trace per process in the file; the options are those of `distprof.traces.nsys.read_nsys.read_nsys`.

    Raises:
        DistprofError: It cannot be read, or is reduced already.
    """
    with fetch(source) as local:
        if local is None:
            return []
        if local.kind == "reduced":
            raise DataError(f"{local.path}: a reduced rank has no single events any more: pass the trace itself")
        traces = _read_local(local, all_processes=all_processes, only_times=only_times)
    return [structs.replace(each, head=structs.replace(each.head, path=str(local))) for each in traces]


def _read_local(source: Source, *, all_processes: bool = False, only_times: bool = False) -> list[Trace]:
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


def reduce_all(
    sources: Sequence[Source], names: NameMap, on_progress: Progress, executor: str | None = None
) -> tuple[list[TracedRank], list[str]]:
    """Reduces every source, largest first, and returns them in the given order; and the unreadable ones with reasons.

    Raises:
        DistprofError: Workers were killed, again and again, or there is no such executor.
    """
    found = _reduce_tasks([(source,) for source in sources], names, on_progress, executor)
    traced = [item for several in found if not isinstance(several, str) for item in several]
    return traced, [reason for reason in found if isinstance(reason, str)]


def _reduce_tasks(
    tasks: Sequence[tuple[Source, ...]], names: NameMap, on_progress: Progress, executor: str | None
) -> list[list[TracedRank] | str]:
    """What `reduce_task` finds in each."""
    workers = min(len(tasks), len(os.sched_getaffinity(0)))
    sizes = [sum(source.size_bytes for source in task) for task in tasks]
    own = any(source.url is not None and source.url.text.startswith("memory://") for task in tasks for source in task)
    if executor in (None, "local") and (workers < 2 or sum(sizes) < MIN_PARALLEL_BYTES or own):
        done = run_each(reduce_task, [(task, names, __version__) for task in tasks], on_progress)
        return [found for _, found in done]
    order = sorted(range(len(tasks)), key=lambda place: -sizes[place])
    calls = [(tuple(map(_name_everywhere, tasks[place])), names, __version__) for place in order]
    results = {
        order[at]: found for at, found in run_each(reduce_task, calls, on_progress, executor or "local", workers)
    }
    return [results[place] for place in range(len(tasks))]


def run_each(
    work: Callable[..., T],
    tasks: Sequence[tuple[object, ...]],
    on_progress: Progress,
    executor: str | None = None,
    workers: int = 1,
) -> Iterator[tuple[int, T]]:
    """What ``work`` returns for each task, and the task's place, as each is done.

    Args:
        work: As of `distprof.traces.executors.run_tasks`.
        tasks: As there.
        on_progress: Told how many are done.
        executor: As there. None: this process does them, one after the other, in their order.
        workers: As there.
    """
    done: Iterable[tuple[int, T]] = ((place, work(*task)) for place, task in enumerate(tasks))
    if executor is not None:
        from distprof.traces.executors import run_tasks  # what it imports cannot be had when Python ends

        done = run_tasks(executor, work, tasks, workers)
    for count, item in enumerate(done, start=1):
        on_progress(count, len(tasks))
        yield item


def _name_everywhere(source: Source) -> Source:
    """The source for a worker whose working directory is another."""
    return structs.replace(source, path=source.path.absolute(), shown=str(source)) if source.url is None else source


def reduce_task(sources: Sequence[Source], names: NameMap, version: str) -> list[TracedRank] | str:
    """The ranks of one source, or of the cycles of one process; or why it cannot be read. This runs in workers.

    Args:
        sources: One, or those that one process wrote one after another.
        names: What names represent.
        version: The distprof that merges the results: another would not count as this one does.
    """
    try:
        if version != __version__:
            raise DataError(f"{sources[0]}: a worker has distprof {__version__}, and not {version}: install the same")
        if len(sources) > 1:
            traces = [trace for source in sources for trace in read_traces(source)]
            return [trace_rank(join_cycles(traces), names)]
        with fetch(sources[0]) as local:
            if local is None:
                return []
            if local.kind != "reduced":
                return [trace_rank(trace, names) for trace in read_traces(local)]
            if names != USUAL_NAMES:
                raise DataError(f"{local.path}: --step and --phase come too late: pass them to distprof reduce")
            return [read_reduced(local.path)]
    except (DistprofError, OSError) as error:
        return format_unreadable(sources[0], error)
