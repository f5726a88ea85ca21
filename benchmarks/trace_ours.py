"""What `benchmarks.traces` times for distprof: reads and analyses a folder of traces. Prints one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from distprof.analyze import analyze
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.phase_names import NameMap


def main(folder: str) -> None:
    """Reads, analyses, and prints the overlap and the rank found."""
    begin_s = time.perf_counter()
    report = analyze(read_paths([Path(folder)], NameMap()))
    devices = report.activity.devices if report.activity is not None else ()
    found = {
        "overlap": {str(device.rank): device.overlap_ratio for device in devices},
        "stragglers": [] if report.verdict.rank is None else [report.verdict.rank],
        "work_s": time.perf_counter() - begin_s,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
