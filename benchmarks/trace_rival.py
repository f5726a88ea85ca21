"""What `benchmarks.traces` times of HolisticTraceAnalysis: the same folder. Runs alone, where distprof need not be.

Prints one line of JSON. Its own default leaves the last step out; it is told to take every step, as distprof does.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time


def main(folder: str) -> None:
    """Loads, and asks for overlap and stragglers."""
    logging.disable(logging.CRITICAL)
    analysis = importlib.import_module("hta.trace_analysis").TraceAnalysis
    begin_s = time.perf_counter()
    traces = analysis(trace_dir=folder, include_last_profiler_step=True)
    overlap = traces.get_comm_comp_overlap(visualize=False)
    found: dict[str, object] = {
        "overlap": {
            str(rank): percent / 100
            for rank, percent in zip(overlap["rank"], overlap["comp_comm_overlap_pctg"], strict=True)
        }
    }
    try:
        found["stragglers"] = [int(rank) for rank in traces.get_potential_stragglers(num_candidates=1)]
    except Exception as error:  # the rest is worth its time
        found["failed"] = f"its straggler search failed: {type(error).__name__}: {error}"
    found["work_s"] = time.perf_counter() - begin_s
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
