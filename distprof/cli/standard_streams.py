"""What stands between a command and whoever reads it: output that cannot be printed is dropped, and never ends a job.

Standard output may be a full disk, a pipe whose reader has gone, closed, or unable to say a letter. The files and the
exit code are what counts, so none of this is an error.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any, TextIO, cast

from distprof.config.redact import mask_known, secret_values
from distprof.errors import UsageError

NARROWEST, WIDEST = 20, 1_000
"""Columns that a report can be fitted to."""


class DroppingStream:
    """A text stream that never raises because of what lies behind it, and lets no secret through."""

    def __init__(self, stream: TextIO, secrets: Sequence[str]) -> None:
        """Writes to ``stream``, with these values masked."""
        self._stream, self._secrets = stream, secrets

    def write(self, text: str) -> int:
        """Writes, or drops."""
        with self._dropping():
            self._stream.write(mask_known(text, self._secrets))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes each, or drops."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Writes what is still held back, or drops it."""
        with self._dropping():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own."""
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:  # a reader that is slow, and not gone: only this is lost
            pass
        except OSError as error:
            self._drop_from_now_on()
            if not isinstance(error, BrokenPipeError) and self is sys.stdout:
                print(f"distprof: standard output is dropped: {error.strerror}", file=sys.stderr)

    def _drop_from_now_on(self) -> None:
        """Puts the null device in place: Python, libraries in C and children may write there too, now or at the end."""
        with contextlib.suppress(OSError):  # a stream without a file behind it
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


def guard_streams(arguments: Sequence[str]) -> None:
    """Makes standard output and error of this process ones that never fail.

    Args:
        arguments: The command line, searched for secrets to mask.
    """
    _open_closed()
    _forget_absurd_sizes(os.environ)
    secrets = secret_values(arguments)
    sys.stdout, sys.stderr = (_guard(stream, secrets) for stream in (sys.stdout, sys.stderr))


def require_width(width: int | None) -> None:
    """Refuses a ``--width`` that nothing can be fitted to.

    Raises:
        UsageError: It is too small or too large.
    """
    if width is not None and not NARROWEST <= width <= WIDEST:
        raise UsageError(f"--width {width}: must be {NARROWEST} or more, and at most {WIDEST}")


def _guard(stream: TextIO | None, secrets: Sequence[str]) -> TextIO:
    if stream is None:  # closed before Python began
        return io.StringIO()
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return cast(TextIO, DroppingStream(stream, secrets))


def _open_closed() -> None:
    """Or the next file that is opened, a rank's records, becomes the standard output of every library in C."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _forget_absurd_sizes(environment: MutableMapping[str, str]) -> None:
    """Without them the terminal is asked, or 80 columns are taken; with them nothing is printed, or no end of it."""
    for name, least, most in (("COLUMNS", NARROWEST, WIDEST), ("LINES", 2, 10_000)):
        text = environment.get(name)
        if text is not None and not (text.isascii() and text.isdigit() and least <= int(text[:9]) <= most):
            del environment[name]
