"""`python -m distprof` and `distprof`: a verb, or else a training job configured by Hydra."""

from __future__ import annotations

import os
import sys

from distprof.cli.standard_streams import guard_streams


def main() -> None:
    """Runs the command line. Verbs do not load torch; a training job loads everything.

    Without arguments it shows what there is, but for a launcher, which starts jobs and nothing else: there it trains.
    """
    arguments = sys.argv[1:]
    if not arguments and "RANK" not in os.environ:
        arguments = ["--help"]
    guard_streams(arguments)
    if arguments and arguments[0].replace("-", "_").isidentifier() and arguments[0][0] != "-":
        from distprof.cli.parser import run_verb

        sys.exit(run_verb(arguments))
    from distprof.record.signals import watch_signals

    signals = watch_signals()  # loading torch takes seconds, and a signal may come before
    from distprof.cli.train import leave_now, run_training

    run_training(arguments, signals)
    leave_now(0)


if __name__ == "__main__":
    main()
