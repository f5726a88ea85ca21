"""The training command with another profiler around it.

python -m distprof.cli.bench.wrapped PROFILER KEY=VALUE ...
"""

from __future__ import annotations

import sys
from typing import Any


def wrap(profiler: str) -> Any:
    """Another profiler as its users put it around a program, with its own defaults; it records every step."""
    if profiler == "torch.profiler":
        from torch.profiler import profile

        return profile()
    if profiler == "pyinstrument":
        from pyinstrument import Profiler

        return Profiler()
    if profiler == "viztracer":
        from viztracer import VizTracer

        return VizTracer(verbose=0, output_file="/dev/null")
    raise ValueError(f"no such profiler: {profiler}")


def main() -> None:
    """Trains under the profiler that the first argument names; what it recorded is thrown away."""
    profiler, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments  # Hydra reads them there
    from distprof.cli.train import run_training

    with wrap(profiler):
        run_training(arguments)


if __name__ == "__main__":
    main()
