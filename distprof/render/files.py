"""The files of a report, written into the run folder."""

from __future__ import annotations

from pathlib import Path

from distprof.folder import write_json, write_whole
from distprof.render.html import render_html
from distprof.render.trace import render_trace
from distprof.report import Report, to_plain
from distprof.run import Run


def write_files(folder: Path, run: Run, report: Report) -> None:
    """Writes ``report.json``, ``report.html`` and ``trace.json.gz``, each whole or not at all.

    Raises:
        OSError: The folder cannot be written.
    """
    write_json(folder / "report.json", to_plain(report))
    write_whole(folder / "report.html", render_html(report))
    write_whole(folder / "trace.json.gz", render_trace(run))
