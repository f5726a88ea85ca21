"""`python -m distprof.capture [--per-rank] [nsys options] -- [KEY=VALUE ...]`: what `launch/nsys.sh` runs."""

from __future__ import annotations

import sys

from distprof.capture.command import USAGE
from distprof.capture.job import capture
from distprof.errors import DistprofError


def main() -> None:
    """Captures a job; leaves with a documented exit code."""
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(f"usage: {USAGE}\nThe options: nsys profile --help; the keys: python -m distprof --help")
        return
    try:
        sys.exit(capture(sys.argv[1:]))
    except DistprofError as error:
        print(f"distprof: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
