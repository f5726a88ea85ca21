"""Reads a run folder, with the traces of its job.

What reads traces is imported only if there are any: a job whose ranks end would wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.facts.run import Run
from distprof.storage.generations import read_generations

if TYPE_CHECKING:
    from distprof.traces.reduce.phase_names import NameMap
    from distprof.traces.reduce_sources import Progress
    from distprof.traces.sources import Source


def load_run(
    folder: Path, names: NameMap | None = None, on_progress: Progress | None = None, *,
    beside: Sequence[Source] = (), executor: str | None = None, generation: int | None = None,
) -> Run:  # fmt: skip
    """Reads a run folder with its kernel windows, and other traces of the same job.

    Args:
        folder: The run folder.
        names: What names in traces represent. None: the usual names.
        on_progress: Told how many ranks and then how many traces have been read; with it, several processes read.
        beside: Other traces. Those that cannot be read are listed in ``unread``.
        executor: As of `distprof.traces.read_paths.read_paths`.
        generation: Of a job whose ranks were started again, the start to read. None: the newest one with a measured
            step.

    Raises:
        DataError: The run is unreadable, or the run and the traces are of different jobs.
        UsageError: There is no such generation.
    """
    read_each = None
    if on_progress is not None:
        from distprof.traces.read_streams import read_in_processes

        read_each = read_in_processes(on_progress)
    run, folder = read_generations(folder, generation, read_each)
    if not beside and not os.path.lexists(folder / "kernels"):
        return run
    from distprof.traces.add_traces import add_traces

    return add_traces(run, folder, names, on_progress, beside=beside, executor=executor)
