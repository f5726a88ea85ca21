"""What would fixing it save? Replays the recorded steps with one thing changed."""

from __future__ import annotations

import numpy as np

from distprof.analyze.replay import replay
from distprof.analyze.slow_rank import SlowRank
from distprof.analyze.statistics import estimate
from distprof.analyze.sync_cycles import SyncCycles
from distprof.facts.run import OWN_PHASES, FloatArray, Phase
from distprof.report.wait_report import WhatIf

MIN_SAVED_RATIO = 0.001
"""Share of the step; a change that saves less is not listed."""
MAX_RANKS = 4096
"""The largest job that is extrapolated to."""


def list_what_ifs(
    cycles: SyncCycles | None, slow_rank: SlowRank | None, *, rank: int | None, tokens_per_s: float | None
) -> list[WhatIf]:
    """Every change that the facts allow, the largest saving first.

    Args:
        cycles: None: nothing to replay.
        slow_rank: The verdict's, if it names a rank.
        rank: Its global rank.
        tokens_per_s: Of the job as it ran.
    """
    if cycles is None or not len(cycles.steps):
        return []
    as_is_ns = replay(cycles)
    nothing = np.zeros_like(cycles.transfer_ns)
    found = [
        _report(cycles, as_is_ns, replay(cycles, transfer_ns=nothing), "perfect overlap", tokens_per_s,
                "transfers never hold a rank up; waiting for a late rank still does"),
        _report(cycles, as_is_ns, replay(cycles, gap_ns=_without_data(cycles)), "no data wait", tokens_per_s,
                "every batch is ready when it is asked for"),
    ]  # fmt: skip
    if slow_rank is not None:
        without_ns = as_is_ns - slow_rank.lost_ns
        excess_ns = slow_rank.usual_ns if slow_rank.steady else None
        found.append(
            _report(cycles, as_is_ns, without_ns, f"rank {rank} as fast as the others", tokens_per_s,
                    "its excess goes, its usual noise stays", excess_ns)
        )  # fmt: skip
    found = [item for item in found if item.saved_ratio.value >= MIN_SAVED_RATIO]
    found.sort(key=lambda item: -item.saved_ratio.value)
    return [*found, *_guess_sizes(cycles, as_is_ns, tokens_per_s)]


def _report(
    cycles: SyncCycles, as_is_ns: FloatArray, would_be_ns: FloatArray, change: str, tokens_per_s: float | None,
    assumption: str, excess_ns: FloatArray | None = None,
) -> WhatIf:  # fmt: skip
    would_be_ns = np.minimum(would_be_ns, as_is_ns)  # none of these can cost time: this is rounding
    now_ns, then_ns = float(as_is_ns.mean()), float(would_be_ns.mean())
    _, saved = estimate(as_is_ns - would_be_ns, now_ns, excess_ns)
    return WhatIf(
        change=change, step_ns=then_ns, saved_ratio=saved,
        tokens_per_s=None if tokens_per_s is None or then_ns <= 0 else tokens_per_s * now_ns / then_ns,
        rank_hours_per_day=24 * len(cycles.positions) * saved.value if saved.value > 0 else None,
        assumption=assumption,
    )  # fmt: skip


def _without_data(cycles: SyncCycles) -> FloatArray:
    """Own times without the data phase, which comes first and is removed from the front."""
    left_ns = np.nan_to_num(cycles.phase_ns[:, :, OWN_PHASES.index(Phase.DATA)])
    gap_ns = cycles.gap_ns.copy()
    for index in range(gap_ns.shape[2]):
        taken = np.minimum(gap_ns[:, :, index], left_ns)
        gap_ns[:, :, index] -= taken
        left_ns = left_ns - taken
    return gap_ns


def _guess_sizes(cycles: SyncCycles, as_is_ns: FloatArray, tokens_per_s: float | None) -> list[WhatIf]:
    """Half and twice the ranks, if one group holds them all: own times are drawn from the existing ranks."""
    count = len(cycles.positions)
    if any(len(parties) != 1 for parties in cycles.parties) or count < 4:
        return []
    found = []
    for size in (count // 2, count * 2):
        if not 2 <= size <= MAX_RANKS:
            continue
        then_ns = _replay_with(cycles, size)
        _, saved = estimate(as_is_ns - then_ns, float(as_is_ns.mean()))
        ratio = float(as_is_ns.mean() / then_ns.mean())
        found.append(
            WhatIf(
                change=f"{size} ranks", step_ns=float(then_ns.mean()), saved_ratio=saved,
                tokens_per_s=None if tokens_per_s is None else tokens_per_s * ratio * size / count,
                rank_hours_per_day=None,
                assumption="same work per rank, similar ranks, and a ring over similar links",
            )
        )  # fmt: skip
    return found


def _replay_with(cycles: SyncCycles, size: int) -> FloatArray:
    """Cycles with another number of ranks; the time of a ring grows with (ranks - 1) / ranks."""
    count = len(cycles.positions)
    scale = (size - 1) / size * count / (count - 1)
    draws = np.random.default_rng(size)
    total_ns = np.zeros(len(cycles.steps))
    rounds = 8 if count <= 64 else 1
    for _ in range(rounds):
        order = np.argsort(draws.random((count, len(cycles.steps))), axis=0)
        chosen = order[:size] if size <= count else draws.integers(count, size=(size, len(cycles.steps)))
        now = np.zeros((size, len(cycles.steps)))
        free = np.zeros_like(now)
        for index in range(cycles.gap_ns.shape[2]):
            now += np.take_along_axis(cycles.gap_ns[:, :, index], chosen, axis=0)
            took = np.take_along_axis(cycles.transfer_ns[:, :, index], chosen, axis=0)
            free = np.maximum(now.max(axis=0), free) + took * scale
            if cycles.blocking[index]:
                now = np.maximum(now, free)
        total_ns += np.median(now, axis=0)
    return total_ns / rounds
