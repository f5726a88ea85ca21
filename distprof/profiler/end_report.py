"""The report at the end of a job, from its run folder. Loaded at that end, on the rank that makes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.run import Run
from distprof.render.files.files import Written, write_files
from distprof.render.sections.ends import describe_ends
from distprof.render.sections.hangs import describe_hang
from distprof.render.sections.headline import list_headline
from distprof.render.sections.verdict import describe_verdict
from distprof.report.report import Report
from distprof.storage.generations import find_root, number_folder
from distprof.storage.run_folder import complete_ends, read_meta, write_meta
from distprof.storage.safe_open import require_own
from distprof.traces.load_run import load_run

MOST_ENDS = 3
"""How many different ends of ranks are listed."""
MOST_SLICES = 3_000
"""Of a timeline: the job's end waits a fiftieth of a second for so many. ``distprof report`` writes 100 times as many.
"""


def report_job(
    folder: Path,
    completed_rows: Mapping[int, int] | None,
    *,
    strategy: str | None,
    precision: str | None,
    early: bool,
) -> list[str]:
    """Completes a run folder, writes its report, and returns the lines for the user.

    Args:
        folder: The run folder.
        completed_rows: As for `write_report`.
        strategy: As for `describe_job`.
        precision: As for `describe_job`.
        early: Whether the job has stopped early.

    Raises:
        DataError: The run folder is gone or damaged.
        OSError: Something else has taken its place, or it cannot be written.
    """
    describe_job(folder, strategy=strategy, precision=precision)
    _, report, written = write_report(folder, completed_rows)
    return [*summarize(report, early=early), name_files(find_root(folder), written)]


def write_report(folder: Path, completed_rows: Mapping[int, int] | None) -> tuple[Run, Report, Written]:
    """Reads a run back, with all kernel windows, and writes the report of its job.

    Args:
        folder: The run folder, of the job's newest generation.
        completed_rows: Steps by rank, if all ranks completed: see `distprof.storage.run_folder.complete_ends`.

    Raises:
        DataError: The run folder is gone or damaged.
        OSError: Something else has taken its place.
    """
    root = find_root(folder)
    require_own(root / "report.json")
    run = load_run(root)
    if run.generation == number_folder(folder):
        run = complete_ends(run, completed_rows)
    report = analyze(run)
    return run, report, write_files(root, run, report, most_slices=MOST_SLICES)


def describe_job(folder: Path, *, strategy: str | None, precision: str | None) -> None:
    """Brings ``run.json`` up to date with what became known only while the job ran; None: nothing did.

    Raises:
        DataError: The run folder is gone or damaged.
        OSError: It cannot be written.
    """
    require_own(folder / "run.json")
    meta = read_meta(folder)
    known = structs.replace(meta, strategy=strategy or meta.strategy, precision=precision or meta.precision)
    if known != meta:
        write_meta(folder, known)


def name_files(folder: Path, written: Written) -> str:
    """Where a report lies, and how to make it again."""
    again = f"again: distprof report {folder}" + ("" if written.problem is None else " --out FOLDER")
    return f"run folder: {folder}  ({'; '.join(filter(None, [', '.join(written.names), again]))})"


def summarize(report: Report, *, early: bool) -> list[str]:
    """A report in a sentence or two: how a job ended that stopped early, or whom it hung for; which rank the others
    wait for, or how long a step takes.
    """
    step, hang = list_headline(report)[0], describe_hang(report)
    usual = describe_verdict(report) or f"{step.label} {step.number}{step.text}"
    ends = "; ".join(describe_ends(report)[:MOST_ENDS]) if early else ""
    first, *rest = [hang] if hang else [ends, usual] if ends else [usual]
    return [f"stopped early; {first}" if early else first, *rest]
