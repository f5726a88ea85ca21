"""`python -m distprof.cli.capture [options] -- [KEY=VALUE ...]`: what `launch/nsys.sh` runs."""

from __future__ import annotations

import os
import sys

from distprof.cli.capture.command import USAGE
from distprof.cli.capture.environment import clean_environment, refuse_secrets
from distprof.cli.capture.job import capture
from distprof.cli.standard_streams import guard_streams
from distprof.errors import DistprofError


def main() -> None:
    """Captures a job; exits with a documented code."""
    guard_streams(sys.argv[1:])
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(f"usage: {USAGE}\nThe options: nsys profile --help; the keys: python -m distprof --help")
        return
    try:
        _clean_this_process()
        sys.exit(capture(sys.argv[1:]))
    except DistprofError as error:
        print(f"distprof: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _clean_this_process() -> None:
    """Restarts this process without secrets, because nsys reads the environment of its parents too."""
    refuse_secrets(sys.argv[1:], os.environ)
    clean, dropped = clean_environment(os.environ)
    if dropped:
        text = f"kept out of the capture: {', '.join(dropped)} (nsys writes the environment into its report)"
        print(f"distprof: {text}", file=sys.stderr, flush=True)
        os.execve(sys.executable, [sys.executable, "-m", "distprof.cli.capture", *sys.argv[1:]], clean)


if __name__ == "__main__":
    main()
