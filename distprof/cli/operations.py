"""Reports a table of operations, with ``distprof report``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from distprof.analyze.pipeline.report_operations import report_operations
from distprof.cli.options import write_into, write_picture
from distprof.errors import EXIT_OK, EXIT_PARTIAL, TableError
from distprof.render.files.operations_files import write_operations_files
from distprof.render.terminal.operations_screen import render_operations
from distprof.render.terminal.screen import name_command, name_folder
from distprof.traces.operations.read_operations import read_operations


def report_table(
    path: Path, *, out: Path | None, console: Console, details: bool, picture: Path | None = None, pftrace: bool = False
) -> int:
    """Reads, analyses, writes and shows. Returns the exit code: 3 if a step is not whole, or a file is not written.

    Args:
        path: The table.
        out: Where its files go. None: nowhere.
        console: Where it is shown.
        details: Everything, not one screen.
        picture: Where a typical step is drawn. None: nowhere.
        pftrace: Whether the timeline is written in Perfetto's own format, too.

    Raises:
        DataError: It is not a table of operations, or is damaged.
    """
    operations = read_operations(path)
    try:
        report = report_operations(operations, path.name)
    except TableError as error:
        raise TableError(f"{path}: {error}") from None
    write = partial(write_operations_files, operations=operations, report=report, pftrace=pftrace)
    written = None if out is None else write_into(out, write)
    if picture is not None:
        write_picture(picture, report.timelines)
    place = (
        f"{', '.join(written.names)} in {name_folder(out)}; " if out is not None and written and written.names else ""
    )
    render_operations(report, console, details=details, end=f"{place}all of it: {name_command(path)}")
    return EXIT_OK if report.complete and (written is None or written.whole) else EXIT_PARTIAL
