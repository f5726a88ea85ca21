"""Errors that a user can fix, each with its exit code."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PARTIAL = 3
EXIT_WORSE, EXIT_INCONCLUSIVE = 4, 5
"""Of a comparison with a limit."""
CUT = " ..."
"""In place of the rest of a line that is too long."""


class DistprofError(Exception):
    """An error that a user can fix. The message says in one line what is wrong, where, and what to do."""

    exit_code = EXIT_FAILED


class UsageError(DistprofError):
    """The command or the configuration cannot work."""

    exit_code = EXIT_USAGE


class DataError(DistprofError):
    """A file is missing, damaged, or not what it claims to be."""


class TableError(DataError):
    """A table of operations says what cannot be: the message names the column and the row."""

    exit_code = EXIT_PARTIAL


def describe_error(error: BaseException) -> str:
    """The kind of an error, and the first line of what it says, cut at 200 characters."""
    return f"{type(error).__name__}: {read_first_line(error)}"


def read_first_line(error: BaseException, max_letters: int = 200) -> str:
    """The first line of what an error says, cut; empty if it says nothing, or fails to."""
    try:
        said = str(error)
    except Exception:  # an error of a script's own kind
        return ""
    line = (said.strip().splitlines() or [""])[0]
    return line if len(line) <= max_letters else f"{line[: max_letters - len(CUT)]}{CUT}"
