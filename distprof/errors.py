"""What a user can fix: one tree of errors, each with the exit code its message leaves with."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PARTIAL = 3


class DistprofError(Exception):
    """Something a user can fix. The message says what, where and what to do, in one line."""

    exit_code = EXIT_FAILED


class UsageError(DistprofError):
    """The command, a configuration key or a combination of them cannot work."""

    exit_code = EXIT_USAGE


class DataError(DistprofError):
    """A file is missing, damaged, or not what it claims to be."""
