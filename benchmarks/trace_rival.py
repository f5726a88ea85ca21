"""What `benchmarks.traces` times for HolisticTraceAnalysis: the same folder. Runs alone, possibly without distprof.

Prints one line of JSON. By default the tool leaves out the last step; here it uses every step, as distprof does.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time


def main(folder: str) -> None:
    """Loads the traces, and computes overlap and stragglers."""
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
    except Exception as error:  # the remaining results are still worth comparing
        found["failed"] = f"its straggler search failed: {type(error).__name__}: {error}"
    found["work_s"] = time.perf_counter() - begin_s
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
