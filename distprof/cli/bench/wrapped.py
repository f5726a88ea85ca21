"""Runs the training command under another profiler.

python -m distprof.cli.bench.wrapped PROFILER KEY=VALUE ...
"""

from __future__ import annotations

import sys
from typing import Any


def wrap(profiler: str) -> Any:
    """Another profiler with its own defaults, as its users would run it; it records every step."""
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
    """Trains under the profiler named by the first argument; its recording is discarded."""
    profiler, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments  # Hydra reads them from there
    from distprof.cli.train import run_training

    with wrap(profiler):
        run_training(arguments)


if __name__ == "__main__":
    main()
