"""Reports a sweep from its folder: at its end, and with ``distprof report``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from distprof.analyze.predict.sweep import JobSteps, list_values, measure_job, report_sweep_jobs
from distprof.cli.options import LONGEST_PATH, write_into
from distprof.errors import EXIT_OK, EXIT_PARTIAL, DataError
from distprof.render.files.column_files import NO_PARQUET, can_write_parquet
from distprof.render.files.sweep_files import write_sweep_files
from distprof.render.sections.sweep_sections import list_sweep_sections
from distprof.render.terminal.terminal import render_sections
from distprof.render.units import clean_text
from distprof.report.sweep_report import SweepReport
from distprof.storage.run_folder import read_run
from distprof.storage.sweep_folder import read_sweep, require_inside


def report_sweep(
    folder: Path, *, out: Path | None, console: Console, log: Callable[[SweepReport], None] | None = None
) -> int:
    """Reads, analyses, writes and shows. Returns the exit code: 3 if a job did not complete or a file is not written.

    Args:
        folder: The sweep's folder.
        out: Where its files go. None: nowhere.
        console: Where it is shown.
        log: Receives the report, too.

    Raises:
        DataError: It is not the folder of a sweep, or is damaged.
    """
    report = read_sweep_report(folder)
    written = None if out is None else write_into(out, partial(write_sweep_files, report=report))
    render_sections(f"sweep {clean_text(report.name)}", list_sweep_sections(report, with_pairs=False), console)
    if written is not None:
        text = ", ".join(written.names) + ("" if can_write_parquet() else f"; {NO_PARQUET}")
        console.print(
            f"sweep folder: {clean_text(out, LONGEST_PATH)}  ({text})", highlight=False, markup=False, soft_wrap=True
        )
    if log is not None:
        log(report)
    return EXIT_OK if report.complete and (written is None or written.whole) else EXIT_PARTIAL


def read_sweep_report(folder: Path) -> SweepReport:
    """Reads the sweep and, one after the other, the runs of its jobs; those that cannot be read get a note.

    Raises:
        DataError: It is not the folder of a sweep, or is damaged.
    """
    sweep = read_sweep(folder)
    steps: dict[int, JobSteps] = {}
    swept = list_values(sweep)
    notes = []
    for job in sweep.jobs:
        if job.folder is None:
            continue
        try:
            found = measure_job(read_run(require_inside(folder, job.folder)), swept)
        except (DataError, OSError) as error:
            if job.status == "completed":
                notes.append(f"job {job.number}: {error}")
            continue
        if found is not None:
            steps[job.number] = found
    return report_sweep_jobs(sweep, steps, notes)
