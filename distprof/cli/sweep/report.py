"""Reports a sweep from its folder, at its end and with ``distprof report``, and writes the files of that report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from distprof.analyze.predict.sweep import JobSteps, list_values, measure_job, report_sweep_jobs
from distprof.cli.options import LONGEST_PATH, write_into
from distprof.errors import EXIT_OK, EXIT_PARTIAL, DataError
from distprof.facts.plain import make_plain
from distprof.render.files.column_files import NO_PARQUET, Columns, can_write_parquet, list_writers
from distprof.render.files.files import Written, write_each
from distprof.render.html.html import show_section
from distprof.render.html.page import make_page
from distprof.render.html.svg import draw_jobs
from distprof.render.markup import make_section, show
from distprof.render.sections.sweep_sections import list_sweep_sections
from distprof.render.terminal.terminal import render_sections
from distprof.render.units import clean_text
from distprof.report.sweep_report import SweepRatio, SweepReport
from distprof.storage.run_folder import read_run
from distprof.storage.sweep_folder import read_sweep, require_inside
from distprof.storage.whole_file import write_json, write_whole


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


def write_sweep_files(folder: Path, report: SweepReport) -> Written:
    """Writes every file of the report, each atomically; never raises OSError. Parquet only where pyarrow is."""
    tables = {"sweep_jobs": list_job_columns(report), "sweep_ratios": list_ratio_columns(report)}
    writers: dict[str, Callable[[Path], None]] = {
        "report.html": lambda path: write_whole(path, render_sweep_html(report)),
        "report.json": lambda path: write_json(path, make_plain(report)),
    }
    return write_each(folder, writers | list_writers(tables))


def render_sweep_html(report: SweepReport) -> str:
    """The report as one page."""
    sections = [show_section(section) for section in list_sweep_sections(report, with_pairs=True)]
    drawing = make_section("Step time by job", draw_jobs(report))
    started = f"<p>a sweep of {len(report.rows):,} jobs; started {show(report.started_utc)}</p>"
    head = f"<header><h1>{show(report.name)}</h1>{started}</header>"
    return make_page(show(report.name), "\n".join([head, *sections[:1], drawing, *sections[1:]]))


def list_job_columns(report: SweepReport) -> Columns:
    """One row per job, with the swept keys under their whole names."""
    names = report.rows[0].__struct_fields__ if report.rows else ()
    own = [name for name in names if name not in ("number", "settings")]
    return {
        "job": [row.number for row in report.rows],
        **{key: [row.settings[key] for row in report.rows] for key in report.keys},
        **{name: [getattr(row, name) for row in report.rows] for name in own},
    }


def list_ratio_columns(report: SweepReport) -> Columns:
    """One row per pair of jobs that differ in one key."""
    pairs = report.pairs
    return {
        "key": [pair.key for pair in pairs], "from": [pair.base for pair in pairs],
        "to": [pair.value for pair in pairs],
        "from_job": [pair.base_job for pair in pairs], "to_job": [pair.job for pair in pairs],
        **_spell("time", [pair.time for pair in pairs]),
        "from_spread_ratio": [pair.base_spread_ratio for pair in pairs],
        "to_spread_ratio": [pair.spread_ratio for pair in pairs],
        **_spell("throughput", [pair.throughput for pair in pairs]),
        **_spell("efficiency", [pair.efficiency for pair in pairs]),
        **_spell("predicted", [pair.predicted for pair in pairs]),
    }  # fmt: skip


def _spell(name: str, ratios: Sequence[SweepRatio | None]) -> dict[str, list[float | None]]:
    return {
        f"{name}_ratio": [None if ratio is None else ratio.value for ratio in ratios],
        f"{name}_low_ratio": [None if ratio is None else ratio.low for ratio in ratios],
        f"{name}_high_ratio": [None if ratio is None else ratio.high for ratio in ratios],
    }
