"""Replays recorded steps one after the other: what a rank is late at the end of one, it is at the begin of the next."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.pipeline.replay import Replay
from distprof.facts.arrays import BoolArray, FloatArray, IntArray

ROUNDS = 4
"""How often steps are replayed until their begins agree with the ends before them: ranks that wait for each other in
each step forget within a few how far apart they began."""
CLOSE_NS = 1e3


class ChainedReplay(Struct, frozen=True, kw_only=True):
    """A replay whose steps take as long as from their ranks' begin to their end, the mean over ranks: over consecutive
    steps that sums to the time that passed."""

    replay: Replay
    begins: IntArray
    """As `distprof.analyze.pipeline.thread_graph.ThreadGraph`; so are ``ends``."""
    ends: IntArray
    follows: BoolArray
    """Whether the step before each is here, ``[num_steps]``."""

    def compute_steps(self, work_ns: FloatArray) -> FloatArray:
        """How long each step takes, ``[num_steps]``."""
        work_ns = work_ns.copy()
        recorded_ns = work_ns[self.begins]
        begin_ns, spent_ns = recorded_ns, np.zeros(len(recorded_ns))
        after = np.flatnonzero(self.follows)
        for _ in range(ROUNDS):
            work_ns[self.begins] = begin_ns
            _, all_ns = self.replay.compute_times(work_ns)
            end_ns = all_ns[self.ends]
            spent_ns = (end_ns - begin_ns).mean(axis=1)
            next_ns = recorded_ns.copy()
            next_ns[after] = end_ns[after - 1] - end_ns[after - 1].min(axis=1, keepdims=True)
            if np.abs(next_ns - begin_ns).max(initial=0.0) < CLOSE_NS:
                break
            begin_ns = next_ns
        return spent_ns
