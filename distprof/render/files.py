"""The files of a report, written into the run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distprof.facts.run import Run
from distprof.render.html import render_html
from distprof.render.timeline import render_trace
from distprof.report.report import Report, to_plain
from distprof.storage.run_folder import write_json, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Which files were written."""

    names: tuple[str, ...]
    """The files that were written."""
    problem: str | None
    """Which were not written, and why. None: all were."""


def write_files(folder: Path, run: Run, report: Report) -> Written:
    """Writes ``report.html``, ``report.json`` and ``trace.json.gz``, each atomically; never raises OSError."""
    writers: dict[str, Callable[[Path], None]] = {
        "report.html": lambda path: write_whole(path, render_html(report)),
        "report.json": lambda path: write_json(path, to_plain(report)),
        "trace.json.gz": lambda path: write_whole(path, render_trace(run)),
    }
    failures: dict[str, str] = {}
    for name, write in writers.items():
        try:
            write(folder / name)
        except OSError as error:
            failures[name] = error.strerror or str(error)
    names = [name for name in writers if name not in failures]
    reasons = ", ".join(dict.fromkeys(failures.values()))
    problem = f"{', '.join(failures)} could not be written ({reasons})" if failures else None
    return Written(names=tuple(names), problem=problem)
