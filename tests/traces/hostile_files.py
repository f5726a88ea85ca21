"""Files that somebody could pass to ``distprof report``: each takes few bytes to make, and is meant to do harm."""

from __future__ import annotations

from tests.traces.hostile_exports import EXPORTS
from tests.traces.hostile_recipes import CANARY, EVIL_NAMES, Hostile, make_events, write_trace
from tests.traces.hostile_traces import RANKS, RUNS, SYSTEM, TRACES

__all__ = ["CANARY", "CORPUS", "EVIL_NAMES", "Hostile", "make_events", "write_trace"]

CORPUS = (*TRACES, *SYSTEM, *RANKS, *RUNS, *EXPORTS)
