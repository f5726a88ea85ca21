"""Adds to a run what its kernel windows show, and other traces of the same job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from distprof.errors import DataError
from distprof.facts.run import Run
from distprof.traces.assemble import attach_traces, list_dark
from distprof.traces.one_job import require_after
from distprof.traces.reduce.phase_names import USUAL_NAMES, NameMap
from distprof.traces.reduce.traced_rank import TracedRank
from distprof.traces.reduce_sources import Progress, reduce_all, show_nothing
from distprof.traces.sources import Source, list_called, list_window_traces


def add_traces(
    run: Run, folder: Path, names: NameMap | None, on_progress: Progress | None, *,
    beside: Sequence[Source], executor: str | None,
) -> Run:  # fmt: skip
    """The run with its kernel windows, which lie in ``folder``, and with the traces in ``beside``.

    Unreadable windows only give a warning, since the run's own records do not depend on them. Unreadable traces in
    ``beside`` are listed in ``unread``.

    Raises:
        DataError: The run and the traces are of different jobs.
    """
    names, on_progress = names or USUAL_NAMES, on_progress or show_nothing
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
    run = structs.replace(run, warnings=(*run.warnings, *left_out))
    if not beside:
        return run
    traced, failed = reduce_all(beside, names, on_progress, executor)
    failed += list_dark(traced)
    require_after(run.meta.started_utc, [item.claim for item in traced])
    run = attach_traces(run, [*own, *traced]) if own or traced else run
    return structs.replace(run, unread=(*run.unread, *failed))
