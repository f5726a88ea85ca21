"""Do ranks wait for each other because they get different amounts of data? What a rank's tokens explain of its times.

The time per token comes from how a rank's times follow its tokens from step to step. It then also explains a rank that
always has more tokens than the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.causes.token_slope import centre, find_slope
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.replay.candidate import Suspect
from distprof.analyze.replay.counterfactual import Removal
from distprof.analyze.stats.measured_steps import BoolArray, MeasuredSteps
from distprof.facts.run import OWN_PARTS, FloatArray
from distprof.report.wait_report import VerdictKind

MAX_CHANCE = 0.005
"""Of finding unequal data where tokens cost no time: family-wise over the parts."""
MAX_GAP_CHANCE = 0.05
"""Of a single gap's share, once a part has shown that tokens cost time."""
MIN_VARIED = 1e-4
"""Share of the tokens by which they must differ between ranks in the usual step."""
MAX_VALUES = 100_000
"""A regression looks at so many values of ranks and steps, evenly spaced; more would not make it surer ..."""
MIN_STEPS = 50
"""... but at this many steps at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnequalData:
    """What different amounts of data explain."""

    ns_per_token: FloatArray
    """By own part, ``[num_parts]``; 0: none that chance does not explain."""
    explained_ns: FloatArray
    """Of a rank's own parts, against a rank with the step's median tokens, ``[num_ranks, num_cycles, num_parts]``."""
    gap_ns: FloatArray
    """The same of the own time before each collective, ``[num_ranks, num_cycles, num_collectives]``."""
    r2: float
    """Share of the variance of own time between ranks within steps that tokens explain, 0 to 1."""
    suspect: Suspect
    """Gives every rank the mean tokens of the step: the work stays the same."""


def find_unequal_data(measured_steps: MeasuredSteps, cycles: SyncCycles) -> UnequalData | None:
    """Regresses the ranks' own times on their tokens; None: tokens are equal, not known, or cost no time."""
    tokens = measured_steps.run.column("tokens")[np.ix_(cycles.positions, cycles.steps)]
    known: BoolArray = np.logical_and.reduce(np.isfinite(tokens), axis=0)
    if known.sum() < MIN_CYCLES or len(tokens) < 2:
        return None
    looked = _choose_steps(known, len(tokens))
    varied = centre(tokens[:, looked])
    if np.sqrt(np.mean(varied**2)) <= MIN_VARIED * tokens[:, looked].mean():  # 0 and 0: not counted
        return None
    chances = [_regress(cycles.phase_ns[:, looked, part], varied) for part in range(cycles.phase_ns.shape[2])]
    measured = sum(np.isfinite(slope) for slope, _ in chances)
    slopes = np.array([slope if chance * measured < MAX_CHANCE else 0.0 for slope, chance in chances])
    if not slopes.any():
        return None
    gaps = [_regress(cycles.gap_ns[:, looked, index], varied) for index in range(cycles.gap_ns.shape[2])]
    gap_slopes = np.array([slope if chance < MAX_GAP_CHANCE else 0.0 for slope, chance in gaps])
    tokens = np.where(known, tokens, 0.0)
    more = tokens - np.median(tokens, axis=0)
    return UnequalData(
        ns_per_token=slopes, explained_ns=more[:, :, None] * slopes, gap_ns=more[:, :, None] * gap_slopes,
        r2=_find_r2(cycles.phase_ns[:, known], tokens[:, known], slopes),
        suspect=_suspect(tokens, slopes, gap_slopes),
    )  # fmt: skip


def _choose_steps(known: BoolArray, num_ranks: int) -> BoolArray:
    every = max(1, min(-(-int(known.sum()) * num_ranks // MAX_VALUES), int(known.sum()) // MIN_STEPS))
    looked = np.zeros_like(known)
    looked[np.flatnonzero(known)[::every]] = True
    return looked


def _regress(own_ns: FloatArray, tokens: FloatArray) -> tuple[float, float]:
    """Time per token and its chance; NaN and 1 for a part that was not measured or took no time."""
    if not np.isfinite(own_ns).all() or not own_ns.any():
        return np.nan, 1.0
    slope = find_slope(own_ns, tokens)
    return slope.ns_per_token, slope.chance


def _find_r2(phase_ns: FloatArray, tokens: FloatArray, slopes: FloatArray) -> float:
    own_ns = np.nan_to_num(phase_ns).sum(axis=2)
    own_ns -= own_ns.mean(axis=0)
    rest_ns = own_ns - slopes.sum() * (tokens - tokens.mean(axis=0))
    return float(np.clip(1 - (rest_ns**2).sum() / (own_ns**2).sum(), 0, 1))


def _suspect(tokens: FloatArray, slopes: FloatArray, gap_slopes: FloatArray) -> Suspect:
    more = tokens - tokens.mean(axis=0)
    return Suspect(
        kind=VerdictKind.UNEQUAL_DATA, rows=np.empty(0, dtype=np.int64), part=OWN_PARTS[int(slopes.argmax())],
        acts=more.any(axis=0), removal=Removal(gap_ns=dict(enumerate(more[:, :, None] * gap_slopes))),
    )  # fmt: skip
