"""`python -m distprof` and `distprof`: a verb, or else a training job configured by Hydra."""

from __future__ import annotations

import atexit
import gc
import os
import sys

from distprof.cli.standard_streams import guard_streams

READERS = ("report", "tables")
"""The verbs that read files and end. On a small trace, starting and ending Python would be most of their time."""
OBJECTS_BETWEEN_SEARCHES = 100_000
"""Objects made before Python looks for unused ones that refer to each other. A reader makes hardly any such."""


def main() -> None:
    """Runs the command line. Verbs do not load torch; a training job loads everything.

    Without arguments it shows what there is, but for a launcher, which starts jobs and nothing else: there it trains.
    """
    arguments = sys.argv[1:]
    if not arguments and "RANK" not in os.environ:
        arguments = ["--help"]
    guard_streams(arguments)
    if arguments and arguments[0].replace("-", "_").isidentifier() and arguments[0][0] != "-":
        ended = _prepare_reader() if arguments[0] in READERS else []
        from distprof.cli.parser import run_verb

        ended.append(run_verb(arguments))
        sys.exit(ended[0])
    from distprof.record.stalls.signals import watch_signals

    signals = watch_signals()  # loading torch takes seconds, and a signal may come before
    from distprof.cli.train import leave_now, run_training

    run_training(arguments, signals)
    leave_now(0)


def _prepare_reader() -> list[int]:
    """Makes a verb that reads start and end sooner. Returns a list that takes its exit code.

    A reader multiplies no matrices, so NumPy, which is imported later, starts no threads for them.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(OBJECTS_BETWEEN_SEARCHES)
    ended: list[int] = []
    atexit.register(_end_at_once, ended)  # callbacks run in reverse: all that are registered later come before it
    return ended


def _end_at_once(ended: list[int]) -> None:
    """Ends the process if its verb has ended: otherwise Python would first take every module apart."""
    if ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended[0])


if __name__ == "__main__":
    main()
