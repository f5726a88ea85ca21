"""Whom the report would name if it were made of the last steps of a running job.

The test is the report's own, on less: these steps alone, and one wait per step instead of single collectives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.causes.find_causes import find_causes
from distprof.analyze.causes.verdict import choose_verdict
from distprof.analyze.cycles.sync_cycles import build_cycles, explain_shortage
from distprof.analyze.stats.measured_steps import choose_headline, choose_measured_steps, read_timing
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, ROW_WIDTH, Clock, RankInfo, Run, RunMeta

MOST_STEPS = 100
LEAST_STEPS = 24
"""With fewer it is not judged; of a job of many ranks no more than these are kept."""
MAX_ROWS = 8192
"""Of all ranks: what judging takes grows with them. 8 ranks take 12 ms of a core, and 8192 rows at most 0.1 s."""
APART_NS = 20e9
"""It is judged again after steps for so long, or when there have been twice as many."""


class LatestSteps:
    """The last steps of a job, and which rank holds the others up in them."""

    def __init__(self, meta: RunMeta, ranks: Sequence[RankInfo]) -> None:
        """Without a step so far.

        Args:
            meta: Of the job.
            ranks: Every rank, in order. Empty: they are not known, and none is ever named.
        """
        self._meta, self._ranks = meta, tuple(ranks)
        self._most = max(LEAST_STEPS, min(MOST_STEPS, MAX_ROWS // max(len(ranks), 1)))
        self._rows = np.empty((len(ranks), 0, ROW_WIDTH))
        self._seen = self._judged_at = 0
        self._judged_ns = 0.0
        self.rank: int | None = None
        """Whom the report would name, as of the last judgement. None: nobody."""

    def add(self, rows: FloatArray) -> None:
        """Takes new whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        if len(self._ranks) < 2 or not rows.shape[1]:
            return
        self._rows = np.concatenate([self._rows, rows], axis=1)[:, -self._most :]
        self._seen += rows.shape[1]
        now_ns = float(rows[0, -1, COLUMN["begin_host_ns"]])
        due = self._seen >= 2 * self._judged_at or now_ns - self._judged_ns >= APART_NS
        if due and self._seen >= LEAST_STEPS:
            self._judged_at, self._judged_ns = self._seen, now_ns
            self.rank = _name_rank(Run(meta=self._meta, ranks=self._ranks, rows=self._rows))


def _name_rank(run: Run) -> int | None:
    """The rank in the verdict that these facts alone would give."""
    measured_steps = choose_measured_steps(run)
    headline = choose_headline(measured_steps, *(read_timing(measured_steps, clock) for clock in Clock))
    cycles = build_cycles(measured_steps, headline)
    short = explain_shortage(measured_steps, cycles)
    cause_costs = None if short else find_causes(measured_steps, cycles)
    return choose_verdict(measured_steps, cycles, cause_costs, short).rank
