"""Reads what a user names as one run: a run folder, traces, or both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import structs

from distprof.errors import DataError, UsageError
from distprof.facts.run import Run
from distprof.storage.remote import Place, fetch_file, list_remote
from distprof.traces.assemble import assemble_run, list_dark
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce_sources import Progress, reduce_traces, show_nothing
from distprof.traces.sources import Source, list_sources, raise_nothing_readable


def read_paths(
    paths: Sequence[Place],
    names: NameMap,
    on_progress: Progress = show_nothing,
    executor: str | None = None,
    *,
    generation: int | None = None,
) -> Run:
    """Reads everything at the paths as one run: a run folder, its kernel windows and traces from elsewhere, in any mix.

    Unreadable files are left out and listed with the reason in ``unread``.

    Args:
        paths: Paths and URLs.
        names: What names in traces represent.
        on_progress: Told how many files have been read.
        executor: Where traces are reduced, as `distprof.traces.executors.run_tasks` takes it.
        generation: As of `load_run`.

    Raises:
        DistprofError: Nothing is readable, the inputs belong to different jobs, or there is no such executor or
            generation.
    """
    if executor is not None:
        from distprof.traces.executors import require_engine

        require_engine(executor)  # also where there turns out to be no trace to reduce
    sources, unread = list_sources(paths)
    folders = [source for source in sources if source.kind == "run"]
    if len(folders) > 1:
        raise DataError(f"{folders[0]} and {folders[1]}: two runs: pass one run folder, and traces of the same job")
    traces = [source for source in sources if source.kind != "run"]
    if folders:
        from distprof.traces.load_run import load_run

        with _fetch_folder(folders[0]) as folder:
            run = load_run(folder, names, on_progress, beside=traces, executor=executor, generation=generation)
        return structs.replace(run, unread=(*unread, *run.unread))
    if generation is not None:
        raise UsageError(f"--generation {generation}: only a run folder has generations, not traces alone")
    traced, failed = reduce_traces(traces, names, on_progress, executor)
    if not traced:
        raise_nothing_readable([*unread, *failed] or [f"{paths[0]}: contains nothing that distprof can read"])
    return structs.replace(assemble_run(traced), unread=(*unread, *failed, *list_dark(traced)))


@contextlib.contextmanager
def _fetch_folder(source: Source) -> Iterator[Path]:
    """The run folder on this machine, for as long as it is read."""
    if source.url is None:
        yield source.path
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="distprof-") as name:
        folder = Path(name).resolve()
        for file in list_remote(source.url, depth=4)[1]:
            target = folder / file.below
            if not target.resolve().is_relative_to(folder):
                raise DataError(f"{source.url}: has a file outside of it: copy it to a disk")
            target.parent.mkdir(parents=True, exist_ok=True)
            fetch_file(file.url, target)
        yield folder
