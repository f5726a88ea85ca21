"""How well the replay knows the recorded steps: by how much they differ from it where nothing is changed."""

from __future__ import annotations

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles, take_sample
from distprof.analyze.replay.replay import replay
from distprof.facts.arrays import FloatArray
from distprof.report.wait_report import ReplayError

WORST = 0.9
"""The quantile that is shown besides the median."""


def measure_replay_error(cycles: SyncCycles) -> ReplayError | None:
    """By how much the cycles, replayed as they are, differ from what they took; of a large job, some of them. None: it
    is not known how long they took."""
    sample = take_sample(cycles)
    replayed_ns, recorded_ns = replay(sample), sample.cycle_ns
    known = np.isfinite(replayed_ns) & np.isfinite(recorded_ns)
    return compare_lengths(replayed_ns[known], recorded_ns[known]) if known.any() else None


def explain_unlike(error: ReplayError) -> str:
    """Why nothing is said about what causes cost."""
    return (
        "replayed without a change, the steps differ from the recorded ones by "
        f"{100 * error.median_ratio:.0f} %, which is too much to say what a change would save"
    )


def compare_lengths(replayed_ns: FloatArray, recorded_ns: FloatArray) -> ReplayError:
    """The same of any steps, ``[num_steps]`` each."""
    errors = np.abs(replayed_ns / np.maximum(recorded_ns, 1.0) - 1)
    return ReplayError(median_ratio=float(np.median(errors)), worst_ratio=float(np.quantile(errors, WORST)))
