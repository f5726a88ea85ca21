"""What Weights & Biases gets at the end of a job beside numbers: the report's files, and an alert."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from distprof.render.sections.cause_words import KINDS, find_told, name_cause
from distprof.render.sections.verdict import describe_verdict
from distprof.render.units import clean_text, format_bytes
from distprof.report.report import Report

ARTIFACT_TYPE = "distprof-report"
FILES = ("report.html", "report.json", "trace.json.gz")
MAX_FILE_BYTES = 200 << 20
"""A larger file is not attached: uploading it would hold the end of the job up."""
TITLE_LIMIT, TEXT_LIMIT = 100, 1000


def word_alert(report: Report) -> tuple[str, str] | None:
    """The title and text of the alert that a critical verdict is worth. None: the verdict is not critical."""
    if not report.verdict.critical:
        return None
    told = find_told(report)
    what = KINDS[report.verdict.kind] if told is None else name_cause(told)
    title = clean_text(f"{report.name}: critical: {what}", TITLE_LIMIT)
    return title, clean_text(describe_verdict(report), TEXT_LIMIT)


def keep_files(folder: Path, target: Path, say: Callable[[str], None]) -> list[Path]:
    """Keeps the report's files as they are now beside the rest of the W&B run, so that a later upload finds them.

    They take no more space where the file system knows hard links: a report that is made again is a new file.

    Args:
        folder: The run folder.
        target: Where wandb keeps the run.
        say: Says a line to the user.

    Returns:
        The files kept: those that were written and are not too large.
    """
    kept = []
    for name in FILES:
        source, copy = folder / name, target / "artifact" / name
        if not source.is_file():
            continue
        if (size := source.stat().st_size) > MAX_FILE_BYTES:
            say(f"wandb: {name} is not attached, {format_bytes(size)} are too large; {source} has it")
            continue
        copy.parent.mkdir(exist_ok=True)
        try:
            os.link(source, copy)
        except OSError:
            shutil.copyfile(source, copy)
        kept.append(copy)
    return kept
