"""Makes standard output and error safe: output that cannot be printed is dropped, and never ends a job.

Standard output may be a full disk, a pipe without a reader, closed, or unable to encode a character. None of this is an
error, since what counts are the files and the exit code.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any, TextIO, cast

from distprof.config.redact import mask_known, secret_values

NARROWEST, WIDEST = 20, 1_000
"""Widths in columns that a report can have."""


class DroppingStream:
    """A text stream that never raises because of its target, and masks secrets."""

    def __init__(self, stream: TextIO, secrets: Sequence[str]) -> None:
        self._stream, self._secrets = stream, secrets

    def write(self, text: str) -> int:
        """Writes the text, or drops it."""
        with self._dropping():
            self._stream.write(mask_known(text, self._secrets))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes each line, or drops it."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Writes what is buffered, or drops it."""
        with self._dropping():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        """Delegates everything else to the stream."""
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:  # the reader is slow but still there: only this text is lost
            pass
        except OSError as error:
            self._drop_from_now_on()
            if not isinstance(error, BrokenPipeError) and self is sys.stdout:
                print(f"distprof: standard output is dropped: {error.strerror}", file=sys.stderr)

    def _drop_from_now_on(self) -> None:
        """Substitutes the null device: Python, C libraries and children may still write there, now or at the end."""
        with contextlib.suppress(OSError):  # the stream has no file
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


def guard_streams(arguments: Sequence[str]) -> None:
    """Makes this process' standard output and error never fail.

    Args:
        arguments: The command line, searched for secrets to mask.
    """
    _open_closed()
    _forget_absurd_sizes(os.environ)
    secrets = secret_values(arguments)
    sys.stdout, sys.stderr = (_guard(stream, secrets) for stream in (sys.stdout, sys.stderr))


def _guard(stream: TextIO | None, secrets: Sequence[str]) -> TextIO:
    if stream is None:  # it was closed before Python started
        return io.StringIO()
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return cast(TextIO, DroppingStream(stream, secrets))


def _open_closed() -> None:
    """Otherwise the next file opened, such as a rank's records, would be the standard output of every C library."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _forget_absurd_sizes(environment: MutableMapping[str, str]) -> None:
    """Unset, the terminal is asked or 80 columns are used; absurd values would print nothing, or endlessly much."""
    for name, least, most in (("COLUMNS", NARROWEST, WIDEST), ("LINES", 2, 10_000)):
        text = environment.get(name)
        if text is not None and not (text.isascii() and text.isdigit() and least <= int(text[:9]) <= most):
            del environment[name]
