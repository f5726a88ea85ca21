"""Options that several verbs have: numbers, ``--width``, the files that a verb could not read, and what it writes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.cli.standard_streams import NARROWEST, WIDEST
from distprof.errors import DistprofError, UsageError
from distprof.render.units import clean_text
from distprof.storage.remote import Place, put_files
from distprof.storage.whole_file import encode_json, write_whole

if TYPE_CHECKING:
    from distprof.render.files.files import Written
    from distprof.report.report import Report
    from distprof.report.step_timeline import StepTimeline

LONGEST_PATH = 1000
"""Length of a path, or of what is wrong with a file, in a message."""
MAX_UNREAD = 12
"""Files that get a line of their own."""


def add_number(
    parser: argparse.ArgumentParser, name: str, *, least: int, most: int | None = None, **options: Any
) -> None:
    """Adds an option that takes a whole number; any other value is a `UsageError`.

    Args:
        parser: The verb's.
        name: The option.
        least: The smallest number allowed.
        most: The largest. None: there is no limit.
        **options: What `argparse` takes besides.
    """

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or number < least or (most is not None and number > most):
            bounds = f"{least} or more" if most is None else f"{least} to {most}"
            raise UsageError(f"{name} {text}: must be a whole number, {bounds}")
        return number

    parser.add_argument(name, type=read, **options)


def add_width(parser: argparse.ArgumentParser) -> None:
    """Adds ``--width``, for what a terminal does not tell."""
    add_number(
        parser, "--width", least=NARROWEST, most=WIDEST, metavar="N", help="width in columns (default: the terminal's)"
    )


def require_folder(path: Path | bool | None, option: str = "--json") -> None:
    """Refuses, before measuring, a file of an option that could not be written afterwards.

    Raises:
        UsageError: Its folder does not exist.
    """
    if isinstance(path, Path) and not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: no such folder: create it, or choose another file")


def write_figures(path: Path, document: object) -> None:
    """Writes the file of ``--json FILE``, as `write_file` does."""
    write_file(path, encode_json(document), "--json")


def put_json(asked: Path | bool | None, document: object) -> bool:
    """Does what ``--json [FILE]`` asks: writes the file, as `write_file` does, or prints.

    Returns:
        Whether it was printed, so that nothing else belongs on the terminal.
    """
    if isinstance(asked, Path):
        write_figures(asked, document)
    elif asked:
        print(encode_json(document), end="")
    return asked is True


def write_file(path: Path, text: str, option: str) -> None:
    """Writes the file of an option: it is there complete or not at all, unless it is a link or no file, such as
    ``/dev/stdout``.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(path, text)
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror}): choose another file") from None


def write_into(folder: Place, write: Callable[[Path], Written]) -> Written:
    """Makes the folder of ``--out FOLDER``, writes into it, and says on standard error what cannot be written.

    What goes to a URL is written here first.
    """
    from distprof.render.files.files import Written  # brings the page with it: not for what writes nothing

    try:
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
            written = write(folder)
        else:
            import tempfile

            with tempfile.TemporaryDirectory(prefix="distprof-") as name:
                written = write(Path(name))
                put_files(Path(name), folder)
    except DistprofError as error:
        written = Written(names=(), problem=str(error).removeprefix(f"{folder}: "))
    except OSError as error:
        written = Written(names=(), problem=f"cannot be created ({error.strerror})")
    if written.problem is not None:
        print(f"distprof: {clean_text(folder, LONGEST_PATH)}: {written.problem}: choose another --out", file=sys.stderr)
    return written


def write_picture(path: Path, timelines: Sequence[StepTimeline], report: Report | None = None) -> None:
    """Writes the file of ``--picture FILE``: the first of these steps, with the ranks' coordinates of the report.

    Raises:
        UsageError: There is nothing to draw, or it cannot be written.
    """
    from distprof.render.html.picture_file import render_picture

    place = f"--picture {clean_text(path, LONGEST_PATH)}"
    if not timelines:
        raise UsageError(f"{place}: no measured step was kept that could be drawn: leave it out")
    try:
        write_whole(path, render_picture(timelines[0], report))
    except OSError as error:
        raise UsageError(f"{place}: cannot be written ({error.strerror}): choose another file") from None


def list_unread(unread: Sequence[str]) -> list[str]:
    """A line per file with the reason, and one line for the rest."""
    lines = [f"distprof: left out: {clean_text(reason, LONGEST_PATH)}" for reason in unread[:MAX_UNREAD]]
    more = len(unread) - MAX_UNREAD
    return lines if more <= 0 else [*lines, f"distprof: left out: {more:,} more"]
